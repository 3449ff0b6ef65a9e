"""Dispatching, its limits, purges and redrives."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest

from phpmq_lite.broker import commands
from phpmq_lite.broker.queue import Connection
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import (
    ALIVE,
    BEFORE_ALL,
    OUTCOMES,
    STATE_NAMES,
    Batch,
    Limits,
    LoadedPage,
    LoadedRows,
    LoadedWindow,
    Message,
    MessageSource,
    OutcomeName,
    State,
)
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_rig import (
    CoreRig,
    bodies,
    event_kinds,
    message,
    outcomes,
    sent_messages,
    sent_receipts,
)

ABC = (b"a", b"b", b"c")


def test_consumers_take_turns_message_by_message(rig: CoreRig) -> None:
    one, two, three = rig.consumer(), rig.consumer(), rig.consumer()
    batch = rig.publish(*(b"%d" % n for n in range(7)))
    assert bodies(sent_messages(batch, one)) == [b"0", b"3", b"6"]
    assert bodies(sent_messages(batch, two)) == [b"1", b"4"]
    assert bodies(sent_messages(batch, three)) == [b"2", b"5"]


def test_turns_continue_across_batches(rig: CoreRig) -> None:
    one, two = rig.consumer(), rig.consumer()
    assert bodies(sent_messages(rig.publish(b"a"), one)) == [b"a"]
    assert bodies(sent_messages(rig.publish(b"b"), two)) == [b"b"]
    assert bodies(sent_messages(rig.publish(b"c"), one)) == [b"c"]


def test_consumer_without_credit_is_skipped_until_it_acknowledges(rig: CoreRig) -> None:
    one, two = rig.consumer(credit=1), rig.consumer(credit=3)
    batch = rig.publish(b"a", b"b", b"c", b"d", b"e")
    assert bodies(sent_messages(batch, one)) == [b"a"]
    assert bodies(sent_messages(batch, two)) == [b"b", b"c", b"d"]
    first = sent_messages(batch, one)[0]
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, one, "orders", first.message_id))
    assert bodies(sent_messages(batch, one)) == [b"e"]


def test_credit_is_per_queue_of_a_connection(rig: CoreRig) -> None:
    worker = rig.consumer("orders", credit=1)
    rig.consume(worker, 2, "mails")
    assert bodies(sent_messages(rig.publish(*ABC), worker)) == [b"a"]
    assert bodies(sent_messages(rig.publish(*ABC, queue="mails"), worker)) == [b"a", b"b"]


def test_credit_is_clamped_to_the_limit() -> None:
    rig = CoreRig(Limits(credit=2))
    worker = rig.consumer(credit=10**18)
    assert bodies(sent_messages(rig.publish(*ABC), worker)) == [b"a", b"b"]


@pytest.mark.parametrize("limits", [Limits(credit_bytes=10), Limits(held_bytes=10)])
def test_consumer_gets_a_limited_number_of_bytes_but_always_one_message(limits: Limits) -> None:
    rig = CoreRig(limits)
    worker = rig.consumer()
    batch = rig.publish(b"x" * 30, b"y")
    assert bodies(sent_messages(batch, worker)) == [b"x" * 30]
    big = sent_messages(batch, worker)[0]
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", big.message_id))
    assert bodies(sent_messages(batch, worker)) == [b"y"]
    assert bodies(sent_messages(rig.publish(b"z" * 9, b"z" * 10), worker)) == [b"z" * 9]


def test_broker_holds_no_more_messages_than_its_limit() -> None:
    rig = CoreRig(Limits(held=2))
    one, two = rig.consumer("orders"), rig.consumer("mails")
    held = sent_messages(rig.publish(*ABC), one)
    assert bodies(held) == [b"a", b"b"]
    assert sent_messages(rig.publish(b"m", queue="mails"), two) == []
    batch = acknowledged(rig, one, "orders", held)
    assert bodies(sent_messages(batch, one) + sent_messages(batch, two)) == [b"c", b"m"]


def test_batch_writes_a_limited_number_of_bytes_to_a_connection() -> None:
    rig = CoreRig(Limits(write_bytes=10))
    worker = rig.consumer(credit=100)
    batch = rig.publish(*[b"x" * 4] * 7)
    assert len(sent_messages(batch, worker)) == 3  # 4 and 8 are below 10, 12 is not
    assert rig.core.batch_limited
    assert len(sent_messages(rig.run(), worker)) == 3
    assert len(sent_messages(rig.run(), worker)) == 1
    assert not rig.core.batch_limited


def test_write_limit_covers_all_queues_of_a_connection() -> None:
    rig = CoreRig(Limits(write_bytes=4))
    worker = rig.consumer("orders")
    rig.consume(worker, 10, "mails")
    publisher = rig.connect()
    batch = rig.run(
        lambda: commands.publish(rig.core, publisher, "orders", b"1234", None, None),
        lambda: commands.publish(rig.core, publisher, "mails", b"5678", None, None),
    )
    assert bodies(sent_messages(batch, worker)) == [b"1234"]
    assert bodies(sent_messages(rig.run(), worker)) == [b"5678"]


def test_blocked_connection_gets_nothing_until_it_has_drained(rig: CoreRig) -> None:
    one, two = rig.consumer(), rig.consumer()
    rig.run(lambda: rig.core.set_blocked(one, is_blocked=True))
    batch = rig.publish(*ABC)
    assert (sent_messages(batch, one), bodies(sent_messages(batch, two))) == (
        [],
        [b"a", b"b", b"c"],
    )
    rig.run(lambda: rig.core.set_blocked(two, is_blocked=True))
    assert rig.publish(b"d").sends == {}
    batch = rig.run(lambda: rig.core.set_blocked(one, is_blocked=False))
    assert bodies(sent_messages(batch, one)) == [b"d"]


def test_paused_queue_delivers_nothing_until_it_is_resumed(rig: CoreRig) -> None:
    worker = rig.consumer()
    rig.run(lambda: rig.pause("orders", "delivery", True))
    assert rig.publish(b"a").sends == {}
    batch = rig.run(lambda: rig.pause("orders", "delivery", False))
    assert bodies(sent_messages(batch, worker)) == [b"a"]
    assert [answer["delivery_paused"] for answer in rig.answers] == [True, False]


def test_message_is_not_dispatched_at_its_deadline(rig: CoreRig) -> None:
    """Strict at dispatch, nothing is sent at or after its deadline."""
    worker = rig.consumer(credit=1)
    held = sent_messages(rig.publish(b"held"), worker)[0]
    rig.publish(b"late", ttl_s=1)
    rig.publish(b"good", ttl_s=2)
    rig.advance(1)
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert bodies(sent_messages(batch, worker)) == [b"good"]
    assert list(outcomes(batch)) == [(2, None), (3, None)]


def test_message_is_dispatched_a_millisecond_before_its_deadline(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    held = sent_messages(rig.publish(b"held"), worker)[0]
    rig.publish(b"good", ttl_s=1)
    rig.steady_ms += 999
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert bodies(sent_messages(batch, worker)) == [b"good"]


@pytest.mark.parametrize(
    ("source", "target", "on_expire"),
    [("late", "orders", "forward:orders"), ("orders", "orders.dlq", "dead_letter")],
    ids=["forwarded", "dead letter"],
)
def test_expired_message_is_dispatched_from_its_target_in_the_same_batch(
    source: str, target: str, on_expire: str
) -> None:
    """The target had been served already, and nothing else would start another batch."""
    rig = CoreRig(defaults=QueueSettings(on_expire=on_expire))
    patient, worker = rig.consumer(target), rig.consumer(source, credit=1)
    [held] = sent_messages(rig.publish(b"held", queue=source), worker)
    rig.publish(b"late", queue=source, ttl_s=1)
    rig.advance(1)
    batch = rig.run(
        lambda: rig.core.wake_consumers(patient),  # then the target is served first
        lambda: commands.acknowledge_late(rig.core, worker, source, held.message_id),
    )
    assert bodies(sent_messages(batch, patient)) == [b"late"]


# -- pages and bodies


def test_queue_with_a_consumer_requests_its_first_page() -> None:
    rig = CoreRig(Limits(window=5, window_bytes=100))
    worker = rig.connect()
    request = rig.run(lambda: commands.consume(rig.core, worker, "orders", 3)).windows[0]
    assert (request.after, request.limit, request.body_bytes) == (BEFORE_ALL, 5, 100)
    page = [message(n, body=b"%d" % n) for n in range(1, 6)]
    batch = rig.run(loaded=LoadedRows(windows=[LoadedWindow(1, page, False)]))
    assert bodies(sent_messages(batch, worker)) == [b"1", b"2", b"3"]
    assert [(r.after, r.limit) for r in batch.windows] == [(5, 3)]


def test_queue_requests_one_page_at_a_time() -> None:
    rig = CoreRig(Limits(window=2))
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 3))
    assert rig.core.needs_dispatch == {}
    assert rig.publish(b"a").windows == []


def test_message_without_a_body_waits_for_it_in_order(rig: CoreRig) -> None:
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 10))
    page = [message(1, body=b"1"), message(2, size=1), message(3, body=b"3")]
    batch = rig.run(loaded=LoadedRows(windows=[LoadedWindow(1, page, True)]))
    assert bodies(sent_messages(batch, worker)) == [b"1"]
    assert batch.body_seqs == {2}
    batch = rig.run(loaded=LoadedRows(bodies={2: b"2"}))
    assert bodies(sent_messages(batch, worker)) == [b"2", b"3"]


def test_bodies_are_requested_within_the_bytes_of_the_window() -> None:
    rig = CoreRig(Limits(window_bytes=25))
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 10))
    page = [message(n, size=10) for n in range(1, 9)]
    batch = rig.run(loaded=LoadedRows(windows=[LoadedWindow(1, page, True)]))
    assert batch.body_seqs == {1, 2, 3}


def test_body_larger_than_the_cache_is_loaded() -> None:
    rig = CoreRig(Limits(window_bytes=5, bodies_bytes=5))
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 10))
    batch = rig.run(loaded=LoadedRows(windows=[LoadedWindow(1, [message(1, size=50)], True)]))
    assert batch.body_seqs == {1}


def test_published_bodies_are_cached_within_the_bytes_of_the_window() -> None:
    rig = CoreRig(Limits(window_bytes=10))
    worker = rig.consumer(credit=1)
    rig.publish(b"held")
    rig.publish(b"12345", b"67890", b"x", b"")
    window = rig.window()
    assert bodies(list(window)) == [b"12345", b"67890", None, b""]
    assert window.body_bytes == rig.core.bodies.total_bytes == 10
    assert sent_messages(rig.run(), worker) == []


def test_bodies_of_all_windows_stay_within_the_cache() -> None:
    rig = CoreRig(Limits(window_bytes=10, bodies_bytes=15))
    for name in ("a", "b"):
        rig.consumer(name, credit=1)
        rig.publish(b"held", queue=name)
        rig.publish(b"123456789", queue=name)
    assert rig.core.bodies.total_bytes == 9
    worker = rig.connect()
    request = rig.run(lambda: commands.consume(rig.core, worker, "c", 1)).windows[0]
    assert request.body_bytes == 6


def test_reloaded_bodies_stay_within_the_cache() -> None:
    """Returned messages have no bodies; loading them must not bypass the limit."""
    rig = CoreRig(Limits(window_bytes=100, bodies_bytes=100))
    full = rig.consumer("full", credit=1)
    rig.publish(b"held", queue="full")
    rig.publish(*[b"x" * 9] * 11, queue="full")
    assert rig.core.bodies.total_bytes == 99
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 100))
    page = [message(n, size=10, queue_id=2) for n in range(101, 109)]
    batch = rig.run(loaded=LoadedRows(windows=[LoadedWindow(2, page, True)]))
    assert batch.body_seqs == {101}
    assert sent_messages(batch, full) == []


def test_window_is_discarded_with_its_last_consumer(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    rig.publish(*ABC)
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 0))
    assert rig.queue().window is None
    assert rig.core.messages == {}
    assert rig.core.bodies.total_bytes == 0


def short_of_bytes(rig: CoreRig, ttl_s: int | None = None) -> tuple[Connection, Connection]:
    """Return a consumer with 4 of 10 bytes free, and one with none; a message of 5 is next."""
    one, two = rig.consumer(credit=5), rig.consumer(credit=1)
    batch = rig.publish(b"123456", b"x")
    assert (len(sent_messages(batch, one)), len(sent_messages(batch, two))) == (1, 1)
    assert rig.publish(b"12345", ttl_s=ttl_s).sends == {}
    return one, two


def test_smaller_message_goes_to_a_consumer_too_full_for_the_first() -> None:
    rig = CoreRig(Limits(credit_bytes=10))
    one, two = short_of_bytes(rig)
    rig.publish(b"1234")
    [held] = two.consumers[1].held.values()
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, two, "orders", held.message_id))
    assert bodies(sent_messages(batch, two)) == [b"12345"]
    assert bodies(sent_messages(batch, one)) == [b"1234"]


def test_smaller_message_is_sent_after_the_first_has_expired() -> None:
    rig = CoreRig(Limits(credit_bytes=10))
    one, _ = short_of_bytes(rig, ttl_s=1)
    rig.publish(b"1234")
    rig.advance(1)
    assert bodies(sent_messages(rig.run(), one)) == []
    row = message(3, deadline_ms=rig.steady_ms)
    assert bodies(sent_messages(rig.run(loaded=LoadedRows(due=[row], has_due=True)), one)) == [
        b"1234"
    ]


def test_smaller_message_is_sent_after_the_first_was_acknowledged() -> None:
    rig = CoreRig(Limits(credit_bytes=10))
    one, _ = short_of_bytes(rig)
    rig.publish(b"1234")
    first = next(iter(rig.window()))
    stranger = rig.connect()
    batch = rig.run(
        lambda: commands.acknowledge_late(rig.core, stranger, "orders", first.message_id)
    )
    assert bodies(sent_messages(batch, one)) == [b"1234"]


def test_later_bodies_are_evicted_for_returned_messages() -> None:
    """A disconnect returns messages without bodies, while the window is full of bodies."""
    rig = CoreRig(Limits(window_bytes=40))
    worker = rig.consumer(credit=4)
    held = sent_messages(rig.publish(*[b"x" * 10] * 4), worker)
    rig.publish(*[b"y" * 10] * 4)
    for one in held:
        one.body = None  # as after sending
    batch = rig.run(lambda: commands.consume(rig.core, worker, "orders", 4))
    assert batch.body_seqs == {1, 2, 3, 4}
    window = rig.window()
    assert (window.body_bytes, rig.core.bodies.total_bytes) == (0, 0)
    loaded = LoadedRows(bodies={one.seq: b"x" * 10 for one in held})
    assert sent_messages(rig.run(loaded=loaded), worker) == held


def test_window_is_trimmed_when_messages_return() -> None:
    rig = CoreRig(Limits(window=3))
    one, two = rig.consumer(credit=3), rig.consumer(credit=1)
    for body in (b"1", b"2", b"3", b"4"):
        rig.publish(body)
    rig.publish(b"5", b"6", b"7")
    assert [m.position for m in rig.window()] == [5, 6, 7]
    rig.run(lambda: commands.consume(rig.core, one, "orders", 0))
    assert [m.position for m in rig.window()] == [1, 3, 4]
    assert set(rig.core.messages) == {1, 2, 3, 4}
    assert [message.seq for message in two.consumers[1].held.values()] == [2]


# -- drain


def test_draining_broker_replies_when_nothing_is_held(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    rig.run(lambda: rig.core.drain(rig.answers.append))
    assert rig.answers == []
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert (list(outcomes(batch)), batch.sends) == ([(2, None)], {})
    assert rig.answers == [None]


def test_draining_broker_stores_new_messages(rig: CoreRig) -> None:
    worker = rig.consumer()
    rig.run(lambda: rig.core.drain(rig.answers.append))
    batch = rig.run(lambda: commands.publish(rig.core, worker, "orders", b"a", None, b"k"))
    assert len(batch.created) == 1
    assert (sent_messages(batch, worker), sent_receipts(batch, worker)) == ([], [(b"k", None)])


def test_queues_take_turns_at_the_limit_of_held_messages() -> None:
    rig = CoreRig(Limits(held=1))
    workers = {name: rig.consumer(name) for name in ("orders", "mails")}
    [held] = sent_messages(rig.publish(*ABC, *ABC), workers["orders"])
    rig.publish(*ABC, queue="mails")
    order = ["orders"]
    for _ in range(6):
        rig.begin()
        commands.acknowledge_late(rig.core, workers[order[-1]], order[-1], held.message_id)
        [(connection, outbox)] = rig.finish().sends.items()
        [held] = outbox.dispatches
        order += [name for name, one in workers.items() if one is connection]
    assert order == ["orders", *["orders", "mails"] * 3]


def acknowledged(rig: CoreRig, worker: Connection, name: str, held: list[Message]) -> Batch:
    return rig.run(
        *(partial(commands.acknowledge_late, rig.core, worker, name, m.message_id) for m in held)
    )


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % n for n in range(count)]


@pytest.mark.parametrize("limits", [Limits(held=8), Limits(held_bytes=24)])
def test_hung_consumer_does_not_stop_another_queue(limits: Limits) -> None:
    rig = CoreRig(limits)
    hung, worker = rig.consumer("hung", credit=100), rig.consumer("orders", credit=100)
    assert len(sent_messages(rig.publish(*numbered(20), queue="hung"), hung)) == 8  # alone: all
    batch = rig.publish(*numbered(10))
    done: list[bytes | None] = []
    while held := sent_messages(batch, worker):
        assert sent_messages(batch, hung) == []
        done += bodies(held)
        batch = acknowledged(rig, worker, "orders", held)
    assert done == numbered(10)


def test_queue_above_its_share_waits_for_others() -> None:
    rig = CoreRig(Limits(held=8))
    first, second = rig.consumer("first", credit=100), rig.consumer("second", credit=100)
    held = sent_messages(rig.publish(*numbered(50), queue="first"), first)
    assert bodies(held) == numbered(8)
    other = sent_messages(rig.publish(*numbered(50), queue="second"), second)
    for one in held[:4]:
        batch = acknowledged(rig, first, "first", [one])
        other += sent_messages(batch, second)
        assert sent_messages(batch, first) == []
    assert bodies(other) == numbered(4)  # half of the limit
    batch = acknowledged(rig, first, "first", held[4:5])
    assert (len(sent_messages(batch, first)), len(sent_messages(batch, second))) == (1, 0)


def test_unused_share_goes_to_others_in_the_same_batch() -> None:
    rig = CoreRig(Limits(held=8))
    first, second = rig.consumer("first", credit=100), rig.consumer("second", credit=100)
    held = sent_messages(rig.publish(*numbered(50), queue="first"), first)
    other = sent_messages(
        rig.publish(*numbered(3), queue="second"), second
    )  # the others wait for space
    assert bodies(other) == numbered(1)
    batch = acknowledged(rig, first, "first", held[:6])
    assert bodies(sent_messages(batch, second)) == numbered(3)[1:]
    assert len(sent_messages(batch, first)) == 8 - 2 - 3


def test_each_further_queue_gets_half_of_the_rest() -> None:
    """Together they may exceed the limit by a quarter, however many hang."""
    rig = CoreRig(Limits(held=64))
    workers = [rig.consumer(f"q{n}", credit=100) for n in range(7)]
    given = [
        len(sent_messages(rig.publish(*numbered(100), queue=f"q{n}"), worker))
        for n, worker in enumerate(workers)
    ]
    assert given == [64, 8, 4, 2, 1, 1, 0]


def test_first_message_of_a_queue_may_have_any_size() -> None:
    rig = CoreRig(Limits(held_bytes=20))
    hung, worker = rig.consumer("hung"), rig.consumer("orders")
    assert len(sent_messages(rig.publish(*[b"x" * 10] * 3, queue="hung"), hung)) == 2
    assert len(sent_messages(rig.publish(b"y" * 1_000, b"z"), worker)) == 1
    assert sent_messages(rig.publish(b"y" * 1_000, queue="mails"), rig.consumer("mails")) == []


def test_claimed_messages_do_not_count_towards_the_share() -> None:
    rig = CoreRig(Limits(held=8))
    worker = rig.consumer("orders", credit=100)
    queue = rig.core.queues["orders"]
    queue.claimed = 1_000
    hung = rig.consumer("hung", credit=100)
    rig.publish(*numbered(20), queue="hung")
    assert sent_messages(rig.publish(b"a"), worker) != []
    assert rig.core.held == 9
    assert hung.is_open


PURGED = (State.DELETED, "purge")


def pages(batch: Batch, *rows: list[Message], is_last: bool = True) -> LoadedRows:
    """Return the pages that a batch requests, in their order."""
    requests = zip(batch.pages, rows, strict=True)
    return LoadedRows(pages=[LoadedPage(asked.on_rows, page, is_last) for asked, page in requests])


def purge(rig: CoreRig, *, with_dispatched: bool = False) -> Batch:
    return rig.run(lambda: rig.purge("orders", with_dispatched=with_dispatched))


def record(seq: int, source_queue_id: int, body: bytes | None = b"r") -> Message:
    """Return a row of the dead-letter queue, which has number 2."""
    row = message(seq, body=body, queue_id=2)
    row.source = MessageSource(1, source_queue_id, "client")
    return row


# -- purge


def test_purge_deletes_ready_messages_and_returns_their_number(rig: CoreRig) -> None:
    rig.publish(b"a", b"bc")
    batch = purge(rig)
    request = batch.pages[0]
    pages_of = (request.queue_id, request.after, request.upto, request.bodies)
    assert pages_of == (1, BEFORE_ALL, 2, False)
    batch = rig.run(loaded=pages(batch, [message(1), message(2, size=2)]))
    assert outcomes(batch) == {PURGED: [1, 2]}
    assert rig.answers == [2]
    assert (rig.queue().row.live_count, rig.queue().row.live_bytes) == (0, 0)
    assert rig.queue().counters.deleted == 2


def test_purge_skips_dispatched_messages_by_default(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    row = message(1)
    row.state = State.DISPATCHED
    batch = rig.run(loaded=pages(purge(rig), [row, message(2)]))
    assert outcomes(batch) == {PURGED: [2]}
    batch = rig.run(loaded=pages(purge(rig, with_dispatched=True), [row]))
    assert outcomes(batch) == {PURGED: [1]}
    assert rig.answers == [1, 1]
    assert (rig.core.messages, rig.core.held) == ({}, 0)
    assert held.holder is None


def test_purge_frees_the_credit_and_late_acknowledgements_are_ignored(rig: CoreRig) -> None:
    """docs/reference/wire.md, Queues on the wire: flushing a queue."""
    worker, held = rig.hold(credit=1)
    row = message(1)
    row.state = State.DISPATCHED
    rig.run(loaded=pages(purge(rig, with_dispatched=True), [row]))
    assert bodies(sent_messages(rig.publish(b"b"), worker)) == [b"b"]
    rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id),
             loaded=LoadedRows(by_seq={1: None}))  # fmt: skip
    assert rig.core.ignored == {"settled": 1}


def test_purge_continues_with_the_next_page(rig: CoreRig) -> None:
    rig.publish(b"a", b"b", b"c")
    batch = rig.run(loaded=pages(purge(rig), [message(1), message(2)], is_last=False))
    assert (batch.pages[0].after, batch.pages[0].upto, rig.answers) == (2, 3, [])
    rig.run(loaded=pages(batch, [message(3)]))
    assert rig.answers == [3]


def test_concurrent_purges_delete_each_message_once(rig: CoreRig) -> None:
    rig.publish(b"a", b"b")
    batch = rig.run(
        lambda: rig.purge("orders", with_dispatched=False),
        lambda: rig.purge("orders", with_dispatched=True),
    )
    rows = [[message(1), message(2)] for _ in "12"]
    batch = rig.run(loaded=pages(batch, *rows))
    assert outcomes(batch) == {PURGED: [1, 2]}
    assert rig.answers == [2, 0]
    assert rig.queue().row.live_count == 0


def test_purge_skips_a_message_that_expires_in_the_same_batch(rig: CoreRig) -> None:
    rig.publish(b"a", ttl_s=1)
    rig.publish(b"b")
    rig.advance(1)
    batch = purge(rig)
    loaded = pages(batch, [message(1), message(2)])
    loaded.due, loaded.has_due = [message(1)], True
    batch = rig.run(loaded=loaded)
    assert outcomes(batch) == {(State.EXPIRED, None): [1], PURGED: [2]}
    assert (rig.answers, rig.queue().row.live_count) == ([1], 0)


def test_purge_skips_a_message_forwarded_in_the_same_batch(rig: CoreRig) -> None:
    """The page lists it in the old queue; purging it would delete it from the new one."""
    worker = rig.consumer("orders.done")
    rig.publish(b"a", queue="orders", ttl_s=1)
    rig.run(lambda: rig.configure("orders", {"on_expire": "forward:orders.done"}))
    rig.answers.clear()
    rig.advance(1)
    batch = rig.run(lambda: rig.purge("orders", with_dispatched=True))
    loaded = pages(batch, [message(1, queue_id=2)])
    loaded.due, loaded.has_due = [message(1, queue_id=2, body=b"a")], True
    batch = rig.run(loaded=loaded)
    assert outcomes(batch) == {}
    assert rig.answers == [0]
    assert bodies(sent_messages(batch, worker)) == [b"a"]


def test_purged_message_is_not_acknowledged_too(rig: CoreRig) -> None:
    one = rig.connect()
    rig.publish(b"a", by=one)
    loaded = pages(purge(rig), [message(1)])
    loaded.by_seq = {1: message(1)}
    batch = rig.run(
        lambda: commands.acknowledge_late(rig.core, one, "orders", message(1).message_id),
        loaded=loaded,
    )
    assert outcomes(batch) == {PURGED: [1]}
    assert batch.seqs == {1}
    assert rig.queue().row.live_count == 0


def test_purge_removes_messages_from_the_window(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    rig.publish(b"a", b"b")
    rig.run(loaded=pages(purge(rig), [message(2)]))
    assert list(rig.window()) == []
    assert rig.core.bodies.total_bytes == 0
    assert worker.consumers[1].held != {}


def test_purge_wakes_waiting_publishers(rig: CoreRig) -> None:
    one = rig.connect()
    rig.publish(b"a")
    rig.run(lambda: rig.configure("orders", {"max_messages": 1}))
    rig.run(lambda: commands.publish(rig.core, one, "orders", b"b", None, None))
    assert rig.run(loaded=pages(purge(rig), [message(1)])).to_resume == {one}


# -- redrive


def with_record(rig: CoreRig) -> Message:
    """Create orders (queue 1), and a record of it in queue 2; return the row of the record."""
    rig.publish(b"x", queue="orders")
    rig.publish(b"r", queue="orders.dlq")
    return record(2, source_queue_id=1)


def redrive(rig: CoreRig, *rows: Message, is_last: bool = True, **options: Any) -> Batch:
    """Redrive the dead-letter queue, whose first page has these rows."""
    batch = rig.run(lambda: rig.redrive("orders.dlq", **options))
    assert batch.pages[0].bodies
    return rig.run(loaded=pages(batch, list(rows), is_last=is_last))


def test_redrive_publishes_the_record_to_its_origin(rig: CoreRig) -> None:
    row = with_record(rig)
    worker = rig.consumer("orders")
    batch = redrive(rig, row, ttl_s=60)
    [born] = batch.created
    assert (born.queue_id, born.ttl_s, born.source.seq) == (1, 60, None)
    assert bodies(sent_messages(batch, worker)) == [b"r"]
    assert outcomes(batch) == {(State.DELETED, "redriven"): [2]}
    assert event_kinds(batch) == [(3, "redrive"), (2, "redrive")]
    assert batch.events[3] == row.message_id.decode()
    assert batch.events[7] == born.message_id.decode()
    assert rig.answers == [1]
    assert (rig.queue().row.live_count, rig.queue("orders.dlq").row.live_count) == (2, 0)


def test_redrive_goes_to_another_queue_and_stops_at_its_limit(rig: CoreRig) -> None:
    with_record(rig)
    rig.publish(b"y", queue="again")
    rows = [record(2, 1), record(3, 1), record(4, 1)]
    batch = redrive(rig, *rows, is_last=False, target="again", limit=2)
    assert [m.queue_id for m in batch.created] == [rig.queue("again").queue_id] * 2
    assert (rig.answers, batch.pages) == ([2], [])


def test_redrive_applies_the_default_ttl_of_the_target(rig: CoreRig) -> None:
    row = with_record(rig)
    rig.run(lambda: rig.configure("orders", {"default_ttl_s": 5}))
    assert redrive(rig, row).created[0].ttl_s == 5


@pytest.mark.parametrize(
    "change",
    [
        {"state": State.DISPATCHED},
        {"body": None},  # damaged
        {"source": MessageSource(1, None, "client")},  # not a record
        {"source": MessageSource(1, 99, "client")},  # unknown
        {"source": MessageSource(1, 2, "client")},  # this queue
    ],
)
def test_redrive_skips_a_message_without_a_target(rig: CoreRig, change: dict[str, Any]) -> None:
    row = with_record(rig)
    for name, value in change.items():
        setattr(row, name, value)
    batch = redrive(rig, row)
    assert (outcomes(batch), batch.created, rig.answers) == ({}, [], [0])


@pytest.mark.parametrize("changes", [{"max_messages": 1}, {"publishing_paused": True}])
def test_redrive_respects_the_limits_of_the_origin(rig: CoreRig, changes: dict[str, Any]) -> None:
    row = with_record(rig)
    rig.run(lambda: rig.configure("orders", changes))
    batch = redrive(rig, row)
    assert (outcomes(batch), batch.created, rig.answers[-1]) == ({}, [], 0)


@pytest.mark.parametrize(("queues", "count"), [({1, 2}, 1), ({2}, 0)])
def test_redrive_is_restricted_to_the_given_queues(
    rig: CoreRig, queues: set[int], count: int
) -> None:
    row = with_record(rig)
    assert len(redrive(rig, row, queues=frozenset(queues)).created) == count


# -- refusals


def test_operation_on_something_unknown_is_refused(rig: CoreRig) -> None:
    rig.publish(b"a")
    rig.begin()
    asked: list[Callable[[], None]] = [
        lambda: rig.purge("none"),
        lambda: rig.redrive("none"),
        lambda: rig.redrive("orders", target="none"),
        lambda: rig.pause("none", "delivery", True),
        lambda: rig.configure("none", {}),
    ]
    for ask in asked:
        with pytest.raises(RefusedError, match="none") as caught:
            ask()
        assert caught.value.code == "unknown_queue"
    with pytest.raises(RefusedError, match="bad") as caught:
        rig.pause("orders", "bad", True)
    assert caught.value.code == "bad_side"
    with pytest.raises(RefusedError, match="colour") as caught:
        rig.configure("orders", {"colour": 1})
    assert caught.value.code == "unknown_setting"
    assert not rig.finish().stores
    assert rig.answers == []


def test_setting_can_be_reset_to_its_default(rig: CoreRig) -> None:
    rig.publish(b"a")
    rig.run(lambda: rig.configure("orders", {"max_deliveries": 3}))
    batch = rig.run(lambda: rig.configure("orders", {"max_deliveries": None}))
    assert [answer["max_deliveries"] for answer in rig.answers] == [3, 20]
    assert batch.configured == [rig.queue().row]
    assert rig.queue().row.own == {}


def test_every_settled_state_is_an_outcome() -> None:
    assert {outcome.state for outcome in OUTCOMES.values()} == set(State) - ALIVE
    assert [STATE_NAMES[outcome.state] for outcome in OUTCOMES.values()] == list(OUTCOMES)
    assert get_args(OutcomeName) == tuple(OUTCOMES)
