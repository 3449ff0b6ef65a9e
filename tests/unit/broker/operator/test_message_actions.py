"""Actions of an operator on single messages, and every reason for skipping one."""

import json
from typing import Any

import pytest

from phpmq_lite.broker import commands, dead_letters
from phpmq_lite.broker.operator.message_actions import (
    ACTION_SLICE,
    ActionOptions,
    ActionOutcome,
    act_on_messages,
)
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import (
    DISK_LOW,
    Batch,
    Limits,
    LoadedPage,
    LoadedRows,
    Message,
    MessageSource,
    Shortage,
    State,
)
from phpmq_lite.operator_actions import Action, SkipReason
from phpmq_lite.writes import AdvanceAudit, EraseMessage, InsertAudit
from tests.support.core_rig import CoreRig, bodies, event_kinds, message, outcomes, sent_messages
from tests.support.fake_inspector import BAD, GOOD, rig_with_inspector, rig_with_strict_queue


def start(rig: CoreRig, action: Action, *seqs: int, **options: Any) -> Batch:
    """Run the command in its own batch, which requests the rows."""
    entry = rig.entry(f"message.{action}")
    return rig.run(
        lambda: act_on_messages(
            rig.core, rig.answers.append, entry, action, seqs, ActionOptions(**options)
        )
    )


def load(rig: CoreRig, batch: Batch, *rows: Message, is_last: bool = True) -> Batch:
    """Load the requested rows, in a batch of their own."""
    [request] = batch.rows
    return rig.run(loaded=LoadedRows(pages=[LoadedPage(request.on_rows, list(rows), is_last)]))


def run(rig: CoreRig, action: Action, row: Message, **options: Any) -> Batch:
    return load(rig, start(rig, action, row.seq, **options), row)


def outcome(rig: CoreRig) -> ActionOutcome:
    found = rig.answers[-1]
    assert isinstance(found, ActionOutcome)
    return found


def skip_reasons(rig: CoreRig) -> dict[str, int]:
    assert outcome(rig).changed == []
    return {str(reason): count for reason, count in outcome(rig).skipped.items()}


def settled(seq: int, state: State = State.DELETED, **changes: Any) -> Message:
    row = message(seq, **changes)
    row.state = state
    return row


def record(rig: CoreRig) -> Message:
    """Create orders (queue 1), and a record of it in queue 2; return the row of the record."""
    rig.publish(b"x", queue="orders")
    rig.publish(b"r", queue="orders.dlq")
    row = message(2, body=b"r", queue_id=2)
    row.source = MessageSource(1, 1, "client")
    return row


# -- requeue


def test_requeue_moves_a_message_to_the_end_and_returns_its_place(rig: CoreRig) -> None:
    rig.publish(b"a", b"b", ttl_s=60)
    row = message(1, deadline_ms=rig.steady_ms + 5_000)
    batch = run(rig, Action.REQUEUE, row)
    assert batch.changed == {1: row}
    assert (row.position, row.deadline_ms) == (3, rig.steady_ms + 5_000)
    assert event_kinds(batch) == [(1, "requeue")]
    assert batch.events[3] == "by anna"
    assert (outcome(rig).changed, outcome(rig).places) == ([1], {1: MessagePlace(1, 1)})
    assert (rig.queue().counters.requeued, rig.queue().counters.requeued_operator) == (1, 1)


@pytest.mark.parametrize(("ttl_s", "deadline_ms"), [(0, None), (7, 7_000)])
def test_requeue_sets_another_ttl(rig: CoreRig, ttl_s: int, deadline_ms: int | None) -> None:
    rig.publish(b"a", ttl_s=60)
    row = message(1, deadline_ms=rig.steady_ms + 60_000)
    run(rig, Action.REQUEUE, row, ttl_s=ttl_s)
    expected = None if deadline_ms is None else rig.steady_ms + deadline_ms
    assert row.deadline_ms == expected


def test_requeue_takes_a_message_from_its_holder_uncharged(rig: CoreRig) -> None:
    _, held = rig.hold(credit=1, has_body=False)
    batch = run(rig, Action.REQUEUE, message(1))
    assert (held.position, held.charged) == (2, 0)
    assert rig.core.held == 0
    assert batch.body_seqs == {1}  # to be dispatched again


# -- release


def test_holder_may_acknowledge_a_released_message() -> None:
    rig = CoreRig()
    worker, held = rig.hold(credit=1, has_body=False)
    batch = run(rig, Action.RELEASE, message(1))
    assert (held.state, held.holder, held.position, held.charged) == (State.READY, None, 1, 0)
    assert (event_kinds(batch), outcome(rig).changed) == ([(1, "release")], [1])
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert outcomes(batch) == {(State.ACKED, None): [1]}


# -- move


def test_move_puts_a_message_at_the_end_of_another_queue(rig: CoreRig) -> None:
    rig.publish(b"abc")
    rig.publish(b"x", queue="mails")
    row = message(1, size=3, deadline_ms=rig.steady_ms + 9)
    batch = run(rig, Action.MOVE, row, target="mails")
    assert (row.queue_id, row.position, row.deadline_ms) == (2, 3, rig.steady_ms + 9)
    assert (event_kinds(batch), batch.events[3]) == ([(1, "move")], "orders to mails")
    assert batch.moved == [(1, 1, 2)]  # ids of orders and mails
    assert (rig.queue().row.live_count, rig.queue().row.live_bytes) == (0, 0)
    assert (rig.queue("mails").row.live_count, rig.queue("mails").row.live_bytes) == (2, 4)
    assert (rig.queue().counters.moved, outcome(rig).places) == (1, {1: MessagePlace(1, 1)})


def test_move_creates_the_target_only_on_request(rig: CoreRig) -> None:
    rig.publish(b"a")
    rig.begin()
    for options in (ActionOptions(target="new"), ActionOptions(), ActionOptions(target="")):
        with pytest.raises(RefusedError) as caught:
            act_on_messages(rig.core, rig.answers.append, rig.entry(), Action.MOVE, [1], options)
        assert caught.value.code == "unknown_queue"
    assert not rig.finish().loads
    batch = run(rig, Action.MOVE, message(1), target="new", create=True)
    assert [row.name for row in batch.new_queues] == ["new"]
    with pytest.raises(RefusedError, match="control") as caught:
        start(rig, Action.MOVE, 1, target="a\0", create=True)
    assert caught.value.code == "bad_name"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"publishing_paused": True}, "paused"), ({"max_messages": 1}, "queue full")],
)
def test_move_skips_if_the_target_refuses(changes: dict[str, Any], reason: str) -> None:
    rig = CoreRig()
    rig.publish(b"a")
    rig.publish(b"x", queue="mails")
    rig.run(lambda: rig.configure("mails", changes))
    run(rig, Action.MOVE, message(1), target="mails")
    assert skip_reasons(rig) == {reason: 1}


def test_move_skips_if_the_target_was_removed(rig: CoreRig) -> None:
    rig.publish(b"b")
    rig.publish(b"x", queue="mails")
    batch = start(rig, Action.MOVE, 1, target="mails")
    rig.core.remove_queue(rig.queue("mails"))
    load(rig, batch, message(1))
    assert skip_reasons(rig) == {"queue gone": 1}


# -- place


def test_place_undoes_a_requeue_in_a_window(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    rig.publish(b"a", b"b", b"c")  # a is held
    run(rig, Action.REQUEUE, message(2))
    places = outcome(rig).places
    batch = run(rig, Action.PLACE, message(2), places=places)
    assert (places, event_kinds(batch), outcome(rig).changed) == (
        {2: MessagePlace(1, 2)},
        [(2, "place")],
        [2],
    )
    assert [m.seq for m in rig.window()] == [2, 3]
    assert [held.seq for held in worker.consumers[1].held.values()] == [1]


def test_place_undoes_a_move(rig: CoreRig) -> None:
    rig.publish(b"a")
    rig.publish(b"x", queue="mails")
    row = message(1)
    run(rig, Action.MOVE, row, target="mails")
    batch = run(rig, Action.PLACE, row, places=outcome(rig).places)
    assert (row.queue_id, row.position, batch.events[3]) == (1, 1, "mails to orders")
    assert (rig.queue().row.live_count, rig.queue("mails").row.live_count) == (1, 1)


@pytest.mark.parametrize(
    ("action", "seq", "options", "reason"),
    [
        (Action.RELEASE, 2, {}, "not dispatched"),
        (Action.MOVE, 1, {"target": "mails"}, "dispatched"),
        (Action.MOVE, 2, {"target": "orders"}, "there already"),
        (Action.PLACE, 1, {"places": {1: MessagePlace(1, 1)}}, "dispatched"),
        (Action.PLACE, 2, {"places": {}}, "no place"),
        (Action.PLACE, 2, {"places": {2: MessagePlace(1, 99)}}, "no place"),
        (Action.PLACE, 2, {"places": {2: MessagePlace(1, 2)}}, "there already"),
        (Action.PLACE, 2, {"places": {2: MessagePlace(7, 1)}}, "queue gone"),
        (
            Action.PLACE,
            2,
            {"places": {2: MessagePlace(7, 1)}, "queues": frozenset({1})},
            "foreign queue",
        ),
    ],
)
def test_action_skips_a_message_in_another_state_or_place(
    rig: CoreRig, action: Action, seq: int, options: dict[str, Any], reason: str
) -> None:
    rig.hold(credit=1)
    rig.publish(b"b")
    rig.publish(b"x", queue="mails")
    run(rig, action, message(seq), **options)
    assert skip_reasons(rig) == {reason: 1}


# -- delete


def test_delete_skips_held_messages_by_default(rig: CoreRig) -> None:
    rig.hold(credit=1)
    rig.publish(b"b")
    batch = load(rig, start(rig, Action.DELETE, 1, 2), message(1), message(2))
    assert outcomes(batch) == {(State.DELETED, "delete"): [2]}
    assert (outcome(rig).changed, outcome(rig).skipped) == ([2], {"dispatched": 1})
    batch = run(rig, Action.DELETE, message(1), with_dispatched=True)
    assert outcomes(batch) == {(State.DELETED, "delete"): [1]}
    assert rig.core.held == 0


# -- redrive


def test_redrive_publishes_the_message_of_a_record(rig: CoreRig) -> None:
    batch = run(rig, Action.REDRIVE, record(rig), ttl_s=60)
    [born] = batch.created
    assert (born.seq, born.queue_id, born.ttl_s, born.source.seq) == (3, 1, 60, None)
    assert batch.bodies == [b"r"]
    assert outcomes(batch) == {(State.DELETED, "redriven"): [2]}
    assert event_kinds(batch) == [(3, "redrive"), (2, "redrive")]
    assert outcome(rig).new_ids == {2: born.message_id.decode()}
    assert rig.queue().counters.published_ui == 1


def test_redrive_may_have_another_target(rig: CoreRig) -> None:
    row = record(rig)
    rig.publish(b"x", queue="again")
    assert [m.queue_id for m in run(rig, Action.REDRIVE, row, target="again").created] == [3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source": MessageSource(1, None, "client")}, "not a record"),
        ({"state": State.DISPATCHED}, "dispatched"),
        ({"body": None}, "damaged"),
        ({"source": MessageSource(1, 9, "client")}, "queue gone"),
        ({"source": MessageSource(1, 2, "client")}, "there already"),
    ],
)
def test_redrive_skips(rig: CoreRig, change: dict[str, Any], reason: str) -> None:
    row = record(rig)
    for name, value in change.items():
        setattr(row, name, value)
    batch = run(rig, Action.REDRIVE, row)
    assert (skip_reasons(rig), batch.created) == ({reason: 1}, [])


def test_redrive_respects_the_limits_of_the_origin(rig: CoreRig) -> None:
    row = record(rig)
    rig.run(lambda: rig.configure("orders", {"max_bytes": 1}))
    run(rig, Action.REDRIVE, row)
    assert skip_reasons(rig) == {"queue full": 1}


@pytest.mark.parametrize("action", [Action.REDRIVE, Action.MOVE])
def test_reason_for_a_full_disk_does_not_name_the_setting(rig: CoreRig, action: Action) -> None:
    """Results are counted by reason, and the admin interface describes each."""
    row = record(rig)
    rig.run(lambda: rig.core.registry.stop_publishing(rig.core.batch, Shortage(DISK_LOW, "")))
    run(rig, action, row, target="orders")
    assert skip_reasons(rig) == {SkipReason.DISK_FULL: 1}


# -- restore


def test_restore_stores_a_new_message_at_the_old_position(rig: CoreRig) -> None:
    rig.publish(b"a", b"b")
    old = settled(1, body=b"a", deadline_ms=rig.steady_ms + 9)
    batch = run(rig, Action.RESTORE, old)
    [born] = batch.created
    assert (born.seq, born.position, born.deadline_ms) == (3, 1, rig.steady_ms + 9)
    assert (born.published_at, born.deliveries) == (old.published_at, 0)
    assert event_kinds(batch) == [(1, "restore"), (3, "restore")]
    assert outcome(rig).new_ids == {1: born.message_id.decode()}
    assert (rig.queue().row.live_count, rig.queue().counters.restored) == (3, 1)
    assert batch.bodies == [b"a"]


def test_restored_message_is_dispatched_in_order(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    rig.publish(b"x", b"b")  # x is held
    [held] = worker.consumers[1].held.values()
    run(rig, Action.RESTORE, settled(1, position=1, body=b"a"))
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert bodies(sent_messages(batch, worker)) == [b"a"]


def test_restore_keeps_the_window_within_its_limit() -> None:
    rig = CoreRig(Limits(window=2))
    rig.consumer(credit=1)
    rig.run(lambda: [rig.core.take_number() for _ in "123"])  # of deleted messages
    rig.publish(b"x", b"b", b"c")
    rows = [settled(n, body=b"a") for n in (1, 2, 3)]
    load(rig, start(rig, Action.RESTORE, 1, 2, 3), *rows)
    window = rig.window()
    assert [m.position for m in window] == [1, 2]
    assert {m.seq for m in window} <= rig.core.messages.keys()
    assert len(rig.core.messages) == 3  # one is held


def test_restore_requires_a_ttl_after_the_deadline(rig: CoreRig) -> None:
    rig.publish(b"a")
    old = settled(1, body=b"a", deadline_ms=rig.steady_ms)
    run(rig, Action.RESTORE, old)
    assert skip_reasons(rig) == {"deadline passed": 1}
    [born] = run(rig, Action.RESTORE, old, ttl_s=5).created
    assert (born.ttl_s, born.deadline_ms) == (5, rig.steady_ms + 5_000)
    [born] = run(rig, Action.RESTORE, old, ttl_s=0).created
    assert (born.ttl_s, born.deadline_ms) == (None, None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (settled(1, State.READY, body=b"a"), "restored already"),
        (settled(1, State.ACKED, body=b"a"), "not deleted"),
        (settled(1), "body gone"),
        (settled(1, body=b"a", queue_id=9), "queue gone"),
    ],
)
def test_restore_skips(rig: CoreRig, row: Message, reason: str) -> None:
    rig.publish(b"a")
    run(rig, Action.RESTORE, row)
    assert skip_reasons(rig) == {reason: 1}


def test_restore_respects_limits_but_not_a_pause(rig: CoreRig) -> None:
    rig.publish(b"a")
    rig.run(lambda: rig.pause("orders", "publishing", True))
    assert run(rig, Action.RESTORE, settled(1, body=b"a")).created != []
    rig.run(lambda: rig.configure("orders", {"publishing_paused": None, "max_messages": 2}))
    run(rig, Action.RESTORE, settled(1, body=b"b"))
    assert skip_reasons(rig) == {"queue full": 1}


def test_restore_recreates_a_removed_queue(rig: CoreRig) -> None:
    rig.run(lambda: rig.core.registry.get_or_create(rig.core.batch, "orders"))
    rig.run(lambda: rig.core.remove_queue(rig.queue()))
    rig.publish(b"x", queue="mails")
    [born] = run(rig, Action.RESTORE, settled(1, body=b"a")).created
    assert (born.queue_id, rig.queue().queue_id) == (1, 1)


def test_concurrent_restores_store_one_message(rig: CoreRig) -> None:
    rig.publish(b"a")
    first, second = (start(rig, Action.RESTORE, 1).rows[0].on_rows for _ in "12")
    rows = [settled(1, body=b"a")]
    batch = rig.run(
        loaded=LoadedRows(pages=[LoadedPage(first, rows, True), LoadedPage(second, rows, True)])
    )
    assert len(batch.created) == 1
    assert skip_reasons(rig) == {"gone": 1}


# -- erase


def test_erase_overwrites_and_removes_the_body(rig: CoreRig) -> None:
    rig.publish(b"a")
    batch = run(rig, Action.ERASE, settled(1, State.ACKED))
    assert batch.writes[0] == EraseMessage(1, rig.core.now.wall_ms)
    assert (event_kinds(batch), outcome(rig).changed) == ([(1, "erase")], [1])


# -- all actions


@pytest.mark.parametrize("action", Action)
def test_action_skips_messages_of_other_queues(rig: CoreRig, action: Action) -> None:
    rig.publish(b"a")
    run(rig, action, message(1), queues=frozenset({9}), target="orders")
    assert skip_reasons(rig) == {"foreign queue": 1}


@pytest.mark.parametrize("action", Action)
def test_action_skips_missing_messages(rig: CoreRig, action: Action) -> None:
    rig.publish(b"a", b"b")
    batch = start(rig, action, 1, 1, 0, -5, 3, 1 << 80, target="orders")
    assert batch.rows[0].seqs == (1,)  # the others are invalid or repeated
    batch = load(rig, batch)
    assert skip_reasons(rig) == {"gone": 5}
    assert [type(write) for write in batch.writes] == [InsertAudit]


def test_action_skips_a_message_that_expires_in_the_same_batch(rig: CoreRig) -> None:
    rig.publish(b"a", ttl_s=1)
    rig.advance(1)
    [request] = start(rig, Action.REQUEUE, 1).rows
    loaded = LoadedRows(
        pages=[LoadedPage(request.on_rows, [message(1)], True)], due=[message(1)], has_due=True
    )
    batch = rig.run(loaded=loaded)
    assert outcomes(batch) == {(State.EXPIRED, None): [1]}
    assert skip_reasons(rig) == {"gone": 1}


def test_action_skips_a_pending_dead_letter(rig: CoreRig) -> None:
    _, held = rig.hold(credit=1, has_body=False)
    rig.run(lambda: dead_letters.dead_letter(rig.core, held, "client"))
    run(rig, Action.DELETE, message(1), with_dispatched=True)
    assert skip_reasons(rig) == {"gone": 1}


def test_action_continues_with_the_next_page(rig: CoreRig) -> None:
    rig.publish(b"a", b"b", b"c")
    batch = load(rig, start(rig, Action.RESTORE, 1, 2, 3), settled(1, body=b"a"), is_last=False)
    assert (batch.rows[0].seqs, rig.answers) == ((2, 3), [])
    [audited] = batch.writes
    assert isinstance(audited, InsertAudit)
    assert (audited.number, audited.result) == (1, "running")
    batch = load(rig, batch, settled(2, body=b"b"))
    assert (outcome(rig).changed, outcome(rig).skipped) == ([1, 2], {"gone": 1})
    assert batch.writes == [AdvanceAudit(1, "done", 1)]


def test_slices_of_a_bulk_job_share_one_audit_row(rig: CoreRig) -> None:
    rig.publish(b"a", b"b", b"c")
    entry = rig.entry("bulk.delete", target="orders", result="running")
    asked: list[Batch] = []
    for seqs in ([1], [2]):
        asked.append(rig.run(
            lambda seqs=seqs: act_on_messages(  # type: ignore[misc]
                rig.core, rig.answers.append, entry, Action.DELETE, seqs, ActionOptions()
            )
        ))  # fmt: skip
        batch = load(rig, asked[-1], message(seqs[0]))
        if seqs == [1]:
            [audited] = batch.writes
            assert isinstance(audited, InsertAudit)
            assert (audited.target, audited.number, audited.result) == ("orders", 1, "running")
    assert batch.writes == [AdvanceAudit(1, "running", 1)]
    entry.result = "cancelled"
    batch = rig.run(
        lambda: act_on_messages(
            rig.core, rig.answers.append, entry, Action.DELETE, [], ActionOptions()
        )
    )
    assert batch.writes == [AdvanceAudit(0, "cancelled", 1)]
    assert (entry.count, outcome(rig)) == (2, ActionOutcome())
    assert rig.core.audit_counts == {"bulk.delete": 1}


def test_more_than_a_slice_is_refused(rig: CoreRig) -> None:
    with pytest.raises(RefusedError, match="1001") as caught:
        act_on_messages(
            rig.core, print, rig.entry(), Action.DELETE, range(ACTION_SLICE + 1), ActionOptions()
        )
    assert caught.value.code == "too_many"


# -- contents of redriven messages


@pytest.fixture
def strict() -> CoreRig:
    return rig_with_strict_queue()


def redrive(rig: CoreRig, row: Message, body: bytes, **options: Any) -> ActionOutcome:
    row.body = body
    run(rig, Action.REDRIVE, row, **options)
    return outcome(rig)


def quarantine_one(rig: CoreRig) -> tuple[Message, bytes]:
    """Quarantine a message; return its record as a row on disk, and the content of the record."""
    batch = rig.publish(BAD)
    record = batch.created[1]
    row = message(record.seq, queue_id=record.queue_id)
    row.source = record.source._replace(reason=None)
    return row, batch.bodies[1]


def test_redrive_publishes_the_original_content(strict: CoreRig) -> None:
    row, body = quarantine_one(strict)
    strict.run(lambda: strict.configure("orders", {"payload_policy": "observe"}))
    done = redrive(strict, row, body)
    assert strict.batch.bodies == [BAD]
    assert outcomes(strict.batch) == {(State.DELETED, "redriven"): [2]}
    assert (done.targets, done.poisoned) == ({"orders": 1}, {})
    assert event_kinds(strict.batch) == [(3, "redrive"), (2, "redrive")]


def test_redrive_reports_messages_quarantined_again(strict: CoreRig) -> None:
    row, body = quarantine_one(strict)
    done = redrive(strict, row, body)
    assert done.poisoned == {"invalid_data": 1}
    assert outcomes(strict.batch)[State.DEAD, "invalid_data"] == [3]


def test_dry_run_reports_and_changes_nothing(strict: CoreRig) -> None:
    row, body = quarantine_one(strict)
    done = redrive(strict, row, body, is_dry_run=True)
    assert (done.targets, done.poisoned) == ({"orders": 1}, {"invalid_data": 1})
    assert not strict.batch.stores


def test_redrive_skips_if_the_dead_letter_queue_refuses(strict: CoreRig) -> None:
    row, body = quarantine_one(strict)
    strict.run(lambda: strict.configure("orders.dlq", {"publishing_paused": True}))
    done = redrive(strict, row, body)
    assert done.skipped == {"dead-letter queue paused": 1}
    assert strict.batch.created == []


def test_record_published_by_a_client_goes_to_its_original_queue() -> None:
    rig = rig_with_inspector()
    rig.publish(GOOD)
    content = json.dumps({"raw": "x", "dead_letter": {"original_queue": "orders"}}).encode()
    [record] = rig.publish(content, queue="orders.dlq").created
    row = message(record.seq, queue_id=record.queue_id)
    assert redrive(rig, row, content).targets == {"orders": 1}
    assert rig.batch.bodies == [b"x"]


def test_record_of_a_missing_queue_is_skipped() -> None:
    rig = rig_with_inspector()
    content = json.dumps({"raw": "x", "dead_letter": {"original_queue": "removed"}}).encode()
    [record] = rig.publish(content, queue="orders.dlq").created
    row = message(record.seq, queue_id=record.queue_id)
    assert redrive(rig, row, content, is_dry_run=True).skipped == {"queue gone": 1}


def test_plain_message_of_a_dead_letter_queue_requires_a_target() -> None:
    rig = rig_with_inspector()
    [made] = rig.publish(b"{}", queue="orders.dlq").created
    row = message(made.seq, queue_id=made.queue_id)
    assert redrive(rig, row, b"{}").skipped == {"not a record": 1}
    rig.publish(GOOD)
    assert redrive(rig, row, b"{}", target="orders").targets == {"orders": 1}


def test_bulk_redrive_publishes_the_original_content(strict: CoreRig) -> None:
    row, body = quarantine_one(strict)
    strict.run(lambda: strict.configure("orders", {"payload_policy": "observe"}))
    strict.run(lambda: strict.redrive("orders.dlq"))
    [request] = strict.batch.pages
    row.body = body
    strict.run(loaded=LoadedRows(pages=[LoadedPage(request.on_rows, [row], True)]))
    assert strict.batch.bodies == [BAD]
