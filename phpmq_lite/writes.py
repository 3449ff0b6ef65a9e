"""Types of the rows in ``Batch.writes``, which are occasional and written in order.

A type's name states its effect and selects a statement in ``writes.sql`` of ``storage/sql/``; the
type's fields are the parameters.  Times are Unix milliseconds unless marked as steady.
"""

from typing import Any, Final, NamedTuple, Protocol


class Write(Protocol):
    """The interface of all row types in this module."""

    def _asdict(self) -> dict[str, Any]: ...


# -- history and events


class EraseMessage(NamedTuple):
    """Overwrite and then remove the data of a settled message; its history row remains."""

    seq: int
    at_ms: int


class LinkMessages(NamedTuple):
    seq: int
    at_ms: int
    kind: str
    source_seq: int


class ShiftDeadlines(NamedTuple):
    """Move deadlines earlier by the time for which the broker was down."""

    away_ms: int
    first_number: int  # this message and later ones keep their deadlines
    excluded: str  # JSON list of seqs whose deadlines remain unchanged


class UnblockMessages(NamedTuple):
    """Unblock the messages of a queue, which has no groups any more."""

    queue_id: int


# -- staged rows


class CreateStage(NamedTuple):
    stage_id: int
    token: str
    created_at: int
    until_ms: int  # time on the steady scale


class UpdateStage(NamedTuple):
    rows: int
    bytes: int
    is_whole: int
    stage_id: int


class UpdateStageQueue(NamedTuple):
    stage_id: int
    queue_id: int
    rows: int
    bytes: int
    bad_rows: int
    bad_bytes: int
    least_ttl_s: int | None
    policy: str


class SealStage(NamedTuple):
    """Rename a stage that was left over after a partial publish."""

    token: str
    until_ms: int  # time on the steady scale
    stage_id: int


class DropStage(NamedTuple):
    """Drop a stage; its rows are then removed in the background."""

    stage_id: int


class CopyStagedRows(NamedTuple):
    """Create messages from the valid rows of a stage."""

    offset: int  # difference between a row's message number and its row_id
    at_ms: int
    steady_ms: int
    publisher: int
    first_row: int
    end_row: int  # the first row that is not copied


class AdmitCopiedRows(NamedTuple):
    """Unblock the copied messages that are the first of their groups."""

    first: int  # number of the first copied message
    end: int  # the first number that is not copied


class RecordPublishedVersion(NamedTuple):
    app_id: str
    version: int
    at_ms: int
    rows: int
    owner: str | None
    used_ms: int  # time on the steady scale
    is_single: int


class RecordAppIdUse(NamedTuple):
    owner: str | None
    used_ms: int  # time on the steady scale
    app_id: str


class ForgetPublishedVersion(NamedTuple):
    app_id: str


# -- subscriptions and history readers


class CreateSubscription(NamedTuple):
    subscription_id: int
    name: str
    queue_id: int
    created_at: int


class UpdateSubscription(NamedTuple):
    queue_id: int
    next_claim: int
    acked_upto: int
    subscription_id: int


class DeleteSubscription(NamedTuple):
    subscription_id: int


class RecordHistoryReader(NamedTuple):
    name: str
    offset: int
    at_ms: int
    owner: str | None


class DeleteHistoryReader(NamedTuple):
    name: str


# -- audit


class InsertAudit(NamedTuple):
    audit_id: int
    at_ms: int
    actor: str
    source: str
    address: str
    action: str
    target: str
    number: int  # number of items affected, such as messages
    reason: str
    result: str
    detail: str
    request_id: str


# Maximum sizes in bytes of the texts of an audit row, which are texts of requests: longer ones are
# cut.  An index entry of PostgreSQL holds at most 2,704 bytes, and ``target`` is indexed.
AUDIT_BYTES: Final = {
    **dict.fromkeys(("actor", "source", "address", "action", "result", "request_id"), 512),
    **{"target": 1_024, "reason": 4_000, "detail": 32_768},
}


def bounded_text(text: str, limit: int) -> str:
    """Return a text that takes at most ``limit`` bytes; a longer one is cut, and ends with ``…``.

    Lone surrogates, which JSON may contain but no database can store, are escaped.
    """
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    room = limit - len("…".encode())  # not in the slice: mypyc may evaluate its bounds twice
    return data[:room].decode("utf-8", "ignore") + "…"


class AdvanceAudit(NamedTuple):
    """Increase an audit row's count and set its result."""

    more: int
    result: str
    audit_id: int


# -- users, tokens, sessions


class AddUser(NamedTuple):
    user_id: int
    name: str
    password: str
    role: str
    queues: str | None
    created_at: int


class SetPassword(NamedTuple):
    password: str
    user_id: int


class SetUserRights(NamedTuple):
    role: str
    queues: str | None
    user_id: int


class SetLastLogin(NamedTuple):
    at_ms: int
    user_id: int


class DeleteUser(NamedTuple):
    user_id: int


class AddToken(NamedTuple):
    token_id: int
    name: str
    sha256: bytes
    role: str
    queues: str | None
    created_at: int
    created_by: str
    expires_at: int | None


class SetTokenUsed(NamedTuple):
    at_ms: int
    token_id: int


class ExpireToken(NamedTuple):
    expires_at: int | None
    token_id: int


class DeleteToken(NamedTuple):
    token_id: int


class AddSession(NamedTuple):
    session_id: int
    sha256: bytes
    user_id: int
    csrf: str
    created_at: int
    seen_at: int
    expires_at: int
    address: str
    agent: str


class SetSessionSeen(NamedTuple):
    at_ms: int
    session_id: int


class DeleteSession(NamedTuple):
    session_id: int


class DeleteUserSessions(NamedTuple):
    user_id: int


# -- schedules


class SetScheduleSeen(NamedTuple):
    seen_upto: int
    schedule_id: int


class DeleteSchedule(NamedTuple):
    """Delete a schedule and its runs."""

    schedule_id: int


class ScheduleRun(NamedTuple):
    """What happened to a tick; it replaces an earlier run of the tick without a message."""

    schedule_id: int
    tick_ms: int  # of a run that someone requested, when that was
    at_ms: int
    outcome: str  # published, failed or skipped
    detail: str  # why
    message_id: str | None
    run_by: str | None  # who requested it


class TrimScheduleRuns(NamedTuple):
    """Delete old runs of a schedule, except the newest ones."""

    schedule_id: int
    before_ms: int
    newest: int


# -- other admin tables


class SaveItem(NamedTuple):
    kind: str
    name: str
    content: str  # the item's content as JSON
    saved_at: int
    saved_by: str


class DeleteSavedItem(NamedTuple):
    kind: str
    name: str


class DismissStartReport(NamedTuple):
    dismissed_by: str
    start_id: int


class TrimRollups(NamedTuple):
    """Delete the oldest rollups whose spans have a given length."""

    span_s: int
    before_s: int  # rollups before this Unix time in seconds are deleted
    limit: int


class PutRollup(NamedTuple):
    """Store a queue's rollup, which has the fields of ``storage.read.activity.Point``."""

    at_s: int  # Unix time in seconds
    span_s: int
    published: int
    dispatched: int
    redelivered: int
    acked: int
    requeued: int
    expired: int
    dead: int
    deleted: int
    ready: int
    held: int
    size: int  # total size of message bodies in bytes
    oldest_age_ms: int | None
    wait: bytes | None
    hold: bytes | None
    losses: str | None
    queue_id: int


# -- reads within a batch


class RanTicks(NamedTuple):
    """Read the ticks of a schedule after a time that have a message."""

    schedule_id: int
    after_ms: int


class QuarantinedRows(NamedTuple):
    """Read the invalid rows of a stage."""

    spans: str  # JSON list of row id ranges, each [first, end] with end excluded
