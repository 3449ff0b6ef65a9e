"""The PHP package and its worker as they were released in 0.1, with this broker."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from typing import Any

import pytest

from phpmq_lite import connect_blocking
from tests.support.envelope_cases import body, edit
from tests.support.fork_server import BrokerProcess
from tests.support.killing_proxy import KillingProxy
from tests.support.php_client import RELEASE_BEFORE, STRICT, PhpClient, needs_php
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = [pytest.mark.acceptance, needs_php]

_numbers = count(1)


@pytest.fixture
def former(broker: BrokerProcess) -> Iterator[PhpClient]:
    with PhpClient(broker.phpmq[0], RELEASE_BEFORE) as peer:
        yield peer


@pytest.fixture
def queue() -> str:
    return f"former-{next(_numbers)}"


def publish(broker: BrokerProcess, queue: str, content: bytes) -> None:
    with SocketClient(broker.port) as peer:
        assert peer.confirm(queue, content) is None


def live(broker: BrokerProcess, queue: str) -> list[str]:
    items = AdminApi(broker.admin[0]).get("/api/v1/messages")["items"]
    states = ("ready", "scheduled")
    return [m["state"] for m in items if m["queue"] == queue and m["state"] in states]


def test_retry_waits_in_its_queue_and_keeps_priority_group_and_unique_key(
    broker: BrokerProcess, former: PhpClient, queue: str
) -> None:
    named = {"priority": 7, "group": "customer-7", "uniqueKey": "invoice-7", "ttl": 3600}
    with PhpClient(broker.phpmq[0]) as php:
        php.call("publishWith", body(), queue, named)
        for attempt in (1, 2):
            message = former.take(queue)
            payload = former.recoded(message.body, attempt)
            former.call("release", message.handle, payload, 3)
            assert live(broker, queue) == ["scheduled"]
            php.call(
                "publishWith", b"another", queue, {"uniqueKey": "invoice-7"}
            )  # changes nothing
            assert live(broker, queue) == ["scheduled"]
        assert AdminApi(broker.admin[0]).queue(f"{queue}.retry") == {}
        last = php.take(queue)
        assert last.body == edit(body(), attempts=b"2")
        info = php.call("info", last.handle)
        assert (info["attempt"], info["priority"], info["group"]) == (1, 7, "customer-7")
        php.call("ack", last.handle)


def test_worker_tries_three_times_then_leaves_a_record(broker: BrokerProcess, queue: str) -> None:
    publish(broker, queue, body(job='"urn:nobody"'))
    handlers = RELEASE_BEFORE / "handlers.php"
    done = subprocess.run(
        [
            "php", *STRICT, str(RELEASE_BEFORE / "worker.php"), f"--handlers={handlers}",
            "--delays=1", "--timeout=3", "--stop-when-empty", broker.phpmq[0], queue,
        ],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    log: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["attempt"]) for line in log] == [
        ("job.retry", 1), ("job.retry", 2), ("job.dead_letter", 3),
    ]  # fmt: skip
    with connect_blocking("127.0.0.1", broker.port) as client:
        record = next(iter(client.consume(f"{queue}.dlq")))
        assert json.loads(record.body)["dead_letter"]["reason"] == "unknown_urn"
        record.ack()
    assert live(broker, queue) == []


@pytest.mark.parametrize("call", ["deadLetter", "release"])
def test_copy_of_a_killed_worker_with_other_bytes_is_stored_once(
    broker: BrokerProcess, queue: str, call: str
) -> None:
    """It died between receipt and settling; the second copy has another time or error."""
    publish(broker, queue, body())
    blocks: list[dict[str, Any]] = [{"reason": "failed", "error": text} for text in ("one", "two")]
    died: list[PhpClient] = []
    more = () if call == "deadLetter" else (3600,)
    proxy = KillingProxy(broker.port, "ReceiptFrame", "after", lambda: died[0].kill())
    with (
        closing(proxy),
        PhpClient(f"127.0.0.1:{proxy.port}", RELEASE_BEFORE) as first,
    ):
        died.append(first)
        message = first.take(queue)
        payload = first.recoded(body(), 1, blocks[0])
        with suppress(AssertionError):  # it may be killed during the call
            first.call(call, message.handle, payload, *more)
    with PhpClient(broker.phpmq[0], RELEASE_BEFORE) as php:
        again = php.take(queue)
        assert again.message_id == message.message_id
        php.call(call, again.handle, php.recoded(body(), 1, blocks[1]), *more)
        assert php.reserve(queue, 0) is None
    expected = ([], ["ready"]) if call == "deadLetter" else (["scheduled"], [])
    assert (live(broker, queue), live(broker, f"{queue}.dlq")) == expected


def test_delay_of_the_release_before_is_a_scheduled_message(
    broker: BrokerProcess, former: PhpClient, queue: str
) -> None:
    former.call("publish", body(), queue, 0, 3600)
    assert live(broker, queue) == ["scheduled"]
    assert AdminApi(broker.admin[0]).queue(f"{queue}.retry") == {}
