"""A forked child shares neither keys nor sockets nor cleanup with its parent process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.client import BlockingClient, connect, connect_blocking
from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.envelopes.handlers import HandlerLoop
from phpmq_lite.envelopes.idempotency import IdempotencyDecision, SqliteIdempotencyStore
from phpmq_lite.envelopes.outbox import Outbox, SqliteOutboxStore, create_tables
from phpmq_lite.envelopes.producer import Producer
from phpmq_lite.envelopes.sqlite_file import open_file
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from tests.support.fork_server import BrokerProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CHILDREN = 4
EACH = 50  # messages of each child
LIMIT_S = 60  # a child that hangs is killed


def begin(work: Callable[[], object]) -> tuple[int, int]:
    """Fork a child that writes the result of ``work``, or its error, to a pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    signal.alarm(LIMIT_S)
    try:
        result = str(work())
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    os.write(writing, result.encode())
    os._exit(0)


def end(child: tuple[int, int]) -> str:
    """Return the result of a child; it is empty if the child was killed."""
    pid, reading = child
    with open(reading, "rb") as pipe:
        result = pipe.read().decode()
    os.waitpid(pid, 0)
    return result


def in_child(work: Callable[[], object]) -> str:
    return end(begin(work))


def stored_in(queue: str, broker: BrokerProcess) -> int:
    with connect_blocking("127.0.0.1", broker.port) as client:
        client.publish_confirmed(queue, b"the last one")
        for number, delivery in enumerate(client.consume(queue, credit=1_000)):
            delivery.ack()
            if delivery.body == b"the last one":
                return number
    raise AssertionError("unreachable")


# -- identity


def publish_each(client: BlockingClient, queue: str) -> None:
    with client:
        for number in range(EACH):
            client.publish_confirmed(queue, b"%d %d" % (os.getpid(), number))


def publish_all(client: BlockingClient, queue: str) -> None:
    with client:
        client.publish_many(queue, [b"%d %d" % (os.getpid(), number) for number in range(EACH)])


@pytest.mark.parametrize("publish", [publish_each, publish_all])
def test_clients_publish_everything_when_made_before_a_fork(
    broker: BrokerProcess, publish: Callable[[BlockingClient, str], None]
) -> None:
    queue = f"identity.{publish.__name__}"
    client = connect_blocking("127.0.0.1", broker.port)
    children = [begin(lambda: publish(client, queue)) for _ in range(CHILDREN)]
    assert [end(child) for child in children] == ["None"] * CHILDREN
    assert stored_in(queue, broker) == CHILDREN * EACH


def test_asyncio_clients_publish_everything_when_made_before_a_fork(broker: BrokerProcess) -> None:
    client = connect("127.0.0.1", broker.port)

    async def publish() -> None:
        async with client:
            for number in range(EACH):
                await client.publish_confirmed("asyncio", b"%d %d" % (os.getpid(), number))

    children = [begin(lambda: asyncio.run(publish())) for _ in range(CHILDREN)]
    assert [end(child) for child in children] == ["None"] * CHILDREN
    assert stored_in("asyncio", broker) == CHILDREN * EACH


def test_producers_publish_everything_when_made_before_a_fork(broker: BrokerProcess) -> None:
    producer = Producer(f"127.0.0.1:{broker.port}", queue="producer")

    def publish() -> None:
        with producer:
            for number in range(EACH):
                producer.publish("urn:babel:a:b", {"number": number})

    children = [begin(publish) for _ in range(CHILDREN)]
    assert [end(child) for child in children] == ["None"] * CHILDREN
    assert stored_in("producer", broker) == CHILDREN * EACH


def test_child_can_open_the_client_again_with_other_keys(broker: BrokerProcess) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        publish = [lambda: publish_each(client, "again")] * CHILDREN

        def reopen(work: Callable[[], object]) -> object:
            client.close()
            return work()

        children = [begin(lambda work=work: reopen(work)) for work in publish]  # type: ignore[misc]
        assert [end(child) for child in children] == ["None"] * CHILDREN
        for number in range(EACH):
            client.publish_confirmed("again", b"parent %d" % number)
    assert stored_in("again", broker) == (CHILDREN + 1) * EACH


def test_relays_share_no_lease_when_their_store_was_made_before_a_fork(tmp_path: Path) -> None:
    with closing(open_file(tmp_path / "shop.sqlite")) as connection:
        create_tables(connection)
        Outbox(connection, queue="orders").publish("urn:babel:a:b", {})
        store = SqliteOutboxStore(connection)
        assert len(store.lease_rows("orders", 10)) == 1
        assert in_child(lambda: len(store.lease_rows("orders", 10))) == "0"
        assert in_child(store.release) == "None"
        assert in_child(lambda: len(store.lease_rows("orders", 10))) == "0"
        assert len(store.lease_rows("orders", 10)) == 1


def test_child_does_not_release_the_claims_of_its_parent(tmp_path: Path) -> None:
    with closing(SqliteIdempotencyStore(tmp_path / "claims.sqlite")) as claims:
        assert claims.claim("a") is IdempotencyDecision.RUN
        assert in_child(lambda: claims.forget("a")) == "None"
        assert in_child(lambda: claims.claim("a").value) == "in flight"
        claims.forget("a")
        assert in_child(lambda: claims.claim("a").value) == "run"


# -- sockets


def consume_one(client: BlockingClient) -> bytes:
    return next(client.consume("sockets")).body


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.publish("sockets", b"child"),
        lambda client: client.publish_confirmed("sockets", b"child"),
        lambda client: client.publish_many("sockets", [b"child"] * 3),
        lambda client: Producer(client).publish("urn:babel:a:b", {}),
        consume_one,
    ],
    ids=["publish", "publish_confirmed", "publish_many", "producer", "consume"],
)
def test_open_client_names_the_fork_when_a_child_uses_it(
    broker: BrokerProcess, use: Callable[[BlockingClient], object]
) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        result = in_child(lambda: use(client))
        assert "ConnectionLostError" in result
        assert "fork" in result
        client.publish_confirmed("sockets", b"parent")
        assert stored_in("sockets", broker) == 1


def test_open_asyncio_client_names_the_fork_when_a_child_uses_it(broker: BrokerProcess) -> None:
    async def use() -> None:
        async with connect("127.0.0.1", broker.port) as client:
            await client.publish_confirmed("loop", b"parent")
            for publish in (client.publish, client.publish_confirmed):
                result = in_child(lambda publish=publish: asyncio.run(publish("loop", b"child")))  # type: ignore[misc]
                assert "ConnectionLostError" in result
                assert "fork" in result
            assert in_child(lambda: asyncio.run(client.close())) in ("None", "")
            await client.publish_confirmed("loop", b"parent")

    asyncio.run(use())
    assert stored_in("loop", broker) == 2


def test_asyncio_client_stays_open_when_a_child_ends_its_copy_of_the_loop(
    broker: BrokerProcess,
) -> None:
    """The loops of both processes have one epoll instance, which the child must not change."""

    async def use() -> None:
        async with connect("127.0.0.1", broker.port) as client:
            deliveries = client.consume("epoll")
            pid = os.fork()
            if not pid:
                signal.alarm(LIMIT_S)
                try:
                    await asyncio.sleep(0.05)  # what the child's copy of the loop still has to do
                    await client.close()
                finally:
                    os._exit(0)
            await asyncio.to_thread(os.waitpid, pid, 0)
            await client.publish_confirmed("epoll", b"parent")
            delivery = await anext(deliveries)
            assert delivery.body == b"parent"
            delivery.ack()

    asyncio.run(asyncio.wait_for(use(), LIMIT_S))


# -- cleanup


def test_child_ends_without_closing_the_connection_of_its_parent(broker: BrokerProcess) -> None:
    """The child leaves all its ``with`` blocks and loops, as it does after ``sys.exit``."""
    with connect_blocking("127.0.0.1", broker.port) as client:
        deliveries = client.consume("cleanup", credit=10)
        client.publish_many("cleanup", [b"1", b"2", b"3"])
        held = next(deliveries)

        def leave() -> None:
            deliveries.close()
            client.close()

        assert in_child(leave) == "None"
        held.ack()
        assert [next(deliveries).body for _ in range(2)] == [b"2", b"3"]


def test_child_receives_nothing_that_its_parent_has_received(broker: BrokerProcess) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        client.publish_many("received", [b"1", b"2", b"3"])
        deliveries = client.consume("received", credit=10)
        held = next(deliveries)
        assert held.body == b"1"
        assert "fork" in in_child(lambda: next(deliveries).body)
        assert "fork" in in_child(held.ack)
        assert next(deliveries).body == b"2"


def test_child_of_a_thread_s_consumer_has_its_own_client(broker: BrokerProcess) -> None:
    """The fork copies the lock and the wait of a thread that does not exist in the child."""
    with connect_blocking("127.0.0.1", broker.port) as client:
        deliveries = client.consume("thread")
        received: list[bytes] = []
        thread = threading.Thread(target=lambda: received.append(next(deliveries).body))
        thread.start()
        for _ in range(20):
            assert "fork" in in_child(lambda: client.publish_confirmed("thread", b"child"))
        client.publish_confirmed("thread", b"parent")
        thread.join()
        assert received == [b"parent"]


def test_program_started_with_preexec_leaves_the_connection(broker: BrokerProcess) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True)
        client.publish_confirmed("preexec", b"parent")
    assert stored_in("preexec", broker) == 1


def test_worker_settles_its_message_when_a_child_leaves_its_code(broker: BrokerProcess) -> None:
    link = WorkerConnection(client_from_url(f"phpmq://127.0.0.1:{broker.port}"))
    link.publish("worker", b"1")
    held = link.receive("worker", 10.0)
    assert held is not None

    def leave() -> None:
        held.dead_letter()
        link.return_messages("worker")
        link.close()

    assert in_child(leave) == "None"
    assert in_child(lambda: link.publish("worker", b"2")) == "None"  # over its own connection
    held.ack()
    second = link.receive("worker", 10.0)
    assert second is not None
    assert second.body == b"2"
    second.ack()
    link.close()
    assert stored_in("worker", broker) == 0
    assert stored_in("worker.dlq", broker) == 0


async def _answer() -> int:
    return 42


def test_child_runs_coroutines_in_its_own_loop() -> None:
    with closing(HandlerLoop()) as loop:
        assert loop.run(_answer()) == 42
        assert in_child(lambda: loop.run(_answer())) == "42"
        assert in_child(loop.close) == "None"
        assert loop.run(_answer()) == 42
