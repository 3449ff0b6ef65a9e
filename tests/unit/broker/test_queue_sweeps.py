"""Purge and redrive, page by page; the pages are given by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from phpmq_lite.broker.operator import operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Batch, Loaded, Message, State
from tests.support.core_rig import CoreRig, bodies, event_kinds, message, outcomes, sent_messages

PURGED = (State.DELETED, "purge")


def pages(batch: Batch, *rows: list[Message], is_last: bool = True) -> Loaded:
    """Answer, by hand, to the pages that a batch asks for, in their order."""
    return Loaded(pages=[
        (request.on_rows, page, is_last) for request, page in zip(batch.pages, rows, strict=True)
    ])  # fmt: skip


def purge(rig: CoreRig, *, with_dispatched: bool = False) -> Batch:
    return rig.run(lambda: rig.purge("orders", with_dispatched=with_dispatched))


def record(seq: int, source_queue_id: int, body: bytes | None = b"r") -> Message:
    """Make a row of a dead-letter queue, with number 2, as the writer would."""
    row = message(seq, body=body, queue_id=2)
    row.source_seq, row.source_queue_id, row.source_reason = 1, source_queue_id, "client"
    return row


# -- purge


def test_purge_deletes_what_is_ready_and_tells_how_much() -> None:
    rig = CoreRig()
    rig.publish(b"a", b"bc")
    batch = purge(rig)
    request = batch.pages[0]
    assert (request.queue_id, request.after, request.upto, request.bodies) == (1, 0, 2, False)
    batch = rig.run(loaded=pages(batch, [message(1), message(2, size=2)]))
    assert outcomes(batch) == {PURGED: [1, 2]}
    assert rig.answers == [2]
    assert (rig.queue().row.live_count, rig.queue().row.live_bytes) == (0, 0)
    assert rig.queue().counters.deleted == 2


def test_purge_leaves_what_is_dispatched_unless_told_otherwise() -> None:
    rig = CoreRig()
    worker = rig.consumer(credit=1)
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    row = message(1)
    row.state = State.DISPATCHED
    batch = rig.run(loaded=pages(purge(rig), [row, message(2)]))
    assert outcomes(batch) == {PURGED: [2]}
    batch = rig.run(loaded=pages(purge(rig, with_dispatched=True), [row]))
    assert outcomes(batch) == {PURGED: [1]}
    assert rig.answers == [1, 1]
    assert (rig.core.state.messages, rig.core.state.held) == ({}, 0)
    assert held.holder is None


def test_purge_frees_the_credit_and_late_acknowledgements_are_ignored() -> None:
    """docs/reference/wire.md, Queues on the wire: flushing a queue."""
    rig = CoreRig()
    worker = rig.consumer(credit=1)
    [held] = sent_messages(rig.publish(b"a"), worker)
    row = message(1)
    row.state = State.DISPATCHED
    rig.run(loaded=pages(purge(rig, with_dispatched=True), [row]))
    assert bodies(sent_messages(rig.publish(b"b"), worker)) == [b"b"]
    rig.run(lambda: rig.core.acknowledge(worker, "orders", held.message_id))
    rig.run(lambda: rig.core.acknowledge(worker, "orders", held.message_id),
             loaded=Loaded(by_seq={1: None}))  # fmt: skip
    assert rig.core.ignored == {"settled": 1}


def test_purge_goes_on_with_the_next_page() -> None:
    rig = CoreRig()
    rig.publish(b"a", b"b", b"c")
    batch = rig.run(loaded=pages(purge(rig), [message(1), message(2)], is_last=False))
    assert (batch.pages[0].after, batch.pages[0].upto, rig.answers) == (2, 3, [])
    rig.run(loaded=pages(batch, [message(3)]))
    assert rig.answers == [3]


def test_two_purges_at_once_delete_each_message_once() -> None:
    rig = CoreRig()
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


def test_purge_passes_over_what_expires_at_the_same_time() -> None:
    rig = CoreRig()
    rig.publish(b"a", ttl_s=1)
    rig.publish(b"b")
    rig.advance(1)
    batch = purge(rig)
    loaded = pages(batch, [message(1), message(2)])
    loaded.due, loaded.has_due = [message(1)], True
    batch = rig.run(loaded=loaded)
    assert outcomes(batch) == {(State.EXPIRED, None): [1], PURGED: [2]}
    assert (rig.answers, rig.queue().row.live_count) == ([1], 0)


def test_purge_passes_over_what_is_forwarded_at_the_same_time() -> None:
    """The page shows it in the old queue; purging it now would take it from the new one."""
    rig = CoreRig()
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


def test_message_on_a_page_of_a_purge_is_not_acknowledged_too() -> None:
    rig = CoreRig()
    one = rig.connect()
    rig.publish(b"a", by=one)
    loaded = pages(purge(rig), [message(1)])
    loaded.by_seq = {1: message(1)}
    batch = rig.run(
        lambda: rig.core.acknowledge(one, "orders", message(1).message_id), loaded=loaded
    )
    assert outcomes(batch) == {PURGED: [1]}
    assert batch.seqs == {1}
    assert rig.queue().row.live_count == 0


def test_purge_takes_messages_out_of_the_window() -> None:
    rig = CoreRig()
    worker = rig.consumer(credit=1)
    rig.publish(b"a", b"b")
    rig.run(loaded=pages(purge(rig), [message(2)]))
    assert list(rig.queue().window or ()) == []
    assert rig.core.state.bodies.total_bytes == 0
    assert worker.consumers[1].held != {}


def test_purge_wakes_publishers_that_wait_for_room() -> None:
    rig = CoreRig()
    one = rig.connect()
    rig.publish(b"a")
    rig.run(lambda: rig.configure("orders", {"max_messages": 1}))
    rig.run(lambda: rig.core.publish(one, "orders", b"b", None, None))
    assert rig.run(loaded=pages(purge(rig), [message(1)])).to_resume == {one}


# -- redrive


def with_record(rig: CoreRig) -> Message:
    """Make queue 1 ``orders`` and queue 2 with a record of it, on disk; return its row."""
    rig.publish(b"x", queue="orders")
    rig.publish(b"r", queue="orders.dlq")
    return record(2, source_queue_id=1)


def test_redrive_stores_the_record_again_in_its_origin() -> None:
    rig = CoreRig()
    row = with_record(rig)
    worker = rig.consumer("orders")
    batch = rig.run(lambda: rig.redrive("orders.dlq", None, 60, None))
    assert batch.pages[0].bodies
    batch = rig.run(loaded=pages(batch, [row]))
    [born] = batch.created
    assert (born.queue_id, born.ttl_s, born.source_seq) == (1, 60, None)
    assert bodies(sent_messages(batch, worker)) == [b"r"]
    assert outcomes(batch) == {(State.DELETED, "redriven"): [2]}
    assert event_kinds(batch) == [(3, "redrive"), (2, "redrive")]
    assert batch.events[3] == row.message_id.decode()
    assert batch.events[7] == born.message_id.decode()
    assert rig.answers == [1]
    assert (rig.queue().row.live_count, rig.queue("orders.dlq").row.live_count) == (2, 0)


def test_redrive_goes_to_another_queue_and_stops_at_its_limit() -> None:
    rig = CoreRig()
    with_record(rig)
    rig.publish(b"y", queue="again")
    rows = [record(2, 1), record(3, 1), record(4, 1)]
    batch = rig.run(lambda: rig.redrive("orders.dlq", "again", None, 2))
    batch = rig.run(loaded=pages(batch, rows, is_last=False))
    assert [m.queue_id for m in batch.created] == [rig.queue("again").queue_id] * 2
    assert (rig.answers, batch.pages) == ([2], [])


def test_redrive_gives_the_default_ttl_of_the_target_unless_told_otherwise() -> None:
    rig = CoreRig()
    row = with_record(rig)
    rig.run(lambda: rig.configure("orders", {"default_ttl_s": 5}))
    batch = rig.run(lambda: rig.redrive("orders.dlq"))
    assert rig.run(loaded=pages(batch, [row])).created[0].ttl_s == 5


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda row: setattr(row, "state", State.DISPATCHED), id="dispatched"),
        pytest.param(lambda row: setattr(row, "body", None), id="damaged"),
        pytest.param(lambda row: setattr(row, "source_queue_id", None), id="no record"),
        pytest.param(lambda row: setattr(row, "source_queue_id", 99), id="origin unknown"),
        pytest.param(lambda row: setattr(row, "source_queue_id", 2), id="origin is this queue"),
    ],
)
def test_redrive_leaves_a_message_that_it_cannot_send_back(change: object) -> None:
    rig = CoreRig()
    row = with_record(rig)
    assert callable(change)
    change(row)
    batch = rig.run(lambda: rig.redrive("orders.dlq"))
    batch = rig.run(loaded=pages(batch, [row]))
    assert (outcomes(batch), batch.created, rig.answers) == ({}, [], [0])


@pytest.mark.parametrize("changes", [{"max_messages": 1}, {"publishing_paused": True}])
def test_redrive_heeds_the_bounds_of_the_origin(changes: dict[str, Any]) -> None:
    rig = CoreRig()
    row = with_record(rig)
    rig.run(lambda: rig.configure("orders", changes))
    batch = rig.run(lambda: rig.redrive("orders.dlq"))
    batch = rig.run(loaded=pages(batch, [row]))
    assert (outcomes(batch), batch.created, rig.answers[-1]) == ({}, [], 0)


@pytest.mark.parametrize(("queues", "count"), [({1, 2}, 1), ({2}, 0)])
def test_redrive_goes_back_to_the_queues_given_only(queues: set[int], count: int) -> None:
    rig = CoreRig()
    row = with_record(rig)

    def redrive() -> None:
        operations.redrive(
            rig.core, rig.answers.append, rig.entry("dead.redrive"), "orders.dlq",
            queues=frozenset(queues),
        )  # fmt: skip

    batch = rig.run(redrive)
    assert len(rig.run(loaded=pages(batch, [row])).created) == count


# -- what is refused


def test_operator_is_refused_what_does_not_exist() -> None:
    rig = CoreRig()
    rig.publish(b"a")
    rig.begin()
    asked: list[Callable[[], None]] = [
        lambda: rig.purge("none"),
        lambda: rig.redrive("none"),
        lambda: rig.redrive("orders", "none"),
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


def test_setting_goes_back_to_the_default() -> None:
    rig = CoreRig()
    rig.publish(b"a")
    rig.run(lambda: rig.configure("orders", {"max_deliveries": 3}))
    batch = rig.run(lambda: rig.configure("orders", {"max_deliveries": None}))
    assert [answer["max_deliveries"] for answer in rig.answers] == [3, 20]
    assert batch.configured == [rig.queue().row]
    assert rig.queue().row.own == {}
