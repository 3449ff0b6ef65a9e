"""Both clients against a peer on a real socket that replies, rejects, and disconnects."""

import asyncio
import errno
import re
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.client import BlockingClient, Client, Delivery, connect, connect_blocking
from phpmq_lite.client.core import Backoff
from phpmq_lite.errors import ConnectionLostError, LocalProtocolError, PublishRefusedError
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Publish,
    Requeue,
)
from phpmq_lite.testing import running_service
from tests.support.certificates import CertificateAuthority, tls_contexts
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer

IDS = [b"%032x" % number for number in range(100)]

Script = Callable[[ScriptedPeer, ClientFrame], None]
Connect = Callable[..., Any]  # a Client, or a Threaded one


class Threaded:
    """A blocking client with the methods of ``Client``: each call runs in a thread.

    The loop of the test belongs to the broker.
    """

    def __init__(self, client: BlockingClient) -> None:
        self.client = client
        self.session = client.session

    async def __aenter__(self) -> "Threaded":
        await asyncio.to_thread(self.client.open)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.to_thread(self.client.close)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, getattr(self.client, name))

    def consume(self, queue: str, credit: int = 1, *, info: bool = False) -> "ThreadedConsumer":
        return ThreadedConsumer(self.client.consume(queue, credit=credit, info=info))


class ThreadedConsumer:
    """A blocking consumer as an asynchronous iterator."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer

    async def __aenter__(self) -> "ThreadedConsumer":
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.consumer.__exit__, *error)

    def set_credit(self, credit: int) -> None:
        self.consumer.set_credit(credit)

    async def __anext__(self) -> Delivery:
        delivery: Delivery | None = await asyncio.to_thread(next, self.consumer, None)
        if delivery is None:
            raise StopAsyncIteration
        return delivery


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=["asyncio", "blocking"])
def connect_any(request: pytest.FixtureRequest) -> Connect:
    """Return a function that makes one client or the other; both reconnect immediately."""

    def make(*address: Any, **options: Any) -> Any:
        if request.param == "asyncio":
            return connect(*address, backoff=Backoff(0, 0), **options)
        return Threaded(connect_blocking(*address, backoff=Backoff(0.001, 0.001), **options))

    return make


@pytest.fixture
def client(connect_any: Connect, broker: ScriptedBroker) -> Any:
    return connect_any("127.0.0.1", broker.port)


def client_of(broker: ScriptedBroker) -> Client:
    """Return an asynchronous client that reconnects immediately."""
    return connect("127.0.0.1", broker.port, backoff=Backoff(0, 0))


def blocking_client_of(broker: ScriptedBroker, timeout_s: float = 60) -> BlockingClient:
    """Return a blocking client that reconnects almost immediately."""
    backoff = Backoff(0.001, 0.001)
    return connect_blocking("127.0.0.1", broker.port, timeout_s=timeout_s, backoff=backoff)


def dispatch_on_consume(*bodies: bytes) -> Script:
    """Return a script that fills each window with these bodies, with ids in order."""

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            for message_id, body in zip(IDS, bodies, strict=False):
                peer.dispatch(frame.queue, body, message_id, ttl_s=17)

    return script


# Both clients


async def test_client_publishes_without_receipt(broker: ScriptedBroker, client: Any) -> None:
    async with client:
        for number in range(500):
            await client.publish("orders", b"%d" % number, 60)
    got = [await broker.next(Publish) for _ in range(500)]
    assert got == [Publish("orders", b"%d" % number, 60, None) for number in range(500)]


async def test_confirmed_publish_returns_with_its_receipt(
    broker: ScriptedBroker, client: Any
) -> None:
    async with client:
        await client.publish_confirmed("orders", b"body", 5, key=b"mine")
    assert broker.stored == {b"mine": b"body"}


async def test_refused_publish_raises_the_reason(broker: ScriptedBroker, client: Any) -> None:
    def refuse(peer: ScriptedPeer, frame: ClientFrame) -> None:
        assert isinstance(frame, Publish)
        peer.answer(frame, "publishing is paused")

    broker.script = refuse
    async with client:
        with pytest.raises(PublishRefusedError, match="paused"):
            await client.publish_confirmed("orders", b"body")
        with pytest.raises(PublishRefusedError):
            await client.publish_many("orders", [b"body"] * 5_000, window=10)
    assert broker.frames.qsize() < 50


async def test_lost_receipt_stores_nothing_twice(broker: ScriptedBroker, client: Any) -> None:
    broker.script = storing_and_vanishing(broker, cuts=3)
    async with client:
        await client.publish_confirmed("orders", b"once")
    assert list(broker.stored.values()) == [b"once"]
    assert len(broker.peers) == 4


async def test_publish_many_resumes_after_disconnects(broker: ScriptedBroker, client: Any) -> None:
    broker.script = broker.vanishing(each=700)
    bodies = [b"%d" % number for number in range(3_000)]
    async with client:
        assert await client.publish_many("orders", bodies, window=200) == 3_000
    assert list(broker.stored.values()) == bodies
    assert len(broker.peers) > 3


async def test_consumer_gets_messages_and_ends_them(broker: ScriptedBroker, client: Any) -> None:
    broker.script = dispatch_on_consume(b"0", b"1", b"2")
    async with client, client.consume("orders", credit=3) as deliveries:
        assert await broker.next(Consume) == Consume("orders", 3)
        first, second, third = [await anext(deliveries) for _ in range(3)]
        assert (third.queue, third.body, third.ttl_s) == ("orders", b"2", 17)
        assert third.message_id == IDS[2].decode()
        first.ack()
        second.requeue(60)
        third.dead_letter()
        assert await broker.next(Acknowledge) == Acknowledge("orders", IDS[0])
        assert await broker.next(Requeue) == Requeue("orders", IDS[1], 60)
        assert await broker.next(DeadLetter) == DeadLetter("orders", IDS[2])
    assert await broker.next(Consume) == Consume("orders", 0)


async def test_one_connection_consumes_several_queues(broker: ScriptedBroker, client: Any) -> None:
    broker.script = dispatch_on_consume(b"body")
    async with client, client.consume("orders") as orders, client.consume("mails") as mails:
        assert (await anext(mails)).queue == "mails"
        assert (await anext(orders)).queue == "orders"
        with pytest.raises(LocalProtocolError):
            client.consume("orders")
    assert len(broker.peers) == 1


async def test_consumer_reconnects_after_a_disconnect(broker: ScriptedBroker, client: Any) -> None:
    fill = dispatch_on_consume(b"a", b"b")

    def cut_at_first_end(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Acknowledge) and len(broker.peers) == 1:
            peer.cut()
        fill(peer, frame)

    broker.script = cut_at_first_end
    async with client, client.consume("orders", credit=2) as deliveries:
        (await anext(deliveries)).ack()
        generation = client.session.generation
        bodies: list[bytes] = []
        while client.session.generation == generation or len(bodies) < 2:
            delivery = await anext(deliveries)
            if client.session.generation > generation:
                bodies.append(delivery.body)
        assert bodies == [b"a", b"b"]
    assert len(broker.peers) == 2


async def test_callback_gets_each_message_in_turn(broker: ScriptedBroker, client: Any) -> None:
    got: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        got.append(delivery.body)
        delivery.ack()
        if len(got) == 2:
            raise KeyError

    broker.script = dispatch_on_consume(b"a", b"b", b"c")
    async with client:
        with pytest.raises(KeyError):
            await client.consume_with("orders", handle)
        assert not client.session.windows
    assert got == [b"a", b"b"]


async def test_closing_waits_until_the_broker_has_read_all(
    broker: ScriptedBroker, client: Any
) -> None:
    """Closing both directions at once would reset the connection at the broker's next byte."""
    broker.keeps_open = True
    await client.open()
    await client.publish_confirmed("orders", b"body")
    closing = asyncio.create_task(client.close())
    await broker.peer.write_after_close(IDS, until=closing)


async def test_client_fails_at_once_when_the_port_is_closed(
    broker: ScriptedBroker, client: Any
) -> None:
    await broker.stop()
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        await client.open()
    await broker.start()


async def test_everything_fails_when_there_is_no_way_back(
    broker: ScriptedBroker, connect_any: Connect
) -> None:
    broker.script = lambda peer, frame: peer.cut() if isinstance(frame, Publish) else None
    async with connect_any("127.0.0.1", broker.port, reconnect=False) as client:
        deliveries = client.consume("orders")
        with pytest.raises(ConnectionLostError):
            await client.publish_confirmed("orders", b"body")
        with pytest.raises(ConnectionLostError):
            await anext(deliveries)
        with pytest.raises(ConnectionLostError):
            await client.publish("orders", b"late")
        with pytest.raises(ConnectionLostError):
            client.consume("mails")


async def test_publish_fails_if_it_ends_every_connection(
    broker: ScriptedBroker, client: Any
) -> None:
    """A message above the broker's limit does that."""
    broker.script = lambda peer, frame: peer.cut()
    async with client:
        with pytest.raises(ConnectionLostError, match="10 connections"):
            await client.publish_confirmed("orders", b"too long for this broker")


async def test_large_publish_that_ends_connections_is_given_up_and_names_the_limit(
    broker: ScriptedBroker, client: Any
) -> None:
    """Another large body, and small ones after it, are stored."""
    sizes = {70_000: 0, 80_000: 0, 1: 0}

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Publish):
            sizes[len(frame.content)] += 1
        if isinstance(frame, Publish) and len(frame.content) == 80_000:
            peer.cut()
        else:
            broker.store(peer, frame)

    broker.script = script
    async with client:
        said = r"3 connections .* of 80000 bytes; .* limits\.max_content, raise the limit"
        with pytest.raises(ConnectionLostError, match=said):
            await client.publish_confirmed("orders", b"x" * 80_000)
        await client.publish_confirmed("orders", b"x" * 70_000)
        await client.publish_confirmed("orders", b"x")
    assert sizes == {70_000: 1, 80_000: 3, 1: 1}


async def test_large_publish_waits_for_a_broker_behind_a_proxy(
    broker: ScriptedBroker, client: Any
) -> None:
    """A proxy accepts connections while its broker restarts, and closes them without reading."""
    cut: list[ScriptedPeer] = []

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if not cut:
            cut.append(peer)
            broker.on_connect = lambda new: new.cut() if len(broker.peers) < 8 else None
            peer.cut()
        else:
            broker.store(peer, frame)

    broker.script = script
    async with client:
        await client.publish_confirmed("orders", b"x" * 70_000)
    assert len(broker.peers) == 8


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail ESMTP\r\n"])
async def test_client_ends_when_the_peer_does_not_speak_phpmq(
    broker: ScriptedBroker, client: Any, greeting: bytes
) -> None:
    broker.script = lambda peer, frame: peer.transport.write(greeting)
    async with client:
        with pytest.raises(ConnectionLostError, match="does not speak PHPMQ"):
            await client.publish_confirmed("orders", b"body")
    assert len(broker.peers) == 1


async def test_client_names_the_limit_to_raise_for_a_long_message(
    broker: ScriptedBroker, connect_any: Connect
) -> None:
    broker.script = dispatch_on_consume(b"x" * 11)
    async with connect_any("127.0.0.1", broker.port, max_content=10) as client:
        with pytest.raises(ConnectionLostError, match=r"11 bytes; the limit is 10\. .*max_content"):
            await anext(client.consume("orders"))


async def test_invalid_messages_are_not_sent(broker: ScriptedBroker, client: Any) -> None:
    async with client:
        with pytest.raises(LocalProtocolError):
            await client.publish("", b"body")
        with pytest.raises(LocalProtocolError):
            await client.publish_confirmed("orders", b"body", ttl_s=-1)
        await client.publish("orders", b"body")
        assert (await broker.next(Publish)).content == b"body"


async def test_closed_client_refuses_everything(broker: ScriptedBroker, client: Any) -> None:
    broker.script = dispatch_on_consume(b"body")
    with pytest.raises(ConnectionLostError, match="not open"):
        await client.publish("orders", b"body")
    async with client:
        consumer = client.consume("orders")
        delivery = await anext(consumer)
    with pytest.raises(ConnectionLostError, match="closed"):
        delivery.ack()
    with pytest.raises(ConnectionLostError, match="closed"):
        await client.publish("orders", b"body")
    with pytest.raises(ConnectionLostError, match="closed"):
        client.consume("mails")


async def test_client_speaks_over_a_unix_socket(tmp_path: Path, connect_any: Connect) -> None:
    async with (
        ScriptedBroker(tmp_path / "phpmq.sock") as broker,
        connect_any(f"unix:{tmp_path}/phpmq.sock") as client,
    ):
        await client.publish_confirmed("orders", b"body")
        assert list(broker.stored.values()) == [b"body"]


async def test_client_speaks_tls(tmp_path: Path, connect_any: Connect) -> None:
    server, trusting = tls_contexts(tmp_path)
    async with ScriptedBroker(tls=server) as broker:
        async with connect_any("127.0.0.1", broker.port, ssl=trusting) as client:
            assert await client.publish_many("orders", [bytes(50_000)] * 20) == 20
        assert len(broker.stored) == 20
        other = connect_any("127.0.0.1", broker.port, ssl=trusting, server_hostname="other")
        with pytest.raises(ConnectionLostError, match="not valid for 'other'; connect with a name"):
            await other.open()


@pytest.mark.parametrize("has_tls", [True, False], ids=["broker with TLS", "broker without"])
async def test_client_says_at_once_that_only_one_side_uses_tls(
    tmp_path: Path, connect_any: Connect, has_tls: bool
) -> None:
    cert, key = CertificateAuthority(tmp_path).make("localhost")
    files = {"tls_cert": cert, "tls_key": key} if has_tls else {}
    trusting = ssl.create_default_context(cafile=str(cert))
    async with running_service(tmp_path / "data", tcp=files) as home:
        address = f"127.0.0.1:{home.port}"
        said = (
            f"{address} uses TLS, and this client does not; use phpmqs://{address}"
            if has_tls
            else f"cannot connect to {address}: it ended the TLS handshake: it may not allow this "
            f"address (tcp.allow), or not use TLS (then use phpmq://{address}"
        )
        client = connect_any(address, ssl=None if has_tls else trusting)
        with pytest.raises(ConnectionLostError, match=re.escape(said)):
            async with client:
                await client.publish_confirmed("orders", b"body")


async def test_client_names_the_authority_to_trust(tmp_path: Path, connect_any: Connect) -> None:
    server, _ = tls_contexts(tmp_path)
    async with ScriptedBroker(tls=server) as broker:
        client = connect_any("127.0.0.1", broker.port, ssl=ssl.create_default_context())
        with pytest.raises(ConnectionLostError, match=r"not trusted \(self-signed.*cafile=FILE"):
            await client.open()


def storing_and_vanishing(broker: ScriptedBroker, cuts: int) -> Script:
    """Return a script that ends the first ``cuts`` connections before the receipt of a publish."""

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if len(broker.peers) <= cuts and isinstance(frame, Publish) and frame.key is not None:
            broker.stored.setdefault(frame.key, frame.content)
            peer.cut()
        else:
            broker.store(peer, frame)

    return script


# The asynchronous client


async def test_client_sends_everything_before_it_closes(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        for number in range(2_000):
            await client.publish("orders", b"%d" % number)
    got = [(await broker.next(Publish)).content for _ in range(2_000)]
    assert got == [b"%d" % number for number in range(2_000)]


async def test_client_closes_where_the_broker_was_quicker(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection has ended, but the event loop has not reported it yet."""
    async with client_of(broker) as client:
        await client.publish("orders", b"body")
        link = client._connection
        assert link is not None
        transport = link._transport

        def refuse() -> None:
            transport.abort()
            raise OSError(errno.ENOTCONN, "not connected")

        monkeypatch.setattr(transport, "write_eof", refuse)


async def test_confirmed_publishes_share_the_connection(broker: ScriptedBroker) -> None:
    """Receipts in the opposite order are matched to their publishes."""
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


async def test_unanswered_publish_is_repeated_under_its_key(broker: ScriptedBroker) -> None:
    """The message is stored but its receipt is lost, so the repetition stores nothing."""
    broker.script = storing_and_vanishing(broker, cuts=3)
    async with client_of(broker) as client, asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(client.publish_confirmed("orders", b"%d" % number))
    assert len(broker.peers) == 4
    assert sorted(broker.stored.values()) == sorted(b"%d" % number for number in range(20))


async def test_publish_many_keeps_its_window_and_takes_async_bodies(broker: ScriptedBroker) -> None:
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


async def test_leaving_the_loop_of_a_consumer_returns_its_messages(broker: ScriptedBroker) -> None:
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


async def test_consumer_reconnects_and_acknowledges_late_first(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client, client.consume("orders", credit=2) as deliveries:
        await broker.next(Consume)
        broker.peer.dispatch("orders", b"done", IDS[0])
        broker.peer.dispatch("orders", b"not handed out", IDS[1])
        delivery = await anext(deliveries)
        link = client._connection
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
        assert client.session.late_settlement_count == 1


async def test_plain_callback_will_do(broker: ScriptedBroker) -> None:
    async with client_of(broker) as client:
        consuming = asyncio.create_task(client.consume_with("orders", Delivery.ack))
        await broker.next(Consume)
        broker.peer.dispatch("orders", b"body", IDS[7])
        assert await broker.next(Acknowledge) == Acknowledge("orders", IDS[7])
        await client.close()
        await consuming  # closing ends it without an error


async def test_waiting_calls_fail_when_there_is_no_way_back(broker: ScriptedBroker) -> None:
    broker.script = lambda peer, frame: None
    async with connect("127.0.0.1", broker.port, reconnect=False) as client:
        publishing = asyncio.create_task(client.publish_confirmed("orders", b"body"))
        consuming = asyncio.create_task(anext(client.consume("orders")))
        await broker.next(Publish)
        broker.peer.cut()
        for task in (publishing, consuming):
            with pytest.raises(ConnectionLostError):
                await task


# The blocking client


async def test_large_writes_do_not_starve_large_reads(broker: ScriptedBroker) -> None:
    """Both sides have more to send than sockets hold, so one of them must read."""

    def echo(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Publish):
            peer.dispatch("orders", frame.content, IDS[0])
        broker.store(peer, frame)

    def use() -> None:
        with blocking_client_of(broker) as client, client.consume("orders") as deliveries:
            assert client.publish_many("orders", [bytes(1 << 20)] * 30, window=100) == 30
            assert sum(len(next(deliveries).body) for _ in range(30)) == 30 << 20

    broker.script = echo
    await asyncio.to_thread(use)


async def test_consumer_ends_when_nothing_came_in_time(broker: ScriptedBroker) -> None:
    fill = dispatch_on_consume(b"a", b"b")

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        fill(peer, frame)
        broker.store(peer, frame)

    def use() -> None:
        with blocking_client_of(broker) as client:
            deliveries = client.consume("orders", timeout_s=0)
            client.publish_confirmed("orders", b"body")  # its receipt comes after them
            assert [delivery.body for delivery in deliveries] == [b"a", b"b"]

    broker.script = script
    await asyncio.to_thread(use)


async def test_client_times_out_when_the_broker_is_silent(broker: ScriptedBroker) -> None:
    def run() -> None:
        with blocking_client_of(broker, timeout_s=0.05) as client:
            with pytest.raises(TimeoutError):
                client.publish_confirmed("orders", b"body")
            assert len(client.session.pending) == 0

    broker.script = lambda peer, frame: None
    await asyncio.to_thread(run)


async def test_client_that_no_connection_answers_gives_up_with_the_reason(
    broker: ScriptedBroker,
) -> None:
    broker.on_connect = ScriptedPeer.cut
    client = connect_blocking("127.0.0.1", broker.port, timeout_s=1.5)
    await asyncio.to_thread(client.open)
    with pytest.raises(ConnectionLostError, match=r"without an answer; .*\(tcp\.allow\)"):
        await asyncio.to_thread(client.publish_confirmed, "orders", b"body")
    await asyncio.to_thread(client.close)


async def test_client_gives_up_when_the_broker_does_not_return(broker: ScriptedBroker) -> None:
    client = blocking_client_of(broker, timeout_s=0.05)
    await asyncio.to_thread(client.open)
    await broker.arrived.wait()
    await broker.stop()
    with pytest.raises(ConnectionLostError, match="did not accept a new connection"):
        await asyncio.to_thread(client.publish_confirmed, "orders", b"body")
    await broker.start()
    client.timeout_s = 60
    await asyncio.to_thread(client.publish_confirmed, "orders", b"body", key=b"later")
    await asyncio.to_thread(client.close)
    assert broker.stored == {b"later": b"body"}
