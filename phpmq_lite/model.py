"""Data shared by broker, storage and server: messages, queue rows, batches and loaded rows.

Plain data.  The core passes a ``Batch`` to the writer, which returns ``LoadedRows``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.writes import QuarantinedRows, Write

ROW_BITS: Final = 17  # low bits of stage_row.row_id: the index of the row within its token


class ClockReading(NamedTuple):
    """One reading of the clocks, in milliseconds."""

    wall_ms: int  # Unix time to show to people: published_at, settled_at
    steady_ms: int  # wall time without observed jumps, used for deadlines


class State(IntEnum):
    """State of a message; the database stores these numbers."""

    READY = 0
    DISPATCHED = 1
    ACKED = 2
    EXPIRED = 3
    DEAD = 4
    DELETED = 5


ALIVE: Final = frozenset({State.READY, State.DISPATCHED})


class Message:
    """A live message in memory; its slots follow the column order of the live table.

    Times that end in ``_at`` are Unix milliseconds.  ``deadline_ms`` is on the steady scale; None
    means that the message never expires.  ``body`` is None while it is only on disk.
    """

    __slots__ = (
        "attempts",
        "body",
        "charged",
        "consumer",
        "crc",
        "deadline_ms",
        "deliveries",
        "first_dispatched_at",
        "held_since_ms",
        "holder",
        "is_sent",
        "last_dispatched_at",
        "message_id",
        "meta_id",
        "position",
        "published_at",
        "publisher",
        "queue_id",
        "seq",
        "size",
        "source_queue_id",
        "source_reason",
        "source_seq",
        "state",
        "token",
        "trace_id",
        "ttl_s",
        "urn",
    )

    def __init__(
        self,
        seq: int,
        token: int,
        queue_id: int,
        position: int,
        state: int,
        ttl_s: int | None,
        deadline_ms: int | None,
        published_at: int,
        first_dispatched_at: int | None,
        last_dispatched_at: int | None,
        deliveries: int,
        charged: int,
        size: int,
        crc: int,
        publisher: int | None,
        consumer: int | None,
        urn: str | None = None,
        trace_id: str | None = None,
        meta_id: str | None = None,
        attempts: int | None = None,
        source_seq: int | None = None,
        source_queue_id: int | None = None,
        source_reason: str | None = None,
    ) -> None:
        self.seq = seq
        self.token = token  # 63 random bits
        self.queue_id = queue_id
        self.position = position
        self.state = state
        self.ttl_s = ttl_s
        self.deadline_ms = deadline_ms
        self.published_at = published_at
        self.first_dispatched_at = first_dispatched_at
        self.last_dispatched_at = last_dispatched_at
        self.deliveries = deliveries
        self.charged = charged
        self.size = size
        self.crc = crc
        self.publisher = publisher
        self.consumer = consumer
        self.urn = urn
        self.trace_id = trace_id
        self.meta_id = meta_id
        self.attempts = attempts
        self.source_seq = source_seq
        self.source_queue_id = source_queue_id
        self.source_reason = source_reason
        self.body: bytes | None = None
        self.message_id = b"%016x%016x" % (seq, token)  # as on the wire
        self.holder: Any = None  # the Consumer that holds it, or SUBSCRIPTION
        self.held_since_ms = 0  # steady; valid while the message is held
        self.is_sent = False  # whether it was written to its holder's connection


def checksum(seq: int, body: bytes) -> int:
    """Return the CRC-32 of seq (8 bytes, big-endian) and body; it also detects a swapped body."""
    return crc32(body, crc32(seq.to_bytes(8, "big")))


@dataclass(slots=True)
class QueueRow:
    """One row of the table ``queue``; ``own`` contains only settings that override defaults."""

    queue_id: int
    name: str
    created_at: int
    own: dict[str, Any] = field(default_factory=dict)
    live_count: int = 0
    live_bytes: int = 0
    stored: tuple[int, int] = (0, 0)  # live_count and live_bytes as last passed to the writer
    created_by: str = ""  # an actor, or the address of a connection; empty: unknown


def has_room(own: int, total: int, more: int, limit: int) -> bool:
    """Return whether an owner that has ``own`` out of ``total`` may have ``more``.

    A single owner may have all of ``limit``.  So that other owners still get a share, an owner that
    has little may exceed the limit by up to a quarter.  Each must leave at least as much of that
    quarter to the next owner as it already has.
    """
    return total + more <= limit or own + more <= limit + limit // 4 - total


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits on what is accepted and kept in memory; see ``docs/operate/security.md`` 9."""

    queues: int = 10_000
    window: int = 3_000  # ready messages in memory, per queue with consumers
    window_bytes: int = 4 << 20  # total size of their bodies in memory, per queue
    bodies_bytes: int = 64 << 20  # total size of bodies in memory, for all queues
    credit: int = 1_000  # unacknowledged messages per consumer
    credit_bytes: int = 16 << 20  # their total size; the first message is always dispatched
    held: int = 50_000  # dispatched messages, for all consumers together
    held_bytes: int = 256 << 20
    batch_commands: int = 5_000
    batch_bytes: int = 4 << 20
    write_bytes: int = 4 << 20  # per connection and batch; the last message may exceed it
    receipts: int = 100_000
    receipt_window_ms: int = 600_000


@dataclass(slots=True)
class AuditEntry:
    """One row of the audit log, written in the transaction of the change that it describes.

    The caller sets most fields; the core updates ``count`` and ``audit_id`` when it writes the row.
    """

    actor: str  # user, "token NAME", "local" (loopback, no login) or "control" (control socket)
    source: str  # ui, http or cli
    address: str
    action: str  # name of the action, such as "queue.purge"
    target: str = ""  # queue, message id, user name, …
    reason: str = ""  # as typed by the user
    request_id: str = ""
    detail: str = ""  # JSON: settings before and after; never bodies, passwords or tokens
    count: int = 0  # affected messages or other items
    result: str = "done"  # done, running, cancelled, or a refusal code
    audit_id: int | None = None  # row number, once the row is written


@dataclass(slots=True, frozen=True)
class RowsRequest:
    """Load messages by seq, in the order given, live or settled; skip missing messages."""

    on_rows: Callable[[list[Message], bool], None]  # called once per page: rows, is_last
    seqs: tuple[int, ...]
    bodies: bool = False
    settled: bool = False  # load them from the history, with the outcome as ``state``


# The indexed fields of a message: URN, trace id, meta.id, attempts.  A plain tuple, because a named
# tuple costs 0.2 µs more per message.
Indexed = tuple[str | None, str | None, str | None, int | None]


class EnvelopeInspection(NamedTuple):
    """The indexed fields of a message body, and why the body is invalid, if it is."""

    indexed: Indexed
    reason: str | None = None  # code: why the body must not reach a consumer
    detail: str = ""  # the reason as readable text
    record: tuple[bytes, bytes] | None = None  # if made ahead: its placeholder id and content


class ValidatedPublish(NamedTuple):
    """The result of validating large content before its batch."""

    settings: QueueSettings  # the settings used; if the queue's have changed, ignore the result
    inspection: EnvelopeInspection


class RecordSource(NamedTuple):
    """What a client's dead-letter record says about its message."""

    message_id: bytes
    reason: str  # the exact cause, as in the history
    error: str | None


class DeadLetterCause(NamedTuple):
    """What a dead-letter record says about the dead-lettered message."""

    queue: str
    message_id: bytes
    reason: str  # client, max_deliveries, expired, or the reason of a verdict
    detail: str
    at_ms: int  # Unix time


class EnvelopeInspector(Protocol):
    """The functions that the core calls to inspect contents; all are pure."""

    def index(self, content: bytes) -> Indexed | None:
        """Return the indexed fields without validating, or None if there are none."""

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        """Return the verdict, with the indexed fields."""

    def read_only_reason(self, content: bytes) -> str | None:
        """Return why an envelope must not be changed, not even by adding a block, or None."""

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        """Return the content of a dead-letter record."""

    def record_source(self, content: bytes) -> RecordSource | None:
        """Return what a record says about its message, or None."""

    def redrive_content(self, content: bytes) -> bytes:
        """Return the content to publish when a record is redriven."""

    def origin_queue(self, content: bytes) -> str | None:
        """Return the queue that a record or an envelope names as its origin."""


class Peer(Protocol):
    """The side of a connection that the engine calls after a commit."""

    def send(
        self, dispatches: list[Message], receipts: list["Receipt"], now_ms: int
    ) -> list[Message]:
        """Send everything from one batch in one write; ``now_ms`` is on the steady scale.

        Returns the messages that were not sent because their deadlines have passed.
        """

    def resume(self) -> None:
        """Process the commands that were held back."""

    def end(self, reason: str) -> None:
        """Close the connection on behalf of the broker."""


@dataclass(slots=True)
class Receipt:
    """Replies to consecutive confirmed publishes: stored if ``reason`` is None, else refused."""

    queue: str
    keys: Sequence[bytes]
    reason: str | None = None


@dataclass(slots=True, frozen=True)
class WindowRequest:
    """Load the next ready messages of a queue, in order, after a position (exclusive)."""

    queue_id: int
    after: int
    limit: int
    body_bytes: int  # load bodies until their total size reaches this


class PageKind(Enum):
    """Which messages a page contains."""

    ALL = 1  # ready and dispatched messages of a queue, by position
    READY = 2  # only the ready messages of a queue, by position
    CLAIMED = 3  # messages claimed by a subscription, by claim number


@dataclass(slots=True, frozen=True)
class PageRequest:
    """Load live messages with ``after`` < position <= ``upto``.

    For ``PageKind.CLAIMED``, ``queue_id`` is a subscription_id and positions are claim numbers.
    """

    on_rows: Callable[[list[Message], bool], None]  # called with the rows and is_last
    queue_id: int
    after: int
    upto: int
    limit: int
    bodies: bool = False
    kind: PageKind = PageKind.ALL


class CopiedRows(NamedTuple):
    """New messages that the writer creates from staged rows; the core does not know them.

    Their seqs are between ``first`` (inclusive) and ``end`` (exclusive), in the order of the rows.
    """

    first: int
    end: int
    publisher: int  # client number
    counts: dict[int, int]  # queue_id -> number of messages; other seqs stay unused


@dataclass(slots=True, eq=False)
class Batch:
    """What one transaction stores, what is loaded right after it, and what is done afterwards.

    Stored in this order: queues, created, dispatched, changed, settled, events, keys, clients,
    counters, claims, staged rows, writes.  A message is either in ``created`` or already on disk;
    the transaction writes the values that its object has at the end of the batch.
    """

    wall_ms: int
    first_number: int = 1  # messages with a smaller seq were already on disk
    commands: int = 0  # number of commands so far, which is limited
    inspected_bytes: int = 0  # bytes validated or made into records so far, which is limited
    # -- stored
    new_queues: list[QueueRow] = field(default_factory=list)
    queue_rows: dict[int, QueueRow] = field(default_factory=dict)  # counters changed
    configured: list[QueueRow] = field(default_factory=list)  # settings changed
    created: list[Message] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)  # for created messages; flat: seq, content
    created_bytes: int = 0
    # already on disk, dispatched in this batch
    dispatched: list[Message] = field(default_factory=list)
    # other changes to rows on disk, by seq
    changed: dict[int, Message] = field(default_factory=dict)
    # (outcome, reason) -> seqs
    settled: dict[tuple[int, str | None], list[int]] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)  # flat: seq, at_ms, kind, detail
    keys: list[Any] = field(default_factory=list)  # flat: queue_id, key, seq, at_ms (steady)
    # flat: client, kind, address, opened_at
    opened_clients: list[Any] = field(default_factory=list)
    # (closed_at, framing, revision, reason, client)
    closed_clients: list[tuple[int, str | None, str | None, str, int]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    # flat: subscription_id, claim, seq, claimed_at
    claims_added: list[Any] = field(default_factory=list)
    claims_removed: list[int] = field(default_factory=list)  # seqs
    staged_rows: list[Any] = field(default_factory=list)  # flat, see batch_sql
    writes: list[Write] = field(default_factory=list)
    # stored by ``writes``; listed here for code that reads the batch
    copied: list[CopiedRows] = field(default_factory=list)
    # -- loaded after the commit
    windows: list[WindowRequest] = field(default_factory=list)
    seqs: set[int] = field(default_factory=set)
    body_seqs: set[int] = field(default_factory=set)
    # Messages for which a client may have published a record: seq -> queue_id of its dead-letter
    # queue, queue_id of NAME.dlq, and its last holder; 0: none.
    record_seqs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    pages: list[PageRequest] = field(default_factory=list)
    rows: list[RowsRequest] = field(default_factory=list)
    queries: list[tuple[QuarantinedRows, Callable[[list[Any]], None]]] = field(default_factory=list)
    due_at: int | None = None  # load messages whose deadline is at or before this steady time
    # -- done after the commit
    # connection -> dispatches and receipts
    sends: dict[Any, tuple[list[Message], list[Receipt]]] = field(default_factory=dict)
    is_partly_sent: bool = False  # part of it was sent, and clients may already be working on it
    to_resume: set[Any] = field(default_factory=set)  # connections whose publishers can continue
    replies: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    # (slow work to run outside a batch, callback that gets its result in a later batch)
    background: list[tuple[Callable[[], Any], Callable[[Any], None]]] = field(default_factory=list)

    @property
    def stores(self) -> bool:
        """Return whether there is anything to store."""
        return bool(
            self.created
            or self.dispatched
            or self.settled
            or self.changed
            or self.new_queues
            or self.queue_rows
            or self.configured
            or self.events
            or self.keys
            or self.opened_clients
            or self.closed_clients
            or self.counters
            or self.has_special_rows
        )

    @property
    def has_special_rows(self) -> bool:
        """Return whether the batch stores rows for an operator or the pipeline."""
        return bool(self.claims_added or self.claims_removed or self.staged_rows or self.writes)

    def implies_next_number(self, next_number: int) -> bool:
        """Return whether the next number can be derived from the rows, without a counter.

        The number before it then belongs to a body.  Rows in ``writes`` may remove bodies.
        """
        born = self.created
        last = born[-1].seq if born else self.first_number - 1
        return last == next_number - 1 and not self.writes

    @property
    def loads(self) -> bool:
        """Return whether there is anything to load."""
        return bool(
            self.windows
            or self.seqs
            or self.body_seqs
            or self.record_seqs
            or self.pages
            or self.rows
            or self.queries
            or self.due_at is not None
        )


@dataclass(slots=True)
class LoadedRows:
    """What the writer reads right after a commit, so it includes every change in the batch."""

    windows: list[tuple[int, list[Message], bool]] = field(default_factory=list)
    # (queue_id, messages in order, whether these are the last)
    by_seq: dict[int, Message | None] = field(default_factory=dict)  # None: the message is not live
    bodies: dict[int, bytes | None] = field(default_factory=dict)  # None: damaged or missing
    records: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    # seq of the message -> id and content of records that clients published, oldest first
    pages: list[tuple[Callable[[list[Message], bool], None], list[Message], bool]] = field(
        default_factory=list
    )  # (callback, messages in order, whether these are the last)
    query_results: list[tuple[Callable[[list[Any]], None], list[Any]]] = field(default_factory=list)
    due: list[Message] = field(default_factory=list)  # past their deadline, earliest first
    next_deadline_ms: int | None = None  # earliest deadline of the other ready messages
    has_due: bool = False


@dataclass(slots=True)
class PipelineRows:
    """Rows that the core keeps in memory for the pipeline; see ``batch.sql``."""

    subscriptions: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    held: list[tuple[int, int, int]] = field(default_factory=list)  # queue_id, claimed, bytes
    staged: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    parts: list[tuple[int, int, int, int, int, int, int | None, str]] = field(default_factory=list)
    # app_id, version, owner, used_ms, single_use; least recently used first
    published: list[tuple[str, int, str | None, int, int]] = field(default_factory=list)
    next_stage_id: int = 1


@dataclass(slots=True)
class RecoveredState:
    """What the writer reads at startup: everything to keep in memory, but no messages."""

    queues: list[QueueRow]
    # queue_id, key, seq, at_ms; oldest first; iterate once, before storing anything
    receipts: Iterable[tuple[int, bytes, int, int]]
    counters: dict[str, int]
    next_deadline_ms: int | None
    returned: int  # messages that were dispatched before startup and are ready again
    pipeline: PipelineRows = field(default_factory=PipelineRows)


Reply = Callable[[Any], None]
