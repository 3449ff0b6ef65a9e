"""Batches: what time and loaded rows cause, before and after the commands of each batch.

How ``server/engine.py`` drives the core::

    batches.begin(core, now, loaded)   add loaded rows; expire or return messages that are due
    commands.publish(core, …) …        commands, in arrival order
    batches.dispatch(core)             may be repeated; call ``core.update_clock`` before more
    batch = batches.finish(core)       dispatch again; then the writer stores the batch
"""

from typing import Final

from phpmq_lite.broker import dispatching, reasons, transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.dead_letters import ClientRecords, settle_dead, settle_dead_in_background
from phpmq_lite.broker.queue import SUBSCRIPTION, Queue
from phpmq_lite.model import Batch, ClockReading, LoadedRows, Message, State

CHECKSUMS_MAX: Final = 10_000  # number of loaded checksums above which all are forgotten


def begin(core: Broker, now: ClockReading, loaded: LoadedRows | None = None) -> Batch:
    """Open a batch: add loaded rows, and request messages whose deadline has passed."""
    batch = Batch(now.wall_ms, core.next_number)
    core.open_batch(batch, now)
    if loaded is not None:
        _add_loaded(core, loaded)
    for connection in core.batch_limited:
        core.wake_consumers(connection)
    core.batch_limited.clear()
    if (due_ms := core.next_deadline_ms) is not None and due_ms <= now.steady_ms:
        batch.due_at = None if core.pending.is_full else now.steady_ms
    if (drop_ms := core.staging.due_ms) is not None and drop_ms <= now.steady_ms:
        core.staging.drop_old(batch, now.steady_ms)
    return batch


def dispatch(core: Broker) -> None:
    """Dispatch ready messages to consumers with credit.  May be called repeatedly in a batch.

    Timed-out messages are returned only after all commands have run, because a queued disconnect
    may return them first.
    """
    for message in core.ack_timeouts.take_overdue(core.connections.values(), core.now.steady_ms):
        transitions.return_message(core, message, reasons.ACK_TIMEOUT, is_charged=True)
    if core.on_drained is None and core.needs_dispatch:  # as is_draining, without a call
        dispatching.dispatch_ready(core)


def finish(core: Broker) -> Batch:
    """Dispatch, then close the batch and return it for storing."""
    batch = core.batch
    dispatch(core)
    if core.on_drained is not None and not core.held:
        core.reply(core.on_drained, None)
    if batch.dispatched:
        core.ack_timeouts.watch(core.queues_by_id, batch.dispatched, core.now.steady_ms)
    if batch.due_at is not None and core.next_deadline_ms is not None:
        batch.due_from = core.next_deadline_ms  # of one that returned in this batch, perhaps
    if batch.keys:
        batch.evicted_keys, batch.cut_keys = core.publish_keys.take_evicted()
    if not batch.implies_next_number(core.next_number):
        batch.counters["next_number"] = core.next_number
    return batch


# -- loaded rows


def _add_loaded(core: Broker, loaded: LoadedRows) -> None:
    """Add loaded rows to memory.

    Windows are extended first, before anything is appended to them.  Bodies come last; until then,
    messages that cannot be dead-lettered without their body are skipped.
    """
    core.transitioned.clear()
    for queue_id, page, reaches_end in loaded.windows:
        _extend_window(core, core.queues_by_id[queue_id], page, reaches_end)
    if loaded.by_seq:
        core.loaded = _loaded_by_seq(core, loaded)
    for _, page, _ in loaded.pages:
        _mark_claimed(core, page)
    if loaded.has_due:
        core.next_deadline_ms = loaded.next_deadline_ms
        for row in loaded.due:
            if core.pending.is_full:  # the remaining rows are requested again later
                core.note_deadline(row.deadline_ms)
                break
            if row.seq not in core.pending:
                core.transitioned.add(row.seq)
                transitions.expire(core, core.messages.get(row.seq, row))
    for on_rows, page, is_last in loaded.pages:
        on_rows(page, is_last)
    for on_result, rows in loaded.query_results:
        on_result(rows)
    for seq, body in loaded.bodies.items():
        _add_body(core, seq, body, loaded.records.get(seq, ()))
    if len(core.checksums) > CHECKSUMS_MAX:
        core.checksums.clear()
    core.checksums |= loaded.checksums


def _loaded_by_seq(core: Broker, loaded: LoadedRows) -> dict[int, Message | None]:
    """Return the rows loaded by seq that are neither in memory nor used elsewhere in this batch."""
    others = {row.seq for row in loaded.due}
    for _, page, _ in loaded.pages:
        others.update(row.seq for row in page)
    others.update(core.pending)
    by_seq = {
        seq: row
        for seq, row in loaded.by_seq.items()
        if seq not in core.messages and seq not in others
    }
    _mark_claimed(core, [row for row in by_seq.values() if row is not None])
    return by_seq


def _mark_claimed(core: Broker, rows: list[Message]) -> None:
    """Mark dispatched rows as held by a subscription if no connection holds them."""
    for row in rows:
        if row.state == State.DISPATCHED and not (
            row.seq in core.messages or row.seq in core.pending
        ):
            row.holder = SUBSCRIPTION


def _add_body(core: Broker, seq: int, body: bytes | None, client_records: ClientRecords) -> None:
    if seq in core.pending:
        if body is None or not settle_dead_in_background(core, seq, body, client_records):
            settle_dead(core, *core.pending[seq], body, client_records=client_records)
    elif (message := core.messages.get(seq)) is not None and message.holder is None:
        queue = core.queues_by_id[message.queue_id]
        if body is None:  # never deliver a damaged message
            settle_dead(core, message, reasons.DAMAGED, None)
        elif queue.window is not None:
            queue.window.set_body(message, body)
            core.needs_dispatch[queue.queue_id] = queue


def _extend_window(core: Broker, queue: Queue, page: list[Message], reaches_end: bool) -> None:
    if queue.window is None:
        return
    page = [message for message in page if message.seq not in core.pending]
    queue.window.extend(page, reaches_end)
    for message in page:
        core.messages[message.seq] = message
    transitions.dead_letter_exhausted(core, page, queue)
    core.needs_dispatch[queue.queue_id] = queue
