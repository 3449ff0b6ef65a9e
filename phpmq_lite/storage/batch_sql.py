"""Converts a batch to the ordered statements of its transaction, with their values.

This happens before the writer's thread receives the batch, because the messages and counters that
the batch refers to change while the next batch is prepared.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final

from phpmq_lite.frame_options import DEFAULT_PRIORITY
from phpmq_lite.model import (
    ACKED_KEY,
    NO_OPTIONS,
    NO_SOURCE,
    NOT_INDEXED,
    Batch,
    DeliveryChanges,
    DeliveryOptions,
    Message,
    MessageSource,
    QueueRow,
    Schedule,
    State,
)
from phpmq_lite.queue_settings import COLUMNS
from phpmq_lite.storage.statements import load
from phpmq_lite.writes import (
    CopyStagedRows,
    DeleteSchedule,
    DropStage,
    EraseMessage,
    ScheduleRun,
    UnblockMessages,
    Write,
)

# The name of one of the ``step_statements`` and its values.  For a multi-row statement, these are a
# flat list of all rows' values, and the values before the rows; for any other, the latter are None.
Step = tuple[str, Any, tuple[Any, ...] | None]

# Steps that a batch can do without if the database refuses it: rows about what was done.
OPTIONAL: Final = frozenset({"insert_event", "link_messages", "insert_audit", "advance_audit"})

# These writes execute several statements, listed here in order.
_SEVERAL: Final[dict[type[Write], tuple[str, ...]]] = {
    EraseMessage: (
        "overwrite_body",
        "delete_body",
        "erase_trace",
        "erase_details",
        "erase_columns",
    ),
    DropStage: ("drop_stage", "drop_stage_queues"),
    Schedule: ("delete_schedule", "put_schedule"),
    DeleteSchedule: ("delete_schedule", "delete_schedule_runs"),
    ScheduleRun: ("put_schedule_run",),
    UnblockMessages: ("unblock_messages", "forget_heads"),
    CopyStagedRows: ("copy_staged_messages", "copy_staged_bodies"),
}

_NO_ENVELOPE: Final = (None,) * 7
_NO_OPTIONS: Final = (None,) * 9
REMOVED_SETTINGS: Final = '{"removed": true}'  # what the row of a removed queue has as settings
MIN_RUN: Final = 4  # shorter runs are cheaper as separate rows of one statement
# Values of a new message to which nothing but a dispatch has happened.
_SHARED: Final = attrgetter(
    "ttl_s",
    "deadline_ms",
    "published_at",
    "last_dispatched_at",
    "publisher",
    "consumer",
    "indexed",
    "source",
    "options",
)
_PLAIN: Final = (NOT_INDEXED, NO_SOURCE, NO_OPTIONS)
_seq_of: Final = attrgetter("seq")
_position_of: Final = attrgetter("position")
_DISPATCH: Final = attrgetter("consumer", "last_dispatched_at")


def message_of(row: tuple[Any, ...]) -> Message:
    """Return a message built from the 32 columns of the table ``message``."""
    message = Message(*row[:16])
    if row[16:23] != _NO_ENVELOPE:
        message.indexed = row[16:20]
        message.source = MessageSource(*row[20:23])
    if row[23:] != _NO_OPTIONS:
        ready_at, due_ms, deliver_at, retries, attempt, head_since, priority, group, key = row[23:]
        priority = DEFAULT_PRIORITY if priority is None else priority
        numbers = (retries or 0, attempt or 0, head_since, priority)
        message.options = DeliveryOptions(ready_at, due_ms, deliver_at, *numbers, group, key)
    return message


def _flat_options(message: Message) -> tuple[Any, ...]:
    """Return the columns of a message's options; a number that is 0 is NULL."""
    *times, retries, attempt, head_since, priority, group, unique_key = message.options
    own_priority = None if priority == DEFAULT_PRIORITY else priority
    return (*times, retries or None, attempt or None, head_since, own_priority, group, unique_key)


def flat_enveloped(messages: Iterable[Message]) -> list[Any]:
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries,
            m.charged, m.size, m.crc, m.publisher, m.consumer,
            *m.indexed,
        )  # fmt: skip
    return flat


def flat_changed(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``update_messages``: the seq and all mutable columns per message."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.first_dispatched_at, m.last_dispatched_at, m.deliveries, m.charged, m.consumer,
        )  # fmt: skip
    return flat


def flat_counts(queues: Iterable[QueueRow]) -> list[int]:
    """Return ``update_queue`` parameters for queues whose counts have changed since the last call.

    With one message in flight, the counts are the same after each batch.
    """
    flat: list[int] = []
    for row in queues:
        counts = row.live_count, row.live_bytes, row.scheduled_count
        if counts != row.stored:
            row.stored = counts
            flat += (row.queue_id, *counts)
    return flat


def write_statements(kind: type[Any]) -> tuple[str, ...]:
    """Return the ordered names of the statements for a type, whose fields are their parameters."""
    return _SEVERAL.get(kind) or (_snake_case(kind.__name__),)


@cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@cache
def step_statements(engine: str) -> dict[str, str]:
    """Return an engine's statements for steps, which are those of two files, by name."""
    return load("batch", engine) | load("writes", engine)


def batch_statements(batch: Batch) -> list[Step]:
    """Return the steps of a batch in the order of the fields of ``model.Batch``."""
    steps: list[Step] = []
    if batch.new_queues:
        steps += [
            ("insert_queue", (row.queue_id, row.name, row.created_at, row.created_by), None)
            for row in batch.new_queues
        ]
    if batch.created:
        steps += _insert_messages(batch)
    settled_now, held = _split_dispatched(batch)
    if held:
        steps += _dispatch_steps(held)
    delivery = batch.delivery
    if delivery is not None and delivery.stores:
        steps += _ready_steps(delivery)
    if batch.changed:
        steps.append(("update_messages", flat_changed(batch.changed.values()), ()))
    if delivery is not None and delivery.rewritten:
        rewritten = delivery.rewritten.values()
        flat = [v for m, _ in rewritten for v in (m.seq, m.size, m.crc, *m.indexed)]
        steps.append(("update_contents", flat, ()))
        bodies = [value for m, content in rewritten for value in (m.seq, content)]
        steps.append(("replace_bodies", bodies, ()))
    if delivery is not None and delivery.rescheduled:
        options = [v for m in delivery.rescheduled.values() for v in (m.seq, *_flat_options(m))]
        steps.append(("update_options", options, ()))
    if batch.settled:
        steps += _settle_messages(batch, settled_now)
    if batch.events:
        steps.append(("insert_event", batch.events, ()))
    if batch.keys:
        steps.append(("insert_receipt", batch.keys, ()))
    if batch.evicted_keys:
        steps.append(("delete_receipts", batch.evicted_keys, ()))
    if batch.cut_keys:
        steps.append(("insert_receipt", batch.cut_keys, ()))
    if batch.opened_clients:
        steps.append(("insert_client", batch.opened_clients, ()))
    if counts := flat_counts(batch.queue_rows.values()):
        steps.append(("update_queue", counts, ()))
    if batch.closed_clients or batch.configured or batch.counters:
        steps += [("close_client", closed, None) for closed in batch.closed_clients]
        steps += [
            ("configure_queue", (*_own_values(row), row.created_by, row.queue_id), None)
            for row in batch.configured
        ]
        steps += [("set_counter", counter, None) for counter in batch.counters.items()]
    if batch.claims_added:
        steps.append(("insert_claims", batch.claims_added, ()))
    if batch.claims_removed:
        steps.append(("delete_claims", batch.claims_removed, ()))
    if batch.staged_rows:
        steps.append(("insert_staged_rows", [*chain.from_iterable(batch.staged_rows)], ()))
    for write in batch.writes:
        values = write._asdict()
        steps += [(name, values, None) for name in write_statements(type(write))]
    return steps


def _insert_messages(batch: Batch) -> list[Step]:
    """Return the steps that insert new messages: runs of similar messages, then the others."""
    steps: list[Step] = []
    others: list[Message] = []
    created, changed = batch.created, batch.changed
    if changed and not changed.keys().isdisjoint(map(_seq_of, created)):
        others = [m for m in created if m.seq in changed]  # may have any values
        created = [m for m in created if m.seq not in changed]
    min_run = MIN_RUN if len(created) > MIN_RUN else 1
    for shared, group in groupby(created, _SHARED):
        run = [*group]
        if len(run) >= min_run and shared[-3:] == _PLAIN and _is_consecutive(run):
            flat = [value for m in run for value in (m.queue_id, m.token, m.size, m.crc)]
            values = (run[0].seq, run[0].state, *shared[:-3])
            steps.append(("insert_run", flat, values))
        else:
            others += run
    if others:
        special = [m for m in others if m.source != NO_SOURCE or m.options != NO_OPTIONS]
        if special:
            others = [m for m in others if m.source == NO_SOURCE and m.options == NO_OPTIONS]
            flat = [
                value
                for m in special
                for value in (*flat_enveloped((m,)), *m.source, *_flat_options(m))
            ]
            steps.append(("insert_with_options", flat, ()))
        steps.append(("insert_enveloped", flat_enveloped(others), ()))
    start = 0
    for first, last in number_runs([*map(_seq_of, batch.created)]):
        end = start + last - first + 1
        steps.append(("insert_bodies", batch.bodies[start:end], (first,)))
        start = end
    return steps


def _is_consecutive(run: Sequence[Message]) -> bool:
    """Return whether messages have consecutive numbers and are at their original positions."""
    first = run[0].seq
    numbers = [*range(first, first + len(run))]
    return [*map(_seq_of, run)] == numbers == [*map(_position_of, run)]


def number_runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of consecutive numbers in ascending ``seqs``."""
    first, last = seqs[0], seqs[-1]
    if last - first == len(seqs) - 1:  # the usual case with one consumer
        return [(first, last)]
    runs: list[tuple[int, int]] = []
    last = first
    for seq in seqs[1:]:
        if seq != last + 1:
            runs.append((first, last))
            first = seq
        last = seq
    runs.append((first, last))
    return runs


def _split_dispatched(batch: Batch) -> tuple[dict[int, Message], list[Message]]:
    """Split stored messages that a batch dispatched into those it also acked, and the others."""
    first, changed = batch.first_number, batch.changed
    acked = {*batch.settled.get(ACKED_KEY, ())}
    settled_now: dict[int, Message] = {}
    held: list[Message] = []
    for message in batch.dispatched:
        seq = message.seq
        if seq in acked and seq < first and seq not in changed:
            settled_now[seq] = message
        elif seq < first:
            held.append(message)
    return settled_now, held


def _settle_messages(batch: Batch, settled_now: dict[int, Message]) -> list[Step]:
    steps: list[Step] = []
    for (outcome, reason), seqs in batch.settled.items():
        before = (outcome, reason, batch.wall_ms)
        now = settled_now if (outcome, reason) == ACKED_KEY else {}
        others = sorted(seq for seq in seqs if seq not in now) if now else sorted(seqs)
        if others:  # dispatched in earlier batches, and therefore settled first
            steps += _number_steps("settle_run", "settle_messages", before, others)
        if now:
            steps += _settle_dispatched(before, sorted(now.values(), key=_seq_of))
        if (delivery := batch.delivery) is not None and (
            with_options := delivery.settled.intersection(seqs)
        ):
            steps.append(("keep_options", sorted(with_options), ()))
        steps += _number_steps("delete_run", "delete_messages", (), sorted(seqs))
    return steps


def _number_steps(run: str, several: str, before: tuple[Any, ...], seqs: list[int]) -> list[Step]:
    """Return the steps for ascending ``seqs``: ``run`` for each run, unless most runs are short."""
    runs = number_runs(seqs)
    if len(runs) * MIN_RUN > len(seqs) > 1:
        return [(several, seqs, before)]
    return [(run, (*before, *ends), None) for ends in runs]


def _dispatch_steps(messages: list[Message]) -> list[Step]:
    groups: dict[tuple[int | None, int | None, int | None], list[int]] = {}
    for message in messages:
        dispatch = message.consumer, message.last_dispatched_at, message.options.head_since
        groups.setdefault(dispatch, []).append(message.seq)
    steps: list[Step] = []
    others: list[Any] = []
    for (consumer, at_ms, head_since), seqs in groups.items():
        key = consumer, at_ms
        if head_since is not None:
            steps.append(("dispatch_heads", seqs, (*key, head_since)))
        elif len(seqs) >= MIN_RUN or len(groups) == 1:
            steps += _number_steps("dispatch_run", "dispatch_several", key, sorted(seqs))
        else:
            for seq in seqs:
                others += (seq, *key)
    if others:
        steps.append(("dispatch_messages", others, ()))
    return steps


def _ready_steps(delivery: DeliveryChanges) -> list[Step]:
    admitted = [m.seq for m in delivery.admitted.values() if m.state == State.READY]
    admitted += delivery.admitted_on_disk
    due = [
        value
        for m in delivery.came_due.values()
        for value in (m.seq, m.position, m.state, m.deadline_ms, *m.options[:3])
    ]
    return [("admit_messages", admitted, ()), ("update_due", due, ())]


def _settle_dispatched(before: tuple[Any, ...], messages: list[Message]) -> list[Step]:
    runs = [
        (key, first, last)
        for key, group in groupby(messages, _DISPATCH)
        for first, last in number_runs([*map(_seq_of, group)])
    ]
    if len(runs) * MIN_RUN > len(messages) > 1:
        flat = [value for m in messages for value in (m.seq, m.consumer, m.last_dispatched_at)]
        return [("settle_dispatched", flat, before)]
    return [("settle_dispatched_run", (*key, *before, *run), None) for key, *run in runs]


def _own_values(row: QueueRow) -> tuple[Any, ...]:
    rare = {name: value for name, value in row.own.items() if name not in COLUMNS}
    settings = REMOVED_SETTINGS if row.is_removed else json.dumps(rare, sort_keys=True)
    return (*(row.own.get(name) for name in COLUMNS), settings)
