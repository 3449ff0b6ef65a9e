"""A worker's connection to a real broker that stops and restarts."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.client.session import Delivery
from phpmq_lite.envelopes.worker_connection import Settlement, WorkerConnection
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
    link.settle(held, Settlement.ACK)
    broker.start()
    assert taken(link).body == b"2"


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
        link.settle(delivery, Settlement.ACK)
    assert link.receive("q", 0.2) is None


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
    link.settle(first, Settlement.REQUEUE)
    assert taken(link).body == b"2"
