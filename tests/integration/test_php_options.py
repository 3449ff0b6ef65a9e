"""The frames with options that ``clients/php`` sends, to brokers that know them and to others."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from phpmq_lite import __version__
from phpmq_lite.protocol.frames import (
    OUR_FRAMES,
    Acknowledge,
    ClientFrame,
    Consume,
    ConsumeWithOptions,
    DeadLetter,
    Publish,
    PublishWithOptions,
    Requeue,
    Settle,
)
from tests.integration.test_php_wire import (
    BODY,
    ID,
    OTHER,
    do,
    message,
    php_at,
    received,
    take,
)
from tests.support.envelope_cases import body
from tests.support.php_client import PhpError, needs_php
from tests.support.scripted_broker import ScriptedBroker, ScriptedPeer

pytestmark = [pytest.mark.acceptance, needs_php]

INFO: dict[str, Any] = {
    "attempt": 1,
    "deliveries": 1,
    "hold_s": 1800,
    "priority": 128,
    "age_s": 0.5,
}
ASKED = b'{"info":true,"keep":true}'


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Run a broker that knows all frames, and dispatches one envelope to each consumer."""
    async with ScriptedBroker() as scripted:
        scripted.known_frames = OUR_FRAMES
        scripted.script = dispatching(scripted, ID, BODY)
        yield scripted


def is_consume(frame: ClientFrame) -> bool:
    return isinstance(frame, Consume | ConsumeWithOptions) and frame.count > 0


def dispatching(broker: ScriptedBroker, message_id: bytes, content: bytes, **info: Any) -> Any:
    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        broker.store(peer, frame)
        if isinstance(frame, ConsumeWithOptions) and frame.count:
            peer.dispatch(frame.queue, content, message_id, 60, **(INFO | info))
        elif isinstance(frame, Consume) and frame.count:
            peer.dispatch(frame.queue, content, message_id, 60)

    return script


def options_of(frame: ClientFrame) -> dict[str, Any]:
    assert isinstance(frame, PublishWithOptions | Settle)
    found: dict[str, Any] = json.loads(frame.options)
    return found


async def ends(broker: ScriptedBroker, php: Any) -> list[ClientFrame]:
    """Close the client; return the frames that are no consumes."""
    await do(php, "close")
    await broker.peer.half_closed.wait()
    found = received(broker)
    assert is_consume(found[0])
    assert found[-1] == Consume("orders", 0)
    return without_credit(found)


def without_credit(frames: list[ClientFrame]) -> list[ClientFrame]:
    return [frame for frame in frames if not isinstance(frame, Consume | ConsumeWithOptions)]


# -- hello


async def test_hello_says_who_the_client_is(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await take(php)
        (hello,) = broker.hellos
        said = json.loads(hello.options)
        assert said.pop("pid") == php.process.pid
        assert said.pop("host")
        assert said == {"name": "phpmq-lite/client", "version": __version__}
        assert received(broker) == [
            ConsumeWithOptions("orders", 1, ASKED), ConsumeWithOptions("orders", 0, ASKED)
        ]  # fmt: skip


async def test_release_before_gets_no_hello_after_two_ends(broker: ScriptedBroker) -> None:
    """For ten minutes, which the next client of the process shows."""
    broker.known_frames = None
    async with php_at(broker) as php:
        await do(php, "publish", BODY, "orders")
        assert (len(broker.hellos), len(broker.peers)) == (2, 3)
        await do(php, "ack", await take(php))
        await do(php, "publishBytes", b"x", "orders")  # by the other client
        assert (len(broker.hellos), len(broker.peers)) == (2, 4)
        kinds = [type(frame) for frame in received(broker)]
        assert kinds == [Publish, Consume, Acknowledge, Consume, Publish]


async def test_one_end_is_not_taken_as_a_release_before(broker: ScriptedBroker) -> None:
    broker.on_connect = lambda peer: peer.cut() if len(broker.peers) == 1 else None
    async with php_at(broker) as php:
        await do(php, "publishWith", BODY, "orders", {"priority": 3})
        assert len(broker.hellos) == 1


async def test_address_that_ends_connections_without_hello_is_asked_again(
    broker: ScriptedBroker,
) -> None:
    """As a proxy whose broker restarts: what it ends says nothing about the broker."""
    usual = broker.script
    broker.known_frames = None

    def script(peer: ScriptedPeer, _frame: ClientFrame) -> None:
        broker.known_frames, broker.script = OUR_FRAMES, usual
        peer.cut()

    broker.script = script
    async with php_at(broker) as php:
        assert (await message(php)).body == BODY
        assert (len(broker.hellos), len(broker.peers)) == (3, 4)


# -- publish


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"delay": 1.5}, {"ttl_s": 0, "delay_s": 1.5}),
        ({"delay": 5, "ttl": 60}, {"ttl_s": 60, "delay_s": 5}),
        ({"ttl": 0.25}, {"ttl_s": 0.25}),
        (
            {"deliverAt": "2027-01-01T08:00+01:00", "priority": 0},
            {"ttl_s": 0, "deliver_at": 1_798_786_800_000, "priority": 0},
        ),
        ({"group": "ü", "isEnvelope": True}, {"ttl_s": 0, "group": "ü"}),
        (
            {"uniqueKey": "invoice-7", "ifExists": "replace"},
            {"ttl_s": 0, "unique_key": "invoice-7", "if_exists": "replace"},
        ),
    ],
    ids=lambda value: "+".join(value),
)
async def test_options_are_published_with_010(
    broker: ScriptedBroker, named: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with php_at(broker) as php:
        await do(php, "publishWith", BODY, "orders", named)
        (sent,) = received(broker)
        assert isinstance(sent, PublishWithOptions)
        assert (sent.queue, sent.content, options_of(sent)) == ("orders", BODY, expected)
        assert sent.key


async def test_publish_without_options_is_that_of_before(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "publishWith", BODY, "orders", {"ttl": 60, "key": "k"})
        assert received(broker) == [Publish("orders", BODY, 60, b"k")]


@pytest.mark.parametrize("known", [None, (), (7, 11)], ids=str)
async def test_release_before_gets_a_delay_through_its_retry_queue_and_no_other_option(
    broker: ScriptedBroker, known: tuple[int, ...] | None
) -> None:
    broker.known_frames = known
    async with php_at(broker) as php:
        await do(php, "publishWith", BODY, "orders", {"delay": 5, "key": "k"})
        assert received(broker) == [Publish("orders.retry", BODY, 5, b"k")]
        for named in ({"delay": 5, "ttl": 60}, {"delay": 0.5}, {"ttl": 1.5}, {"priority": 128}):
            with pytest.raises(PhpError, match=r"PhpmqException: .*earlier version.* frame 010"):
                await do(php, "publishWith", BODY, "orders", named)
        with pytest.raises(PhpError, match="a queue name must have 1 to 255 bytes"):
            await do(php, "publishWith", BODY, "q" * 250, {"delay": 5})
        assert received(broker) == []


async def test_large_body_is_compared_with_the_limit_of_the_broker(broker: ScriptedBroker) -> None:
    broker.max_content = 70_000
    async with php_at(broker) as php:
        said = r"PhpmqException: 127.0.0.1:\d+: the message is 70001 bytes; the limit is 70000"
        with pytest.raises(PhpError, match=said):
            await do(php, "publishBytes", bytes(70_001), "orders")
        await do(php, "publishBytes", bytes(70_000), "orders")
        assert len(received(broker)) == 1


async def test_small_body_is_compared_with_the_limit_after_a_lost_connection(
    broker: ScriptedBroker,
) -> None:
    """Only then, because a publish does not wait for the welcome."""
    broker.max_content = 10
    broker.script = lambda peer, _frame: peer.cut()
    async with php_at(broker) as php:
        with pytest.raises(PhpError, match=r"the message is 11 bytes; the limit is 10"):
            await do(php, "publishBytes", bytes(11), "orders")
    assert len(broker.peers) == 2


# -- deliveries


async def test_delivery_tells_its_attempt(broker: ScriptedBroker) -> None:
    broker.script = dispatching(broker, ID, BODY, attempt=3, priority=0, group="customer-7")
    async with php_at(broker) as php:
        info = await do(php, "info", await take(php))
        assert info == {
            "attempt": 3, "deliveries": 1, "hold": 1800, "priority": 0, "group": "customer-7",
            "age": 0.5,
        }  # fmt: skip


async def test_empty_reserve_beside_a_held_message_only_pauses(broker: ScriptedBroker) -> None:
    """Otherwise, the next message would wait here although another consumer is free."""
    async with php_at(broker, credit=2) as php:
        handle = await take(php)
        assert await do(php, "reserve", "orders", 0.02) is None
        crossed: list[bytes] = []
        broker.peer.side.append_dispatch(crossed, "orders", b"crossed", OTHER, 0)
        broker.peer.transport.write(b"".join(crossed))
        await do(php, "ack", handle)
        assert received(broker) == [
            ConsumeWithOptions("orders", 2, ASKED), ConsumeWithOptions("orders", 0, ASKED),
            Acknowledge("orders", ID), Consume("orders", 0),
        ]  # fmt: skip


# -- ends


async def test_retry_names_the_attempt_and_the_error(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "retry", await take(php), 1.5, "no stock", 3)
        (sent,) = await ends(broker, php)
    assert isinstance(sent, Settle)
    said = options_of(sent)
    assert "{main}" in said.pop("traceback")
    assert said == {
        "action": "retry", "delay_s": 1.5, "attempt": 1, "limit": 3, "exception": "Exception",
        "error": "no stock",
    }  # fmt: skip
    assert sent.content is None


@pytest.mark.parametrize(
    ("content", "attempt", "payload", "expected"),
    [
        (BODY, 1, 1, None),
        (body(attempts="1"), 2, 2, None),
        (BODY, 2, 2, None),  # a worker was killed, or the queue keeps its bytes
        (BODY, 2, 1, body(attempts="1")),
        (body(attempts="-50"), 1, 1, body(attempts="1")),
        (BODY, 1, 7, body(attempts="7")),
    ],
    ids=["first", "second", "uncounted", "less", "negative", "other"],
)
async def test_release_with_new_attempts_is_a_retry(
    broker: ScriptedBroker, content: bytes, attempt: int, payload: int, expected: bytes | None
) -> None:
    """The broker counts the attempt; content is sent only where that is not what the body needs."""
    broker.script = dispatching(broker, ID, content, attempt=attempt)
    async with php_at(broker) as php:
        handle = await take(php)
        await do(php, "release", handle, await asyncio.to_thread(php.recoded, content, payload), 7)
        (sent,) = await ends(broker, php)
    assert isinstance(sent, Settle)
    assert options_of(sent) == {"action": "retry", "delay_s": 7, "attempt": attempt}
    assert sent.content == expected


@pytest.mark.parametrize(
    ("content", "delay", "expected"), [(BODY, 5, None), (body(data='{"n":1}'), 0, "new")]
)
async def test_release_that_is_no_retry_counts_no_attempt(
    broker: ScriptedBroker, content: bytes, delay: int, expected: str | None
) -> None:
    async with php_at(broker) as php:
        await do(php, "release", await take(php), content, delay)
        (sent,) = await ends(broker, php)
    assert isinstance(sent, Settle)
    assert options_of(sent) == {"action": "retry", "delay_s": delay, "failed": False}
    assert sent.content == (None if expected is None else content)


async def test_release_of_the_same_bytes_is_a_requeue(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "release", await take(php), BODY, 0)
        (sent,) = await ends(broker, php)
    assert sent in (Requeue("orders", ID, 59), Requeue("orders", ID, 60))


async def test_dead_letter_is_one_frame_with_its_cause(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        block = {"reason": "failed", "detail": "card_declined", "error": "no money", "attempts": 3}
        handle = await take(php)
        await do(php, "deadLetter", handle, await asyncio.to_thread(php.recoded, BODY, 3, block))
        (sent,) = await ends(broker, php)
        assert options_of(sent) == {
            "action": "dead_letter", "reason": "card_declined", "error": "no money",
        }  # fmt: skip
        broker.script = dispatching(broker, OTHER, b"[1]")
        await do(php, "deadLetter", await take(php), b"[1]")
        (sent,) = await ends(broker, php)
        assert options_of(sent) | {"error": ""} == {
            "action": "dead_letter", "reason": "poison", "error": "",
        }  # fmt: skip


async def test_bytes_are_retried_and_dead_lettered(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        for call, expected in (
            (("retryBytes", 2, "no", None), {"action": "retry", "delay_s": 2, "attempt": 1}),
            (("requeueBytes", 0.5), {"action": "retry", "delay_s": 0.5, "failed": False}),
            (("deadLetterBytes", "spam"), {"action": "dead_letter", "reason": "spam"}),
        ):
            taken = await asyncio.to_thread(php.take, "orders", "reserveBytes")
            await do(php, call[0], taken.handle, *call[1:])
            (sent,) = await ends(broker, php)
            said = options_of(sent)
            assert {name: said[name] for name in expected} == expected


async def test_long_texts_are_cut_to_the_size_of_a_packet(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "retry", await take(php), 0, "\x01" * 5_000, None)
        (sent,) = await ends(broker, php)
    assert isinstance(sent, Settle)
    assert len(sent.options) <= 16 << 10
    assert options_of(sent)["error"] == "\x01" * 1_000


async def test_extend_asks_for_a_longer_hold(broker: ScriptedBroker) -> None:
    async with php_at(broker) as php:
        await do(php, "extend", await take(php), 90.5)
        sent = await broker.next(Settle)
        assert options_of(sent) == {"action": "extend", "hold_s": 90.5}
        with pytest.raises(PhpError, match="the hold is -1 s; it must be 0 to 315360000"):
            await do(php, "extend", 0, -1)


async def test_release_before_extends_nothing_and_gets_the_former_ends(
    broker: ScriptedBroker,
) -> None:
    broker.known_frames = None
    async with php_at(broker) as php:
        handle = await take(php)
        with pytest.raises(PhpError, match=r"earlier version.* frame 011: upgrade it"):
            await do(php, "extend", handle, 90)
        await do(php, "retry", handle, 1.5, "no stock", 3)
        sent = await ends(broker, php)
    assert sent == [
        Publish("orders.retry", body(attempts="1"), 2, ID + b":1"), Acknowledge("orders", ID)
    ]  # fmt: skip


# -- late ends


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("ack",), [Acknowledge]),
        (("retry", 5, "no", 3), [Settle]),
        (("deadLetter", BODY), [Settle]),
    ],
)
async def test_settlement_is_sent_before_the_first_consume_of_the_next_connection(
    broker: ScriptedBroker, call: tuple[Any, ...], expected: list[type[ClientFrame]]
) -> None:
    """The broker is away for longer than the timeout of the call."""
    async with php_at(broker, timeout=0.3) as php:
        handle = await take(php)
        await broker.stop()
        with pytest.raises(PhpError, match=r"ConnectionLost|NotConnected"):
            await do(php, call[0], handle, *call[1:])
        received(broker)
        await broker.start()
        broker.script = dispatching(broker, OTHER, BODY)
        assert (await message(php)).message_id == OTHER.decode()
        kinds = [type(frame) for frame in received(broker)]
        assert kinds == [*expected, ConsumeWithOptions, ConsumeWithOptions]


async def test_late_retry_goes_in_the_former_way_to_a_release_before(
    broker: ScriptedBroker,
) -> None:
    """The broker was replaced by an earlier version while the handler ran."""
    async with php_at(broker) as php:
        retried = await take(php)
        await broker.stop()
        broker.known_frames = None
        await broker.start()
        await do(php, "retry", retried, 5, "no", 3)
        sent = without_credit(received(broker))
        copy = Publish("orders.retry", body(attempts="1"), 5, ID + b":1")
        assert sent == [copy, Acknowledge("orders", ID)]


async def test_late_dead_letter_goes_in_the_former_way_to_a_release_before(
    broker: ScriptedBroker,
) -> None:
    async with php_at(broker) as php:
        dead = await take(php)
        await broker.stop()
        broker.known_frames = None
        await broker.start()
        await do(php, "deadLetter", dead, BODY)
        record, end = without_credit(received(broker))
        assert isinstance(record, Publish)
        assert (record.queue, record.key) == ("orders.dlq", ID + b":dead")
        assert end == DeadLetter("orders", ID)


@pytest.mark.parametrize(
    ("call", "attempt", "is_settled"),
    [(("ack",), 2, True), (("retry", 0, "no", 3), 1, True), (("retry", 0, "no", 3), 2, False)],
    ids=["acknowledged", "the same attempt", "the next attempt"],
)
async def test_message_whose_end_was_lost_is_not_handled_again(
    broker: ScriptedBroker, call: tuple[Any, ...], attempt: int, is_settled: bool
) -> None:
    """A sent retry is remembered by id and attempt: the message keeps its id."""
    consuming: list[ScriptedPeer] = []

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if isinstance(frame, Acknowledge | Settle):
            if len(broker.peers) == 1:
                peer.cut()
            elif peer in consuming:
                peer.dispatch("orders", b"next", OTHER, **INFO)
        elif is_consume(frame):
            consuming.append(peer)
            number = 1 if len(broker.peers) == 1 else attempt
            peer.dispatch("orders", BODY, ID, **(INFO | {"attempt": number}))

    broker.script = script
    async with php_at(broker) as php:
        await do(php, call[0], await take(php), *call[1:])
        await broker.peers[0].ended.wait()
        again = await message(php)
        assert again.body == (b"next" if is_settled else BODY)
        end = Acknowledge if call[0] == "ack" else Settle
        sent = [frame for frame in received(broker) if isinstance(frame, end) or is_consume(frame)]
        kinds = [type(frame) for frame in sent]
        expected = [ConsumeWithOptions, end, end, ConsumeWithOptions]
        assert kinds == expected + [end] * is_settled


async def test_settlements_of_the_last_minute_are_sent_again(broker: ScriptedBroker) -> None:
    """A dispatch shows nothing: it may be sent before the settlement is on the broker's disk."""
    ids = iter([ID, OTHER])

    def script(peer: ScriptedPeer, frame: ClientFrame) -> None:
        if is_consume(frame) and len(broker.peers) == 1:
            peer.dispatch("orders", BODY, next(ids), **INFO)

    broker.script = script
    async with php_at(broker) as php:
        await do(php, "release", await take(php), BODY, 5)  # counts no attempt: it is not repeated
        await do(php, "ack", await take(php))
        received(broker)
        broker.peer.cut()
        await broker.peer.ended.wait()
        assert await do(php, "reserve", "orders", 0.1) is None
        assert without_credit(received(broker)) == [Acknowledge("orders", OTHER)]
