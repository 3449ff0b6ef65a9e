"""Transitions of a message: expiry, delivery limit, timeouts and dead letters."""

import pytest

from phpmq_lite.broker import commands
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.model import Batch, Limits, LoadedRows, LoadedWindow, Message, State
from phpmq_lite.queue_settings import LONGEST_TTL_S, QueueSettings
from tests.support.core_rig import (
    STEADY_MS,
    WALL_MS,
    CoreRig,
    bodies,
    event_kinds,
    message,
    outcomes,
    sent_messages,
)

EXPIRED = (State.EXPIRED, None)


def due(rig: CoreRig, *messages: Message, has_more: bool = False) -> LoadedRows:
    """Return the reply to the core's request for due messages."""
    assert rig.batch.due_at == rig.steady_ms
    next_deadline_ms = rig.steady_ms if has_more else None
    return LoadedRows(due=list(messages), next_deadline_ms=next_deadline_ms, has_due=True)


def expire(rig: CoreRig, *messages: Message, has_more: bool = False) -> Batch:
    """Load messages with a TTL of 1 s at their deadline."""
    rig.advance(1)
    rig.run()
    return rig.run(loaded=due(rig, *messages, has_more=has_more))


def configure(rig: CoreRig, queue: str = "orders", **changes: object) -> None:
    rig.run(lambda: rig.configure(queue, dict(changes)))


# -- TTL


@pytest.mark.parametrize(
    ("ttl_s", "kept_s"),
    [(None, None), (0, None), (1, 1), (LONGEST_TTL_S, LONGEST_TTL_S), (10**19 - 1, LONGEST_TTL_S)],
)
def test_message_keeps_its_ttl_up_to_100_years(ttl_s: int | None, kept_s: int | None) -> None:
    rig = CoreRig()
    [born] = rig.publish(b"a", ttl_s=ttl_s).created
    deadline_ms = None if kept_s is None else STEADY_MS + kept_s * 1_000
    assert (born.ttl_s, born.deadline_ms) == (kept_s, deadline_ms)
    assert rig.core.next_wake_ms == deadline_ms


def test_requeue_keeps_a_ttl_up_to_100_years(rig: CoreRig) -> None:
    worker, held = rig.hold()
    rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 10**19 - 1))
    assert held.ttl_s == LONGEST_TTL_S
    assert (held.deadline_ms or 0) < 1 << 63


def test_message_without_a_ttl_gets_the_default_of_its_queue() -> None:
    rig = CoreRig(defaults=QueueSettings(default_ttl_s=30))
    [without, never] = [rig.publish(b"a", ttl_s=ttl_s).created[0] for ttl_s in (None, 0)]
    assert (without.ttl_s, never.ttl_s) == (30, None)


def test_timestamps_are_wall_clock_and_deadlines_are_steady(rig: CoreRig) -> None:
    _, held = rig.hold(ttl_s=5)
    assert (held.published_at, held.first_dispatched_at) == (WALL_MS, WALL_MS)
    assert (held.deadline_ms, held.held_since_ms) == (STEADY_MS + 5_000, STEADY_MS)


def test_message_expires_at_its_deadline(rig: CoreRig) -> None:
    [born] = rig.publish(b"a", ttl_s=1).created
    rig.advance(0.999)
    assert rig.run().due_at is None
    rig.advance(0.001)
    rig.run()
    batch = rig.run(loaded=due(rig, born))
    assert outcomes(batch) == {EXPIRED: [1]}
    assert rig.core.next_wake_ms is None
    assert (rig.queue().row.live_count, rig.queue().counters.expired) == (0, 1)


def test_due_messages_are_requested_again_after_a_full_page(rig: CoreRig) -> None:
    [born] = rig.publish(b"a", ttl_s=1).created
    batch = expire(rig, born, has_more=True)
    assert batch.due_at == rig.steady_ms


def test_expired_message_leaves_the_window(rig: CoreRig) -> None:
    rig.consumer(credit=1)
    rig.publish(b"a")
    rig.publish(b"b", ttl_s=1)
    batch = expire(rig, message(2, deadline_ms=STEADY_MS + 1_000))  # another object
    assert outcomes(batch) == {EXPIRED: [2]}
    assert list(rig.window()) == []
    assert list(rig.core.messages) == [1]


def test_dispatched_message_does_not_expire(rig: CoreRig) -> None:
    worker, held = rig.hold(ttl_s=1)
    rig.advance(5)
    rig.run()
    assert outcomes(rig.run(loaded=due(rig))) == {}
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert outcomes(batch) == {(State.ACKED, None): [1]}


def test_message_returned_after_its_deadline_expires(rig: CoreRig) -> None:
    worker, held = rig.hold(ttl_s=1)
    rig.advance(5)
    batch = rig.run(lambda: commands.consume(rig.core, worker, "orders", 5))
    assert sent_messages(batch, worker) == []
    assert outcomes(batch) == {EXPIRED: [1]}
    assert held.deliveries == 1


def test_message_that_was_not_sent_in_time_expires(rig: CoreRig) -> None:
    worker, late = rig.hold(credit=1, ttl_s=1)
    rig.advance(1)
    batch = rig.run(lambda: commands.undo_dispatches(rig.core, worker, [late]))
    assert outcomes(batch) == {EXPIRED: [1]}
    assert (late.deliveries, late.first_dispatched_at, late.consumer) == (0, None, None)
    assert batch.changed == {1: late}
    assert bodies(sent_messages(rig.publish(b"b"), worker)) == [b"b"]  # its credit is free again


def test_undone_dispatch_keeps_the_earlier_dispatch(rig: CoreRig) -> None:
    worker = rig.consumer()
    sent_messages(rig.publish(b"a", ttl_s=60), worker)
    [again] = sent_messages(
        rig.run(lambda: commands.consume(rig.core, worker, "orders", 5)), worker
    )
    rig.run(lambda: commands.undo_dispatches(rig.core, worker, [again]))
    assert again.first_dispatched_at == WALL_MS


def test_dispatch_of_a_settled_message_is_not_undone(rig: CoreRig) -> None:
    worker, late = rig.hold(ttl_s=1)
    rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", late.message_id))
    batch = rig.run(lambda: commands.undo_dispatches(rig.core, worker, [late]))
    assert (batch.changed, rig.core.held) == ({}, 0)


# -- outcomes of expiry


def expire_one(rig: CoreRig, queue: str = "orders", ttl_s: int | None = 1) -> Message:
    [born] = rig.publish(b"a", queue=queue, ttl_s=ttl_s).created
    born.body = b"a"  # as in a window
    expire(rig, born)
    return born


def test_expired_message_is_forwarded_if_its_queue_is_set_so(rig: CoreRig) -> None:
    rig.publish(b"older", queue="late")
    rig.publish(b"x")
    configure(rig, on_expire="forward:late")
    configure(rig, "late", default_ttl_s=9)
    born = expire_one(rig)
    late = rig.queue("late")
    assert (born.queue_id, born.seq, born.position) == (late.queue_id, 3, 4)
    assert (born.ttl_s, born.deadline_ms) == (9, rig.steady_ms + 9_000)
    assert rig.batch.changed == {3: born}
    assert rig.batch.settled == {}
    assert event_kinds(rig.batch) == [(3, "forward")]
    assert (rig.queue().row.live_count, late.row.live_count, late.row.live_bytes) == (1, 2, 6)


def test_expired_message_of_a_retry_queue_is_forwarded_to_its_origin(rig: CoreRig) -> None:
    worker = rig.consumer("orders")
    rig.publish(b"older", queue="orders.retry")
    configure(rig, "orders.retry", default_ttl_s=1)  # given with a publish, it would be a delay
    born = expire_one(rig, "orders.retry", ttl_s=None)
    assert born.queue_id == rig.queue("orders").queue_id
    assert (born.ttl_s, born.deadline_ms) == (None, None)
    assert sent_messages(rig.batch, worker) == [born]


@pytest.mark.parametrize(
    ("limits", "on_expire", "outcome"),
    [
        (Limits(), "forward:orders", EXPIRED),  # to itself
        (Limits(), "dead_letter", (State.DEAD, "expired")),
        (Limits(queues=1), "forward:late", (State.DEAD, "not_forwarded")),
    ],
)
def test_outcome_of_expiry_depends_on_the_queue(
    limits: Limits, on_expire: str, outcome: tuple[State, str | None]
) -> None:
    rig = CoreRig(limits, QueueSettings(on_expire=on_expire))
    expire_one(rig)
    assert outcomes(rig.batch) == {outcome: [1]}
    found = [
        (rig.core.queues_by_id[record.queue_id].name, record.source.seq, record.source.reason)
        for record in rig.batch.created
    ]
    assert found == ([] if outcome == EXPIRED else [("orders.dlq", 1, outcome[1])])
    counters, is_settled = rig.queue().counters, outcome == EXPIRED
    assert (counters.expired, counters.expired_never) == (is_settled, is_settled)
    assert (counters.dead, counters.forwarded) == (not is_settled, 0)


def test_forward_does_not_count_as_an_expiry() -> None:
    rig = CoreRig(Limits(), QueueSettings(on_expire="forward:late"))
    expire_one(rig)
    counters = rig.queue().counters
    assert (counters.expired, counters.expired_never, counters.forwarded) == (0, 0, 1)


@pytest.mark.parametrize("own", ["", "graves"])
def test_record_is_stored_although_no_more_queues_are_allowed(own: str) -> None:
    rig = CoreRig(Limits(queues=1), QueueSettings(max_deliveries=1, dead_letter_queue=own))
    worker, held = rig.hold()
    batch = rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert [row.name for row in batch.new_queues] == [own or "orders.dlq"]
    assert [record.source.seq for record in batch.created] == [1]
    assert (
        rig.run(lambda: commands.publish(rig.core, worker, "more", b"", None, b"k")).created == []
    )


def test_dead_letter_queue_counts_with_its_origin() -> None:
    rig = CoreRig(Limits(queues=2))
    rig.publish(b"a", queue="mails.dlq")
    rig.publish(b"a", queue="orders")
    rig.publish(b"a", queue="orders.dlq")  # counts with orders
    created = rig.core.registry.created
    assert created.total() == 2
    publisher = rig.connect()
    for name in ("mails", "orders.dlq.dlq", "late.dlq"):
        rig.begin()
        commands.publish(rig.core, publisher, name, b"", None, b"k")
        assert rig.finish().created == []
    rig.run(lambda: rig.core.remove_queue(rig.queue("orders")))
    assert created.total() == 2  # orders.dlq counts by itself
    rig.run(lambda: rig.core.remove_queue(rig.queue("mails.dlq")))
    assert created.total() == 1
    rig.publish(b"a", queue="orders")
    rig.publish(b"a", queue="mails")
    assert created.total() == 2


# -- dead letters


def test_dead_letter_leaves_its_queue_and_a_record_is_stored(rig: CoreRig) -> None:
    worker, publisher = rig.consumer(), rig.connect()
    [held] = sent_messages(rig.publish(b"body", ttl_s=60, by=publisher), worker)
    batch = rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    [record] = batch.created
    assert record.queue_id == rig.queue("orders.dlq").queue_id
    assert (record.source.seq, record.source.queue_id, record.source.reason) == (1, 1, "client")
    assert (record.ttl_s, record.deadline_ms) == (None, None)
    assert (record.size, record.publisher) == (4, publisher.number)
    assert batch.bodies == [b"body"]
    assert event_kinds(batch) == [(1, "dead_letter")]
    assert batch.events[3] == record.message_id.decode()
    assert (rig.queue().row.live_count, rig.queue("orders.dlq").row.live_count) == (0, 1)


def test_record_never_expires_though_its_queue_has_a_default() -> None:
    rig = CoreRig(defaults=QueueSettings(default_ttl_s=60))
    worker, held = rig.hold()
    batch = rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    assert batch.created[0].deadline_ms is None


def test_dead_letter_whose_body_is_on_disk_waits_for_it(rig: CoreRig) -> None:
    (worker, held), stranger = rig.hold(has_body=False), rig.connect()
    batch = rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    assert (outcomes(batch), set(batch.body_seqs)) == ({}, {1})
    row = message(1, queue_id=1)
    loaded = LoadedRows(
        bodies={1: b"a"}, windows=[LoadedWindow(1, [row], True)], due=[row], has_due=True
    )
    batch = rig.run(
        lambda: commands.acknowledge_late(rig.core, stranger, "orders", held.message_id),
        loaded=loaded,
    )
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert [m.source.seq for m in batch.created] == [1]
    assert rig.queue().row.live_count == 0
    assert rig.core.pending == {}


def test_command_waits_only_for_a_body_on_disk() -> None:
    rig = CoreRig(defaults=QueueSettings(max_deliveries=1))
    worker = rig.consumer()
    here, there, poison = sent_messages(rig.publish(b"a", b"b", b"c"), worker)
    there.body = poison.body = None
    rig.begin()
    assert commands.dead_letter(rig.core, worker, "orders", here.message_id) is CommandResult.DONE
    assert commands.dead_letter(rig.core, worker, "orders", there.message_id) is CommandResult.WAIT
    assert commands.requeue(rig.core, worker, "orders", poison.message_id, 0) is CommandResult.WAIT
    assert outcomes(rig.finish()) == {(State.DEAD, "client"): [1]}


def test_pending_dead_letter_ignores_commands(rig: CoreRig) -> None:
    (worker, held), stranger = rig.hold(has_body=False), rig.connect()
    rig.begin()
    commands.dead_letter(rig.core, worker, "orders", held.message_id)
    for connection in (worker, stranger):
        assert (
            commands.acknowledge_late(rig.core, connection, "orders", held.message_id)
            is CommandResult.DONE
        )
        assert (
            commands.requeue(rig.core, connection, "orders", held.message_id, 0)
            is CommandResult.DONE
        )
        assert (
            commands.dead_letter(rig.core, connection, "orders", held.message_id)
            is CommandResult.DONE
        )
    batch = rig.finish()
    assert (outcomes(batch), batch.changed, batch.seqs) == ({}, {}, set())
    assert rig.core.ignored == {"settled": 6}


def test_record_joins_a_window_loaded_in_the_same_batch(rig: CoreRig) -> None:
    """The page was read before the record was stored, and must not hide it."""
    (worker, held), clerk = rig.hold(has_body=False), rig.connect()
    batch = rig.run(
        lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id),
        lambda: commands.consume(rig.core, clerk, "orders.dlq", 5),
    )
    [request] = batch.windows
    loaded = LoadedRows(windows=[LoadedWindow(request.queue_id, [], True)], bodies={1: b"a"})
    assert bodies(sent_messages(rig.run(loaded=loaded), clerk)) == [b"a"]


def test_dead_letter_with_a_damaged_body_leaves_no_record(rig: CoreRig) -> None:
    worker, held = rig.hold(has_body=False)
    rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    batch = rig.run(loaded=LoadedRows(bodies={1: None}))
    assert outcomes(batch) == {(State.DEAD, "crc"): [1]}
    assert batch.created == []


def test_message_with_a_damaged_body_is_never_delivered(rig: CoreRig) -> None:
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 5))
    page = [message(1), message(2, body=b"2")]
    batch = rig.run(loaded=LoadedRows(windows=[LoadedWindow(1, page, True)]))
    assert batch.body_seqs == {1}
    batch = rig.run(loaded=LoadedRows(bodies={1: None}))
    assert outcomes(batch) == {(State.DEAD, "crc"): [1]}
    assert bodies(sent_messages(batch, worker)) == [b"2"]
    assert batch.created == []


@pytest.mark.parametrize("rows", ["due", "by_seq"])
def test_message_that_is_used_up_and_loaded_twice_dies_once(rows: str) -> None:
    """A window's page dead-letters it at once; the same row was loaded for another reason."""
    rig = CoreRig(defaults=QueueSettings(max_deliveries=1))
    worker = rig.connect()
    rig.run(lambda: commands.consume(rig.core, worker, "orders", 5))
    row = message(1, body=b"a", deadline_ms=rig.steady_ms)
    row.charged, rig.core.next_number = 1, 2
    rig.core.add_counts(rig.queue(), 1, 1)
    page = LoadedWindow(1, [row], True)
    loaded = LoadedRows([page], due=[row], has_due=True)
    if rows == "by_seq":
        loaded = LoadedRows([page], by_seq={1: row})
    batch = rig.run(
        lambda: commands.acknowledge_late(rig.core, worker, "orders", row.message_id),
        loaded=loaded,
    )
    assert outcomes(batch) == {(State.DEAD, "max_deliveries"): [1]}
    assert rig.queue().row.live_count == 0


def test_dead_letter_of_a_dead_letter_queue_leaves_no_further_record(rig: CoreRig) -> None:
    clerk = rig.consumer("orders.dlq")
    [record] = sent_messages(rig.publish(b"r", queue="orders.dlq"), clerk)
    batch = rig.run(lambda: commands.dead_letter(rig.core, clerk, "orders.dlq", record.message_id))
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert batch.created == []


def test_due_pending_dead_letter_is_not_dead_lettered_twice() -> None:
    """The next page of due messages still has the one that waits for its body."""
    rig = CoreRig(defaults=QueueSettings(on_expire="dead_letter"))
    rig.publish(b"a", ttl_s=1)
    rows = [message(1, deadline_ms=STEADY_MS + 1_000) for _ in "12"]
    batch = expire(rig, rows[0], has_more=True)
    assert (set(batch.body_seqs), outcomes(batch)) == ({1}, {})
    loaded = due(rig, rows[1])
    loaded.bodies = {1: b"a"}
    batch = rig.run(loaded=loaded)
    assert outcomes(batch) == {(State.DEAD, "expired"): [1]}
    assert (len(batch.created), rig.core.pending) == (1, {})
    assert rig.queue().row.live_count == 0
    assert outcomes(rig.run(loaded=LoadedRows(bodies={1: b"a"}))) == {}


# -- delivery limit


def return_charged(rig: CoreRig, held: Message) -> None:
    """Disconnect the connection that holds the message."""
    rig.run(lambda: commands.disconnect(rig.core, held.holder.connection, None, None, "crashed"))


def test_message_is_dead_lettered_at_the_delivery_limit() -> None:
    rig = CoreRig(defaults=QueueSettings(max_deliveries=3))
    _, held = rig.hold()
    for _ in range(2):
        again = rig.connect()
        rig.begin()
        commands.consume(rig.core, again, "orders", 1)
        rig.finish()
        return_charged(rig, held)
        assert (held.state, held.holder.connection) == (State.DISPATCHED, again)
    return_charged(rig, held)
    assert outcomes(rig.batch) == {(State.DEAD, "max_deliveries"): [1]}
    assert [m.source.reason for m in rig.batch.created] == ["max_deliveries"]
    assert (held.charged, held.deliveries) == (3, 3)
    assert rig.batch.changed == {1: held}  # its history row has the last charge too


def test_message_of_a_queue_without_a_limit_always_returns() -> None:
    rig = CoreRig(defaults=QueueSettings(max_deliveries=0))
    worker, held = rig.hold()
    for n in range(1, 50):
        rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 0))
        assert (held.charged, held.holder.connection) == (n, worker)


def test_requeue_is_charged_and_dead_letters_at_the_limit() -> None:
    rig = CoreRig(defaults=QueueSettings(max_deliveries=2))
    worker, held = rig.hold()
    rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 60))
    batch = rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 60))
    assert outcomes(batch) == {(State.DEAD, "max_deliveries"): [1]}
    assert held.position == 2


def test_replaced_credit_charges_no_delivery() -> None:
    rig = CoreRig(defaults=QueueSettings(max_deliveries=1))
    worker, held = rig.hold()
    for _ in range(5):
        rig.run(lambda: commands.consume(rig.core, worker, "orders", 1))
    assert (held.charged, held.deliveries) == (0, 6)


# -- acknowledgement timeout


def test_consumer_loses_a_message_after_the_acknowledgement_timeout() -> None:
    rig = CoreRig(defaults=QueueSettings(ack_timeout_s=60))
    slow, held = rig.hold(credit=1)
    assert rig.core.next_wake_ms == STEADY_MS + 60_000
    rig.advance(59.999)
    assert event_kinds(rig.run()) == []
    rig.run(lambda: rig.core.set_blocked(slow, is_blocked=True))
    quick = rig.consumer(credit=1)
    rig.advance(0.001)
    batch = rig.run()
    assert event_kinds(batch) == [(1, "return")]
    assert (held.holder.connection, held.charged) == (quick, 1)
    assert rig.core.next_wake_ms == rig.steady_ms + 60_000


def test_late_acknowledgement_of_a_reassigned_message_is_foreign() -> None:
    rig = CoreRig(defaults=QueueSettings(ack_timeout_s=60))
    (slow, held), quick = rig.hold(credit=1), rig.connect()
    rig.run(lambda: rig.core.set_blocked(slow, is_blocked=True))
    rig.consume(quick, 1)
    rig.advance(60)
    rig.run()
    assert held.holder.connection is quick
    rig.run(lambda: commands.acknowledge_late(rig.core, slow, "orders", held.message_id))
    assert rig.core.ignored == {"foreign": 1}


def test_queued_acknowledgement_precedes_the_timeout() -> None:
    """The disk or the process was slow, not the consumer."""
    rig = CoreRig(defaults=QueueSettings(ack_timeout_s=60))
    worker, held = rig.hold(credit=1)
    rig.advance(62)
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert event_kinds(batch) == []
    assert (rig.core.ignored, rig.core.next_wake_ms) == ({}, None)


def test_timeout_begins_when_the_message_is_sent() -> None:
    """The batch that dispatched it waits for the disk."""
    rig = CoreRig(defaults=QueueSettings(ack_timeout_s=2))
    worker, held = rig.hold()
    held.is_sent = False
    rig.advance(3)
    rig.run()
    assert (held.holder.connection, held.charged) == (worker, 0)
    held.is_sent = True
    rig.advance(2)
    rig.run()
    assert held.charged == 1


def test_each_message_has_its_own_timeout() -> None:
    rig = CoreRig(defaults=QueueSettings(ack_timeout_s=60))
    slow, first = rig.hold(credit=2)
    rig.advance(30)
    [second] = sent_messages(rig.publish(b"b"), slow)
    rig.run(lambda: rig.core.set_blocked(slow, is_blocked=True))
    rig.advance(30)
    rig.run()
    assert (first.holder, second.holder is not None) == (None, True)
    assert rig.core.next_wake_ms == rig.steady_ms + 30_000


@pytest.mark.parametrize("default_s", [0, 60])
def test_disabled_timeout_takes_no_message_back(default_s: int) -> None:
    rig = CoreRig(defaults=QueueSettings(ack_timeout_s=default_s))
    _, held = rig.hold()
    configure(rig, ack_timeout_s=0)
    rig.run()
    assert rig.core.next_wake_ms is None
    rig.advance(10**6)
    rig.run()
    assert held.holder is not None


def test_shorter_timeout_counts_from_the_dispatch(rig: CoreRig) -> None:
    slow, held = rig.hold(credit=1)
    rig.run(lambda: rig.core.set_blocked(slow, is_blocked=True))
    rig.advance(30)
    configure(rig, ack_timeout_s=40)
    rig.run()
    assert rig.core.next_wake_ms == STEADY_MS + 40_000
    rig.advance(10)
    rig.run()
    assert held.holder is None
