"""What broker, storage and server share: a message, a queue's settings, a batch, what was loaded.

Plain data, no behaviour beyond a row's layout.  ``Batch`` is the one thing that the core hands
to the writer, ``Loaded`` the one thing that comes back.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from phpmq_lite.pipeline_rows import CopiedRows, PipelineRows
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.writes import QuarantinedRows, Write


class Now(NamedTuple):
    """One reading of the clocks, in milliseconds."""

    wall_ms: int  # Unix time, for people: published_at, settled_at
    steady_ms: int  # wall time less the jumps seen: deadlines are on this scale


class State(IntEnum):
    """Where a message is in its life; the numbers are those of the database."""

    READY = 0
    DISPATCHED = 1
    ACKED = 2
    EXPIRED = 3
    DEAD = 4
    DELETED = 5


ALIVE: Final = frozenset({State.READY, State.DISPATCHED})


class Message:
    """A message that is alive and in memory.  The order of the slots is that of the live table.

    Times ending in ``_at`` are Unix milliseconds, ``deadline_ms`` is on the steady scale, None
    where the message never expires.  ``body`` is None while it lies on disk only.
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
        self.message_id = b"%016x%016x" % (seq, token)  # as it stands on the wire
        self.holder: Any = None  # the broker's Consumer that holds it
        self.held_since_ms = 0  # steady; while it has a holder
        self.is_sent = False  # its dispatch was written to its holder's connection


def checksum(seq: int, body: bytes) -> int:
    """Return the CRC-32 of seq (8 bytes, big-endian) and body: content in the wrong row shows."""
    return crc32(body, crc32(seq.to_bytes(8, "big")))


@dataclass(slots=True)
class QueueRow:
    """One row of the table ``queue``: ``own`` has only the settings that differ from default."""

    queue_id: int
    name: str
    created_at: int
    own: dict[str, Any] = field(default_factory=dict)
    live_count: int = 0
    live_bytes: int = 0
    stored: tuple[int, int] = (0, 0)  # both as the writer was given them last
    created_by: str = ""  # an actor, or the address of a connection; empty: not known


def has_room(own: int, total: int, more: int, limit: int) -> bool:
    """Return whether an owner of ``own`` out of ``total`` may have ``more``.

    Alone, one owner may have all of ``limit``.  So that others still get something then, an owner
    that has little may exceed it by a quarter, and leaves as much of that as it has to the next.
    """
    return total + more <= limit or own + more <= limit + limit // 4 - total


@dataclass(slots=True, frozen=True)
class Limits:
    """Bounds of what is kept in memory and of what is taken; see ``docs/operate/security.md`` 9."""

    queues: int = 10_000
    window: int = 3_000  # ready messages in memory, per queue with consumers
    window_bytes: int = 4 << 20  # bodies of them in memory, per queue
    bodies_bytes: int = 64 << 20  # and over all queues
    credit: int = 1_000  # unacknowledged messages per consumer
    credit_bytes: int = 16 << 20  # the same in bytes; one message always goes
    held: int = 50_000  # dispatched messages over all consumers
    held_bytes: int = 256 << 20
    batch_commands: int = 5_000
    batch_bytes: int = 4 << 20
    write_bytes: int = 4 << 20  # dispatched to one connection in one batch, and a message
    receipts: int = 100_000
    receipt_window_ms: int = 600_000


@dataclass(slots=True)
class AuditEntry:
    """One row of the audit, written in the transaction of what it tells about.

    Whoever asks fills the first part; the core adds the rest when it writes the row.
    """

    actor: str  # user, "token NAME", "local" (loopback without login) or "control" (its socket)
    source: str  # ui, http or cli
    address: str
    action: str  # "queue.purge": the audit name of the route
    target: str = ""  # queue, message id, user name, …
    reason: str = ""  # why, as the person typed it
    request_id: str = ""
    detail: str = ""  # JSON: before and after of settings; never bodies, passwords, tokens
    count: int = 0  # messages or things it was done to
    result: str = "done"  # done, running, cancelled, or the code of the refusal
    audit_id: int | None = None  # its number, once it is written


@dataclass(slots=True, frozen=True)
class RowsRequest:
    """Load messages by seq, in that order, alive ones or settled; what is not there is left out."""

    take: Callable[[list[Message], bool], None]  # handed back with the rows; with bodies in pages
    seqs: tuple[int, ...]
    bodies: bool = False
    settled: bool = False  # of the history; ``state`` is the outcome then


# URN, trace id, meta.id, attempts: what a message is found by.  A bare tuple, because the one of a
# named class costs 0.2 µs more a message.
Indexed = tuple[str | None, str | None, str | None, int | None]


class Inspection(NamedTuple):
    """What a content says about itself, and what is wrong with it."""

    indexed: Indexed
    reason: str | None = None  # of the verdict: it must not reach a consumer
    detail: str = ""  # the same for people
    record: tuple[bytes, bytes] | None = None  # made ahead; the id that stands in it for the real


class Validated(NamedTuple):
    """A content that was looked at ahead of its batch, because it is large."""

    settings: QueueSettings  # by which; where the queue has others by now it is worth nothing
    inspection: Inspection


class RecordSource(NamedTuple):
    """What a record that a client published says it is about."""

    message_id: bytes
    reason: str  # exact cause, as the history keeps it
    error: str | None


class DeadLetterCause(NamedTuple):
    """What a record is to say about a message that died."""

    queue: str
    message_id: bytes
    reason: str  # client, max_deliveries, expired, or that of a verdict
    detail: str
    at_ms: int  # Unix


class EnvelopeInspector(Protocol):
    """What the core asks about contents; pure functions, given to it at the start."""

    def index(self, content: bytes) -> Indexed | None:
        """Read what is indexed, and no more; None: there is nothing."""

    def validate(self, content: bytes, settings: QueueSettings) -> Inspection:
        """Give the verdict, with what is indexed."""

    def read_only_reason(self, content: bytes) -> str | None:
        """Give the reason for which nobody here may change an envelope, not even by a block."""

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        """Make the content of a dead-letter record."""

    def record_source(self, content: bytes) -> RecordSource | None:
        """Read what a record is about; None: it does not say."""

    def redrive_content(self, content: bytes) -> bytes:
        """Give what is published again when a record is redriven."""

    def origin_queue(self, content: bytes) -> str | None:
        """Name the queue that a record or an envelope came from, as it says itself."""


class Peer(Protocol):
    """The outside of a connection of the core; the engine calls it, after a commit."""

    def send(
        self, dispatches: list[Message], receipts: list["Receipt"], now_ms: int
    ) -> list[Message]:
        """Send everything of one batch in one write; ``now_ms`` is on the steady scale.

        Returns the messages that were not sent because their deadline has passed meanwhile.
        """

    def resume(self) -> None:
        """Go on with the commands that were kept back."""

    def end(self, reason: str) -> None:
        """Close the connection; the broker decided so."""


@dataclass(slots=True)
class Receipt:
    """The answers to confirmed publishes in a row: stored, or refused where ``reason`` is given."""

    queue: str
    keys: Sequence[bytes]
    reason: str | None = None


@dataclass(slots=True, frozen=True)
class WindowRequest:
    """Load the next ready messages of a queue: in order, after a position (exclusive)."""

    queue_id: int
    after: int
    limit: int
    body_bytes: int  # bodies come along until their sizes add up to this


class PageKind(Enum):
    """Which messages a page has."""

    ALL = 1  # ready and dispatched messages of a queue, by position
    READY = 2  # its ready messages only
    CLAIMED = 3  # messages of a subscription, by claim


@dataclass(slots=True, frozen=True)
class PageRequest:
    """Load live messages with ``after`` < position <= ``upto``.

    For ``PageKind.CLAIMED``, ``queue_id`` is a subscription_id and positions are claims.
    """

    take: Callable[[list[Message], bool], None]  # handed back with the rows
    queue_id: int
    after: int
    upto: int
    limit: int
    bodies: bool = False
    kind: PageKind = PageKind.ALL


class Batch:
    """What one transaction stores, what is loaded right after it, and what is done then.

    Stored in this order: queues, created, dispatched, changed, settled, events, keys, clients,
    counters, claims, staged rows, writes.  A message is in ``created`` or on disk already; the
    values that its object has at the end of the batch are written.
    """

    __slots__ = (
        "background",
        "bodies",
        "body_seqs",
        "changed",
        "claims_added",
        "claims_removed",
        "closed_clients",
        "commands",
        "configured",
        "copied",
        "counters",
        "created",
        "created_bytes",
        "dispatched",
        "due_at",
        "events",
        "first_number",
        "has_left",
        "inspected_bytes",
        "keys",
        "new_queues",
        "opened_clients",
        "pages",
        "queries",
        "queue_rows",
        "record_seqs",
        "replies",
        "rows",
        "sends",
        "seqs",
        "settled",
        "staged_rows",
        "wakes",
        "wall_ms",
        "windows",
        "writes",
    )

    def __init__(self, wall_ms: int, first_number: int = 1) -> None:
        self.wall_ms = wall_ms
        self.first_number = first_number  # what has a smaller seq was on disk before
        self.commands = 0  # for the bound of a batch
        self.inspected_bytes = 0  # of contents judged or made into records in it: bounded too
        # -- stored
        self.new_queues: list[QueueRow] = []
        self.queue_rows: dict[int, QueueRow] = {}  # their counters changed
        self.configured: list[QueueRow] = []  # their settings changed
        self.created: list[Message] = []
        self.bodies: list[Any] = []  # of those born; flat: seq, content
        self.created_bytes = 0
        self.dispatched: list[Message] = []  # on disk before, now dispatched
        self.changed: dict[int, Message] = {}  # any other change of a row on disk, by seq
        self.settled: dict[tuple[int, str | None], list[int]] = {}  # (outcome, reason) -> seqs
        self.events: list[Any] = []  # flat: seq, at_ms, kind, detail
        self.keys: list[Any] = []  # flat: queue_id, key, seq, at_ms (steady)
        self.opened_clients: list[Any] = []  # flat: client, kind, address, opened_at
        self.closed_clients: list[tuple[int, str | None, str | None, str, int]] = []
        # (closed_at, framing, revision, reason, client)
        self.counters: dict[str, int] = {}
        self.claims_added: list[Any] = []  # flat: subscription_id, claim, seq, claimed_at
        self.claims_removed: list[int] = []  # seqs
        self.staged_rows: list[Any] = []  # flat, see batch_sql
        self.writes: list[Write] = []
        self.copied: list[CopiedRows] = []  # stored by rare rows; for who looks at the batch
        # -- loaded after the commit
        self.windows: list[WindowRequest] = []
        self.seqs: set[int] = set()
        self.body_seqs: set[int] = set()
        self.record_seqs: dict[int, tuple[int, int, int]] = {}  # a client's record may be there:
        # seq -> queue_ids of its dead-letter queue and of NAME.dlq, and who had it last; 0: none
        self.pages: list[PageRequest] = []
        self.rows: list[RowsRequest] = []
        self.queries: list[tuple[QuarantinedRows, Callable[[list[Any]], None]]] = []
        self.due_at: int | None = None  # load what is due at this steady time
        # -- done after the commit
        self.sends: dict[Any, tuple[list[Message], list[Receipt]]] = {}  # by connection
        self.has_left = False  # some of it was sent before: who got it works meanwhile
        self.wakes: set[Any] = set()  # connections whose publishers need not wait any more
        self.replies: list[tuple[Callable[[Any], None], Any]] = []
        self.background: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        # (what takes long and needs no batch, whom to give its result in a later batch)

    @property
    def stores(self) -> bool:
        """Tell whether there is anything to store."""
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
        """Tell whether the line of numbers can be seen on disk without a counter.

        The number before is that of a body then.  A rare row may take bodies away.
        """
        born = self.created
        last = born[-1].seq if born else self.first_number - 1
        return last == next_number - 1 and not self.writes

    @property
    def loads(self) -> bool:
        """Tell whether there is anything to load."""
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
class Loaded:
    """What the writer read right after a commit, so that it shows every decision of the batch."""

    windows: list[tuple[int, list[Message], bool]] = field(default_factory=list)
    # (queue_id, messages in order, True where the queue has no more)
    by_seq: dict[int, Message | None] = field(default_factory=dict)  # None: not alive
    bodies: dict[int, bytes | None] = field(default_factory=dict)  # None: damaged or missing
    records: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    # by the seq they are about: id and content of the records that clients wrote, oldest first
    pages: list[tuple[Callable[[list[Message], bool], None], list[Message], bool]] = field(
        default_factory=list
    )  # whom to give it, messages in order, True where there are no more
    query_results: list[tuple[Callable[[list[Any]], None], list[Any]]] = field(default_factory=list)
    due: list[Message] = field(default_factory=list)  # ready, deadline passed, soonest first
    next_deadline_ms: int | None = None  # of the ready messages behind ``due``
    has_due: bool = False


@dataclass(slots=True)
class Recovered:
    """What the writer reads at start: everything that must be in memory, nothing per message."""

    queues: list[QueueRow]
    # queue_id, key, seq, at_ms; oldest first; to be taken once, before anything else is stored
    receipts: Iterable[tuple[int, bytes, int, int]]
    counters: dict[str, int]
    next_deadline_ms: int | None
    returned: int  # dispatched before the start, ready again
    pipeline: PipelineRows = field(default_factory=PipelineRows)


Reply = Callable[[Any], None]
