"""Data types shared by broker, storage and server, such as messages, queue rows and batches.

Plain data.  The core passes a ``Batch`` to the writer, which returns ``LoadedRows``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.writes import QuarantinedRows, Write

ROW_BITS: Final = 17  # low bits of stage_row.row_id, which hold the row's index within its token


class ClockReading(NamedTuple):
    """One reading of the clocks, in milliseconds."""

    wall_ms: int  # Unix time for display: published_at, settled_at
    steady_ms: int  # wall time corrected for observed jumps; used for deadlines


class State(IntEnum):
    """Message state; the database stores these numbers."""

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
        self.message_id = b"%016x%016x" % (seq, token)  # as sent on the wire
        self.holder: Any = None  # the Consumer holding the message, or SUBSCRIPTION
        self.held_since_ms = 0  # on the steady scale; valid while the message is held
        self.is_sent = False  # whether the message was written to the holder's connection


def checksum(seq: int, body: bytes) -> int:
    """Return the CRC-32 of seq (8 bytes, big-endian) and body, so swapped bodies are detected."""
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
    created_by: str = ""  # an actor or a connection's address; empty if unknown


def has_room(own: int, total: int, more: int, limit: int) -> bool:
    """Return whether an owner that uses ``own`` of ``total`` may use ``more`` in addition.

    A single owner may have all of ``limit``.  So that other owners still get a share, an owner that
    has little may exceed the limit by up to a quarter.  Each must leave at least as much of that
    quarter to the next owner as it already has.
    """
    return total + more <= limit or own + more <= limit + limit // 4 - total


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits on accepted input and memory use; see section 9 of ``docs/operate/security.md``."""

    queues: int = 10_000
    window: int = 3_000  # ready messages kept in memory for each queue with consumers
    window_bytes: int = 4 << 20  # total size of ready bodies in memory, per queue
    bodies_bytes: int = 64 << 20  # total size of bodies in memory, across all queues
    credit: int = 1_000  # unacknowledged messages per consumer
    credit_bytes: int = 16 << 20  # unacknowledged bytes per consumer; one message is always allowed
    held: int = 50_000  # dispatched messages, across all consumers
    held_bytes: int = 256 << 20
    batch_commands: int = 5_000
    batch_bytes: int = 4 << 20
    write_bytes: int = 4 << 20  # sent per connection and batch; the last message may exceed this
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
    action: str  # action name, such as "queue.purge"
    target: str = ""  # queue, message id, user name, …
    reason: str = ""  # as typed by the user
    request_id: str = ""
    detail: str = ""  # JSON: settings before and after; never bodies, passwords or tokens
    count: int = 0  # number of affected messages or other items
    result: str = "done"  # done, running, cancelled, or a refusal code
    audit_id: int | None = None  # row number, set when the row is written


@dataclass(slots=True, frozen=True)
class RowsRequest:
    """Request to load live or settled messages by seq, in order, skipping missing messages."""

    on_rows: Callable[[list[Message], bool], None]  # called for each page: rows, is_last
    seqs: tuple[int, ...]
    bodies: bool = False
    settled: bool = False  # load settled messages, with the outcome as ``state``


# The indexed fields of a message: URN, trace id, meta.id, attempts.
# This is a plain tuple, because a named tuple costs 0.2 µs more per message.
Indexed = tuple[str | None, str | None, str | None, int | None]


class EnvelopeInspection(NamedTuple):
    """Indexed fields of a message body, and the reason if the body is invalid."""

    indexed: Indexed
    reason: str | None = None  # code that says why the body must not reach a consumer
    detail: str = ""  # the reason in readable form
    record: tuple[bytes, bytes] | None = None  # record built in advance: placeholder id, content


class ValidatedPublish(NamedTuple):
    """Result of validating large content ahead of its batch."""

    settings: QueueSettings  # ignore the result if the queue's settings have since changed
    inspection: EnvelopeInspection


class RecordSource(NamedTuple):
    """The original message that a client's dead-letter record describes."""

    message_id: bytes
    reason: str  # exact cause, as stored in the history
    error: str | None


class DeadLetterCause(NamedTuple):
    """Details of a dead-lettered message, as stored in its dead-letter record."""

    queue: str
    message_id: bytes
    reason: str  # client, max_deliveries, expired or a validation reason
    detail: str
    at_ms: int  # Unix time


class EnvelopeInspector(Protocol):
    """Pure functions that the core calls to inspect message contents."""

    def index(self, content: bytes) -> Indexed | None:
        """Return the indexed fields, or None if there are none, without validating the content."""

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        """Validate the content; return the result and the indexed fields."""

    def read_only_reason(self, content: bytes) -> str | None:
        """Return why an envelope must not be changed, even by adding a block; None if it may be."""

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        """Return the content of a dead-letter record."""

    def record_source(self, content: bytes) -> RecordSource | None:
        """Return the original message that a record describes; None if it describes none."""

    def redrive_content(self, content: bytes) -> bytes:
        """Return the content to publish when a record is redriven."""

    def origin_queue(self, content: bytes) -> str | None:
        """Return the origin queue named in a record or an envelope."""


class Peer(Protocol):
    """Connection interface that the engine calls after a commit."""

    def send(
        self, dispatches: list[Message], receipts: list["Receipt"], now_ms: int
    ) -> list[Message]:
        """Send all output of one batch in one write; ``now_ms`` is on the steady scale.

        Returns the messages that were not sent because their deadlines have passed.
        """

    def resume(self) -> None:
        """Process the commands that were held back."""

    def end(self, reason: str) -> None:
        """Close the connection on behalf of the broker."""


@dataclass(slots=True)
class Receipt:
    """Reply to consecutive confirmed publishes; ``reason`` is None if they were stored."""

    queue: str
    keys: Sequence[bytes]
    reason: str | None = None


@dataclass(slots=True, frozen=True)
class WindowRequest:
    """Request to load a queue's next ready messages, in order, after a position (exclusive)."""

    queue_id: int
    after: int
    limit: int
    body_bytes: int  # load bodies until their total size reaches this


class PageKind(Enum):
    """The kind of messages that a page contains."""

    ALL = 1  # a queue's ready and dispatched messages, by position
    READY = 2  # only a queue's ready messages, by position
    CLAIMED = 3  # messages claimed by a subscription, by claim number


@dataclass(slots=True, frozen=True)
class PageRequest:
    """Request to load live messages with ``after`` < position <= ``upto``.

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
    """Messages that the writer creates from staged rows, without the core loading them.

    Their seqs are between ``first`` (inclusive) and ``end`` (exclusive), in the order of the rows.
    """

    first: int
    end: int
    publisher: int  # client number
    counts: dict[int, int]  # queue_id -> number of messages; remaining seqs stay unused


@dataclass(slots=True, eq=False)
class Batch:
    """What one transaction stores, what is loaded right after the commit, and what follows.

    Stored in this order: queues, created, dispatched, changed, settled, events, keys, clients,
    counters, claims, staged rows, writes.  A message is either in ``created`` or already on disk;
    the transaction writes the values that its object has at the end of the batch.
    """

    wall_ms: int
    first_number: int = 1  # messages with a smaller seq were already on disk
    commands: int = 0  # number of commands so far; subject to a limit
    inspected_bytes: int = 0  # bytes validated or turned into records so far; subject to a limit
    # -- stored by the transaction
    new_queues: list[QueueRow] = field(default_factory=list)
    queue_rows: dict[int, QueueRow] = field(default_factory=dict)  # rows with changed counters
    configured: list[QueueRow] = field(default_factory=list)  # rows with changed settings
    created: list[Message] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)  # flat: seq and content of each created message
    created_bytes: int = 0
    # messages already on disk that this batch dispatches
    dispatched: list[Message] = field(default_factory=list)
    # messages on disk with other changes, by seq
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
    staged_rows: list[Any] = field(default_factory=list)  # flat; the fields are listed in batch_sql
    writes: list[Write] = field(default_factory=list)
    # stored by ``writes``, and listed here for code that reads the batch
    copied: list[CopiedRows] = field(default_factory=list)
    # -- loaded after the commit
    windows: list[WindowRequest] = field(default_factory=list)
    seqs: set[int] = field(default_factory=set)
    body_seqs: set[int] = field(default_factory=set)
    # Messages for which a client may have published a dead-letter record:
    # seq -> (queue_id of the dead-letter queue, queue_id of NAME.dlq, last holder); 0 means none
    record_seqs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    pages: list[PageRequest] = field(default_factory=list)
    rows: list[RowsRequest] = field(default_factory=list)
    queries: list[tuple[QuarantinedRows, Callable[[list[Any]], None]]] = field(default_factory=list)
    due_at: int | None = None  # load messages whose deadline is at or before this steady time
    # -- done after the commit
    # connection -> dispatches and receipts
    sends: dict[Any, tuple[list[Message], list[Receipt]]] = field(default_factory=dict)
    is_partly_sent: bool = False  # part of the batch was sent, and clients may be processing it
    to_resume: set[Any] = field(default_factory=set)  # connections whose publishers may continue
    replies: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    # (slow work to run outside a batch, callback that receives the result in a later batch)
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
        """Return whether the next message number can be derived from the rows without a counter.

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
    """Rows that the writer reads right after a commit, including the changes from the batch."""

    windows: list[tuple[int, list[Message], bool]] = field(default_factory=list)
    # (queue_id, messages in order, whether they are the last)
    by_seq: dict[int, Message | None] = field(default_factory=dict)  # None if the message is gone
    bodies: dict[int, bytes | None] = field(default_factory=dict)  # None if damaged or missing
    records: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    # message seq -> id and content of each record that clients published, oldest first
    pages: list[tuple[Callable[[list[Message], bool], None], list[Message], bool]] = field(
        default_factory=list
    )  # (callback, messages in order, whether they are the last)
    query_results: list[tuple[Callable[[list[Any]], None], list[Any]]] = field(default_factory=list)
    due: list[Message] = field(default_factory=list)  # messages past their deadline, earliest first
    next_deadline_ms: int | None = None  # earliest deadline of all other ready messages
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
    """State that the writer reads at startup: everything kept in memory except messages."""

    queues: list[QueueRow]
    # (queue_id, key, seq, at_ms), oldest first; iterate only once, before storing anything
    receipts: Iterable[tuple[int, bytes, int, int]]
    counters: dict[str, int]
    next_deadline_ms: int | None
    returned: int  # number of messages dispatched before startup that are ready again
    pipeline: PipelineRows = field(default_factory=PipelineRows)


Reply = Callable[[Any], None]
