"""The blocking client against a peer on a real socket, which runs on the loop of the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from phpmq_lite.client import BlockingClient, Delivery, connect_blocking
from phpmq_lite.client.session import Backoff
from phpmq_lite.errors import ConnectionLostError, LocalProtocolError, PublishRefusedError
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Publish,
    Requeue,
)
from tests.support.certificates import tls_contexts
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer

IDS = [b"%032x" % number for number in range(100)]


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


def client_of(
    broker: ScriptedBroker, *, reconnect: bool = True, timeout_s: float = 60
) -> BlockingClient:
    """Return a client that comes back at once."""
    return connect_blocking(
        "127.0.0.1",
        broker.port,
        reconnect=reconnect,
        timeout_s=timeout_s,
        backoff=Backoff(0.001, 0.001),
    )


async def with_client(
    broker: ScriptedBroker, use: Callable[[BlockingClient], None], *, reconnect: bool = True
) -> None:
    """Run ``use`` in a thread, as the loop belongs to the broker."""

    def run() -> None:
        with client_of(broker, reconnect=reconnect) as client:
            use(client)

    await asyncio.to_thread(run)


def dispatch_on_consume(*bodies: bytes) -> Callable[[ScriptedPeer, ClientFrame], None]:
    """Script: each window is filled with these bodies, ids in order."""

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            for message_id, body in zip(IDS, bodies, strict=False):
                peer.dispatch(frame.queue, body, message_id, ttl_s=17)

    return script


async def test_client_publishes_without_receipt(broker: ScriptedBroker) -> None:
    def use(client: BlockingClient) -> None:
        for number in range(500):
            client.publish("orders", b"%d" % number, 60)

    await with_client(broker, use)
    got = [await broker.next(Publish) for _ in range(500)]
    assert got == [Publish("orders", b"%d" % number, 60, None) for number in range(500)]


async def test_confirmed_publish_returns_with_its_receipt(broker: ScriptedBroker) -> None:
    await with_client(broker, lambda client: client.publish_confirmed("orders", b"b", key=b"mine"))
    assert broker.stored == {b"mine": b"b"}


async def test_refused_publish_raises_the_reason(broker: ScriptedBroker) -> None:
    def refuse(peer: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        peer.answer(frame, "publishing is paused")

    def use(client: BlockingClient) -> None:
        with pytest.raises(PublishRefusedError, match="paused"):
            client.publish_confirmed("orders", b"body")
        with pytest.raises(PublishRefusedError):
            client.publish_many("orders", [b"body"] * 500, window=10)

    broker.script = refuse
    await with_client(broker, use)
    assert broker.frames.qsize() < 50


async def test_publish_many_goes_on_over_cuts(broker: ScriptedBroker) -> None:
    bodies = [b"%d" % number for number in range(3_000)]

    def use(client: BlockingClient) -> None:
        assert client.publish_many("orders", bodies, window=200) == 3_000

    broker.script = broker.vanishing(each=700)
    await with_client(broker, use)
    assert list(broker.stored.values()) == bodies
    assert len(broker.peers) > 3


async def test_lost_receipt_stores_nothing_twice(broker: ScriptedBroker) -> None:
    def store_and_vanish(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if len(broker.peers) <= 3 and isinstance(frame, Publish) and frame.key is not None:
            broker.stored.setdefault(frame.key, frame.content)
            peer.cut()
        else:
            broker.store(peer, frame)

    broker.script = store_and_vanish
    await with_client(broker, lambda client: client.publish_confirmed("orders", b"once"))
    assert list(broker.stored.values()) == [b"once"]
    assert len(broker.peers) == 4


async def test_large_writes_do_not_starve_large_reads(broker: ScriptedBroker) -> None:
    """Both sides have more to send than sockets hold: somebody must read."""

    def echo(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Publish):
            peer.dispatch("orders", frame.content, IDS[0])
        broker.store(peer, frame)

    def use(client: BlockingClient) -> None:
        with client.consume("orders") as deliveries:
            assert client.publish_many("orders", [bytes(1 << 20)] * 30, window=100) == 30
            assert sum(len(next(deliveries).body) for _ in range(30)) == 30 << 20

    broker.script = echo
    await with_client(broker, use)


async def test_consumer_gets_messages_and_ends_them(broker: ScriptedBroker) -> None:
    def use(client: BlockingClient) -> None:
        with client.consume("orders", credit=3) as deliveries:
            first, second, third = (next(deliveries) for _ in range(3))
            assert (third.queue, third.body, third.ttl_s) == ("orders", b"2", 17)
            first.ack()
            second.requeue(60)
            third.dead_letter()

    broker.script = dispatch_on_consume(b"0", b"1", b"2")
    await with_client(broker, use)
    assert [(await broker.frames.get())[1] for _ in range(5)] == [
        Consume("orders", 3),
        Acknowledge("orders", IDS[0]),
        Requeue("orders", IDS[1], 60),
        DeadLetter("orders", IDS[2]),
        Consume("orders", 0),
    ]


async def test_consumer_ends_when_nothing_came_in_time(broker: ScriptedBroker) -> None:
    fill = dispatch_on_consume(b"a", b"b")

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        fill(peer, frame)
        broker.store(peer, frame)

    def use(client: BlockingClient) -> None:
        deliveries = client.consume("orders", timeout_s=0)
        client.publish_confirmed("orders", b"body")  # its receipt comes behind them
        assert [delivery.body for delivery in deliveries] == [b"a", b"b"]

    broker.script = script
    await with_client(broker, use)


async def test_callback_gets_each_message_in_turn(broker: ScriptedBroker) -> None:
    got: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        got.append(delivery.body)
        delivery.ack()
        if len(got) == 2:
            raise KeyError

    def use(client: BlockingClient) -> None:
        with pytest.raises(KeyError):
            client.consume_with("orders", handle)
        assert not client.session.windows

    broker.script = dispatch_on_consume(b"a", b"b", b"c")
    await with_client(broker, use)
    assert got == [b"a", b"b"]


async def test_one_connection_consumes_several_queues(broker: ScriptedBroker) -> None:
    def use(client: BlockingClient) -> None:
        with client.consume("orders") as orders, client.consume("mails") as mails:
            assert (next(mails).queue, next(orders).queue) == ("mails", "orders")
            with pytest.raises(LocalProtocolError):
                client.consume("mails")

    broker.script = dispatch_on_consume(b"body")
    await with_client(broker, use)
    assert len(broker.peers) == 1


async def test_consumer_comes_back_after_a_cut(broker: ScriptedBroker) -> None:
    fill = dispatch_on_consume(b"a", b"b")

    def cut_at_first_end(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Acknowledge) and len(broker.peers) == 1:
            peer.cut()
        fill(peer, frame)

    def use(client: BlockingClient) -> None:
        with client.consume("orders", credit=2) as deliveries:
            next(deliveries).ack()
            generation = client.session.generation
            bodies: list[bytes] = []
            while client.session.generation == generation or len(bodies) < 2:
                delivery = next(deliveries)
                if client.session.generation > generation:
                    bodies.append(delivery.body)
            assert bodies == [b"a", b"b"]

    broker.script = cut_at_first_end
    await with_client(broker, use)
    assert len(broker.peers) == 2


async def test_client_times_out_when_the_broker_is_silent(broker: ScriptedBroker) -> None:
    def run() -> None:
        with client_of(broker, timeout_s=0.05) as client:
            with pytest.raises(TimeoutError):
                client.publish_confirmed("orders", b"body")
            assert len(client.session.pending) == 0

    broker.script = lambda peer, frame: None
    await asyncio.to_thread(run)


async def test_client_gives_up_when_the_broker_does_not_come_back(broker: ScriptedBroker) -> None:
    client = client_of(broker, timeout_s=0.05)
    await asyncio.to_thread(client.open)
    await broker.arrived.wait()
    await broker.stop()
    with pytest.raises(ConnectionLostError, match="did not come back"):
        await asyncio.to_thread(client.publish_confirmed, "orders", b"body")
    await broker.start()
    client.timeout_s = 60
    await asyncio.to_thread(client.publish_confirmed, "orders", b"body", key=b"later")
    await asyncio.to_thread(client.close)
    assert broker.stored == {b"later": b"body"}


async def test_everything_fails_when_there_is_no_way_back(broker: ScriptedBroker) -> None:
    def use(client: BlockingClient) -> None:
        deliveries = client.consume("orders")
        with pytest.raises(ConnectionLostError):
            client.publish_confirmed("orders", b"body")
        with pytest.raises(ConnectionLostError):
            next(deliveries)
        with pytest.raises(ConnectionLostError):
            client.publish("orders", b"late")

    broker.script = lambda peer, frame: peer.cut()
    await with_client(broker, use, reconnect=False)


async def test_closing_waits_until_the_broker_has_read_all(broker: ScriptedBroker) -> None:
    """Closing both ways at once would answer the broker's next byte with a reset."""
    broker.keeps_open = True
    client = client_of(broker)
    await asyncio.to_thread(client.open)
    await asyncio.to_thread(client.publish_confirmed, "orders", b"body")
    closing = asyncio.create_task(asyncio.to_thread(client.close))
    await broker.peer.write_after_close(IDS, until=closing)


async def test_client_fails_at_once_when_nobody_listens(broker: ScriptedBroker) -> None:
    await broker.stop()
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        client_of(broker).open()
    await broker.start()


async def test_client_ends_when_the_peer_does_not_speak_phpmq(broker: ScriptedBroker) -> None:
    def use(client: BlockingClient) -> None:
        with pytest.raises(ConnectionLostError, match="does not speak PHPMQ"):
            client.publish_confirmed("orders", b"body")

    broker.script = lambda peer, frame: peer.transport.write(b"220 mail.example ESMTP\r\n")
    await with_client(broker, use)
    assert len(broker.peers) == 1


async def test_client_says_what_to_raise_for_a_long_message(broker: ScriptedBroker) -> None:
    def use() -> None:
        with (
            connect_blocking("127.0.0.1", broker.port, max_content=10) as client,
            pytest.raises(ConnectionLostError, match=r"11 bytes, the limit is 10; .*max_content"),
            client.consume("orders") as deliveries,
        ):
            next(iter(deliveries))

    broker.script = dispatch_on_consume(b"x" * 11)
    await asyncio.to_thread(use)


async def test_closed_client_refuses_everything(broker: ScriptedBroker) -> None:
    client = client_of(broker)
    with pytest.raises(ConnectionLostError, match="not open"):
        client.publish("orders", b"body")

    def run() -> None:
        with client:
            pass
        with pytest.raises(ConnectionLostError, match="closed"):
            client.publish("orders", b"body")
        with pytest.raises(ConnectionLostError, match="closed"):
            client.consume("orders")

    await asyncio.to_thread(run)


async def test_client_speaks_over_a_unix_socket(tmp_path: Path) -> None:
    def run() -> None:
        with connect_blocking(f"unix:{tmp_path}/phpmq.sock") as client:
            client.publish_confirmed("orders", b"body")

    async with ScriptedBroker(tmp_path / "phpmq.sock") as broker:
        await asyncio.to_thread(run)
        assert list(broker.stored.values()) == [b"body"]


async def test_client_speaks_tls(tmp_path: Path) -> None:
    server, trusting = tls_contexts(tmp_path)

    def run(port: int) -> None:
        with connect_blocking("127.0.0.1", port, ssl=trusting) as client:
            assert client.publish_many("orders", [bytes(50_000)] * 20) == 20

    async with ScriptedBroker(tls=server) as broker:
        await asyncio.to_thread(run, broker.port)
        assert len(broker.stored) == 20
