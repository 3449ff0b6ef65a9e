"""Commands of connections: publish, consume, acknowledge and requeue."""

from collections import Counter
from functools import partial

import pytest

from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.operator.queue_operations import create_queue
from phpmq_lite.broker.queue import Connection
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry, Limits, LoadedRows, LoadedWindow, Message, State, checksum
from phpmq_lite.writes import EraseMessage
from tests.support.core_rig import (
    STEADY_MS,
    CoreRig,
    bodies,
    event_kinds,
    message,
    outcomes,
    sent_messages,
    sent_receipts,
)


def held_by(rig: CoreRig, worker: Connection, *contents: bytes) -> list[Message]:
    got = sent_messages(rig.publish(*contents), worker)
    assert bodies(got) == list(contents)
    return got


# -- connections


def test_connection_gets_the_next_client_number_and_a_row(rig: CoreRig) -> None:
    one, two = rig.connect(), rig.connect()
    assert (one.number, two.number) == (1, 2)
    assert rig.batch.opened_clients[:3] == [2, "tcp", "127.0.0.1:1"]
    assert rig.batch.counters == {"next_client": 3}
    assert (dict(rig.core.ignored), dict(rig.core.refused)) == ({}, {})


def test_disconnect_stores_its_reason_once(rig: CoreRig) -> None:
    one = rig.connect()
    batch = rig.run(
        lambda: commands.disconnect(rig.core, one, "line", "ttl", "closed by the peer"),
        lambda: commands.disconnect(rig.core, one, "line", "ttl", "again"),
    )
    [row] = batch.closed_clients
    assert row[1:] == ("line", "ttl", "closed by the peer", 1)
    assert rig.core.connections == {}


# -- credit


def test_replaced_credit_returns_and_redispatches_messages() -> None:
    """docs/reference/wire.md, Queues on the wire: a second 002 for a queue replaces the first."""
    rig = CoreRig()
    worker = rig.consumer(credit=2)
    held = held_by(rig, worker, b"a", b"b")
    rig.publish(b"c")
    batch = rig.run(lambda: commands.consume(rig.core, worker, "orders", 3))
    again = sent_messages(batch, worker)
    assert [m.message_id for m in again[:2]] == [m.message_id for m in held]
    assert bodies(again) == [b"a", b"b", b"c"]
    assert [m.deliveries for m in again] == [2, 2, 1]
    assert [m.charged for m in again] == [0, 0, 0]
    assert event_kinds(batch) == []  # no row per message


def test_repeated_credit_is_delayed_until_a_message_is_acknowledged(rig: CoreRig) -> None:
    worker = rig.consumer(credit=2)
    held = held_by(rig, worker, b"a", b"b")

    def results(number: int, credit: int = 2) -> list[CommandResult]:
        made = []
        for _ in range(number):
            rig.begin()
            made.append(commands.consume(rig.core, worker, "orders", credit))
            rig.finish()
        return made

    done, delay = CommandResult.DONE, CommandResult.DELAY
    assert results(22) == [done] * 20 + [delay] * 2
    assert worker.consumers[1].held.keys() == {m.message_id for m in held}
    rig.steady_ms += 100
    assert results(2) == [done, delay]
    assert results(1, credit=0) == [delay]
    rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held[0].message_id))
    assert results(21) == [done] * 20 + [delay]
    rig.steady_ms += 60_000
    assert results(21) == [done] * 20 + [delay]


def test_credit_that_returns_nothing_is_never_delayed(rig: CoreRig) -> None:
    worker = rig.consumer(credit=2)
    for credit in [0, 1, 5] * 100:
        rig.begin()
        assert commands.consume(rig.core, worker, "orders", credit) is CommandResult.DONE
        assert rig.finish().events == []


def test_credit_of_zero_returns_messages_and_pauses(rig: CoreRig) -> None:
    one, two = rig.consumer(credit=2), rig.consumer(credit=10)
    batch = rig.publish(b"a", b"b", b"c", b"d")
    assert bodies(sent_messages(batch, one)) == [b"a", b"c"]
    batch = rig.run(lambda: commands.consume(rig.core, one, "orders", 0))
    assert bodies(sent_messages(batch, two)) == [b"a", b"c"]
    assert sent_messages(rig.publish(b"e"), one) == []
    rig.begin()
    assert commands.consume(rig.core, one, "orders", 0) is CommandResult.DONE  # again
    assert rig.finish().sends == {}


def test_consumer_above_the_limit_of_queues_is_closed() -> None:
    rig = CoreRig(Limits(queues=1))
    worker = rig.consumer("orders")
    rig.begin()
    assert commands.consume(rig.core, worker, "mails", 1) is CommandResult.CLOSE


# -- redelivery


def test_messages_of_a_closed_connection_precede_newer_ones(rig: CoreRig) -> None:
    one = rig.consumer(credit=2)
    held = held_by(rig, one, b"a", b"b")
    rig.publish(b"c", b"d")
    two = rig.connect()
    batch = rig.run(
        lambda: commands.consume(rig.core, two, "orders", 10),
        lambda: commands.disconnect(rig.core, one, None, None, "gone"),
    )
    assert bodies(sent_messages(batch, two)) == [b"a", b"b", b"c", b"d"]
    assert sent_messages(batch, two)[:2] == held


def test_returned_message_keeps_its_position(rig: CoreRig) -> None:
    one, two = rig.consumer(credit=1), rig.consumer(credit=1)
    batch = rig.publish(b"a", b"b", b"c")
    [first] = sent_messages(batch, one)
    rig.run(lambda: commands.disconnect(rig.core, one, None, None, "gone"))
    second = sent_messages(batch, two)[0]
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, two, "orders", second.message_id))
    assert sent_messages(batch, two) == [first]
    assert (first.position, first.deliveries) == (1, 2)


def test_disconnect_charges_only_the_oldest_held_message(rig: CoreRig) -> None:
    worker = rig.consumer()
    held = held_by(rig, worker, b"a", b"b", b"c")
    rig.run(lambda: commands.disconnect(rig.core, worker, None, None, "gone"))
    assert [m.charged for m in held] == [1, 0, 0]


def test_disconnect_charges_one_message_of_all_queues(rig: CoreRig) -> None:
    """README, Poison: one delivery against the oldest message it held, not against all."""
    worker = rig.consumer("orders")
    rig.consume(worker, 10, "mails")
    young = sent_messages(rig.publish(b"first", queue="mails"), worker)
    rig.advance(1)
    old = held_by(rig, worker, b"a", b"b")
    rig.run(lambda: commands.disconnect(rig.core, worker, None, None, "gone"))
    assert [m.charged for m in young + old] == [1, 0, 0]


def test_disconnect_while_the_broker_stops_charges_nothing(rig: CoreRig) -> None:
    """The same deployment, or the broker itself, stops the worker."""
    worker, held = rig.hold()
    rig.run(lambda: rig.core.drain(rig.answers.append))
    rig.run(lambda: commands.disconnect(rig.core, worker, None, None, "the broker stops"))
    assert (held.charged, held.deliveries) == (0, 1)


@pytest.mark.parametrize(("is_sent", "is_charged"), [(True, False), (False, True)])
def test_disconnect_charges_no_half_closed_connection_and_no_unsent_message(
    rig: CoreRig, is_sent: bool, is_charged: bool
) -> None:
    worker, held = rig.hold()
    held.is_sent = is_sent
    rig.run(
        lambda: commands.disconnect(rig.core, worker, None, None, "gone", is_charged=is_charged)
    )
    assert (held.charged, held.deliveries) == (0, int(is_sent))


def test_oldest_message_is_the_one_dispatched_first() -> None:
    rig = CoreRig()
    one, two = rig.consumer(credit=1), rig.consumer(credit=2)
    batch = rig.publish(b"a", b"b", b"c")
    [first], [second, third] = sent_messages(batch, one), sent_messages(batch, two)
    rig.run(lambda: commands.acknowledge_late(rig.core, two, "orders", second.message_id))
    rig.run(lambda: commands.disconnect(rig.core, one, None, None, "gone"))
    assert list(two.consumers[1].held.values()) == [third, first]
    rig.run(lambda: commands.disconnect(rig.core, two, None, None, "gone"))
    assert (first.charged, third.charged) == (1, 1)


# -- acknowledge


def test_acknowledgement_frees_credit(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert outcomes(batch) == {(State.ACKED, None): [1]}
    assert bodies(sent_messages(batch, worker)) == [b"b"]
    assert (rig.queue().row.live_count, rig.queue().row.live_bytes) == (1, 1)
    assert worker.acked == 1


def test_command_for_a_message_of_another_connection_is_ignored(rig: CoreRig) -> None:
    (_, held), stranger = rig.hold(), rig.connect()
    batch = rig.run(
        lambda: commands.acknowledge_late(rig.core, stranger, "orders", held.message_id)
    )
    assert outcomes(batch) == {}
    assert rig.core.ignored == {"foreign": 1}
    assert stranger.acked == 0
    batch = rig.run(
        lambda: commands.requeue(rig.core, stranger, "orders", held.message_id, 0),
        lambda: commands.dead_letter(rig.core, stranger, "orders", held.message_id),
    )
    assert (outcomes(batch), batch.changed) == ({}, {})
    assert rig.core.ignored == {"foreign": 3}


def test_any_connection_acknowledges_a_ready_message(rig: CoreRig) -> None:
    worker, stranger = rig.consumer(credit=1), rig.connect()
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    ready = next(iter(rig.window()))
    batch = rig.run(
        lambda: commands.acknowledge_late(rig.core, stranger, "orders", ready.message_id)
    )
    assert outcomes(batch) == {(State.ACKED, None): [ready.seq]}
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert sent_messages(batch, worker) == []


def test_message_is_acknowledged_once(rig: CoreRig) -> None:
    worker, held = rig.hold()
    rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    rig.begin()
    assert (
        commands.acknowledge_late(rig.core, worker, "orders", held.message_id) is CommandResult.LOAD
    )
    assert rig.finish().seqs == {1}
    rig.begin(LoadedRows(by_seq={1: None}))
    assert (
        commands.acknowledge_late(rig.core, worker, "orders", held.message_id) is CommandResult.DONE
    )
    assert outcomes(rig.finish()) == {}
    assert rig.core.ignored == {"settled": 1}
    assert rig.queue().row.live_count == 0


def test_acknowledgement_for_another_queue_is_ignored_and_frees_no_credit(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    rig.publish(b"x", queue="mails")
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "mails", held.message_id))
    assert (outcomes(batch), batch.sends) == ({}, {})
    assert rig.core.ignored == {"wrong_queue": 1}


def test_invalid_or_unknown_id_is_ignored_without_loading(rig: CoreRig) -> None:
    worker, held = rig.hold()
    wrong_token = held.message_id[:16] + b"f" * 16
    strange = [
        b"", b"1", b"x" * 32, b"\xff" * 32, b"0" * 32, b"f" * 32, b"-000000000000001" + b"0" * 16,
        b"+000000000000001" + held.message_id[16:], b"0000_0000_00_001" + held.message_id[16:],
        held.message_id + b"0", held.message_id[:31], held.message_id.upper() + b" ", wrong_token,
    ]  # fmt: skip
    rig.begin()
    for message_id in strange:
        assert (
            commands.acknowledge_late(rig.core, worker, "orders", message_id) is CommandResult.DONE
        )
        assert commands.requeue(rig.core, worker, "orders", message_id, 0) is CommandResult.DONE
        assert commands.dead_letter(rig.core, worker, "orders", message_id) is CommandResult.DONE
    batch = rig.finish()
    assert (outcomes(batch), batch.changed, batch.loads) == ({}, {}, False)
    assert rig.core.ignored == {"unknown": 3 * len(strange)}


def test_message_on_disk_is_loaded_before_it_is_acknowledged(rig: CoreRig) -> None:
    one = rig.connect()
    rig.publish(b"a", by=one)
    row = message(1)
    rig.begin()
    assert commands.acknowledge_late(rig.core, one, "orders", row.message_id) is CommandResult.LOAD
    commands.preload(rig.core, [row.message_id, b"x" * 32, b"f" * 32])
    assert rig.finish().seqs == {1}
    rig.begin(LoadedRows(by_seq={1: row}))
    assert commands.acknowledge_late(rig.core, one, "orders", row.message_id) is CommandResult.DONE
    assert (
        commands.acknowledge_late(rig.core, one, "orders", row.message_id) is CommandResult.LOAD
    )  # it has gone since
    assert outcomes(rig.finish()) == {(State.ACKED, None): [1]}
    assert rig.queue().row.live_count == 0


# -- messages that changed while they were loaded


def test_message_loaded_twice_is_acknowledged_once(rig: CoreRig) -> None:
    """It was loaded by id and with the window, as two objects."""
    one = rig.connect()
    rig.publish(b"a", by=one)
    page, named = message(1, body=b"a"), message(1)
    rig.begin(LoadedRows(by_seq={1: named}))
    commands.consume(rig.core, one, "orders", 5)
    rig.finish()
    rig.begin(LoadedRows(windows=[LoadedWindow(1, [page], True)], by_seq={1: named}))
    assert commands.acknowledge_late(rig.core, one, "orders", page.message_id) is CommandResult.DONE
    assert commands.acknowledge_late(rig.core, one, "orders", page.message_id) is CommandResult.LOAD
    assert outcomes(rig.finish()) == {(State.ACKED, None): [1]}
    assert rig.queue().row.live_count == 0


def test_due_message_expires_and_is_not_acknowledged_too(rig: CoreRig) -> None:
    one = rig.connect()
    rig.publish(b"a", by=one, ttl_s=1)
    rig.advance(1)
    due, named = (message(1, deadline_ms=STEADY_MS + 1_000) for _ in "12")
    rig.begin(LoadedRows(by_seq={1: named}, due=[due], has_due=True))
    assert commands.acknowledge_late(rig.core, one, "orders", due.message_id) is CommandResult.LOAD
    assert outcomes(rig.finish()) == {(State.EXPIRED, None): [1]}
    assert rig.queue().row.live_count == 0


def test_requeued_message_is_loaded_again_before_it_is_acknowledged() -> None:
    rig = CoreRig()
    one = rig.connect()
    rig.publish(b"a", by=one)
    row = message(1)
    rig.begin(LoadedRows(by_seq={1: row}))
    assert commands.requeue(rig.core, one, "orders", row.message_id, 0) is CommandResult.DONE
    assert commands.acknowledge_late(rig.core, one, "orders", row.message_id) is CommandResult.LOAD
    rig.finish()
    rig.begin(LoadedRows(by_seq={1: message(1, position=2)}))
    assert commands.acknowledge_late(rig.core, one, "orders", row.message_id) is CommandResult.DONE
    assert outcomes(rig.finish()) == {(State.ACKED, None): [1]}


# -- requeue


def test_requeued_message_moves_to_the_end_with_its_new_ttl(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    [held] = sent_messages(rig.publish(b"a", b"b"), worker)
    batch = rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 60))
    assert bodies(sent_messages(batch, worker)) == [b"b"]
    assert [m.body for m in rig.window()] == [b"a"]
    assert (held.seq, held.position, held.charged) == (1, 3, 1)
    assert (held.ttl_s, held.deadline_ms) == (60, STEADY_MS + 60_000)
    assert batch.changed == {1: held}
    assert event_kinds(batch) == [(1, "requeue")]
    assert rig.core.next_wake_ms == STEADY_MS + 60_000


def test_requeue_with_ttl_zero_removes_the_deadline(rig: CoreRig) -> None:
    worker, held = rig.hold(credit=1, ttl_s=5)
    rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 0))
    assert (held.ttl_s, held.deadline_ms) == (None, None)


def test_requeue_of_a_ready_message_is_not_charged(rig: CoreRig) -> None:
    worker, stranger = rig.consumer(credit=1), rig.connect()
    rig.publish(b"a", b"b", b"c")
    ready = next(iter(rig.window()))
    rig.run(lambda: commands.requeue(rig.core, stranger, "orders", ready.message_id, 0))
    assert ready.charged == 0
    assert [m.body for m in rig.window()] == [b"c", b"b"]
    assert worker.consumers[1].held != {}


# -- confirmed publishing


def publish(rig: CoreRig, by: Connection, body: bytes, key: bytes | None) -> CommandResult:
    return commands.publish(rig.core, by, "orders", body, None, key)


def test_publisher_gets_a_receipt_only_for_a_key(rig: CoreRig) -> None:
    one = rig.connect()
    batch = rig.run(lambda: publish(rig, one, b"a", b"k1"), lambda: publish(rig, one, b"b", None))
    assert sent_receipts(batch, one) == [(b"k1", None)]
    assert batch.keys == [1, 1, 1, STEADY_MS, 2, b"k1"]


def test_known_key_is_stored_once_and_receipted_again(rig: CoreRig) -> None:
    one, two = rig.connect(), rig.connect()
    batch = rig.run(
        lambda: publish(rig, one, b"a", b"k"),
        lambda: publish(rig, one, b"a", b"k"),
        lambda: publish(rig, two, b"a", b"k"),
    )
    assert sent_receipts(batch, one) == [(b"k", None), (b"k", None)]
    assert sent_receipts(batch, two) == [(b"k", None)]
    assert [m.seq for m in batch.created] == [1]
    assert rig.queue().row.live_count == 1


@pytest.mark.parametrize("is_held", [False, True])
def test_known_key_is_refused_for_another_body(rig: CoreRig, *, is_held: bool) -> None:
    one = rig.consumer() if is_held else rig.connect()
    batch = rig.run(
        lambda: publish(rig, one, b"a", b"k"),
        lambda: publish(rig, one, b"b", b"k"),
        lambda: publish(rig, one, b"", b"k"),
        lambda: publish(rig, one, b"a", b"k"),
    )
    assert sent_receipts(batch, one) == [
        (b"k", None), (b"k", "key conflict"), (b"k", "key conflict"), (b"k", None),
    ]  # fmt: skip
    assert [m.body for m in batch.created] == [b"a" if is_held else None]
    totals = rig.queue().counters
    assert (totals.published, totals.deduplicated, totals.refused) == (1, 1, 2)
    assert rig.core.refused == {"key conflict": 2}


def test_key_of_a_message_on_disk_is_compared_after_its_checksum_is_loaded(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: publish(rig, one, b"a", b"k"))
    rig.begin()
    assert publish(rig, one, b"b", b"k") is CommandResult.LOAD
    batch = rig.finish()
    assert (batch.key_seqs, batch.sends, batch.stores, batch.loads) == ({1}, {}, False, True)
    rig.begin(LoadedRows(checksums={1: checksum(1, b"a")}))
    assert publish(rig, one, b"b", b"k") is CommandResult.DONE
    assert publish(rig, one, b"a", b"k") is CommandResult.DONE
    assert sent_receipts(rig.finish(), one) == [(b"k", "key conflict"), (b"k", None)]
    batch = rig.run(lambda: publish(rig, one, b"b", b"k"))  # the checksum is still known
    assert sent_receipts(batch, one) == [(b"k", "key conflict")]


def test_key_of_a_message_that_is_gone_counts_as_a_repeat(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: publish(rig, one, b"a", b"k"))
    batch = rig.run(lambda: publish(rig, one, b"b", b"k"), loaded=LoadedRows(checksums={1: None}))
    assert (sent_receipts(batch, one), batch.created) == ([(b"k", None)], [])


def test_loaded_checksums_are_bounded(rig: CoreRig) -> None:
    rig.run(loaded=LoadedRows(checksums=dict.fromkeys(range(batches.CHECKSUMS_MAX + 1))))
    rig.run(loaded=LoadedRows(checksums={-1: None}))
    assert list(rig.core.checksums) == [-1]


def test_key_is_known_per_queue_and_for_a_limited_time() -> None:
    rig = CoreRig(Limits(receipt_window_ms=1_000))
    one = rig.connect()
    rig.run(lambda: publish(rig, one, b"a", b"k"))
    batch = rig.run(lambda: commands.publish(rig.core, one, "mails", b"a", None, b"k"))
    assert len(batch.created) == 1
    rig.steady_ms += 999
    assert rig.run(lambda: publish(rig, one, b"a", b"k")).created == []
    rig.steady_ms += 1
    assert len(rig.run(lambda: publish(rig, one, b"a", b"k")).created) == 1


def test_refused_key_gets_the_reason_and_may_be_retried(rig: CoreRig) -> None:
    one = rig.connect()
    rig.run(lambda: publish(rig, one, b"a", b"k1"))
    rig.run(lambda: rig.pause("orders", "publishing", True))
    batch = rig.run(
        lambda: publish(rig, one, b"b", b"k2"),
        lambda: publish(rig, one, b"a", b"k1"),
        loaded=LoadedRows(checksums={1: checksum(1, b"a")}),
    )
    assert sent_receipts(batch, one) == [(b"k2", "paused"), (b"k1", None)]
    assert (batch.created, batch.keys) == ([], [])
    assert rig.core.refused == {"paused": 1}
    rig.run(lambda: rig.pause("orders", "publishing", False))
    assert sent_receipts(rig.run(lambda: publish(rig, one, b"b", b"k2")), one) == [(b"k2", None)]


def test_one_creator_cannot_use_up_the_limit_of_queues() -> None:
    rig = CoreRig(Limits(queues=40))
    stranger = rig.connect()
    rig.begin()
    made = [commands.publish(rig.core, stranger, f"q{n}", b"", None, None) for n in range(50)]
    rig.finish()
    assert made.count(CommandResult.DONE) == 40  # it is alone, and may use all
    for name, count in (("anna", 5), ("bert", 3), ("carl", 1)):
        for number in range(count):
            create_queue(rig.core, rig.answers.append, AuditEntry(name, "ui", "", "queue.create"),
                         f"{name}{number}")  # fmt: skip
        with pytest.raises(RefusedError, match=r"created by '\w+'; the limit is 40"):
            create_queue(rig.core, rig.answers.append, AuditEntry(name, "ui", "", "queue.create"),
                         "more")  # fmt: skip
    assert Counter(queue.row.created_by for queue in rig.core.queues.values()) == Counter(
        {stranger.creator: 40, "anna": 5, "bert": 3, "carl": 1}
    )


def test_publisher_above_the_limit_of_queues_is_closed_or_refused() -> None:
    rig = CoreRig(Limits(queues=1))
    one = rig.connect()
    rig.begin()
    assert publish(rig, one, b"a", None) is CommandResult.DONE
    assert commands.publish(rig.core, one, "mails", b"a", None, None) is CommandResult.CLOSE
    assert commands.publish(rig.core, one, "mails", b"a", None, b"k") is CommandResult.DONE
    assert sent_receipts(rig.finish(), one) == [(b"k", "too many queues")]
    assert rig.core.refused == {"too many queues": 2}


# -- waiting publishers


def park(rig: CoreRig) -> Connection:
    """Return a publisher that waits for a paused queue."""
    one = rig.connect()
    rig.publish(b"a")
    rig.run(lambda: rig.pause("orders", "publishing", True))
    rig.run(lambda: publish(rig, one, b"b", None))
    return one


def test_publisher_without_a_key_waits_for_a_full_queue(rig: CoreRig) -> None:
    worker, one = rig.consumer(credit=1), rig.connect()
    rig.run(lambda: rig.configure("orders", {"max_messages": 1}))
    [held] = held_by(rig, worker, b"a")
    rig.begin()
    assert publish(rig, one, b"b", None) is CommandResult.PARK
    assert rig.finish().to_resume == set()
    batch = rig.run(lambda: commands.acknowledge_late(rig.core, worker, "orders", held.message_id))
    assert batch.to_resume == {one}
    rig.begin()
    assert publish(rig, one, b"b", None) is CommandResult.DONE
    assert bodies(sent_messages(rig.finish(), worker)) == [b"b"]


def test_waiting_publishers_are_resumed_in_their_order(rig: CoreRig) -> None:
    publishers = [rig.connect() for _ in range(50)]
    publishers.reverse()
    rig.publish(b"a")
    rig.run(lambda: rig.pause("orders", "publishing", True))
    for one in publishers:
        rig.run(partial(publish, rig, one, b"b", None))
    batch = rig.run(lambda: rig.pause("orders", "publishing", False))
    assert [*batch.to_resume] == publishers


def test_publisher_waits_until_a_paused_queue_is_resumed(rig: CoreRig) -> None:
    one = park(rig)
    batch = rig.run(lambda: rig.configure("orders", {"max_bytes": 9}))
    assert batch.to_resume == set()  # still paused
    batch = rig.run(lambda: rig.pause("orders", "publishing", False))
    assert batch.to_resume == {one}


def test_disconnected_publisher_no_longer_waits(rig: CoreRig) -> None:
    one = park(rig)
    rig.run(lambda: commands.disconnect(rig.core, one, None, None, "gone"))
    batch = rig.run(lambda: rig.pause("orders", "publishing", False))
    assert batch.to_resume == set()


def test_publisher_that_also_consumes_does_not_wait(rig: CoreRig) -> None:
    one = park(rig)
    batch = rig.run(
        lambda: commands.publish(rig.core, one, "orders", b"b", None, None, is_forced=True)
    )
    assert [m.size for m in batch.created] == [1]
    assert rig.queue().parked == set()


# -- the number line


def test_numbers_are_stored_with_the_batch_that_uses_them(rig: CoreRig) -> None:
    worker = rig.consumer(credit=1)
    assert "next_number" not in rig.run().counters
    batch = rig.publish(b"a", b"b")  # recovery reads the number from the bodies
    assert (batch.first_number, batch.created[-1].seq, batch.counters) == (1, 2, {})
    [held] = sent_messages(batch, worker)
    batch = rig.run(lambda: commands.requeue(rig.core, worker, "orders", held.message_id, 0))
    assert batch.counters["next_number"] == 4


def test_next_number_is_stored_if_the_newest_body_may_be_erased(rig: CoreRig) -> None:
    rig.publish(b"a")
    batch = rig.run(lambda: rig.core.batch.writes.append(EraseMessage(1, 1)))
    assert batch.counters["next_number"] == 2


def test_ids_are_the_number_and_63_random_bits(rig: CoreRig) -> None:
    born = [m for n in range(3) for m in rig.publish(*[b"x"] * 300).created]
    assert [int(m.message_id[:16], 16) for m in born] == list(range(1, 901))
    assert all(0 <= m.token < 1 << 63 for m in born)
    assert len({m.token for m in born}) == 900
