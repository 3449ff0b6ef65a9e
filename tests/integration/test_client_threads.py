"""Threads share a client: each call keeps its own time limit, and closing ends all of them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from phpmq_lite.client import BlockingClient, Delivery, connect, connect_blocking
from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.client.core import Backoff
from phpmq_lite.envelopes.producer import Producer
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.errors import ClientError, ConnectionLostError
from phpmq_lite.protocol.frames import ClientFrame, Publish
from tests.support.fork_server import BrokerProcess
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(100)]

THREADS = 8
EACH = 100
LIMIT_S = 60.0


class Waiter(threading.Thread):
    """Consumes a queue without a limit and passes its deliveries on; ends with the client."""

    def __init__(self, client: BlockingClient, queue: str) -> None:
        super().__init__(daemon=True)  # a hanging thread must not hang the tests
        self.deliveries: SimpleQueue[Delivery] = SimpleQueue()
        self.error: BaseException | None = None
        self._consumer = client.consume(queue, credit=50)
        self.start()

    def run(self) -> None:
        try:
            for delivery in self._consumer:
                self.deliveries.put(delivery)
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        self.join(LIMIT_S)
        assert not self.is_alive()


def publish_confirmed(client: BlockingClient, queue: str, thread: int) -> None:
    for number in range(EACH):
        client.publish_confirmed(queue, b"%d %d" % (thread, number))


def publish_many(client: BlockingClient, queue: str, thread: int) -> None:
    bodies = [b"%d %d" % (thread, number) for number in range(EACH)]
    assert client.publish_many(queue, bodies, window=10) == EACH


def publish_plain(client: BlockingClient, queue: str, thread: int) -> None:
    for number in range(EACH):
        client.publish(queue, b"%d %d" % (thread, number))


def publish_envelopes(client: BlockingClient, queue: str, thread: int) -> None:
    producer = Producer(client, queue=queue)
    for number in range(EACH):
        producer.publish("urn:babel:a:b", {"thread": thread, "number": number})


@pytest.mark.parametrize(
    "publish", [publish_confirmed, publish_many, publish_plain, publish_envelopes]
)
def test_threads_publish_and_settle_while_one_waits_for_messages(
    broker: BrokerProcess, publish: Callable[[BlockingClient, str, int], None]
) -> None:
    queue = f"shared.{publish.__name__}"
    with connect_blocking("127.0.0.1", broker.port, timeout_s=LIMIT_S) as client:
        waiter = Waiter(client, queue)
        bodies: list[bytes] = []

        def use(thread: int) -> None:
            publish(client, queue, thread)
            for _ in range(EACH):
                delivery = waiter.deliveries.get(timeout=LIMIT_S)
                bodies.append(delivery.body)
                delivery.ack()

        with ThreadPoolExecutor(THREADS) as threads:
            for used in [threads.submit(use, thread) for thread in range(THREADS)]:
                used.result(LIMIT_S)
        assert len(set(bodies)) == len(bodies) == THREADS * EACH
        client.close()
        waiter.wait()
        assert waiter.error is None
    with connect_blocking("127.0.0.1", broker.port) as client:  # all of them are settled
        client.publish_confirmed(queue, b"the last one")
        assert next(client.consume(queue)).body == b"the last one"


def test_threads_share_a_client_when_connections_end(broker: BrokerProcess) -> None:
    backoff = Backoff(0.001, 0.01)
    with connect_blocking("127.0.0.1", broker.port, backoff=backoff) as client:
        waiter = Waiter(client, "ends")
        seen: set[bytes] = set()

        def use(thread: int) -> None:
            for number in range(20):
                client.publish_confirmed("ends", b"%d %d" % (thread, number))

        with ThreadPoolExecutor(THREADS) as threads:
            used = [threads.submit(use, thread) for thread in range(THREADS)]
            broker.kill()
            broker.start()
            for one in used:
                one.result(LIMIT_S)
            while len(seen) < THREADS * 20:
                delivery = waiter.deliveries.get(timeout=LIMIT_S)
                seen.add(delivery.body)
                delivery.ack()
        client.close()
        waiter.wait()


@pytest.mark.parametrize("is_reading", [True, False], ids=["silent", "not reading"])
async def test_each_thread_keeps_its_time_limit_while_one_waits_without(is_reading: bool) -> None:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if not is_reading and isinstance(frame, Publish):
            peer.transport.pause_reading()

    def use() -> None:
        with connect_blocking("127.0.0.1", scripted.port, timeout_s=0.3) as client:
            waiter = Waiter(client, "orders")
            body = bytes(1 << 20)

            def publish(_: int) -> None:
                with pytest.raises(TimeoutError):
                    client.publish_confirmed("orders", body)

            with ThreadPoolExecutor(THREADS) as threads:
                for used in [threads.submit(publish, each) for each in range(THREADS)]:
                    used.result(LIMIT_S)
            client.close()
            waiter.wait()
            assert waiter.error is None

    async with ScriptedBroker() as scripted:
        scripted.script = script
        await asyncio.to_thread(use)


async def test_closing_ends_all_calls_of_other_threads() -> None:
    def use() -> None:
        client = connect_blocking("127.0.0.1", broker.port, timeout_s=None)
        client.open()
        waiter = Waiter(client, "orders")
        with ThreadPoolExecutor(1) as threads:
            publishing = threads.submit(client.publish_confirmed, "orders", b"never answered")
            asyncio.run_coroutine_threadsafe(broker.next(Publish), loop).result(LIMIT_S)
            client.close()
            with pytest.raises(ConnectionLostError, match="closed"):
                publishing.result(LIMIT_S)
        waiter.wait()
        assert waiter.error is None

    loop = asyncio.get_running_loop()
    async with ScriptedBroker() as broker:
        broker.script = lambda peer, frame: None
        await asyncio.to_thread(use)


async def test_closing_ends_a_wait_for_a_broker_that_is_away() -> None:
    def use() -> None:
        client = connect_blocking("127.0.0.1", broker.port, backoff=Backoff(100, 100))
        client.open()
        waiter = Waiter(client, "orders")
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(LIMIT_S)
        client.close()
        waiter.wait()
        assert waiter.error is None

    loop = asyncio.get_running_loop()
    broker = ScriptedBroker()
    await broker.start()
    await asyncio.to_thread(use)


def test_closing_a_consumer_ends_the_wait_of_its_thread(broker: BrokerProcess) -> None:
    with connect_blocking("127.0.0.1", broker.port) as client:
        waiter = Waiter(client, "closed")
        client.publish_confirmed("closed", b"1")
        waiter.deliveries.get(timeout=LIMIT_S).ack()
        waiter._consumer.close()
        waiter.wait()
        assert waiter.error is None
        client.publish_confirmed("closed", b"2")


def test_threads_publish_over_the_connection_of_a_waiting_worker(broker: BrokerProcess) -> None:
    link = WorkerConnection(client_from_url(f"phpmq://127.0.0.1:{broker.port}"))
    bodies: list[bytes] = []

    def receive() -> None:
        while len(bodies) < THREADS * 20:
            delivery = link.receive("worker", LIMIT_S)
            assert delivery is not None
            bodies.append(delivery.body)
            delivery.ack()

    def publish(thread: int) -> None:
        for number in range(20):
            link.publish("worker", b"%d %d" % (thread, number))

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    with ThreadPoolExecutor(THREADS) as threads:
        for used in [threads.submit(publish, thread) for thread in range(THREADS)]:
            used.result(LIMIT_S / 2)  # less than the wait of `receive`
    receiver.join(LIMIT_S)
    assert len(set(bodies)) == THREADS * 20
    link.close()


# -- the asyncio client in a foreign thread


async def test_asyncio_client_raises_at_once_in_another_thread(broker: BrokerProcess) -> None:
    async with connect("127.0.0.1", broker.port) as client:
        await client.publish_confirmed("foreign", b"1")
        deliveries = client.consume("foreign")
        delivery = await anext(deliveries)
        for call in (
            lambda: asyncio.run(client.publish("foreign", b"2")),
            lambda: asyncio.run(client.publish_confirmed("foreign", b"2")),
            lambda: asyncio.run(client.publish_many("foreign", [b"2"])),
            lambda: asyncio.run(anext_of(deliveries)),
            lambda: client.consume("other"),
            lambda: asyncio.run(client.close()),
            delivery.ack,
        ):
            with pytest.raises(ClientError, match="event loop"):
                await asyncio.wait_for(asyncio.to_thread(call), LIMIT_S)
        delivery.ack()  # it is still open here
        await client.publish_confirmed("foreign", b"3")
        assert (await anext(deliveries)).body == b"3"


async def anext_of(deliveries: object) -> object:
    return await anext(deliveries)  # type: ignore[call-overload]


def test_asyncio_client_raises_at_once_in_another_loop(broker: BrokerProcess) -> None:
    client = connect("127.0.0.1", broker.port)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(client.open())
    with pytest.raises(ClientError, match="event loop"):
        second.run_until_complete(asyncio.wait_for(client.publish_confirmed("q", b""), LIMIT_S))
    first.run_until_complete(client.publish_confirmed("loops", b""))
    first.run_until_complete(client.close())
    first.close()
    second.run_until_complete(client.open())  # a closed client can be opened in another loop
    second.run_until_complete(client.publish_confirmed("loops", b""))
    second.run_until_complete(client.close())
    second.close()
