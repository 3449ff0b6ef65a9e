"""The way back of dead-letter records that have contents to look at."""

import json

from phpmq_lite.broker.operator.message_actions import (
    Action,
    ActionOptions,
    ActionOutcome,
    act_on_messages,
)
from phpmq_lite.model import Loaded, Message, State
from tests.support.core_rig import CoreRig, event_kinds, message, outcomes
from tests.support.fake_inspector import (
    BAD,
    GOOD,
    rig_with_inspector,
    rig_with_strict_queue,
)

# -- the way back


def act(rig: CoreRig, row: Message, body: bytes | None, options: ActionOptions) -> ActionOutcome:
    rig.run(
        lambda: act_on_messages(
            rig.core, rig.answers.append, rig.entry("dead.redrive"), Action.REDRIVE, [row.seq],
            options,
        )
    )  # fmt: skip
    [request] = rig.batch.rows
    row.body = body
    rig.run(loaded=Loaded(pages=[(request.on_rows, [row], True)]))
    outcome: ActionOutcome = rig.answers[-1]
    return outcome


def dead_one(rig: CoreRig, content: bytes = BAD) -> tuple[Message, bytes]:
    """Have one quarantined; return its record as a row on disk, and its content."""
    batch = rig.publish(content)
    record = batch.created[1]
    row = message(record.seq, queue_id=record.queue_id)
    row.source_seq, row.source_queue_id = record.source_seq, record.source_queue_id
    return row, batch.bodies[3]


def test_redrive_sends_the_revived_content() -> None:
    rig = rig_with_strict_queue()
    row, body = dead_one(rig)
    rig.run(lambda: rig.configure("orders", {"payload_policy": "observe"}))
    outcome = act(rig, row, body, ActionOptions())
    assert rig.batch.bodies == [3, BAD]
    assert outcomes(rig.batch) == {(State.DELETED, "redriven"): [2]}
    assert (outcome.targets, outcome.poisoned) == ({"orders": 1}, {})
    assert event_kinds(rig.batch) == [(3, "redrive"), (2, "redrive")]


def test_redrive_of_poison_is_quarantined_again_and_said_so() -> None:
    rig = rig_with_strict_queue()
    row, body = dead_one(rig)
    outcome = act(rig, row, body, ActionOptions())
    assert outcome.poisoned == {"invalid_data": 1}
    assert outcomes(rig.batch)[State.DEAD, "invalid_data"] == [3]


def test_dry_run_tells_and_changes_nothing() -> None:
    rig = rig_with_strict_queue()
    row, body = dead_one(rig)
    outcome = act(rig, row, body, ActionOptions(is_dry_run=True))
    assert (outcome.targets, outcome.poisoned) == ({"orders": 1}, {"invalid_data": 1})
    assert not rig.batch.stores


def test_redrive_stays_where_poison_would_find_no_room() -> None:
    rig = rig_with_strict_queue()
    row, body = dead_one(rig)
    rig.run(lambda: rig.configure("orders.dlq", {"publishing_paused": True}))
    outcome = act(rig, row, body, ActionOptions())
    assert outcome.skipped == {"dead-letter queue paused": 1}
    assert rig.batch.created == []


def test_record_that_a_program_published_goes_where_it_says() -> None:
    rig = rig_with_inspector()
    rig.publish(GOOD)
    content = json.dumps({"raw": "x", "dead_letter": {"original_queue": "orders"}}).encode()
    [record] = rig.publish(content, queue="orders.dlq").created
    row = message(record.seq, queue_id=record.queue_id)
    assert act(rig, row, content, ActionOptions()).targets == {"orders": 1}
    assert rig.batch.bodies == [3, b"x"]


def test_record_that_a_program_published_waits_for_its_queue() -> None:
    rig = rig_with_inspector()
    content = json.dumps({"raw": "x", "dead_letter": {"original_queue": "removed"}}).encode()
    [record] = rig.publish(content, queue="orders.dlq").created
    row = message(record.seq, queue_id=record.queue_id)
    assert act(rig, row, content, ActionOptions(is_dry_run=True)).skipped == {"queue gone": 1}


def test_plain_message_of_a_dead_letter_queue_goes_only_where_it_is_told() -> None:
    rig = rig_with_inspector()
    [made] = rig.publish(b"{}", queue="orders.dlq").created
    row = message(made.seq, queue_id=made.queue_id)
    assert act(rig, row, b"{}", ActionOptions()).skipped == {"not a record": 1}
    rig.publish(GOOD)
    assert act(rig, row, b"{}", ActionOptions(target="orders")).targets == {"orders": 1}


def test_sweep_revives_too() -> None:
    rig = rig_with_strict_queue()
    row, body = dead_one(rig)
    rig.run(lambda: rig.configure("orders", {"payload_policy": "observe"}))
    rig.run(lambda: rig.redrive("orders.dlq"))
    [request] = rig.batch.pages
    row.body = body
    rig.run(loaded=Loaded(pages=[(request.on_rows, [row], True)]))
    assert rig.batch.bodies == [3, BAD]
