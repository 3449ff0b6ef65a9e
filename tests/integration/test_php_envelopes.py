"""Envelopes between the PHP of ``clients/php``, the Python of the package and a real broker."""

import base64
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import connect_blocking
from phpmq_lite.envelopes import codec
from phpmq_lite.envelopes import worker_app as apps
from phpmq_lite.envelopes.validation import validate
from phpmq_lite.envelopes.worker import WorkerLimits, run_worker
from tests.support.certificates import CertificateAuthority
from tests.support.envelope_cases import body, edit, with_meta
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.killing_proxy import KillingProxy
from tests.support.php_client import CLIENT, EXAMPLES, STRICT, PhpClient, PhpError, needs_php
from tests.support.programs import run_program
from tests.support.socket_client import AdminApi, SocketClient

pytestmark = [pytest.mark.acceptance, needs_php]

URN = "urn:babel:orders:created"
_numbers = count(1)


@pytest.fixture
def php(broker: BrokerProcess) -> Iterator[PhpClient]:
    with PhpClient(broker.phpmq[0]) as peer:
        yield peer


@pytest.fixture
def queue() -> str:
    return f"orders-{next(_numbers)}"


def command(script: str, *arguments: str) -> list[str]:
    return ["php", *STRICT, str(EXAMPLES / script), *arguments]


def php_run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of ``examples/php``; warnings of PHP fail the test."""
    done = run_program(command(script, *arguments))
    assert not re.search(r"^PHP |Warning|Notice|Deprecated", done.stderr, re.MULTILINE)
    return done


def work(queue: str, broker: BrokerProcess, *options: str) -> tuple[list[Any], list[Any]]:
    """Run ``worker.php`` until its queue is empty; return its output and its log."""
    done = php_run(
        "worker.php", "--stop-when-empty", "--timeout=1", *options, broker.phpmq[0], queue
    )
    assert done.returncode == 0, done.stderr
    return (
        [json.loads(line) for line in done.stdout.splitlines()],
        [json.loads(line) for line in done.stderr.splitlines()],
    )


def python_works(queue: str, broker: BrokerProcess) -> list[tuple[Any, Any]]:
    """Run the package's worker until the queue is empty; return the handled messages."""
    got: list[tuple[Any, Any]] = []
    app = apps.connect(broker.phpmq[0], queue=queue)

    @app.handler(URN)
    def handle(data: Any, meta: Any) -> None:
        got.append((data, meta))

    run_worker(app, limits=WorkerLimits(stop_when_empty=True), handle_signals=False)
    return got


def publish(broker: BrokerProcess, queue: str, *contents: bytes, ttl_s: int = 0) -> None:
    with SocketClient(broker.port) as peer:
        for content in contents:
            assert peer.confirm(queue, content, ttl_s) is None


def drained(broker: BrokerProcess, queue: str, number: int = 1) -> list[bytes]:
    with SocketClient(broker.port) as peer:
        peer.consume(queue, number)
        dispatches = peer.dispatches(number)
        peer.ack(*dispatches)
        peer.barrier()
    return [dispatch.content for dispatch in dispatches]


def ready(broker: BrokerProcess, queue: str) -> int:
    found: int = AdminApi(broker.admin[0]).queue(queue).get("ready", 0)
    return found


def live(broker: BrokerProcess, queue: str) -> list[str]:
    """Return the states of a queue's messages that are not settled."""
    items = AdminApi(broker.admin[0]).get("/api/v1/messages")["items"]
    states = ("ready", "scheduled", "dispatched", "blocked")
    return [m["state"] for m in items if m["queue"] == queue and m["state"] in states]


# -- the files


FILES = sorted((*CLIENT.rglob("*.php"), *EXAMPLES.rglob("*.php")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
def test_file_is_strict_and_without_a_syntax_error(path: Path) -> None:
    done = subprocess.run(["php", *STRICT, "-l", str(path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\ndeclare(strict_types=1);\n" in path.read_text(encoding="utf-8")


# -- PHP to Python, Python to PHP


def test_python_worker_handles_what_php_produced(broker: BrokerProcess, queue: str) -> None:
    data = {"order_id": 1042, "text": "Grüße, 世界 ☕ /", "e": {}, "l": [], "f": 1.0}
    sent = php_run("produce.php", broker.phpmq[0], queue, URN, json.dumps(data))
    assert (sent.returncode, sent.stderr) == (0, "")
    ((got, meta),) = python_works(queue, broker)
    assert got == data
    assert (meta["id"], meta["lang"], meta["queue"]) == (sent.stdout.strip(), "php", queue)


def test_php_worker_handles_what_python_produced(broker: BrokerProcess, queue: str) -> None:
    data = {"order_id": 1042, "text": "Grüße, 世界 ☕ /"}
    publish(broker, queue, codec.encode(codec.make(URN, data, queue=queue)))
    printed, log = work(queue, broker)
    assert printed == [{"order": data, "attempts": 0}]
    assert [line["event"] for line in log] == ["job.ack"]
    assert ready(broker, queue) == 0


def test_empty_list_of_php_is_empty_data_for_python(broker: BrokerProcess, queue: str) -> None:
    """php-sdk 1.9 writes every empty payload as ``[]``."""
    assert php_run("produce.php", broker.phpmq[0], queue, URN, "[]").returncode == 0
    written = with_meta(lang='"php"').replace(b'{"order_id":1042}', b"[]")
    with PhpClient(broker.phpmq[0]) as php:
        php.call("publish", written, queue)
    assert [data for data, _ in python_works(queue, broker)] == [{}, {}]


def test_php_worker_handles_an_empty_list_of_php_only(broker: BrokerProcess, queue: str) -> None:
    of_php = with_meta(lang='"php"').replace(b'{"order_id":1042}', b"[]")
    publish(broker, queue, of_php, body(data="[]"))
    printed, log = work(queue, broker)
    assert printed == [{"order": [], "attempts": 0}]
    assert [line["event"] for line in log] == ["job.ack", "job.dead_letter"]
    (record,) = drained(broker, f"{queue}.dlq")
    assert json.loads(record)["dead_letter"]["detail"] == "poison"


@pytest.mark.parametrize("arguments", [["{"], ["[1]"], ["5"], ["{}", "\xff"]], ids=str)
def test_producer_rejects_invalid_data(broker: BrokerProcess, arguments: list[str]) -> None:
    sent = [argument.encode("latin-1") for argument in arguments]
    done = subprocess.run(
        [*command("produce.php", broker.phpmq[0], "never", URN), *sent],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(
        rb"(DATA must be a JSON object|Syntax error|the envelope cannot .*)\n", done.stderr
    )
    assert done.stdout == b""


# -- bytes


def test_mebibyte_returns_unchanged(broker: BrokerProcess, php: PhpClient, queue: str) -> None:
    text = '\\u0000\\\\\\"H0100304P01☕\\u2028' * 40_000
    content = body(data=f'{{"text":"{text}","e":{{}}}}')
    assert len(content) > 1 << 20
    php.call("publish", content, queue)
    message = php.take(queue)
    assert message.body == content
    php.call("release", message.handle, php.recoded(content, 1), 0)
    again = php.take(queue)
    assert again.body == edit(content, attempts=b"1")
    php.call("ack", again.handle)
    assert php.call("memory") < 64 << 20


def test_binary_content_is_quarantined_unchanged(broker: BrokerProcess, queue: str) -> None:
    contents = [bytes(range(256)) * 4096, b"", b"\r\nH0100202", b"[1]", body()[:-1], b'{"raw":"x"}']
    publish(broker, queue, *contents)
    printed, log = work(queue, broker)
    assert printed == []
    assert {line["event"] for line in log} == {"job.dead_letter"}
    records = [json.loads(record) for record in drained(broker, f"{queue}.dlq", len(contents))]
    assert [raw_of(record) for record in records] == contents
    assert {record["dead_letter"]["reason"] for record in records} == {"poison"}


def raw_of(record: dict[str, Any]) -> bytes:
    raw: str = record["raw"]
    return base64.b64decode(raw) if record.get("raw_encoding") == "base64" else raw.encode()


def test_newer_version_is_quarantined_unchanged(broker: BrokerProcess, queue: str) -> None:
    content = with_meta(schema_version="2")
    publish(broker, queue, content)
    work(queue, broker)
    assert drained(broker, f"{queue}.dlq") == [content]


# -- retries and dead letters


def test_failed_message_waits_in_retry_and_comes_back_with_its_attempts(
    broker: BrokerProcess, php: PhpClient, queue: str
) -> None:
    content = body(data='{"e":{},"n":12345678901234567890}')
    publish(broker, queue, content, ttl_s=3600)
    message = php.take(queue)
    php.call("release", message.handle, php.recoded(content, 1), 1)
    assert php.reserve(queue, 0) is None
    assert live(broker, queue) == ["scheduled"]
    assert AdminApi(broker.admin[0]).queue(f"{queue}.retry") == {}
    again = php.take(queue)
    assert again.body == edit(content, attempts=b"1")
    assert (again.message_id, again.envelope["attempts"]) == (message.message_id, 1)
    assert 3_500 < again.ttl_s <= 3_600
    php.call("ack", again.handle)
    assert live(broker, queue) == []


def test_worker_tries_three_times_then_leaves_a_record(broker: BrokerProcess, queue: str) -> None:
    content = body(job='"urn:nobody"', data='{"e":{}}', attempts="-50")
    publish(broker, queue, content)
    _, log = work(queue, broker, "--delays=0", "--max-attempts=3")
    assert [(line["event"], line["attempt"]) for line in log] == [
        ("job.retry", 1), ("job.retry", 2), ("job.dead_letter", 3),
    ]  # fmt: skip
    (record,) = drained(broker, f"{queue}.dlq")
    head = edit(content, attempts=b"3")[:-1] + b',"dead_letter":'
    assert record.startswith(head)
    block = json.loads(record)["dead_letter"]
    assert block.pop("failed_at") > 1_700_000_000_000
    assert re.fullmatch("[0-9a-f]{32}", block.pop("message_id"))
    assert block == {
        "reason": "unknown_urn", "error": "no handler for urn:nobody",
        "exception": "UnexpectedValueException", "original_queue": queue, "attempts": 3,
        "lang": "python",
    }  # fmt: skip
    assert validate(record).problem is None


def test_dead_letter_leaves_one_record_and_its_cause_in_the_history(
    broker: BrokerProcess, php: PhpClient, queue: str
) -> None:
    publish(broker, queue, body())
    message = php.take(queue)
    block = {"reason": "failed", "detail": "card_declined", "error": "no money", "attempts": 1}
    php.call("deadLetter", message.handle, php.recoded(body(), 1, block))
    php.call("close")
    found = AdminApi(broker.admin[0]).get(f"/api/v1/messages/{message.message_id}")
    assert (found["state"], found["reason"]) == ("dead", "card_declined")
    assert ready(broker, f"{queue}.dlq") == 1


def test_php_record_is_redriven_unchanged(
    broker: BrokerProcess, php: PhpClient, queue: str
) -> None:
    content = body(data='{"e":{},"n":12345678901234567890}')
    publish(broker, queue, content)
    php.call("deadLetter", php.take(queue).handle, php.recoded(content, 3, {"reason": "failed"}))
    php.call("close")
    AdminApi(broker.admin[0]).post(f"/api/v1/dead/{queue}.dlq/redrive", {})
    assert drained(broker, queue) == [content]


@pytest.mark.parametrize("call", ["deadLetter", "release"])
def test_retry_and_dead_letter_of_a_killed_worker_are_stored_once(
    broker: BrokerProcess, queue: str, call: str
) -> None:
    """It died when its frame had arrived; no other worker gets the message meanwhile."""
    publish(broker, queue, body())
    died: list[PhpClient] = []
    more = () if call == "deadLetter" else (3600,)
    proxy = KillingProxy(broker.port, "Settle", "after", lambda: died[0].kill())
    with closing(proxy), PhpClient(f"127.0.0.1:{proxy.port}") as first:
        died.append(first)
        message = first.take(queue)
        payload = first.recoded(body(), 1, {"reason": "failed", "error": "no"})
        with suppress(AssertionError):  # it may be killed during the call
            first.call(call, message.handle, payload, *more)
    with PhpClient(broker.phpmq[0]) as php:
        assert php.reserve(queue, 0.2) is None
    expected = ([], ["ready"]) if call == "deadLetter" else (["scheduled"], [])
    assert (live(broker, queue), live(broker, f"{queue}.dlq")) == expected


# -- unique keys


def test_message_is_rescheduled_and_cancelled_by_its_unique_key(
    broker: BrokerProcess, php: PhpClient, queue: str
) -> None:
    def act(call: str, key: str, **time: Any) -> Any:
        return php.call("admin", broker.admin[0], None, call, queue, key, time)

    queue += " ü/"
    assert act("cancel", "k") is False  # without a queue
    php.call("publishWith", b"later", queue, {"delay": 3600, "uniqueKey": "k"})
    assert act("cancel", "other") is False
    assert act("reschedule", "k", deliverAt="2099-01-01T00:00+00:00") is True
    assert php.reserve(queue, 0.1, "reserveBytes") is None
    assert act("reschedule", "k") is True
    held = php.take(queue, "reserveBytes")
    with pytest.raises(PhpError, match=r"PhpmqException: http.*A consumer holds it"):
        act("cancel", "k")
    php.call("requeueBytes", held.handle, 60)
    assert act("cancel", "k") is True
    assert live(broker, queue) == []


@pytest.mark.parametrize("name", ["~tilde", ".."])
def test_queue_with_a_name_that_paths_escape_is_found(
    broker: BrokerProcess, php: PhpClient, name: str
) -> None:
    php.call("publishWith", b"later", name, {"delay": 3600, "uniqueKey": "k"})
    assert php.call("admin", broker.admin[0], None, "cancel", name, "k", {}) is True


def test_admin_that_is_none_is_named(php: PhpClient, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(PhpError, match=rf"ConnectionLost: {url}: Connection refused"):
        php.call("admin", url, "token", "cancel", "orders", "k", {})
    with pytest.raises(PhpError, match=r"PhpmqException: the URL is 127.0.0.1:9101"):
        php.call("admin", "127.0.0.1:9101", None, "cancel", "orders", "k", {})


# -- waiting, restarts, other ways in


def test_late_message_is_returned_later(broker: BrokerProcess, php: PhpClient, queue: str) -> None:
    assert php.reserve(queue, 0.01) is None
    publish(broker, queue, body())
    assert php.take(queue).body == body()


def test_close_returns_late_messages(broker: BrokerProcess, php: PhpClient, queue: str) -> None:
    assert php.reserve(queue, 0) is None
    publish(broker, queue, body(), b"second")
    php.call("close")
    assert drained(broker, queue, 2) == [body(), b"second"]


def test_client_reconnects_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, PhpClient(broker.phpmq[0]) as php:
        php.call("publish", body(), "orders")
        php.call("publish", body(attempts="1"), "orders")
        first = php.take("orders")
        broker.kill()
        broker.start()
        php.call("ack", first.handle)  # no longer held: done, and not sent again
        second = php.take("orders")
        assert second.body == body(attempts="1")
        broker.terminate()
        broker.start()
        php.call("release", second.handle, body(attempts="2"), 0)
        third = php.take("orders")
        assert third.body == body(attempts="2")
        php.call("ack", third.handle)
        assert php.reserve("orders", 0.2) is None


def test_php_worker_says_once_that_the_broker_is_away_and_that_it_is_back(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        line = command("worker.php", "--timeout=1", broker.phpmq[0], "orders")
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as worker:
            assert worker.stderr is not None
            with connect_blocking("127.0.0.1", broker.port) as client:
                client.publish_confirmed("orders", b"x")  # no envelope: the worker logs it
            assert worker.stderr.readline()
            broker.kill()
            assert "transport.failed" in worker.stderr.readline()
            broker.start()
            assert json.loads(worker.stderr.readline()) == {
                "event": "transport.back", "queue": "orders",
            }  # fmt: skip
            worker.terminate()


def test_sigterm_ends_a_busy_worker(broker: BrokerProcess, queue: str, tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.php"
    handlers.write_text(
        "<?php return ['urn:babel:orders:created' => function (array $data): void {"
        ' echo "began\\n"; posix_kill(getmypid(), SIGTERM); usleep(1000); echo "done\\n"; }];'
    )
    publish(broker, queue, body(), body())
    done = php_run("worker.php", f"--handlers={handlers}", broker.phpmq[0], queue)
    assert (done.returncode, done.stdout) == (0, "began\ndone\n")
    assert ready(broker, queue) == 1


def test_sigterm_ends_a_worker_that_waits(broker: BrokerProcess, queue: str) -> None:
    process = subprocess.Popen(
        command("worker.php", "--timeout=3600", broker.phpmq[0], queue), stdout=subprocess.PIPE
    )
    publish(broker, queue, body())
    assert process.stdout is not None
    assert process.stdout.readline() != b""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_unix_socket_leads_to_the_same_broker(tmp_path: Path) -> None:
    path = tmp_path / "phpmq.sock"
    with (
        broker_process(tmp_path / "data", "--listen", f"unix:{path}", listeners=2),
        PhpClient(f"unix:{path}") as php,
    ):
        php.call("publish", body(), "orders")
        assert php.take("orders").body == body()


def test_tls_accepts_the_right_certificate_only(tmp_path: Path) -> None:
    """8 MB go out and back, more than fits into any buffer at once."""
    authority = CertificateAuthority(tmp_path)
    cert, key = authority.make("server")
    other, _ = authority.make("other")
    flags = ("--set", f"tcp.tls_cert={cert}", "--set", f"tcp.tls_key={key}")
    content = body(data='{"text":"%s"}' % ("x" * 8_000_000))
    with broker_process(tmp_path / "data", *flags) as broker:
        address = f"tls://localhost:{broker.port}"
        with PhpClient(address, tls={"cafile": str(cert)}) as php:
            php.call("publish", content, "orders")
            message = php.take("orders")
            assert message.body == content
            php.call("ack", message.handle)
        for wrong_address, tls, said in (
            (address, {"cafile": str(other)}, "certificate verify failed; name the certificate"),
            (address, {"cafile": str(key)}, "cafile stream: .*; correct the file in tls"),
            (address, {"cafile": str(cert), "peer_name": "mq"}, "name `mq'; connect with a name"),
            *(
                (plain, {}, f"{address[6:]} uses TLS: use {address}, with tls: .'cafile' => FILE")
                for plain in (address[6:], f"tcp://{address[6:]}")
            ),
        ):
            with (
                PhpClient(wrong_address, tls=tls) as php,
                pytest.raises(PhpError, match=f"NotConnected: .*{said}"),
            ):
                php.call("publish", content, "orders")
    with broker_process(tmp_path / "plain", "--admin", "127.0.0.1:0") as broker:
        for port in (broker.port, int(broker.admin[0].rstrip("/").rpartition(":")[2])):
            with (
                PhpClient(f"tls://localhost:{port}") as php,
                pytest.raises(PhpError, match=r"NotConnected: .*use HOST:PORT without tls://"),
            ):
                php.call("publish", body(), "orders")
