"""Converts a batch to the ordered statements of its transaction, with their values.

This happens before the writer's thread receives the batch, because the messages and counters that
the batch refers to change while the next batch is prepared.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from phpmq_lite import writes
from phpmq_lite.model import Batch, Message, QueueRow, State
from phpmq_lite.queue_settings import COLUMNS
from phpmq_lite.storage.statements import MultiRowStatement, load, many
from phpmq_lite.writes import CopyStagedRows, DropStage, EraseBody, RecordHistoryReader, Write


def message_of(row: tuple[Any, ...]) -> Message:
    """Return a message built from the 23 columns of the table ``message``."""
    return Message(*row)


def flat_ready(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``insert_ready`` for new messages."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.published_at, m.size, m.crc, m.publisher
        )  # fmt: skip
    return flat


def flat_new_dispatched(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``insert_dispatched`` for new messages."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.published_at, m.first_dispatched_at,
            m.last_dispatched_at, m.size, m.crc, m.publisher, m.consumer,
        )  # fmt: skip
    return flat


def flat_ready_ttl(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``insert_ready_ttl`` for new messages."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.ttl_s, m.deadline_ms, m.published_at, m.size,
            m.crc, m.publisher,
        )  # fmt: skip
    return flat


def flat_ready_enveloped(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``insert_ready_enveloped`` for new messages."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.ttl_s, m.deadline_ms, m.published_at, m.size,
            m.crc, m.publisher, m.urn, m.trace_id, m.meta_id, m.attempts,
        )  # fmt: skip
    return flat


def flat_enveloped(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``insert_enveloped`` for new messages."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries,
            m.charged, m.size, m.crc, m.publisher, m.consumer,
            m.urn, m.trace_id, m.meta_id, m.attempts,
        )  # fmt: skip
    return flat


def flat_with_source(messages: Iterable[Message]) -> list[Any]:
    """Return the parameters of ``insert_with_source``, which are all columns, for new messages."""
    flat: list[Any] = []
    for m in messages:
        flat += flat_enveloped((m,))
        flat += (m.source_seq, m.source_queue_id, m.source_reason)
    return flat


def flat_dispatched(messages: Iterable[Message]) -> list[Any]:
    """Return ``dispatch_messages`` or ``settle_dispatched`` parameters for stored messages."""
    flat: list[Any] = []
    for m in messages:
        flat += (m.seq, m.consumer, m.last_dispatched_at)
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
        counts = row.live_count, row.live_bytes
        if counts != row.stored:
            row.stored = counts
            flat += (row.queue_id, *counts)
    return flat


# A step is either a statement with one row of values, or a multi-row statement.
# A multi-row statement needs a flat list of all rows' values, and the values before the rows.
Step = tuple[str | MultiRowStatement, Any, tuple[Any, ...]]

_ACKED: Final = (int(State.ACKED), None)


# These writes execute several statements, listed here in order.
_SEVERAL: Final[dict[type[Write], tuple[str, ...]]] = {
    EraseBody: ("overwrite_body", "delete_body"),
    DropStage: ("drop_stage", "drop_stage_queues"),
    CopyStagedRows: ("copy_staged_messages", "copy_staged_bodies"),
    RecordHistoryReader: ("record_history_reader", "trim_history_readers"),
}


def write_statements(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the ``batch.sql`` statements, in order, for a type of write or query.

    The fields of the type are their named parameters.
    """
    own = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    return _SEVERAL.get(kind, (own,))


# Maps each type of write to the names of its statements.
WRITE_STATEMENTS: Final[dict[type[Any], tuple[str, ...]]] = {
    kind: write_statements(kind)
    for kind in vars(writes).values()
    if isinstance(kind, type) and issubclass(kind, tuple)
}


def execute_write(execute: Callable[..., Any], write: Write) -> None:
    """Execute the statements of one write."""
    values = write._asdict()
    for name in WRITE_STATEMENTS[type(write)]:
        execute(load("batch")[name], values)


def batch_statements(batch: Batch) -> list[Step]:
    """Return the steps of a batch in the order of the fields of ``model.Batch``."""
    steps: list[Step] = []
    if batch.new_queues:
        text = load("batch")["insert_queue"]
        steps += [
            (text, (row.queue_id, row.name, row.created_at, row.created_by), ())
            for row in batch.new_queues
        ]
    if batch.created:
        steps += _insert_messages(batch)
    settled_now, held = _split_dispatched(batch)
    if held:
        steps.append((many("batch", "dispatch_messages"), flat_dispatched(held), ()))
    if batch.changed:
        steps.append((many("batch", "update_messages"), flat_changed(batch.changed.values()), ()))
    if batch.settled:
        steps += _settle_messages(batch, settled_now)
    for name, flat in (
        ("insert_event", batch.events),
        ("insert_receipt", batch.keys),
        ("insert_client", batch.opened_clients),
    ):
        if flat:
            steps.append((many("batch", name), flat, ()))
    if counts := flat_counts(batch.queue_rows.values()):
        steps.append((many("batch", "update_queue"), counts, ()))
    if batch.closed_clients or batch.configured or batch.counters:
        steps += _rare_steps(batch)
    for name, flat in (
        ("insert_claims", batch.claims_added),
        ("delete_claims", batch.claims_removed),
        ("insert_staged_rows", batch.staged_rows),
    ):
        if flat:
            steps.append((many("batch", name), flat, ()))
    for write in batch.writes:
        values = write._asdict()
        steps += [(load("batch")[name], values, ()) for name in WRITE_STATEMENTS[type(write)]]
    return steps


def _rare_steps(batch: Batch) -> list[Step]:
    """Return the steps that only a few batches require."""
    sql = load("batch")
    return [
        *((sql["close_client"], closed, ()) for closed in batch.closed_clients),
        *(
            (sql["configure_queue"], (*_own_values(row), row.created_by, row.queue_id), ())
            for row in batch.configured
        ),
        *((sql["set_counter"], counter, ()) for counter in batch.counters.items()),
    ]


def _insert_messages(batch: Batch) -> list[Step]:
    """Return the steps that insert new messages, grouped by insert statement."""
    groups: dict[str, list[Message]] = {}
    for message in batch.created:
        name = _insert_name(message)
        group = groups.get(name)
        if group is None:
            group = groups[name] = []
        group.append(message)
    return [
        *((many("batch", name), _FLAT[name](group), ()) for name, group in groups.items()),
        (many("batch", "insert_body"), batch.bodies, ()),
    ]


def _insert_name(message: Message) -> str:
    """Return the name of the insert statement that binds the fewest values for a message."""
    if message.source_seq is not None or message.source_reason is not None:
        return "insert_with_source"
    is_ready = not (message.deliveries or message.charged or message.state)
    if (
        message.urn is None
        and message.trace_id is None
        and message.meta_id is None
        and message.attempts is None
    ):
        if is_ready:
            return "insert_ready" if message.ttl_s is None else "insert_ready_ttl"
        is_dispatched = message.state == message.deliveries == 1 and not message.charged
        if is_dispatched and message.ttl_s is None:
            return "insert_dispatched"
    return "insert_ready_enveloped" if is_ready else "insert_enveloped"


_FLAT: Final[dict[str, Callable[[Iterable[Message]], list[Any]]]] = {
    "insert_ready": flat_ready,
    "insert_dispatched": flat_new_dispatched,
    "insert_ready_ttl": flat_ready_ttl,
    "insert_ready_enveloped": flat_ready_enveloped,
    "insert_enveloped": flat_enveloped,
    "insert_with_source": flat_with_source,
}


def _split_dispatched(batch: Batch) -> tuple[dict[int, Message], list[Message]]:
    """Split stored messages that a batch dispatched into those it also acked, and the others."""
    first, changed = batch.first_number, batch.changed
    acked = {*batch.settled.get(_ACKED, ())}
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
        now = settled_now if (outcome, reason) == _ACKED else {}
        others = [seq for seq in seqs if seq not in now] if now else seqs
        if others:  # dispatched in earlier batches, and therefore settled first
            steps.append((many("batch", "settle_messages"), others, before))
        if now:
            flat = flat_dispatched(now.values())
            steps.append((many("batch", "settle_dispatched"), flat, before))
        steps.append((many("batch", "delete_messages"), seqs, ()))
    return steps


def _own_values(row: QueueRow) -> tuple[Any, ...]:
    rare = {name: value for name, value in row.own.items() if name not in COLUMNS}
    return (*(row.own.get(name) for name in COLUMNS), json.dumps(rare, sort_keys=True))
