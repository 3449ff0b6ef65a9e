"""Data types shared by broker, storage and server, such as messages, queue rows and batches.

All types are plain data.  The core passes a ``Batch`` to the writer, which returns ``LoadedRows``.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, IntEnum
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar
from zlib import crc32

from phpmq_lite.frame_options import DEFAULT_PRIORITY
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.writes import QuarantinedRows, RanTicks, Write

if TYPE_CHECKING:
    import asyncio  # which programs that only read envelopes do without

_seq_of: Final = attrgetter("seq")
T = TypeVar("T")
ROW_BITS: Final = 17  # low bits of stage_row.row_id, which hold the row's index within its token


class ClockReading(NamedTuple):
    """One reading of the clocks, in milliseconds."""

    wall_ms: int  # Unix time for display, such as published_at
    steady_ms: int  # wall time corrected for observed jumps; used for deadlines


class State(IntEnum):
    """The state of a message; the database stores these numbers."""

    READY = 0
    DISPATCHED = 1
    ACKED = 2
    EXPIRED = 3
    DEAD = 4
    DELETED = 5
    SCHEDULED = 6
    BLOCKED = 7  # ready, but another message of its group is before it


ALIVE: Final = frozenset({State.READY, State.DISPATCHED, State.SCHEDULED, State.BLOCKED})
STATE_NAMES: Final = tuple(state.name.lower() for state in State)  # indexed by state


class Outcome(NamedTuple):
    """How a message can settle."""

    state: State
    label: str  # of the last step of a message's life
    event: str  # kind of the event in the tail of a queue


OutcomeName = Literal["acked", "expired", "dead", "deleted"]
# In the order in which pages, charts, options and tables have them; the names are also CSS classes.
OUTCOMES: Final[Mapping[str, Outcome]] = {
    "acked": Outcome(State.ACKED, "Acknowledged", "ack"),
    "expired": Outcome(State.EXPIRED, "Expired", "expire"),
    "dead": Outcome(State.DEAD, "Dead", "dead"),
    "deleted": Outcome(State.DELETED, "Deleted", "delete"),
}


# The indexed fields of a message: URN, trace id, meta.id and attempts.
# They form a plain tuple, because a named tuple costs 0.2 µs more per message.
Indexed = tuple[str | None, str | None, str | None, int | None]
NOT_INDEXED: Final[Indexed] = (None, None, None, None)


class MessageSource(NamedTuple):
    """The message that a dead-letter record is about; None for unknown values."""

    seq: int | None = None
    queue_id: int | None = None
    reason: str | None = None


NO_SOURCE: Final = MessageSource()


# A position orders a queue: by priority, then by number.  The number is 48 bits, which last for 89
# years at 100,000 messages a second; with the default priority, the position is the number.
_NUMBER_BITS: Final = 48
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
BEFORE_ALL: Final = -1 << 56  # before every position
AFTER_ALL: Final = 1 << 62


def position_of(number: int, priority: int) -> int:
    """Return the position of a message with a number and a priority."""
    return ((priority - DEFAULT_PRIORITY) << _NUMBER_BITS) + number


def priority_of(position: int) -> int:
    """Return the priority of a message at a position, 0 (first) to 255."""
    return (position >> _NUMBER_BITS) + DEFAULT_PRIORITY


def number_of(position: int) -> int:
    """Return the number in a position, below the priority."""
    return position & _NUMBER_MASK


class DeliveryOptions(NamedTuple):
    """When and under which limits a message is delivered; most messages share ``NO_OPTIONS``.

    ``due_ms`` is on the steady scale, and what is left of the time to live is ``deadline_ms`` less
    this.  Both are None unless the message is scheduled.  A message with a date is due by the wall
    clock, and its ``due_ms`` says when that was expected.
    """

    ready_at: int | None = None  # Unix ms when it became ready; None: when it was published
    due_ms: int | None = None
    deliver_at: int | None = None  # the date in Unix ms that was given, else None
    retries: int = 0  # failed attempts that workers reported by a retry
    failed_attempt: int = 0  # the last attempt that such a retry named
    head_since: int | None = None  # Unix ms of the first dispatch of the head of a group
    # of a dead-letter record, in which these three have no effect: for its redrive
    priority: int = DEFAULT_PRIORITY
    group: str | None = None
    unique_key: str | None = None

    @property
    def may_be_rewritten(self) -> bool:
        """Whether a retry may have changed the content since it was published."""
        return bool(self.retries or self.ready_at or self.due_ms)


NO_OPTIONS: Final = DeliveryOptions()


class Message:
    """A live message in memory; the parameters have the order of the live table's columns.

    Times that end in ``_at`` are Unix milliseconds.  ``deadline_ms`` is on the steady scale; None
    means that the message never expires.  ``body`` is None while it is only on disk.
    """

    __slots__ = (
        "body",
        "charged",
        "consumer",
        "crc",
        "deadline_ms",
        "deliveries",
        "first_dispatched_at",
        "held_since_ms",
        "holder",
        "indexed",
        "is_sent",
        "last_dispatched_at",
        "message_id",
        "options",
        "position",
        "published_at",
        "publisher",
        "queue_id",
        "seq",
        "size",
        "source",
        "state",
        "token",
        "ttl_s",
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
        indexed: Indexed = NOT_INDEXED,
        source: MessageSource = NO_SOURCE,
        options: DeliveryOptions = NO_OPTIONS,
    ) -> None:
        self.seq = seq
        self.token = token  # a random 63-bit number
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
        self.indexed = indexed
        self.source = source
        self.options = options
        self.body: bytes | None = None
        self.message_id = b"%016x%016x" % (seq, token)  # the id in the form sent over the wire
        self.holder: Any = None  # the Consumer that holds the message, or SUBSCRIPTION
        self.held_since_ms = 0  # steady time; valid only while the message is held
        self.is_sent = False  # whether the message has been written to the holder's connection

    @property
    def is_record(self) -> bool:
        """Whether this is the record of a dead letter, whose group and key have no effect."""
        return self.source.queue_id is not None


def checksum(seq: int, body: bytes) -> int:
    """Return a CRC-32 of seq (8 bytes, big-endian) and body, so that it detects swapped bodies."""
    return crc32(body, crc32(seq.to_bytes(8, "big")))


@dataclass(slots=True)
class QueueRow:
    """A row of the table ``queue``; ``own`` contains only settings that override defaults."""

    queue_id: int
    name: str
    created_at: int
    own: dict[str, Any] = field(default_factory=dict)
    live_count: int = 0
    live_bytes: int = 0
    scheduled_count: int = 0  # of the live messages
    stored: tuple[int, int, int] = (0, 0, 0)  # these three as last passed to the writer
    created_by: str = ""  # an actor or a connection's address; empty if unknown
    is_removed: bool = False  # the row stays because the history refers to it


class OrderedSet(dict[T, None]):
    """A set that iterates in the order of insertion, where clients could see another order."""

    def add(self, item: T) -> None:
        """Add an item, or keep its place."""
        self[item] = None

    def discard(self, item: T) -> None:
        """Remove an item if it is there."""
        self.pop(item, None)

    def __eq__(self, other: object) -> bool:
        return self.keys() == other or super().__eq__(other)


# Begins a dead-letter record whose content stays with its message, because it would be too large.
# The checksum proves that the publisher of the record knows the content.
RECORD_REFERENCE: Final = re.compile(rb'\{"raw_sha256":"([0-9a-f]{64})","dead_letter":')


EXTRA_PERCENT: Final = 25  # by which owners that use little can exceed a limit


def has_room(own: int, total: int, more: int, limit: int) -> bool:
    """Return whether an owner that uses ``own`` of ``total`` is allowed to use ``more``.

    A single owner can use all of ``limit``.  So that other owners still get a share, an owner that
    uses little can exceed the limit by ``EXTRA_PERCENT``.  Each must leave at least as much of that
    to the next owner as it already uses.
    """
    return total + more <= limit or own + more <= limit + limit * EXTRA_PERCENT // 100 - total


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits on accepted input and on memory use; see section 9 of ``docs/operate/security.md``."""

    queues: int = 10_000
    window: int = 3_000  # ready messages in memory, per queue that has consumers
    window_bytes: int = 4 << 20  # total size of ready bodies in memory, per queue
    bodies_bytes: int = 64 << 20  # total size of bodies in memory, across all queues
    credit: int = 1_000  # number of unacknowledged messages per consumer
    credit_bytes: int = 16 << 20  # unacknowledged bytes per consumer, or a larger single message
    held: int = 50_000  # number of dispatched messages, across all consumers
    held_bytes: int = 256 << 20
    batch_commands: int = 5_000
    batch_bytes: int = 4 << 20
    write_bytes: int = 4 << 20  # bytes per connection and batch; the last message may exceed this
    receipts: int = 100_000
    receipt_window_ms: int = 600_000
    max_hold_ms: int = 86_400_000  # from a dispatch, however often its holder extends it


class ShortageKind(NamedTuple):
    """A kind of shortage of space."""

    code: str  # error code returned over HTTP
    reason: str  # for receipts and counters
    refuses_all: bool = False  # even messages that acknowledgements are waiting for


class Shortage(NamedTuple):
    """Why publishing is stopped."""

    kind: ShortageKind
    detail: str  # explanation that includes the limits


DISK_LOW: Final = ShortageKind("disk_full", "disk full: storage.free_bytes")
DISK_FULL: Final = ShortageKind("disk_full", "disk full", refuses_all=True)
DATABASE_FULL: Final = ShortageKind("database_full", "database full: storage.max_bytes")


@dataclass(slots=True)
class AuditEntry:
    """A row of the audit log, written in the same transaction as the change that it describes.

    The caller sets most fields; the core updates ``count`` and ``audit_id`` when it writes the row.
    """

    actor: str  # a user, "token NAME", "local" (loopback, no login) or "control" (the socket)
    source: str  # where the action came from: ui, http or cli
    address: str
    action: str  # action name, such as "queue.purge"
    target: str = ""  # for example, a queue, a message id or a user name
    reason: str = ""  # the reason, as typed by the user
    request_id: str = ""
    detail: str = ""  # JSON, such as the old and new settings; never bodies or secrets
    count: int = 0  # number of items affected, such as messages
    result: str = "done"  # done, running, cancelled, or a refusal code
    audit_id: int | None = None  # row number, set when the row is written


@dataclass(slots=True)
class Schedule:
    """A row of the table ``schedule``, with fields in the order of its columns; a ``Write``."""

    schedule_id: int
    name: str
    cron: str
    timezone: str
    queue: str
    content: bytes
    encoding: str  # in which the content was given: utf-8 or base64
    ttl_s: int | None  # None: the queue's default
    priority: int
    group: str | None
    is_enabled: int  # 0: paused; not bool, which compiled code does not take from a row
    missed: str  # what happens to missed ticks: skip, once or all
    missed_max: int
    created_at: int
    created_by: str
    changed_at: int
    changed_by: str
    seen_upto: int  # ticks up to this time are decided

    def _asdict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True, frozen=True)
class RowsRequest:
    """A request to load live or settled messages by seq, in order; missing messages are skipped."""

    on_rows: Callable[[list[Message], bool], None]  # called for each page with the rows and is_last
    seqs: tuple[int, ...]
    bodies: bool = False
    settled: bool = False  # load settled messages, with their outcome as ``state``


class PreparedRecord(NamedTuple):
    """A dead-letter record built before its message has an id."""

    placeholder: bytes  # stands for the id in ``content``
    content: bytes

    def for_message(self, message_id: bytes) -> bytes:
        """Return the content of the record for a message."""
        return self.content.replace(self.placeholder, message_id, 1)


class EnvelopeInspection(NamedTuple):
    """The indexed fields of a message body and, if the body is invalid, the reason."""

    indexed: Indexed
    reason: str | None = None  # code for why consumers must not receive the body
    detail: str = ""  # the reason in words
    record: PreparedRecord | None = None


class ValidatedPublish(NamedTuple):
    """The result of validating large content before its batch begins."""

    settings: QueueSettings  # if the queue's settings have changed since then, ignore the result
    inspection: EnvelopeInspection


class RecordSource(NamedTuple):
    """The original message that a client's dead-letter record describes."""

    message_id: bytes
    reason: str  # the exact cause, as stored in the history
    error: str | None


class DeadLetterCause(NamedTuple):
    """Details of how a message was dead-lettered, as stored in its dead-letter record."""

    queue: str
    message_id: bytes
    reason: str  # client, max_deliveries, expired or a validation code
    detail: str
    at_ms: int  # Unix time in milliseconds
    exception: str | None = None  # class of the exception that a worker reported


class EnvelopeInspector(Protocol):
    """Pure functions with which the core inspects the contents of messages."""

    def index(self, content: bytes) -> Indexed | None:
        """Return the indexed fields without validating the content, or None if there are none."""

    def validate(self, content: bytes, settings: QueueSettings) -> EnvelopeInspection:
        """Validate the content; return the result and the indexed fields."""

    def with_attempt_added(self, content: bytes) -> bytes | None:
        """Return an envelope with one attempt more, or None if it must not be changed."""

    def read_only_reason(self, content: bytes) -> str | None:
        """Return why an envelope must not be changed in any way, or None if it may be changed."""

    def make_record(self, content: bytes, settings: QueueSettings, death: DeadLetterCause) -> bytes:
        """Return the content of a dead-letter record."""

    def record_source(self, content: bytes) -> RecordSource | None:
        """Return the original message that a record describes, or None if there is none."""

    def redrive_content(self, content: bytes) -> bytes:
        """Return the content to publish when a record is redriven."""

    def origin_queue(self, content: bytes) -> str | None:
        """Return the queue that a record or an envelope names as its origin."""


class Peer(Protocol):
    """The connection interface that the engine calls after a commit."""

    def send(self, outbox: "Outbox", now_ms: int) -> list[Message]:
        """Send all output of a batch in one write; ``now_ms`` is on the steady time scale.

        Returns the messages that were not sent because their deadlines have passed.
        """

    def resume(self) -> None:
        """Process the commands that were received but held back."""

    def end(self, reason: str) -> None:
        """Close the connection at the broker's request; ``reason`` states why."""


@dataclass(slots=True)
class Receipt:
    """The reply to publish requests that asked for one; ``reason`` is None if they were stored."""

    queue: str
    keys: Sequence[bytes]
    reason: str | None = None


@dataclass(slots=True)
class Outbox:
    """What a batch sends to one connection."""

    dispatches: list[Message] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)


# A row of the table receipt: number of its last key, queue_id, seq of its first key's message,
# time (steady ms), length of each key, and the keys.  The messages have consecutive seqs.
KeyRun = tuple[int, int, int, int, int, bytes]


@dataclass(slots=True, frozen=True)
class WindowRequest:
    """A request to load a queue's next ready messages after a position (exclusive), in order."""

    queue_id: int
    after: int
    limit: int
    body_bytes: int  # load bodies until their total size reaches this


class PageKind(Enum):
    """The messages that a page contains."""

    ALL = 1  # a queue's ready and dispatched messages, by position
    READY = 2  # only a queue's ready messages, by position
    CLAIMED = 3  # messages claimed by a subscription, by claim number


@dataclass(slots=True, frozen=True)
class PageRequest:
    """A request to load live messages with ``after`` < position <= ``upto``.

    For ``PageKind.CLAIMED``, ``queue_id`` is a subscription_id and positions are claim numbers.
    """

    on_rows: Callable[[list[Message], bool], None]  # called with rows and is_last
    queue_id: int
    after: int
    upto: int
    limit: int
    bodies: bool = False
    kind: PageKind = PageKind.ALL


class CopiedRows(NamedTuple):
    """Messages that the writer creates from staged rows, and that the core does not load.

    Their seqs are between ``first`` (inclusive) and ``end`` (exclusive), in the order of the rows.
    """

    first: int
    end: int
    publisher: int  # the publishing client's number
    counts: dict[int, int]  # queue_id -> number of messages; leftover seqs are never used


class MovedMessage(NamedTuple):
    """A message that changed queues: it was moved, moved back or forwarded."""

    seq: int
    from_id: int  # queue_id of its former queue
    to_id: int  # queue_id of its new queue


class InspectedRow(NamedTuple):
    """A row to stage, after its inspection; a row of the table ``stage_row``."""

    row_id: int
    queue_id: int
    ttl_s: int | None
    token: int
    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None
    reason: str | None  # why it will be dead-lettered; None for a valid row, as for the next three
    detail: str | None
    record_id: bytes | None
    record: bytes | None
    content: bytes
    group_name: str | None

    @property
    def inspection(self) -> EnvelopeInspection:
        """Return the result of the inspection."""
        indexed, record = (self.urn, self.trace_id, self.meta_id, self.attempts), None
        if self.record_id is not None and self.record is not None:
            record = PreparedRecord(self.record_id, self.record)
        return EnvelopeInspection(indexed, self.reason, self.detail or "", record)


DUE_AT_ONCE: Final = 1_000  # maximum number of messages to expire per batch
ACKED_KEY: Final = (int(State.ACKED), None)  # of acknowledged messages in ``Batch.settled``


@dataclass(slots=True, eq=False)
class Batch:
    """What a transaction stores, and what is loaded and done right after the commit.

    Rows are stored in order: queues, created, dispatched, changed, settled, events, keys, clients,
    counters, claims, staged rows, writes.  A message is either in ``created`` or already on disk;
    the transaction writes the values that its object has at the end of the batch.
    """

    wall_ms: int
    first_number: int = 1  # messages with a smaller seq are already on disk
    commands: int = 0  # number of commands so far (limited)
    accepts_commands: bool = True  # False if later commands must wait for the next batch
    delivery: "DeliveryChanges | None" = None  # made by ``change_delivery``
    inspected_bytes: int = 0  # bytes validated or turned into records so far (limited)
    # -- stored by the transaction
    new_queues: list[QueueRow] = field(default_factory=list)
    queue_rows: dict[int, QueueRow] = field(default_factory=dict)  # rows with changed counters
    configured: list[QueueRow] = field(default_factory=list)  # rows with changed settings
    created: list[Message] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)  # contents of ``created``, in order
    created_bytes: int = 0
    # messages that are dispatched in this batch; those in ``created`` are inserted as dispatched
    dispatched: list[Message] = field(default_factory=list)
    # messages already on disk that have other changes, keyed by seq
    changed: dict[int, Message] = field(default_factory=dict)
    # (outcome, reason) -> seqs of the messages
    settled: dict[tuple[int, str | None], list[int]] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)  # flat list; see iter_events
    keys: list[Any] = field(default_factory=list)  # flat list of KeyRun
    evicted_keys: list[int] = field(default_factory=list)  # numbers of KeyRuns to remove
    cut_keys: list[Any] = field(default_factory=list)  # what stays of these, like ``keys``
    # flat list: client, kind, address, opened_at
    opened_clients: list[Any] = field(default_factory=list)
    # one tuple per client: (closed_at, framing, revision, reason, client)
    closed_clients: list[tuple[int, str | None, str | None, str, int]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    # flat list: subscription_id, claim, seq, claimed_at
    claims_added: list[Any] = field(default_factory=list)
    claims_removed: list[int] = field(default_factory=list)  # message seqs
    staged_rows: list[InspectedRow] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    # stored by items of ``writes``, but also listed here for code that reads the batch
    copied: list[CopiedRows] = field(default_factory=list)
    moved: list[MovedMessage] = field(default_factory=list)  # one per event of a move, in order
    # -- loaded after the commit
    windows: list[WindowRequest] = field(default_factory=list)
    seqs: set[int] = field(default_factory=set)
    key_seqs: set[int] = field(default_factory=set)  # load the checksums of these messages
    body_seqs: OrderedSet[int] = field(default_factory=OrderedSet)
    # Messages for which clients may have published dead-letter records:
    # seq -> (queue_id of the dead-letter queue, queue_id of NAME.dlq, last holder); 0 means none
    record_seqs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    pages: list[PageRequest] = field(default_factory=list)
    rows: list[RowsRequest] = field(default_factory=list)
    queries: list[tuple[QuarantinedRows | RanTicks, Callable[[list[Any]], None]]] = field(
        default_factory=list
    )
    due_at: int | None = None  # load messages due at or before this steady time
    due_from: int = 0  # no ready message is due before this steady time
    # load messages scheduled for this time or before, by the steady or, with a date, wall clock
    scheduled_at: ClockReading | None = None
    # -- done after the commit; ``sends`` is by connection
    sends: defaultdict[Any, Outbox] = field(default_factory=partial(defaultdict, Outbox))
    is_partly_sent: bool = False  # part of it has been sent, and clients may be processing it
    # connections allowed to publish again
    to_resume: OrderedSet[Any] = field(default_factory=OrderedSet)
    replies: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)
    # (slow work to do outside a batch, callback that receives its result in a later batch)
    background: list[tuple[Callable[[], Any], Callable[[Any], None]]] = field(default_factory=list)

    def change_delivery(self) -> "DeliveryChanges":
        """Return ``delivery``, made if need be; most batches, even of one message, need none."""
        if self.delivery is None:
            self.delivery = DeliveryChanges()
        return self.delivery

    @property
    def stores(self) -> bool:
        """Return whether the batch has anything to store."""
        return bool(
            self.created
            or self.dispatched
            or self.settled
            or self.changed
            or (self.delivery is not None and self.delivery.stores)
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

    def find_created(self, seq: int) -> Message | None:
        """Return the message that this batch has created with a seq, or None."""
        at = bisect_left(self.created, seq, key=_seq_of)
        message = self.created[at] if at < len(self.created) else None
        return message if message is not None and message.seq == seq else None

    def iter_events(self) -> Iterator[tuple[int, int, str, str | None]]:
        """Iterate over the events as rows of seq, at_ms, kind and detail."""
        flat = iter(self.events)
        return zip(flat, flat, flat, flat, strict=True)

    @property
    def event_count(self) -> int:
        """Return the number of events."""
        return len(self.events) // 4

    @property
    def settled_count(self) -> int:
        """Return the number of messages that the batch settles."""
        return sum(map(len, self.settled.values()))

    @property
    def has_special_rows(self) -> bool:
        """Return whether the batch stores rows for an operator or the pipeline."""
        return bool(self.claims_added or self.claims_removed or self.staged_rows or self.writes)

    def implies_next_number(self, next_number: int) -> bool:
        """Return whether the next message number follows from the stored rows without a counter.

        If so, the previous number belongs to a stored body.  Rows in ``writes`` may remove bodies.
        """
        born = self.created
        last = born[-1].seq if born else self.first_number - 1
        return last == next_number - 1 and not self.writes

    @property
    def loads(self) -> bool:
        """Return whether the batch has anything to load."""
        return bool(
            self.windows
            or self.seqs
            or self.key_seqs
            or (self.delivery is not None and self.delivery.loads)
            or self.body_seqs
            or self.record_seqs
            or self.pages
            or self.rows
            or self.queries
            or self.due_at is not None
            or self.scheduled_at is not None
        )


@dataclass(slots=True)
class DeliveryChanges:
    """What a batch stores and loads for messages that have delivery options."""

    # blocked messages that became ready; whatever else happened to them is stored as usual
    admitted: dict[int, Message] = field(default_factory=dict)
    admitted_on_disk: list[int] = field(default_factory=list)  # seqs of others that stay there
    # scheduled messages whose time has come, in the same way
    came_due: dict[int, Message] = field(default_factory=dict)
    # those of ``Batch.changed`` whose contents or options are stored, too
    rewritten: dict[int, tuple[Message, bytes]] = field(default_factory=dict)
    rescheduled: dict[int, Message] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)  # seqs; the history keeps their options
    # -- loaded after the commit
    # load the seqs of live messages with these unique keys, by queue_id
    unique_keys: OrderedSet[tuple[int, str]] = field(default_factory=OrderedSet)
    # load the first message of these groups, by queue_id and group
    groups: OrderedSet[tuple[int, str]] = field(default_factory=OrderedSet)
    groups_upto: dict[int, int] = field(default_factory=dict)  # queue_id -> last of its window
    group_bytes: int = 0  # load bodies of these messages until their total size reaches this

    @property
    def stores(self) -> bool:
        """Return whether there is anything to store that no other field of the batch shows."""
        return bool(self.admitted or self.admitted_on_disk or self.came_due)

    @property
    def loads(self) -> bool:
        """Return whether there is anything to load."""
        return bool(self.unique_keys or self.groups)


class LoadedWindow(NamedTuple):
    """The next ready messages of a queue, in order."""

    queue_id: int
    messages: list[Message]
    reaches_end: bool


class LoadedPage(NamedTuple):
    """A page of requested messages, in order, for the callback of the request."""

    on_rows: Callable[[list[Message], bool], None]
    messages: list[Message]
    is_last: bool


@dataclass(slots=True)
class LoadedRows:
    """Rows that the writer reads right after a commit, and that include the batch's changes."""

    windows: list[LoadedWindow] = field(default_factory=list)
    by_seq: dict[int, Message | None] = field(default_factory=dict)  # None if the message is gone
    # (queue_id, unique key) -> seq of the live message, or None; None: not loaded
    unique: dict[tuple[int, str], int | None] | None = None
    first_of_groups: Sequence[Message] = ()  # blocked, within the window
    # the others, behind their windows: seq, queue_id, position, group
    later_firsts: Sequence[tuple[int, int, int, str]] = ()
    # seq -> checksum of a live or settled message; None if the message is gone
    checksums: dict[int, int | None] = field(default_factory=dict)
    bodies: dict[int, bytes | None] = field(default_factory=dict)  # None if damaged or missing
    # message seq -> (id, content) of each record that a client published for it, oldest first
    records: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    pages: list[LoadedPage] = field(default_factory=list)
    query_results: list[tuple[Callable[[list[Any]], None], list[Any]]] = field(default_factory=list)
    due: list[Message] = field(default_factory=list)  # messages past their deadline, earliest first
    next_deadline_ms: int | None = None  # earliest deadline of all other ready messages
    has_due: bool = False
    # messages whose scheduled time has come, in order, and when that of the others comes
    scheduled: Sequence[Message] = ()
    next_scheduled: "NextScheduled | None" = None  # None: not loaded


class NextScheduled(NamedTuple):
    """When the next scheduled message is due; None if there is none of the kind."""

    due_ms: int | None = None  # after a delay: steady ms
    deliver_at: int | None = None  # with a date: Unix ms


NOTHING_SCHEDULED: Final = NextScheduled()


@dataclass(slots=True)
class PipelineRows:
    """Rows that the core keeps in memory for the pipeline; see ``batch.sql``."""

    subscriptions: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    claimed: list[tuple[int, int]] = field(default_factory=list)  # (queue_id, messages)
    staged: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    parts: list[tuple[int, int, int, int, int, int, int | None, str]] = field(default_factory=list)
    # (app_id, version, owner, used_ms, single_use), least recently used first
    published: list[tuple[str, int, str | None, int, int]] = field(default_factory=list)
    next_stage_id: int = 1
    readers: list[tuple[str, str | None]] = field(default_factory=list)  # (name, owner)


@dataclass(slots=True)
class RecoveredState:
    """The state that the writer reads at startup: everything kept in memory except messages."""

    queues: list[QueueRow]
    # oldest first; iterate only once, before anything is stored
    receipts: Iterable[KeyRun]
    counters: dict[str, int]
    next_deadline_ms: int | None
    returned: int  # number of dispatched messages that are ready again
    pipeline: PipelineRows = field(default_factory=PipelineRows)
    newest_key: int = 0  # number of the newest key in the table receipt, even if it has expired
    records: Sequence[tuple[int, int, int]] = ()  # dead letters: queue_id, source queue_id, count
    next_scheduled: NextScheduled = NOTHING_SCHEDULED
    heads: Sequence[tuple[int, str, int]] = ()  # of groups: queue_id, group, seq
    schedules: Sequence[Schedule] = ()
    # ticks that have a message, but that the clock has not passed: schedule_id, tick
    ran_ticks: Sequence[tuple[int, int]] = ()


class BatchStore(Protocol):
    """The engine's interface to a database; each engine in ``storage/`` implements it."""

    @property
    def needs_maintenance(self) -> bool:
        """Whether maintenance should run earlier than scheduled."""

    @property
    def is_exclusive(self) -> bool:
        """Whether no other broker can have taken over the database meanwhile."""

    def commit(self, batch: Batch) -> "asyncio.Future[LoadedRows | None]":
        """Store a batch in one transaction, then load the rows that it requests.

        The future raises OutcomeUnknownError if it is unknown whether the batch was stored.
        """

    def poll(self) -> None:
        """Complete the future of ``commit`` now if the batch has been stored meanwhile."""

    def store_clock_jump(self, counters: Mapping[str, int]) -> "asyncio.Future[None]":
        """Store a wall-clock jump before any later batches."""

    async def maintain(self, now: ClockReading, *, is_idle: bool) -> bool:
        """Run a slice of maintenance between two batches; return True if more slices follow."""

    def check_files(self) -> None:
        """Raise DatabaseReplacedError if the database was removed or replaced."""


Reply = Callable[[Any], None]
