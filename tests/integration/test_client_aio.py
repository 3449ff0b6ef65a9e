"""The asyncio client against a peer on a real socket that answers, refuses, and vanishes."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.client import Client, Delivery, connect
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


def client_of(broker: ScriptedBroker, *, reconnect: bool = True) -> Client:
    """Return a client that comes back at once."""
    return connect("127.0.0.1", broker.port, reconnect=reconnect, backoff=Backoff(0, 0))


async def test_client_publishes_without_receipt(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        await client.publish("orders", b"body", ttl_s=60)
        assert await broker.next(Publish) == Publish("orders", b"body", 60, None)


async def test_client_sends_everything_before_it_closes(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        for number in range(2_000):
            await client.publish("orders", b"%d" % number)
    got = [(await broker.next(Publish)).content for _ in range(2_000)]
    assert got == [b"%d" % number for number in range(2_000)]


async def test_client_closes_where_the_broker_was_quicker(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is gone, and the loop has not told it yet."""
    async with client_of(broker) as client:
        await client.publish("orders", b"body")
        link = client._link
        assert link is not None
        transport = link._transport

        def refuse() -> None:
            transport.abort()
            raise OSError(errno.ENOTCONN, "not connected")

        monkeypatch.setattr(transport, "write_eof", refuse)


async def test_confirmed_publish_returns_with_its_receipt(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        await client.publish_confirmed("orders", b"body", 5, key=b"mine")
    assert broker.stored == {b"mine": b"body"}


async def test_confirmed_publishes_share_the_connection(broker: ScriptedBroker) -> None:
    """Receipts in the opposite order find their publishes."""
    waiting: list[Publish] = []

    def answer_backwards(peer: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        waiting.append(frame)
        if len(waiting) == 50:
            for each in reversed(waiting):
                peer.answer(each)

    broker.script = answer_backwards
    async with client_of(broker) as client:
        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(client.publish_confirmed("orders", b"%d" % number))
        assert len(client.session.pending) == 0
    assert len(broker.peers) == 1


async def test_refused_publish_raises_the_reason(broker: ScriptedBroker) -> None:
    def refuse(peer: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        peer.answer(frame, "publishing is paused")

    broker.script = refuse
    async with client_of(broker) as client:
        with pytest.raises(PublishRefusedError, match="paused"):
            await client.publish_confirmed("orders", b"body")
        with pytest.raises(PublishRefusedError):
            await client.publish_many("orders", [b"body"] * 5_000, window=10)
    assert broker.frames.qsize() < 50


async def test_unanswered_publish_is_repeated_under_its_key(broker: ScriptedBroker) -> None:
    """Stored, but the receipt is lost: the repetition stores nothing."""
    cuts = 3

    def store_and_vanish(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if len(broker.peers) <= cuts and isinstance(frame, Publish) and frame.key is not None:
            broker.stored.setdefault(frame.key, frame.content)
            peer.cut()
        else:
            broker.store(peer, frame)

    broker.script = store_and_vanish
    async with client_of(broker) as client, asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(client.publish_confirmed("orders", b"%d" % number))
    assert len(broker.peers) == cuts + 1
    assert sorted(broker.stored.values()) == sorted(b"%d" % number for number in range(20))


async def test_publish_many_goes_on_over_cuts(broker: ScriptedBroker) -> None:
    broker.script = broker.vanishing(each=700)
    async with client_of(broker) as client:
        bodies = [b"%d" % number for number in range(3_000)]
        assert await client.publish_many("orders", bodies, window=200) == 3_000
    assert list(broker.stored.values()) == bodies
    assert len(broker.peers) > 3


async def test_publish_many_keeps_its_window_and_takes_async_bodies(
    broker: ScriptedBroker,
) -> None:
    unanswered: list[Publish] = []
    most = 0

    def answer_late(peer: ScriptedPeer, frame: ClientFrame) -> None:
        nonlocal most
        assert isinstance(frame, Publish)
        unanswered.append(frame)
        most = max(most, len(unanswered))
        if len(unanswered) == 7:
            while unanswered:
                peer.answer(unanswered.pop())

    async def bodies() -> AsyncIterator[bytes]:
        for number in range(70):
            yield b"%d" % number

    broker.script = answer_late
    async with client_of(broker) as client:
        assert await client.publish_many("orders", bodies(), window=7) == 70
    assert most == 7


async def test_publish_waits_while_the_broker_reads_nothing(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        await client.publish("orders", b"first")
        await broker.next(Publish)
        broker.peer.transport.pause_reading()
        writing = asyncio.create_task(client.publish_many("orders", [bytes(1 << 20)] * 64))
        await asyncio.wait({writing}, timeout=0.05)
        assert not writing.done()
        assert len(client.session.pending) < 64  # the rest is not even encoded
        broker.peer.transport.resume_reading()
        assert await writing == 64


async def test_cancelled_publish_is_not_repeated(broker: ScriptedBroker) -> None:
    broker.script = lambda peer, frame: None
    async with client_of(broker) as client:
        task = asyncio.create_task(client.publish_confirmed("orders", b"body"))
        await broker.next(Publish)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(client.session.pending) == 0


async def test_consumer_gets_messages_and_ends_them(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client, client.consume("orders", credit=3) as deliveries:
        assert await broker.next(Consume) == Consume("orders", 3)
        for number in range(3):
            broker.peer.dispatch("orders", b"%d" % number, IDS[number], ttl_s=number)
        first, second, third = [await anext(deliveries) for _ in range(3)]
        assert (third.queue, third.body, third.ttl_s) == ("orders", b"2", 2)
        assert third.message_id == IDS[2].decode()
        first.ack()
        second.requeue(60)
        third.dead_letter()
        assert await broker.next(Acknowledge) == Acknowledge("orders", IDS[0])
        assert await broker.next(Requeue) == Requeue("orders", IDS[1], 60)
        assert await broker.next(DeadLetter) == DeadLetter("orders", IDS[2])


async def test_consumer_gives_back_when_its_loop_is_left(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        for _ in range(2):  # at once again, too
            broker_side = asyncio.create_task(broker.next(Consume))
            deliveries = client.consume("orders")
            await broker_side
            broker.peer.dispatch("orders", b"body", IDS[0])
            async for delivery in deliveries:
                delivery.ack()
                break
            del deliveries
            assert await broker.next(Consume) == Consume("orders", 0)


async def test_one_connection_consumes_several_queues(broker: ScriptedBroker) -> None:
    async with (
        client_of(broker) as client,
        client.consume("orders") as orders,
        client.consume("mails") as mails,
    ):
        await broker.next(Consume)
        await broker.next(Consume)
        broker.peer.dispatch("mails", b"m", IDS[0])
        broker.peer.dispatch("orders", b"o", IDS[1])
        assert (await anext(orders)).body == b"o"
        assert (await anext(mails)).body == b"m"
        with pytest.raises(LocalProtocolError):
            client.consume("orders")
    assert len(broker.peers) == 1


async def test_consumer_comes_back_and_late_end_is_sent_first(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client, client.consume("orders", credit=2) as deliveries:
        await broker.next(Consume)
        broker.peer.dispatch("orders", b"done", IDS[0])
        broker.peer.dispatch("orders", b"not handed out", IDS[1])
        delivery = await anext(deliveries)
        link = client._link
        assert link is not None
        await broker.stop()
        await link.lost.wait()
        delivery.ack()
        await broker.start()
        assert [(await broker.frames.get())[1] for _ in range(2)] == [
            Acknowledge("orders", IDS[0]),
            Consume("orders", 2),
        ]
        broker.peer.dispatch("orders", b"not handed out", IDS[1])
        assert (await anext(deliveries)).body == b"not handed out"
        assert client.session.late_count == 1


async def test_callback_gets_each_message_in_turn(broker: ScriptedBroker) -> None:
    got: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        got.append(delivery.body)
        delivery.ack()
        if len(got) == 3:
            raise StopAsyncIteration

    async with client_of(broker) as client:
        consuming = asyncio.create_task(client.consume_with("orders", handle, credit=5))
        await broker.next(Consume)
        for number in range(3):
            broker.peer.dispatch("orders", b"%d" % number, IDS[number])
        for number in range(3):
            assert await broker.next(Acknowledge) == Acknowledge("orders", IDS[number])
        assert await broker.next(Consume) == Consume("orders", 0)
        with pytest.raises((StopAsyncIteration, RuntimeError)):
            await consuming
    assert got == [b"0", b"1", b"2"]


async def test_plain_callback_will_do(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        consuming = asyncio.create_task(client.consume_with("orders", Delivery.ack))
        await broker.next(Consume)
        broker.peer.dispatch("orders", b"body", IDS[7])
        assert await broker.next(Acknowledge) == Acknowledge("orders", IDS[7])
        await client.close()
        await consuming  # closing ends it without an error


async def test_closing_waits_until_the_broker_has_read_all(broker: ScriptedBroker) -> None:
    """Closing both ways at once would answer the broker's next byte with a reset."""
    broker.keeps_open = True
    client = client_of(broker)
    await client.open()
    await client.publish_confirmed("orders", b"body")
    closing = asyncio.create_task(client.close())
    await broker.peer.write_after_close(IDS, until=closing)


async def test_client_fails_at_once_when_nobody_listens(broker: ScriptedBroker) -> None:
    await broker.stop()
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        async with client_of(broker):
            pass
    await broker.start()


async def test_everything_fails_when_there_is_no_way_back(broker: ScriptedBroker) -> None:
    broker.script = lambda peer, frame: None
    async with client_of(broker, reconnect=False) as client:
        publishing = asyncio.create_task(client.publish_confirmed("orders", b"body"))
        consuming = asyncio.create_task(anext(client.consume("orders")))
        await broker.next(Publish)
        broker.peer.cut()
        for task in (publishing, consuming):
            with pytest.raises(ConnectionLostError):
                await task
        with pytest.raises(ConnectionLostError):
            await client.publish("orders", b"late")
        with pytest.raises(ConnectionLostError):
            client.consume("mails")


async def test_publish_is_given_up_when_it_ends_every_connection(broker: ScriptedBroker) -> None:
    """As one does that is longer than the broker's limit."""
    broker.script = lambda peer, frame: peer.cut()
    async with client_of(broker) as client:
        with pytest.raises(ConnectionLostError, match="10 connections"):
            await client.publish_confirmed("orders", b"too long for this broker")


async def test_client_ends_when_the_peer_does_not_speak_phpmq(broker: ScriptedBroker) -> None:
    broker.script = lambda peer, frame: peer.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    async with client_of(broker) as client:
        with pytest.raises(ConnectionLostError, match="does not speak PHPMQ"):
            await client.publish_confirmed("orders", b"body")
    assert len(broker.peers) == 1


async def test_client_says_what_to_raise_for_a_long_message(broker: ScriptedBroker) -> None:
    broker.script = lambda peer, frame: peer.dispatch("orders", b"x" * 11, b"f" * 32)
    async with connect("127.0.0.1", broker.port, max_content=10) as client:
        with pytest.raises(ConnectionLostError, match=r"11 bytes, the limit is 10; .*max_content"):
            await anext(aiter(client.consume("orders")))


async def test_what_is_not_allowed_is_not_sent(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        with pytest.raises(LocalProtocolError):
            await client.publish("", b"body")
        with pytest.raises(LocalProtocolError):
            await client.publish_confirmed("orders", b"body", ttl_s=-1)
        await client.publish("orders", b"body")
        assert (await broker.next(Publish)).content == b"body"


async def test_closed_client_refuses_everything(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        consumer = client.consume("orders")
        await broker.next(Consume)
        broker.peer.dispatch("orders", b"body", IDS[0])
        delivery = await anext(consumer)
    with pytest.raises(ConnectionLostError):
        delivery.ack()
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)
    with pytest.raises(ConnectionLostError):
        await client.publish_confirmed("orders", b"body")


async def test_client_speaks_over_a_unix_socket(tmp_path: Path) -> None:
    async with (
        ScriptedBroker(tmp_path / "phpmq.sock") as broker,
        connect(f"unix:{tmp_path}/phpmq.sock") as client,
    ):
        await client.publish_confirmed("orders", b"body")
        assert list(broker.stored.values()) == [b"body"]


async def test_client_speaks_tls(tmp_path: Path) -> None:
    server, trusting = tls_contexts(tmp_path)
    async with ScriptedBroker(tls=server) as broker:
        async with connect("127.0.0.1", broker.port, ssl=trusting) as client:
            assert await client.publish_many("orders", [bytes(50_000)] * 20) == 20
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            await connect("127.0.0.1", broker.port, ssl=trusting, server_hostname="other").open()
