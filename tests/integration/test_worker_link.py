"""A worker's connection to a real broker that stops and restarts."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phpmq_lite import connect, connect_blocking
from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.client.delivery import Delivery
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.errors import ConnectionLostError
from tests.support.fork_server import BrokerProcess, broker_process

pytestmark = pytest.mark.acceptance


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data", "--admin", "none") as running:
        yield running


@pytest.fixture
def link(broker: BrokerProcess) -> Iterator[WorkerConnection]:
    link = WorkerConnection(client_from_url(f"phpmq://127.0.0.1:{broker.port}"))
    yield link
    link.close()


def taken(link: WorkerConnection, timeout_s: float = 10.0) -> Delivery:
    """Return the next message; reconnect after lost connections, as a worker does."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            found = link.receive("q", 0.5)
        except ConnectionLostError:
            continue
        if found is not None:
            return found
    raise AssertionError("nothing came")


def test_unsent_settlement_goes_first(broker: BrokerProcess, link: WorkerConnection) -> None:
    link.publish("q", b"1")
    link.publish("q", b"2")
    held = taken(link)
    broker.kill()
    with pytest.raises(ConnectionLostError):
        link.receive("other", 0.2)  # notices it
    held.ack()
    broker.start()
    assert taken(link).body == b"2"


@pytest.mark.parametrize("end", [BrokerProcess.terminate, BrokerProcess.kill], ids=["stop", "kill"])
@pytest.mark.parametrize("how", ["ack", "retry", "dead_letter"])
def test_job_of_a_blocking_client_is_done_once_when_its_broker_ends(
    broker: BrokerProcess, end: Callable[[BrokerProcess], object], how: str
) -> None:
    """The client does not know yet, so it sends the settlement to a socket that nobody reads."""
    with connect_blocking("127.0.0.1", broker.port) as client:
        client.publish_many("q", [b"1", b"2"])
        with client.consume("q", credit=1, info=True) as deliveries:
            held = next(deliveries)
            end(broker)
            broker.start()
            if how == "retry":
                held.retry(600, error="no")
            else:
                getattr(held, how)()
            following = next(deliveries)
    assert (held.body, following.body, following.attempt) == (b"1", b"2", 1)


def test_publish_continues_when_the_broker_is_back(
    broker: BrokerProcess, link: WorkerConnection
) -> None:
    link.publish("q", b"1", key=b"a")
    broker.kill()
    restart = threading.Timer(0.5, broker.start)
    restart.start()
    link.publish("q", b"1", key=b"a")
    link.publish("q", b"2", key=b"b")
    restart.join()
    for expected in (b"1", b"2"):
        delivery = taken(link)
        assert delivery.body == expected
        delivery.ack()
    assert link.receive("q", 0.2) is None


def away_lines(text: str, broker: BrokerProcess) -> list[str]:
    """Return what is said about the connection, without the reason of the loss."""
    target = f"127.0.0.1:{broker.port}"
    known = (f"the connection to {target} is lost", f"connected to {target} again")
    return [one for line in text.splitlines() for one in known if one in line]


def test_worker_says_once_that_the_broker_is_away_and_that_it_is_back(
    broker: BrokerProcess, link: WorkerConnection, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"1", b"2"):
        link.publish("q", body)
        taken(link).ack()
        broker.kill()
        for _ in range(3):
            with pytest.raises(ConnectionLostError):
                link.receive("q", 0.1)
        broker.start()
    link.publish("q", b"3")
    assert len(lines := away_lines(caplog.text, broker)) == 4
    assert lines[:2] == lines[2:] == sorted(lines[:2], reverse=True)


def test_consume_says_once_that_the_broker_is_away_and_that_it_is_back(
    broker: BrokerProcess,
) -> None:
    command = [sys.executable, "-m", "phpmq_lite", "consume", "q", "--create", "-n", "2"]
    url = f"phpmq://127.0.0.1:{broker.port}"
    with subprocess.Popen(
        [*command, "--url", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        with connect_blocking("127.0.0.1", broker.port) as client:
            client.publish_confirmed("q", b"1")
        assert process.stdout.readline() == "1\n"
        broker.kill()
        assert " is lost" in process.stderr.readline()
        broker.start()
        assert process.stderr.readline() == f"connected to 127.0.0.1:{broker.port} again\n"
        with connect_blocking("127.0.0.1", broker.port) as client:
            client.publish_confirmed("q", b"2")
        # Of the two, the first was not acknowledged yet: the last ones are settled together.
        assert process.stdout.readline() in ("1\n", "2\n")
        assert away_lines(process.stderr.read(), broker) == []


async def test_asyncio_client_says_once_that_the_broker_is_away_and_that_it_is_back(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect("127.0.0.1", broker.port) as client:
        await client.publish_confirmed("q", b"1")
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await client.publish_confirmed("q", b"2")
    assert len(away_lines(caplog.text, broker)) == 2


def test_take_ends_in_time_while_the_broker_is_away(broker: BrokerProcess) -> None:
    slept: list[float] = []
    link = WorkerConnection(client_from_url(f"127.0.0.1:{broker.port}"), sleep=slept.append)
    broker.kill()
    for _ in range(20):
        with pytest.raises(ConnectionLostError):
            link.receive("q", 0.3)
    assert max(slept) <= 0.3


def test_returned_message_keeps_its_position(link: WorkerConnection) -> None:
    link.publish("q", b"1")
    link.publish("q", b"2")
    assert taken(link).body == b"1"
    link.return_messages("q")
    first = taken(link)
    assert first.body == b"1"
    first.requeue()
    assert taken(link).body == b"2"
