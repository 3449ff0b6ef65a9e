"""Operations on settings, queues, connections and admin rows, with their audit rows."""

import json
from typing import Any

import pytest

from phpmq_lite.broker import commands, transitions
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import NO_OPTIONS, Batch, Limits
from phpmq_lite.writes import AdvanceAudit, InsertAudit, SaveItem
from tests.support.core_rig import CoreRig, sent_messages


def audited(batch: Batch) -> list[tuple[Any, ...]]:
    """Return action, target, count and result of the rows that a batch adds to the audit."""
    return [
        (write.action, write.target, write.number, write.result)
        for write in batch.writes
        if isinstance(write, InsertAudit)
    ]


def refusal(rig: CoreRig, name: str, *arguments: Any) -> str:
    """Return the code of a refused operation, which stores nothing."""
    rig.begin()
    with pytest.raises(RefusedError) as caught:
        getattr(queue_operations, name)(rig.core, rig.answers.append, rig.entry(), *arguments)
    assert not rig.finish().stores
    return caught.value.code


def run(
    rig: CoreRig, name: str, *arguments: Any, action: str = "queue.it", target: str = ""
) -> Batch:
    entry = rig.entry(action, target=target)
    return rig.run(
        lambda: getattr(queue_operations, name)(rig.core, rig.answers.append, entry, *arguments)
    )


def test_configure_stores_old_and_new_values_in_the_audit(rig: CoreRig) -> None:
    rig.publish(b"a")
    batch = run(rig, "configure", "orders", {"max_messages": 5, "note": "é"}, target="orders")
    assert audited(batch) == [("queue.it", "orders", 1, "done")]
    [row] = batch.writes
    assert isinstance(row, InsertAudit)
    assert json.loads(row.detail) == {
        "before": {"max_messages": 0, "note": ""}, "after": {"max_messages": 5, "note": "é"},
    }  # fmt: skip
    assert rig.answers[0]["max_messages"] == 5


def test_queue_is_removed_together_with_the_last_message_of_a_group(rig: CoreRig) -> None:
    """The next message of the group is not looked for any more."""
    [message] = rig.publish(b"a").created
    rig.run(lambda: rig.configure("orders", {"group_by": "group"}))
    message.options = NO_OPTIONS._replace(group="g")

    def delete_both() -> None:
        transitions.delete(rig.core, message, "operator")
        assert rig.batch.change_delivery().groups
        rig.core.remove_queue(rig.queue())

    batch = rig.run(delete_both)
    assert batch.delivery is not None
    assert not batch.loads


def test_configure_refuses_a_wrong_value_and_changes_nothing(rig: CoreRig) -> None:
    rig.publish(b"a")
    changes = {"max_messages": 5, "max_bytes": -1}
    assert refusal(rig, "configure", "orders", changes) == "bad_setting"
    assert rig.queue().row.own == {}


def test_queue_is_created_once() -> None:
    rig = CoreRig(Limits(queues=1))
    batch = run(rig, "create_queue", "orders")
    assert ([row.name for row in batch.new_queues], audited(batch)[0][2]) == (["orders"], 1)
    batch = run(rig, "create_queue", "orders")
    assert (batch.new_queues, audited(batch)[0][2]) == ([], 0)
    assert rig.answers == [True, False]
    assert refusal(rig, "create_queue", "more") == "too_many_queues"
    assert refusal(rig, "create_queue", "") == "bad_name"


def test_queue_in_use_is_not_removed(rig: CoreRig) -> None:
    assert refusal(rig, "remove_queue", "orders") == "unknown_queue"
    rig.publish(b"a")
    assert refusal(rig, "remove_queue", "orders") == "queue_not_empty"
    rig.consumer("mails")
    assert refusal(rig, "remove_queue", "mails") == "queue_consumed"
    run(rig, "create_queue", "kept")
    run(rig, "configure", "kept", {"pinned": True})
    assert refusal(rig, "remove_queue", "kept") == "queue_pinned"


def test_removed_queue_keeps_its_row_and_number(rig: CoreRig) -> None:
    run(rig, "create_queue", "orders")
    run(rig, "configure", "orders", {"max_messages": 5})
    batch = run(rig, "remove_queue", "orders")
    [row] = batch.configured
    assert (row.name, row.own, row.is_removed) == ("orders", {}, True)
    assert (rig.core.queues, rig.core.queues_by_id) == ({}, {})
    assert refusal(rig, "purge", "orders") == "unknown_queue"
    batch = rig.publish(b"a")
    assert (batch.new_queues, batch.configured, row.is_removed) == ([], [row], False)
    assert (rig.queue().queue_id, rig.queue().settings.max_messages) == (1, 0)


def test_publisher_waiting_for_a_removed_queue_is_resumed(rig: CoreRig) -> None:
    run(rig, "create_queue", "orders")
    run(rig, "configure", "orders", {"publishing_paused": True})
    client = rig.connect()
    rig.run(lambda: commands.publish(rig.core, client, "orders", b"a", None, None))
    assert run(rig, "remove_queue", "orders").to_resume == {client}


def test_disconnect_ends_the_connection_after_the_commit(rig: CoreRig) -> None:
    worker = rig.consumer(credit=5)
    rig.publish(b"a", b"b")
    ended: list[str] = []
    vars(worker.peer)["end"] = ended.append
    rig.begin()
    queue_operations.disconnect(rig.core, rig.answers.append, rig.entry("client.end"), 1)
    assert (ended, rig.answers) == ([], [])
    batch = rig.finish()
    assert (ended, rig.answers) == (["disconnected by an operator"], [2])
    assert audited(batch) == [("client.end", "", 2, "done")]
    assert refusal(rig, "disconnect", 99) == "unknown_client"


def test_limited_purge_loads_messages(rig: CoreRig) -> None:
    rig.publish(b"a", b"b")
    entry = rig.entry("queue.purge", target="orders")
    batch = rig.run(
        lambda: queue_operations.purge(rig.core, rig.answers.append, entry, "orders", limit=1)
    )
    assert (batch.writes, len(batch.pages)) == ([], 1)


def test_rows_of_the_admin_are_stored_with_their_audit_row(rig: CoreRig) -> None:
    row = SaveItem("view", "mine", "{}", 5, "anna")
    batch = run(rig, "write", [row, row], action="view.save")
    assert batch.writes[:2] == [row, row]
    assert audited(batch) == [("view.save", "", 1, "done")]
    assert rig.answers == [2]
    batch = rig.run(lambda: queue_operations.write(rig.core, rig.answers.append, None, [row]))
    assert batch.writes == [row]


@pytest.mark.parametrize("value", ["\ud800", 1 << 63, -(1 << 63) - 1])
def test_value_that_sqlite_rejects_is_refused(value: Any) -> None:
    assert refusal(CoreRig(), "write", [SaveItem("view", value, "{}", 5, "anna")]) == "bad_value"


def test_refusal_is_audited(rig: CoreRig) -> None:
    entry = rig.entry("queue.purge", target="a\ud800", result="forbidden")
    batch = rig.run(lambda: queue_operations.record_only(rig.core, rig.answers.append, entry))
    assert audited(batch) == [("queue.purge", "a\\ud800", 0, "forbidden")]
    assert (batch.counters["next_audit"], entry.audit_id, rig.answers) == (2, 1, [None])
    batch = rig.run(lambda: queue_operations.record_only(rig.core, rig.answers.append, entry))
    assert batch.writes == [AdvanceAudit(0, "forbidden", 1)]


def test_wait_and_hold_are_counted(rig: CoreRig) -> None:
    rig.publish(b"a")
    assert (rig.queue().wait_histogram, rig.queue().hold_histogram) == (None, None)
    worker = rig.consumer("mails")
    rig.publish(b"a", queue="mails")
    [held] = worker.consumers[2].held.values()
    rig.advance(1)
    rig.run(lambda: commands.acknowledge_late(rig.core, worker, "mails", held.message_id))
    queue = rig.queue("mails")
    assert queue.wait_histogram is not None
    assert queue.hold_histogram is not None
    assert [at for at, count in enumerate(queue.wait_histogram) if count] == [0]
    assert [at for at, count in enumerate(queue.hold_histogram) if count] == [63]
    [held] = sent_messages(rig.publish(b"b", queue="mails"), worker)
    rig.advance(20)
    rig.run(lambda: commands.dead_letter(rig.core, worker, "mails", held.message_id))
    assert sum(queue.hold_histogram) == 2
    assert (queue.counters.dead, queue.dead_by_reason) == (1, {"client": 1})
