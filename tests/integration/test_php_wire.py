"""The frames that each call of ``clients/php/src/PhpmqTransport.php`` sends."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Publish,
    Requeue,
)
from tests.support.envelope_cases import body, nested, with_meta
from tests.support.php_client import PhpClient, PhpError, needs_php
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer

pytestmark = [pytest.mark.acceptance, needs_php]

ID = b"0123456789abcdef" * 2
OTHER = b"f" * 32
BODY = body()


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Run a broker that dispatches one envelope to each consumer and confirms publishes."""
    async with ScriptedBroker() as scripted:
        scripted.script = dispatching(scripted, ID, BODY)
        yield scripted


def dispatching(broker: ScriptedBroker, message_id: bytes, content: bytes, ttl_s: int = 0) -> Any:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        broker.store(peer, frame)
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch(frame.queue, content, message_id, ttl_s)

    return script


def silent(_peer: ScriptedPeer, _frame: ClientFrame) -> None:
    """Send no reply."""


@asynccontextmanager
async def php_at(broker: ScriptedBroker, **options: Any) -> AsyncIterator[PhpClient]:
    with PhpClient(f"127.0.0.1:{broker.port}", **options) as peer:
        yield peer
        await do(peer, "close")  # while the loop runs, because it waits until the broker closes


async def do(php: PhpClient, name: str, *arguments: Any) -> Any:
    return await asyncio.to_thread(php.call, name, *arguments)


async def message(php: PhpClient, queue: str = "orders") -> Any:
    return await asyncio.to_thread(php.take, queue)


async def take(php: PhpClient, queue: str = "orders") -> int:
    """Reserve a message; return the handle that the other calls take."""
    return int((await message(php, queue)).handle)


def received(broker: ScriptedBroker) -> list[ClientFrame]:
    return [broker.frames.get_nowait()[1] for _ in range(broker.frames.qsize())]


async def frames(broker: ScriptedBroker, php: PhpClient) -> list[ClientFrame]:
    """Close the client; return the frames between the first and the last 002."""
    await do(php, "close")
    await broker.peer.half_closed.wait()
    found = received(broker)
    assert found[0] == Consume("orders", 1)
    assert found[-1] == Consume("orders", 0)
    return found[1:-1]


# -- reserve


async def test_reserve_that_timed_out_takes_its_credit_back(broker: ScriptedBroker) -> None:
    """A message that crossed the 002 is back in its queue, so it is not handled from here."""
    broker.script = silent
    async with php_at(broker) as php:
        assert await do(php, "reserve", "orders", 0.02) is None
        assert [await broker.next(Consume) for _ in range(2)] == [
            Consume("orders", 1), Consume("orders", 0),
        ]  # fmt: skip
        broker.peer.dispatch("orders", b"crossed", OTHER)
        broker.script = dispatching(broker, ID, BODY)
        late = await message(php)
        assert (late.message_id, late.body) == (ID.decode(), BODY)
        assert late.envelope == json.loads(BODY)
        await do(php, "ack", late.handle)
        assert await frames(broker, php) == [Acknowledge("orders", ID)]


async def test_settled_message_takes_the_credit_back(broker: ScriptedBroker) -> None:
    """So the next message goes to a free worker, and not to one that may do something else."""
    async with php_at(broker) as php:
        await do(php, "ack", await take(php))
        sent = [(await broker.frames.get())[1] for _ in range(3)]
        assert sent == [Consume("orders", 1), Acknowledge("orders", ID), Consume("orders", 0)]


async def test_reserve_reads_a_message_in_pieces(broker: ScriptedBroker) -> None:
    content = bytes(range(256)) * 8 + b"H0100304P01"  # resembles frames
    whole: list[bytes] = []

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.side.append_dispatch(whole, frame.queue, content, ID, 9)
            peer.transport.write(b"".join(whole)[:39])

    broker.script = script
    async with php_at(broker) as php:
        assert await do(php, "reserve", "orders", 0.05) is None
        rest = b"".join(whole)[39:]
        for start in range(0, len(rest), 301):
            broker.peer.transport.write(rest[start : start + 301])
            await asyncio.sleep(0)
        found = await message(php)
        assert (found.body, found.ttl_s, found.envelope) == (content, 9, [])


async def test_windows_of_two_queues_are_separate(broker: ScriptedBroker) -> None:
    bodies = {"orders": (b"1", ID), "7": (b"2", OTHER)}  # PHP converts "7" as a key to an integer

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch(frame.queue, *bodies[frame.queue])

    broker.script = script
    async with php_at(broker) as php:
        assert (await message(php, "7")).body == b"2"
        assert (await message(php)).body == b"1"


async def test_reserve_returns_an_unsettled_message(broker: ScriptedBroker) -> None:
    """A worker that failed between two calls blocks nothing: 005 to the end of the queue."""
    async with php_at(broker) as php:
        await take(php)
        assert await do(php, "reserve", "orders", 0.01) is None
        assert await frames(broker, php) == [Requeue("orders", ID, 0)]


async def test_credit_allows_several_reserved_messages(broker: ScriptedBroker) -> None:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch("orders", b"1", ID)
            peer.dispatch("orders", b"2", OTHER)

    broker.script = script
    async with php_at(broker, credit=2) as php:
        first, second = await take(php), await take(php)
        await do(php, "ack", second)
        await do(php, "ack", first)
        await do(php, "close")
        _, *sent, _ = received(broker)
        assert sent == [Acknowledge("orders", OTHER), Acknowledge("orders", ID)]


async def test_reserve_reconnects_after_a_lost_connection(broker: ScriptedBroker) -> None:
    seen: list[ScriptedPeer] = []

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        seen.append(peer)
        if len(seen) == 1:
            peer.cut()
        else:
            peer.dispatch("orders", BODY, ID)

    broker.script = script
    async with php_at(broker) as php:
        assert (await message(php)).body == BODY
    assert len(broker.peers) == 2


async def test_reserve_without_a_broker_is_an_error(unused_tcp_port: int) -> None:
    with (
        PhpClient(f"127.0.0.1:{unused_tcp_port}") as php,
        pytest.raises(PhpError, match=r"NotConnected: .*Connection refused"),
    ):
        await do(php, "reserve", "orders", 0.3)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("mq.example", "mq.example: the address must be HOST:PORT, such as 127.0.0.1:9100"),
        ("nobody.invalid:9100", "the name nobody.invalid is unknown; check the address"),
        ("127.0.0.1:{port}", "Connection refused; no broker listens there: start it, or correct"),
    ],
)
async def test_publish_says_at_once_that_an_address_is_wrong(
    unused_tcp_port: int, address: str, sentence: str
) -> None:
    with (
        PhpClient(address.format(port=unused_tcp_port)) as php,
        pytest.raises(PhpError, match=rf"NotConnected: .*{re.escape(sentence)}"),
    ):
        await do(php, "publish", BODY, "orders")


async def test_publish_waits_for_a_broker_that_restarts(unused_tcp_port: int) -> None:
    """Each request of a web server connects anew, also while the broker is away for a moment."""
    broker = ScriptedBroker()
    broker.port = unused_tcp_port
    with PhpClient(f"127.0.0.1:{unused_tcp_port}") as php:
        publishing = asyncio.create_task(do(php, "publish", BODY, "orders"))
        await asyncio.sleep(0.2)
        async with broker:
            await publishing
    assert len(broker.stored) == 1


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("mq.example", "the address must be HOST:PORT, such as 127.0.0.1:9100"),
        ("127.0.0.1:99999", "the port is 99999; it must be 1 to 65535"),
        ("nobody.invalid:9100", "the name nobody.invalid is unknown; check the address"),
    ],
)
async def test_reserve_says_at_once_that_an_address_is_wrong(address: str, sentence: str) -> None:
    """A worker waits only for what a broker that starts can mend."""
    for call in ("reserve", "reserveBytes"):
        with (
            PhpClient(address) as php,
            pytest.raises(PhpError, match=rf"NotConnected: .*{re.escape(sentence)}"),
        ):
            await asyncio.wait_for(do(php, call, "orders", 3600.0), 30)


async def test_publish_says_at_once_that_a_socket_does_not_exist(tmp_path: Path) -> None:
    said = "No such file or directory.; no broker listens there: start it, or correct the path"
    with (
        PhpClient(f"unix:{tmp_path}/none", timeout=3600.0) as php,
        pytest.raises(PhpError, match=f"NotConnected: .*{said}"),
    ):
        await asyncio.wait_for(do(php, "publish", BODY, "orders"), 30)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers HTTP, as the admin does; correct the port"),
        (b"-ERR unknown command\r\n", "is not a PHPMQ broker: it sent 2d45525220756e6b; correct"),
    ],
    ids=["admin", "redis"],
)
async def test_publish_says_at_once_that_the_port_is_of_another_program(
    broker: ScriptedBroker, reply: bytes, sentence: str
) -> None:
    broker.script = lambda peer, _frame: peer.transport.write(reply)
    async with php_at(broker, timeout=3600.0) as php:
        with pytest.raises(PhpError, match=f"NotConnected: .*{sentence}"):
            await asyncio.wait_for(do(php, "publish", BODY, "orders"), 30)
    assert len(broker.peers) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"H0100104P01",
        b"H0100303P0100000000000000000000000009999",
        b"H0100303P01" + b"9" * 29,
        b"H0100302" + b"P0100000000000000000000000000001q" * 2,
        b"H0100702P0100000000000000000000000000001qP0200000000000000000000000000001x",
        b"H0100302P0100000000000000000000000000001qP0300000000000000000000000000001x",
    ],
    ids=["http", "publish", "long queue", "huge", "twice", "no key", "no content"],
)
async def test_invalid_reply_ends_the_connection(broker: ScriptedBroker, said: bytes) -> None:
    broker.script = lambda peer, _frame: peer.transport.write(said)
    async with php_at(broker) as php:
        with suppress(PhpError):  # or None if the time ended on a new connection
            assert await do(php, "reserve", "orders", 0.3) is None
        assert len(broker.peers) > 1
        broker.script = dispatching(broker, ID, BODY)
        assert (await message(php)).body == BODY


# -- the ends


async def test_release_of_the_same_bytes_keeps_the_remaining_ttl(broker: ScriptedBroker) -> None:
    broker.script = dispatching(broker, ID, BODY, ttl_s=3600)
    async with php_at(broker) as php:
        await do(php, "release", await take(php), BODY, 0)
        (sent,) = await frames(broker, php)
    assert sent in [Requeue("orders", ID, 3600), Requeue("orders", ID, 3599)]


async def test_delayed_release_stores_a_copy_before_it_acknowledges(broker: ScriptedBroker) -> None:
    """As the design says: 001 under ``<id>:<attempts>`` to ``.retry``, 007, then 004."""
    asked: list[tuple[ScriptedPeer, Publish]] = []
    is_asked = asyncio.Event()

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch("orders", BODY, ID, 60)
        elif isinstance(frame, Publish):
            asked.append((peer, frame))
            is_asked.set()

    broker.script = script
    async with php_at(broker) as php:
        handle = await take(php)
        payload = await asyncio.to_thread(php.recoded, BODY, 2)
        release = asyncio.create_task(do(php, "release", handle, payload, 7))
        await is_asked.wait()
        ((peer, copy),) = asked
        assert copy == Publish("orders.retry", body(attempts="2"), 7, ID + b":2")
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert not release.done()
        peer.answer(copy)
        await release
        assert await frames(broker, php) == [copy, Acknowledge("orders", ID)]


async def test_release_at_once_with_other_bytes_keeps_its_deadline(broker: ScriptedBroker) -> None:
    broker.script = dispatching(broker, ID, BODY, ttl_s=3600)
    async with php_at(broker) as php:
        await do(php, "release", await take(php), body(attempts="1"), 0)
        copy, end = await frames(broker, php)
    assert isinstance(copy, Publish)
    assert (copy.queue, copy.content, copy.key) == ("orders", body(attempts="1"), ID + b":1")
    assert copy.ttl_s in (3600, 3599)
    assert end == Acknowledge("orders", ID)


async def test_delayed_release_of_the_same_bytes_copies_them(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "release", await take(php), BODY, 5)
        copy = Publish("orders.retry", BODY, 5, ID + b":0")
        assert await frames(broker, php) == [copy, Acknowledge("orders", ID)]


async def test_dead_letter_writes_its_record_before_it_ends(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        handle = await take(php)
        block = {"reason": "failed", "error": "no stock", "attempts": 3}
        payload = await asyncio.to_thread(php.recoded, BODY, 3, block)
        await do(php, "deadLetter", handle, payload)
        record, end = await frames(broker, php)
    assert isinstance(record, Publish)
    assert (record.queue, record.ttl_s, record.key) == ("orders.dlq", 0, ID + b":dead")
    found = json.loads(record.content)
    assert (found["attempts"], found["dead_letter"]["message_id"]) == (3, ID.decode())
    assert end == DeadLetter("orders", ID)


@pytest.mark.parametrize(
    ("queue", "content"),
    [("orders", with_meta(schema_version="2")), ("orders.dlq", BODY)],
    ids=["version 2", "of a record"],
)
async def test_dead_letter_that_only_the_broker_can_write_is_bare(
    broker: ScriptedBroker, queue: str, content: bytes
) -> None:
    broker.script = dispatching(broker, ID, content)
    async with php_at(broker) as php:
        await do(php, "deadLetter", await take(php, queue), content)
        await do(php, "close")
    sent = received(broker)
    assert sent == [Consume(queue, 1), DeadLetter(queue, ID), Consume(queue, 0)]


async def test_longest_queue_name_has_no_retry_queue(broker: ScriptedBroker) -> None:
    """A name may have 255 bytes, and 259 with ``.dlq``; with ``.retry`` it cannot exist."""
    queue = "q" * 255
    broker.script = dispatching(broker, ID, BODY)
    for name, *more in (("deadLetter", BODY), ("release", BODY, 5)):
        async with php_at(broker) as php:
            await do(php, name, await take(php, queue), *more)
            assert (await message(php, f"{queue}.dlq")).body == BODY
            await do(php, "close")
    sent = received(broker)
    published = [frame.queue for frame in sent if isinstance(frame, Publish)]
    assert published == [f"{queue}.dlq", queue]


async def test_malformed_body_is_stored_whole_in_its_record(broker: ScriptedBroker) -> None:
    """InitPHP returns ``{"attempts":0,"dead_letter":…}`` without the body."""
    deep = nested(300)
    broker.script = dispatching(broker, ID, deep)
    async with php_at(broker) as php:
        found = await message(php)
        assert found.envelope == []
        await do(php, "deadLetter", found.handle, b'{"attempts":0,"dead_letter":{"attempts":0}}')
        record, _ = await frames(broker, php)
    assert isinstance(record, Publish)
    assert json.loads(record.content)["raw"] == deep.decode()
    assert json.loads(record.content)["dead_letter"]["detail"] == "too_deep"


@pytest.mark.parametrize("content", [body(data="[1]"), body(trace_id='" "'), b"[]"])
async def test_body_that_initphp_would_hand_to_a_handler_has_an_empty_envelope(
    broker: ScriptedBroker, content: bytes
) -> None:
    """Its dispatcher accepts a list as data and a blank trace_id, but no empty envelope."""
    broker.script = dispatching(broker, ID, content)
    async with php_at(broker) as php:
        found = await message(php)
        assert (found.body, found.envelope) == (content, [])


# -- failures


async def test_copy_that_is_refused_leaves_the_message_reserved(broker: ScriptedBroker) -> None:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch("orders", BODY, ID)
        elif isinstance(frame, Publish):
            peer.answer(frame, None if frame.queue.endswith(".dlq") else "queue is full")

    broker.script = script
    async with php_at(broker) as php:
        handle = await take(php)
        with pytest.raises(PhpError, match=r"PublishRefused: orders\.retry: queue is full"):
            await do(php, "release", handle, BODY, 5)
        await do(php, "deadLetter", handle, BODY)
        _, record, end = await frames(broker, php)
    assert isinstance(record, Publish)
    assert end == DeadLetter("orders", ID)


async def test_copy_without_a_receipt_is_repeated_under_its_key(broker: ScriptedBroker) -> None:
    cut: list[Publish] = []

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Publish) and not cut:
            cut.append(frame)
            peer.cut()
            return
        broker.store(peer, frame)
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch("orders", BODY, ID)

    broker.script = script
    async with php_at(broker) as php:
        await do(php, "release", await take(php), body(attempts="1"), 5)
        await do(php, "close")
    sent = [broker.frames.get_nowait() for _ in range(broker.frames.qsize())]
    (first, again) = [frame for _, frame in sent if isinstance(frame, Publish)]
    assert first == again
    assert sent[-1] == (broker.peers[1], Acknowledge("orders", ID))


@pytest.mark.parametrize(
    ("end", "more"), [("release", (5,)), ("release", (0,)), ("deadLetter", ())], ids=str
)
async def test_copy_that_was_stored_with_other_bytes_is_stored(
    broker: ScriptedBroker, end: str, more: tuple[int, ...]
) -> None:
    """A worker that died after the receipt has stored it; a second record has another time."""

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Consume) and frame.count:
            peer.dispatch("orders", BODY, ID)
        elif isinstance(frame, Publish):
            peer.answer(frame, "key conflict")

    broker.script = script
    async with php_at(broker) as php:
        await do(php, end, await take(php), body(attempts="1"), *more)
        _, settled = await frames(broker, php)
    assert settled == (DeadLetter if end == "deadLetter" else Acknowledge)("orders", ID)


async def test_own_key_with_other_bytes_is_refused(broker: ScriptedBroker) -> None:
    broker.script = lambda peer, frame: peer.answer(frame, "key conflict")  # type: ignore[arg-type]
    async with php_at(broker) as php:
        with pytest.raises(PhpError, match=r"PublishRefused: orders: key conflict"):
            await do(php, "publish", BODY, "orders")


async def test_copy_without_attempts_has_one_key_whatever_its_bytes(broker: ScriptedBroker) -> None:
    broker.script = dispatching(broker, ID, b"opaque")
    keys = set()
    for text in (b"first", b"second"):
        async with php_at(broker) as php:
            await do(php, "release", await take(php), text, 0)
            copy, _ = await frames(broker, php)
            assert isinstance(copy, Publish)
            keys.add(copy.key)
    assert len(keys) == 1


async def test_acknowledgement_leaves_on_the_next_connection(broker: ScriptedBroker) -> None:
    """The broker accepts it: the message is not held after its connection ended."""
    async with php_at(broker) as php:
        handle = await take(php)
        broker.peer.cut()
        await broker.peer.ended.wait()
        await do(php, "ack", handle)
        await do(php, "close")
    sent = [broker.frames.get_nowait() for _ in range(broker.frames.qsize())]
    assert sent[1:] == [(broker.peers[1], Acknowledge("orders", ID))]


async def test_publish_without_a_receipt_times_out(broker: ScriptedBroker) -> None:
    broker.script = silent
    async with php_at(broker, timeout=0.2) as php:
        with pytest.raises(PhpError, match=r"ConnectionLost: .*: no receipt within 0\.2 s"):
            await do(php, "publish", BODY, "orders")


async def test_publish_sends_its_bytes_under_a_new_key_each_time(broker: ScriptedBroker) -> None:
    async with php_at(broker, defaultQueue="home") as php:
        for queue in ("orders", None):
            given = await do(php, "publish", BODY, queue)
            assert given == json.loads(BODY)["meta"]["id"]
    first, second = await broker.next(Publish), await broker.next(Publish)
    assert (first.queue, second.queue) == ("orders", "home")
    assert first.content == second.content == BODY
    assert first.key != second.key


async def test_publish_takes_a_ttl_or_a_delay(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "publish", BODY, "orders", 60)
        await do(php, "publish", BODY, "orders", 0, 5)
        sent = [await broker.next(Publish) for _ in range(2)]
        assert [(frame.queue, frame.ttl_s) for frame in sent] == [
            ("orders", 60),
            ("orders.retry", 5),
        ]


@pytest.mark.parametrize(
    ("queue", "ttl", "delay", "sentence"),
    [
        ("orders.retry", 0, 5, "publish to the queue without .retry"),
        ("orders", -1, 0, "ttl is -1 s; it must be 0 to 3153600000"),
        ("orders", 0, 315_360_001, "delay is 315360001 s; it must be 0 to 315360000"),
    ],
)
async def test_delay_that_cannot_be_is_refused(
    broker: ScriptedBroker, queue: str, ttl: int, delay: int, sentence: str
) -> None:
    async with php_at(broker) as php:
        for call in ("publish", "publishBytes"):
            with pytest.raises(PhpError, match=f"PhpmqException: .*{re.escape(sentence)}"):
                await do(php, call, BODY, queue, ttl, delay)
    assert broker.peers == []


async def test_large_message_that_ends_connections_is_not_sent_again_and_again(
    broker: ScriptedBroker,
) -> None:
    """A broker closes when it reads the size of a message above its limit, and says nothing."""
    large = body(data='{"text":"%s"}' % ("x" * 70_000))
    broker.script = lambda peer, frame: peer.cut() if isinstance(frame, Publish) else None
    said = f"lost 3 times while this message of {len(large)} bytes .* broker's limits.max_content"
    async with php_at(broker, timeout=3600.0) as php:
        with pytest.raises(PhpError, match=f"ConnectionLost: .*{said}"):
            await asyncio.wait_for(do(php, "publish", large, "orders"), 30)
    assert [type(frame) for frame in received(broker)] == [Publish] * 3


async def test_large_message_waits_for_a_broker_behind_a_proxy(broker: ScriptedBroker) -> None:
    """A proxy accepts connections while its broker restarts, and closes them without reading."""
    large = body(data='{"text":"%s"}' % ("x" * 70_000))
    ended: list[ScriptedPeer] = []

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Publish) and frame.content == large and not ended:
            ended.append(peer)
            broker.on_connect = lambda new: new.cut() if len(broker.peers) < 6 else None
            peer.cut()
        else:
            broker.store(peer, frame)

    broker.script = script
    async with php_at(broker, timeout=30.0) as php:
        await do(php, "publish", BODY, "orders")  # since then, lost connections are temporary
        await do(php, "publish", large, "orders")
    assert [len(frame.content) for frame in received(broker) if isinstance(frame, Publish)] == [
        len(BODY), len(large), len(large)
    ]  # fmt: skip


# -- bytes without an envelope


async def test_bytes_are_published_reserved_and_settled(broker: ScriptedBroker) -> None:
    content = bytes(range(256))
    broker.script = dispatching(broker, ID, content, ttl_s=3600)
    async with php_at(broker) as php:
        await do(php, "publishBytes", content, "orders", 60, 0, "order-1042")
        assert await broker.next(Publish) == Publish("orders", content, 60, b"order-1042")
        for call, end in (
            (("ackBytes",), [Acknowledge("orders", ID)]),
            (("requeueBytes", 0), [Requeue("orders", ID, 3600)]),
            (("deadLetterBytes",), [DeadLetter("orders", ID)]),
            (
                ("requeueBytes", 5),
                [Publish("orders.retry", content, 5, ID + b":copy"), Acknowledge("orders", ID)],
            ),
        ):
            taken = await asyncio.to_thread(php.take, "orders", "reserveBytes")
            assert (taken.body, taken.message_id) == (content, ID.decode())
            await do(php, call[0], taken.handle, *call[1:])
            await do(php, "close")
            await broker.peer.half_closed.wait()
            assert received(broker)[1:-1] == end


async def test_bytes_are_repeated_under_their_key_after_a_lost_connection(
    broker: ScriptedBroker,
) -> None:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if len(broker.peers) == 1:
            peer.cut()
        else:
            broker.store(peer, frame)

    broker.script = script
    async with php_at(broker) as php:
        await do(php, "publishBytes", b"{}", "orders")
    first, again = received(broker)
    assert first == again


async def test_bytes_that_are_refused_name_the_reason(broker: ScriptedBroker) -> None:
    def refuse(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Publish):
            peer.answer(frame, "queue is full")

    broker.script = refuse
    async with php_at(broker, maxContent=4) as php:
        with pytest.raises(PhpError, match=r"PublishRefused: orders: queue is full"):
            await do(php, "publishBytes", b"1234", "orders")
        with pytest.raises(PhpError, match=r"the limit is 4 \(maxContent; .*limits\.max_content\)"):
            await do(php, "publishBytes", b"12345", "orders")
        with pytest.raises(PhpError, match=r"the key is 65 bytes long; it must be 1 to 64"):
            await do(php, "publishBytes", b"1234", "orders", 0, 0, "k" * 65)


@pytest.mark.parametrize("content", [b"\xff", b"hello", body(data="[1]"), body(trace_id='""')])
async def test_invalid_envelope_is_not_published(broker: ScriptedBroker, content: bytes) -> None:
    async with php_at(broker) as php:
        with pytest.raises(PhpError, match="BadEnvelope: invalid envelope"):
            await do(php, "publish", content, "orders")
    assert broker.peers == []


@pytest.mark.parametrize("name", ["", "a\tb", "q" * 256, "ü" * 128, "a\x7fb", "\x85"])
async def test_invalid_queue_name_is_refused(broker: ScriptedBroker, name: str) -> None:
    async with php_at(broker) as php:
        for call in (("publish", BODY, name), ("reserve", name, 0.1)):
            with pytest.raises(PhpError, match="PhpmqException: a queue name must have 1 to 255"):
                await do(php, *call)
    assert broker.peers == []


async def test_body_above_the_limit_is_refused_before_sending(broker: ScriptedBroker) -> None:
    async with php_at(broker, maxContent=len(BODY) - 1) as php:
        with pytest.raises(PhpError, match=f"BadEnvelope: the message is {len(BODY)} bytes"):
            await do(php, "publish", BODY, "orders")
    assert broker.peers == []


async def test_record_above_the_limit_is_left_to_the_broker(broker: ScriptedBroker) -> None:
    async with php_at(broker, maxContent=len(BODY)) as php:
        await do(php, "deadLetter", await take(php), BODY)
        assert await frames(broker, php) == [DeadLetter("orders", ID)]
