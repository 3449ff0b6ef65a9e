"""From a batch to what its transaction executes: statements and their values, in order.

A batch is laid out before the writer's thread has it: the messages and counters that it names
change with the next batch, which is decided on while this one is stored.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from phpmq_lite.model import Batch, Message, QueueRow, State
from phpmq_lite.queue_settings import COLUMNS
from phpmq_lite.storage.statements import MultiRow, load, many
from phpmq_lite.writes import (
    AddSession,
    AddToken,
    AddUser,
    AdvanceAudit,
    CopyStagedRows,
    CreateStage,
    CreateSubscription,
    DeleteSavedItem,
    DeleteSession,
    DeleteSubscription,
    DeleteToken,
    DeleteUser,
    DeleteUserSessions,
    DismissStartReport,
    DropStage,
    EraseBody,
    ExpireToken,
    ForgetPublishedVersion,
    InsertAudit,
    LinkMessages,
    PutRollup,
    QuarantinedRows,
    RecordAppIdUse,
    RecordHistoryReader,
    RecordPublishedVersion,
    SaveItem,
    SealStage,
    SetLastLogin,
    SetPassword,
    SetSessionSeen,
    SetTokenUsed,
    SetUserRights,
    ShiftDeadlines,
    TrimRollups,
    UpdateStage,
    UpdateStageQueue,
    UpdateSubscription,
    Write,
)


def message_of(row: tuple[Any, ...]) -> Message:
    """Make a message from the 23 columns of the live table."""
    return Message(*row)


def flat_ready(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_ready``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.published_at, m.size, m.crc, m.publisher
        )  # fmt: skip
    return flat


def flat_sent(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_sent``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.published_at, m.first_dispatched_at,
            m.last_dispatched_at, m.size, m.crc, m.publisher, m.consumer,
        )  # fmt: skip
    return flat


def flat_ready_ttl(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_ready_ttl``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.ttl_s, m.deadline_ms, m.published_at, m.size,
            m.crc, m.publisher,
        )  # fmt: skip
    return flat


def flat_ready_enveloped(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_ready_enveloped``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.ttl_s, m.deadline_ms, m.published_at, m.size,
            m.crc, m.publisher, m.urn, m.trace_id, m.meta_id, m.attempts,
        )  # fmt: skip
    return flat


def flat_plain(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_plain``: the columns up to ``consumer``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries,
            m.charged, m.size, m.crc, m.publisher, m.consumer,
        )  # fmt: skip
    return flat


def flat_enveloped(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_enveloped``: the columns up to ``attempts``."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.token, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries,
            m.charged, m.size, m.crc, m.publisher, m.consumer,
            m.urn, m.trace_id, m.meta_id, m.attempts,
        )  # fmt: skip
    return flat


def flat_whole(messages: Iterable[Message]) -> list[Any]:
    """Lay out new messages for ``insert_whole``: all columns."""
    flat: list[Any] = []
    for m in messages:
        flat += flat_plain((m,))
        flat += (
            m.urn, m.trace_id, m.meta_id, m.attempts,
            m.source_seq, m.source_queue_id, m.source_reason,
        )  # fmt: skip
    return flat


def flat_dispatched(messages: Iterable[Message]) -> list[Any]:
    """Lay out messages on disk for ``dispatch`` and ``settle_dispatched``."""
    flat: list[Any] = []
    for m in messages:
        flat += (m.seq, m.consumer, m.last_dispatched_at)
    return flat


def flat_changed(messages: Iterable[Message]) -> list[Any]:
    """Lay out messages on disk for ``change``: seq and what can change in a life."""
    flat: list[Any] = []
    for m in messages:
        flat += (
            m.seq, m.queue_id, m.position, m.state, m.ttl_s, m.deadline_ms,
            m.first_dispatched_at, m.last_dispatched_at, m.deliveries, m.charged, m.consumer,
        )  # fmt: skip
    return flat


def flat_counts(queues: Iterable[QueueRow]) -> list[int]:
    """Lay out queues for ``update_queue``: those whose counts differ from what was laid out last.

    One message in flight leaves them as they were, batch for batch.
    """
    flat: list[int] = []
    for row in queues:
        counts = row.live_count, row.live_bytes
        if counts != row.stored:
            row.stored = counts
            flat += (row.queue_id, *counts)
    return flat


# A statement with one row of values, or one over many rows: the flat values of all of them, and
# those that stand ahead of the rows.
Step = tuple[str | MultiRow, Any, tuple[Any, ...]]

_ACKED: Final = (int(State.ACKED), None)


# By type of write: its statements, in order, whose named parameters are the fields of the type.
WRITE_STATEMENTS: Final[dict[type[Write], tuple[tuple[str, str], ...]]] = {
    EraseBody: (("rare", "overwrite_body"), ("rare", "delete_body")),
    LinkMessages: (("rare", "link_messages"),),
    ShiftDeadlines: (("clock", "shift_deadlines"),),
    CreateStage: (("staging", "insert_stage"),),
    UpdateStage: (("staging", "update_stage"),),
    UpdateStageQueue: (("staging", "update_stage_queue"),),
    SealStage: (("staging", "seal_stage"),),
    DropStage: (("staging", "drop_stage"), ("staging", "drop_stage_queues")),
    CopyStagedRows: (("staging", "publish_messages"), ("staging", "publish_bodies")),
    RecordPublishedVersion: (("staging", "record_version"),),
    RecordAppIdUse: (("staging", "record_use"),),
    ForgetPublishedVersion: (("staging", "forget_version"),),
    CreateSubscription: (("claims", "insert_subscription"),),
    UpdateSubscription: (("claims", "update_subscription"),),
    DeleteSubscription: (("claims", "delete_subscription"),),
    RecordHistoryReader: (("claims", "record_reader"), ("claims", "trim_readers")),
    InsertAudit: (("audit", "insert"),),
    AdvanceAudit: (("audit", "advance"),),
    AddUser: (("accounts", "add_user"),),
    SetPassword: (("accounts", "set_password"),),
    SetUserRights: (("accounts", "set_rights"),),
    SetLastLogin: (("accounts", "set_last_login"),),
    DeleteUser: (("accounts", "delete_user"),),
    AddToken: (("accounts", "add_token"),),
    SetTokenUsed: (("accounts", "set_token_used"),),
    ExpireToken: (("accounts", "expire_token"),),
    DeleteToken: (("accounts", "delete_token"),),
    AddSession: (("accounts", "add_session"),),
    SetSessionSeen: (("accounts", "set_session_seen"),),
    DeleteSession: (("accounts", "delete_session"),),
    DeleteUserSessions: (("accounts", "delete_user_sessions"),),
    SaveItem: (("saved", "save"),),
    DeleteSavedItem: (("saved", "delete"),),
    DismissStartReport: (("starts", "dismiss"),),
    TrimRollups: (("rollups", "trim"),),
    PutRollup: (("rollups", "put"),),
}
QUERIES: Final[dict[type[QuarantinedRows], tuple[str, str]]] = {
    QuarantinedRows: ("staging", "quarantined_rows"),
}


def batch_statements(batch: Batch) -> list[Step]:
    """Give the steps of a batch, in the order of ``model.Batch``."""
    steps: list[Step] = []
    if batch.new_queues:
        text = load("live")["insert_queue"]
        steps += [
            (text, (row.queue_id, row.name, row.created_at, row.created_by), ())
            for row in batch.new_queues
        ]
    if batch.created:
        steps += _born(batch)
    gone, held = _dispatched(batch)
    if held:
        steps.append((many("live", "dispatch"), flat_dispatched(held), ()))
    if batch.changed:
        steps.append((many("live", "change"), flat_changed(batch.changed.values()), ()))
    if batch.settled:
        steps += _settled(batch, gone)
    for name, flat in (
        ("insert_event", batch.events),
        ("insert_receipt", batch.keys),
        ("insert_client", batch.opened_clients),
    ):
        if flat:
            steps.append((many("live", name), flat, ()))
    if counts := flat_counts(batch.queue_rows.values()):
        steps.append((many("live", "update_queue"), counts, ()))
    if batch.closed_clients or batch.configured or batch.counters:
        steps += _seldom(batch)
    for (file, name), flat in (
        (("claims", "insert"), batch.claims_added),
        (("claims", "remove"), batch.claims_removed),
        (("staging", "insert_rows"), batch.staged_rows),
    ):
        if flat:
            steps.append((many(file, name), flat, ()))
    for write in batch.writes:
        values = write._asdict()
        steps += [(load(file)[name], values, ()) for file, name in WRITE_STATEMENTS[type(write)]]
    return steps


def _seldom(batch: Batch) -> list[Step]:
    """What most batches have nothing of."""
    sql = load("live")
    return [
        *((sql["close_client"], closed, ()) for closed in batch.closed_clients),
        *(
            (sql["configure_queue"], (*_own_values(row), row.created_by, row.queue_id), ())
            for row in batch.configured
        ),
        *((sql["set_counter"], counter, ()) for counter in batch.counters.items()),
    ]


def _born(batch: Batch) -> list[Step]:
    """New rows: most are ready, without a TTL and of no envelope; records are the rare ones."""
    groups: dict[str, list[Message]] = {}
    for message in batch.created:
        shape = _shape(message)
        group = groups.get(shape)
        if group is None:
            group = groups[shape] = []
        group.append(message)
    return [
        *((many("live", shape), _FLAT[shape](group), ()) for shape, group in groups.items()),
        (many("live", "insert_body"), batch.bodies, ()),
    ]


def _shape(message: Message) -> str:
    """Name the statement that inserts a message: the one with the fewest values."""
    if message.source_seq is not None or message.source_reason is not None:
        return "insert_whole"
    is_ready = not (message.deliveries or message.charged or message.state)
    if (
        message.urn is None
        and message.trace_id is None
        and message.meta_id is None
        and message.attempts is None
    ):
        if is_ready:
            return "insert_ready" if message.ttl_s is None else "insert_ready_ttl"
        is_sent = message.state == message.deliveries == 1 and not message.charged
        return "insert_sent" if is_sent and message.ttl_s is None else "insert_plain"
    return "insert_ready_enveloped" if is_ready else "insert_enveloped"


_FLAT: Final[dict[str, Callable[[Iterable[Message]], list[Any]]]] = {
    "insert_ready": flat_ready,
    "insert_sent": flat_sent,
    "insert_ready_ttl": flat_ready_ttl,
    "insert_ready_enveloped": flat_ready_enveloped,
    "insert_plain": flat_plain,
    "insert_enveloped": flat_enveloped,
    "insert_whole": flat_whole,
}


def _dispatched(batch: Batch) -> tuple[dict[int, Message], list[Message]]:
    """Give what was on disk and dispatched: by seq what was acknowledged too, and the rest."""
    first, changed = batch.first_number, batch.changed
    acked = {*batch.settled.get(_ACKED, ())}
    gone: dict[int, Message] = {}
    held: list[Message] = []
    for message in batch.dispatched:
        seq = message.seq
        if seq in acked and seq < first and seq not in changed:
            gone[seq] = message
        elif seq < first:
            held.append(message)
    return gone, held


def _settled(batch: Batch, gone: dict[int, Message]) -> list[Step]:
    steps: list[Step] = []
    for (outcome, reason), seqs in batch.settled.items():
        before = (outcome, reason, batch.wall_ms)
        now = gone if (outcome, reason) == _ACKED else {}
        others = [seq for seq in seqs if seq not in now] if now else seqs
        if others:  # dispatched before: these come first in the history too
            steps.append((many("live", "settle"), others, before))
        if now:
            flat = flat_dispatched(now.values())
            steps.append((many("live", "settle_dispatched"), flat, before))
        steps.append((many("live", "remove"), seqs, ()))
    return steps


def _own_values(row: QueueRow) -> tuple[Any, ...]:
    rare = {name: value for name, value in row.own.items() if name not in COLUMNS}
    return (*(row.own.get(name) for name in COLUMNS), json.dumps(rare, sort_keys=True))
