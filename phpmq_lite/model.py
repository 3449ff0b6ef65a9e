"""What broker, storage and server share: messages, queue rows, batches, and what is loaded.

Plain data.  The core passes a ``Batch`` to the writer, which returns ``LoadedRows``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.writes import QuarantinedRows, Write

ROW_BITS: Final = 17  # of stage_row.row_id, for the index of a row among those of its token


class ClockReading(NamedTuple):
    """One reading of the clocks, in milliseconds."""

    wall_ms: int  # Unix time, for people: published_at, settled_at
    steady_ms: int  # wall time without observed jumps: the scale of deadlines


class State(IntEnum):
    """State of a message; the numbers are those in the database."""

    READY = 0
    DISPATCHED = 1
    ACKED = 2
    EXPIRED = 3
    DEAD = 4
    DELETED = 5


ALIVE: Final = frozenset({State.READY, State.DISPATCHED})


class Message:
    """A live message in memory.  The slots are in the order of the columns of the live table.

    Times that end in ``_at`` are Unix milliseconds.  ``deadline_ms`` is on the steady scale; None:
    the message never expires.  ``body`` is None while it is on disk only.
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
        self.held_since_ms = 0  # steady; while it is held
        self.is_sent = False  # written to its holder's connection


def checksum(seq: int, body: bytes) -> int:
    """Return the CRC-32 of seq (8 bytes, big-endian) and body; it also detects a swapped body."""
    return crc32(body, crc32(seq.to_bytes(8, "big")))


@dataclass(slots=True)
class QueueRow:
    """One row of the table ``queue``; ``own`` has only settings that differ from the defaults."""

    queue_id: int
    name: str
    created_at: int
    own: dict[str, Any] = field(default_factory=dict)
    live_count: int = 0
    live_bytes: int = 0
    stored: tuple[int, int] = (0, 0)  # both, as last passed to the writer
    created_by: str = ""  # an actor, or the address of a connection; empty: unknown


def has_room(own: int, total: int, more: int, limit: int) -> bool:
    """Return whether an owner of ``own`` out of ``total`` may have ``more``.

    Alone, one owner may have all of ``limit``.  So that others still get something then, an owner
    that has little may exceed it by a quarter; each leaves as much of that quarter as it has to the
    next.
    """
    return total + more <= limit or own + more <= limit + limit // 4 - total


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits on what is accepted and kept in memory; see ``docs/operate/security.md`` 9."""

    queues: int = 10_000
    window: int = 3_000  # ready messages in memory, per queue with consumers
    window_bytes: int = 4 << 20  # bodies of them in memory, per queue
    bodies_bytes: int = 64 << 20  # of all queues
    credit: int = 1_000  # unacknowledged messages per consumer
    credit_bytes: int = 16 << 20  # in bytes; one message is always dispatched
    held: int = 50_000  # dispatched messages of all consumers
    held_bytes: int = 256 << 20
    batch_commands: int = 5_000
    batch_bytes: int = 4 << 20
    write_bytes: int = 4 << 20  # dispatched to one connection in one batch, plus one message
    receipts: int = 100_000
    receipt_window_ms: int = 600_000


@dataclass(slots=True)
class AuditEntry:
    """One row of the audit log, written in the transaction of the change that it describes.

    The caller sets the first part; the core sets the rest when it writes the row.
    """

    actor: str  # user, "token NAME", "local" (loopback without login) or "control" (its socket)
    source: str  # ui, http or cli
    address: str
    action: str  # "queue.purge": name of the action
    target: str = ""  # queue, message id, user name, …
    reason: str = ""  # as typed by the person
    request_id: str = ""
    detail: str = ""  # JSON: settings before and after; never bodies, passwords, tokens
    count: int = 0  # affected messages or things
    result: str = "done"  # done, running, cancelled, or the code of the refusal
    audit_id: int | None = None  # its number, once it is written


@dataclass(slots=True, frozen=True)
class RowsRequest:
    """Load messages by seq, in that order, live or settled; missing ones are left out."""

    on_rows: Callable[[list[Message], bool], None]  # gets the rows; with bodies in several pages
    seqs: tuple[int, ...]
    bodies: bool = False
    settled: bool = False  # from the history; ``state`` is then the outcome


# URN, trace id, meta.id, attempts: the indexed fields of a message.  A plain tuple, because a named
# one costs 0.2 µs more per message.
Indexed = tuple[str | None, str | None, str | None, int | None]


class EnvelopeInspection(NamedTuple):
    """Indexed fields of a content, and what is wrong with it."""

    indexed: Indexed
    reason: str | None = None  # why it must not reach a consumer
    detail: str = ""  # the same for people
    record: tuple[bytes, bytes] | None = None  # made ahead: placeholder id in it, and content


class ValidatedPublish(NamedTuple):
    """A content that was validated before its batch, because it is large."""

    settings: QueueSettings  # used; if the queue has others now, the result is ignored
    inspection: EnvelopeInspection


class RecordSource(NamedTuple):
    """What a record that a client published says about its message."""

    message_id: bytes
    reason: str  # the exact cause, as in the history
    error: str | None


class DeadLetterCause(NamedTuple):
    """What a record says about a message that was dead-lettered."""

    queue: str
    message_id: bytes
    reason: str  # client, max_deliveries, expired, or of a verdict
    detail: str
    at_ms: int  # Unix


class EnvelopeInspector(Protocol):
    """What the core asks about contents; pure functions, passed at the start."""

    def index(self, content: bytes) -> Indexed | None:
        """Return the indexed fields only, or None if there are none."""

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        """Return the verdict, with the indexed fields."""

    def read_only_reason(self, content: bytes) -> str | None:
        """Return why no field of an envelope may be changed, not even by a block, or None."""

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        """Return the content of a dead-letter record."""

    def record_source(self, content: bytes) -> RecordSource | None:
        """Return what a record says about its message, or None."""

    def redrive_content(self, content: bytes) -> bytes:
        """Return what is published again when a record is redriven."""

    def origin_queue(self, content: bytes) -> str | None:
        """Return the queue that a record or an envelope names as its origin."""


class Peer(Protocol):
    """The side of a connection that the engine calls after a commit."""

    def send(
        self, dispatches: list[Message], receipts: list["Receipt"], now_ms: int
    ) -> list[Message]:
        """Send everything of one batch in one write; ``now_ms`` is on the steady scale.

        Returns the messages that were not sent because their deadlines have passed.
        """

    def resume(self) -> None:
        """Process the commands that were held back."""

    def end(self, reason: str) -> None:
        """Close the connection, because the broker decided so."""


@dataclass(slots=True)
class Receipt:
    """Replies to consecutive confirmed publishes: stored, or refused with a ``reason``."""

    queue: str
    keys: Sequence[bytes]
    reason: str | None = None


@dataclass(slots=True, frozen=True)
class WindowRequest:
    """Load the next ready messages of a queue, in order, after a position (exclusive)."""

    queue_id: int
    after: int
    limit: int
    body_bytes: int  # load bodies until their sizes reach this


class PageKind(Enum):
    """Which messages a page contains."""

    ALL = 1  # ready and dispatched messages of a queue, by position
    READY = 2  # its ready messages only
    CLAIMED = 3  # messages of a subscription, by claim


@dataclass(slots=True, frozen=True)
class PageRequest:
    """Load live messages with ``after`` < position <= ``upto``.

    For ``PageKind.CLAIMED``, ``queue_id`` is a subscription_id and positions are claims.
    """

    on_rows: Callable[[list[Message], bool], None]  # gets the rows
    queue_id: int
    after: int
    upto: int
    limit: int
    bodies: bool = False
    kind: PageKind = PageKind.ALL


class CopiedRows(NamedTuple):
    """New messages that the writer creates from staged rows, unknown to the core.

    Their seqs are from ``first`` (inclusive) to ``end`` (exclusive), in the order of the rows.
    """

    first: int
    end: int
    publisher: int  # client number
    counts: dict[int, int]  # queue_id -> messages; the other numbers stay unused


@dataclass(slots=True, eq=False)
class Batch:
    """What one transaction stores, what is loaded right after it, and what follows.

    Stored in this order: queues, created, dispatched, changed, settled, events, keys, clients,
    counters, claims, staged rows, writes.  A message is in ``created`` or on disk already; the
    values that its object has at the end of the batch are written.
    """

    wall_ms: int
    first_number: int = 1  # messages with a smaller seq were on disk before
    commands: int = 0  # for the limit of a batch
    inspected_bytes: int = 0  # of contents that were validated or made into records: limited
    # -- stored
    new_queues: list[QueueRow] = field(default_factory=list)
    queue_rows: dict[int, QueueRow] = field(default_factory=dict)  # counters changed
    configured: list[QueueRow] = field(default_factory=list)  # settings changed
    created: list[Message] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)  # of created messages; flat: seq, content
    created_bytes: int = 0
    # on disk before, dispatched in this batch
    dispatched: list[Message] = field(default_factory=list)
    # any other change of a row on disk, by seq
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
    # stored by ``writes``; for readers of the batch
    copied: list[CopiedRows] = field(default_factory=list)
    # -- loaded after the commit
    windows: list[WindowRequest] = field(default_factory=list)
    seqs: set[int] = field(default_factory=set)
    body_seqs: set[int] = field(default_factory=set)
    # Messages that may have records of clients: seq -> queue_ids of its dead-letter queue and of
    # NAME.dlq, and its last holder; 0: none.
    record_seqs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    pages: list[PageRequest] = field(default_factory=list)
    rows: list[RowsRequest] = field(default_factory=list)
    queries: list[tuple[QuarantinedRows, Callable[[list[Any]], None]]] = field(default_factory=list)
    due_at: int | None = None  # load what is due at this steady time
    # -- done after the commit
    # by connection
    sends: dict[Any, tuple[list[Message], list[Receipt]]] = field(default_factory=dict)
    is_partly_sent: bool = False  # some was sent already, and clients may be working on it
    to_resume: set[Any] = field(default_factory=set)  # connections whose publishers can continue
    replies: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    # (slow work that needs no batch, what gets its result in a later batch)
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
        """Return whether an operator or the pipeline caused rows."""
        return bool(self.claims_added or self.claims_removed or self.staged_rows or self.writes)

    def implies_next_number(self, next_number: int) -> bool:
        """Return whether the next number can be derived from the rows, without a counter.

        The number before it is then that of a body.  Rows in ``writes`` may remove bodies.
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
    """What the writer read right after a commit, and so with every change of the batch."""

    windows: list[tuple[int, list[Message], bool]] = field(default_factory=list)
    # (queue_id, messages in order, whether the queue has no more)
    by_seq: dict[int, Message | None] = field(default_factory=dict)  # None: not live
    bodies: dict[int, bytes | None] = field(default_factory=dict)  # None: damaged or missing
    records: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    # by the seq of their message: id and content of records by clients, oldest first
    pages: list[tuple[Callable[[list[Message], bool], None], list[Message], bool]] = field(
        default_factory=list
    )  # what gets them, messages in order, whether they are the last
    query_results: list[tuple[Callable[[list[Any]], None], list[Any]]] = field(default_factory=list)
    due: list[Message] = field(default_factory=list)  # past their deadline, earliest first
    next_deadline_ms: int | None = None  # of the ready messages after ``due``
    has_due: bool = False


@dataclass(slots=True)
class PipelineRows:
    """What the core keeps in memory for the pipeline: rows of its tables, see ``batch.sql``."""

    subscriptions: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    held: list[tuple[int, int, int]] = field(default_factory=list)  # queue_id, claimed, bytes
    staged: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    parts: list[tuple[int, int, int, int, int, int, int | None, str]] = field(default_factory=list)
    # app_id, version, owner, used_ms, single_use; least recently used first
    published: list[tuple[str, int, str | None, int, int]] = field(default_factory=list)
    next_stage_id: int = 1


@dataclass(slots=True)
class RecoveredState:
    """What the writer reads at the start: all that must be in memory, nothing per message."""

    queues: list[QueueRow]
    # queue_id, key, seq, at_ms; oldest first; read it once, before anything else is stored
    receipts: Iterable[tuple[int, bytes, int, int]]
    counters: dict[str, int]
    next_deadline_ms: int | None
    returned: int  # dispatched before the start, ready again
    pipeline: PipelineRows = field(default_factory=PipelineRows)


Reply = Callable[[Any], None]
