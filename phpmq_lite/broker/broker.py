"""The broker's memory, and the changes that keep it consistent.

``Broker`` holds all queues, messages and connections, and the open batch.  Its methods change
messages, counters and ready windows, and record in the batch what the transaction has to store.
What decides on these changes are functions that take the broker: ``commands.py`` for clients,
``operator/`` and ``pipeline/``, and ``batches.py`` for what time and loaded rows cause.  They share
``transitions.py`` and ``dead_letters.py``, which have what can happen to a message.

Nothing in this package blocks, reads the clock or touches a socket.  Clients are notified only
after the batch is stored.

Values shared by a run of messages are looked up once, and counters are updated once at the end of
the run: publishing, dispatching and acknowledging a message takes 2.2 instead of 4.1 µs
(``benchmarks/profile_paths.py --path plain``).  If a run covers several queues, counters are
updated wherever the queue changes: 8.1 instead of 13.6 µs if every message has a different queue
(``--path confirmed --queues 1000``).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, count, repeat
from operator import attrgetter
from os import urandom
from struct import unpack
from typing import Concatenate, Final, NoReturn, ParamSpec, TypeVar
from zlib import crc32

from phpmq_lite.broker.pending import LateSettlements, PendingMessages
from phpmq_lite.broker.pipeline.state import StagingArea, Subscriptions
from phpmq_lite.broker.publish_keys import PublishKeys
from phpmq_lite.broker.queue import SUBSCRIPTION, AckTimeouts, Connection, Consumer, Queue
from phpmq_lite.broker.ready_window import BodyCache, ReadyWindow
from phpmq_lite.broker.reasons import Refusal
from phpmq_lite.broker.registry import REMOVED_QUEUES, QueueRegistry
from phpmq_lite.broker.schedule_book import ScheduleBook
from phpmq_lite.broker.state_table import DISPATCHED, SCHEDULED, StateEvent, next_state
from phpmq_lite.errors import RefusedError
from phpmq_lite.histogram import BUCKETS, NEAR, NEAR_MS, bucket
from phpmq_lite.model import (
    BEFORE_ALL,
    NO_OPTIONS,
    AuditEntry,
    Batch,
    ClockReading,
    DeliveryOptions,
    EnvelopeInspector,
    Limits,
    Message,
    MessageSource,
    NextScheduled,
    OrderedSet,
    Peer,
    RecoveredState,
    Reply,
    RowsRequest,
    checksum,
    position_of,
    priority_of,
)
from phpmq_lite.queue_settings import LONGEST_TTL_S, QueueSettings, check_name
from phpmq_lite.writes import AUDIT_BYTES, AdvanceAudit, InsertAudit, bounded_text

BACKGROUND_BYTES: Final = 64 << 10  # larger content is inspected in the background thread
INLINE_BYTES: Final = 256 << 10  # maximum total size of content inspected inline per batch
_TOKENS_AT_ONCE: Final = 512

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate["Broker", Callable[[T], None], P], None]

_seq_of: Final = attrgetter("seq")

QueueRun = tuple[Queue, int]  # a queue and its number of consecutive messages


def deadline_of(ttl_s: int, now_ms: int) -> tuple[int | None, int | None]:
    """Return a pair: capped TTL and steady-clock deadline in ms; both are None if the TTL is 0."""
    if ttl_s <= 0:
        return None, None
    ttl_s = min(ttl_s, LONGEST_TTL_S)
    return ttl_s, now_ms + ttl_s * 1_000


class Broker:
    """All queues, messages and connections in memory, and the open batch.  Not thread-safe."""

    # CPython reads the attributes of an object slowly if there are more than 30 without slots.
    __slots__ = (
        "_next_audit", "_next_client", "_publishers", "_tokens", "ack_timeouts", "audit_counts",
        "batch", "batch_limited", "batch_number", "bodies", "checksums", "connections",
        "dispatch_pauses", "heads", "held", "held_bytes", "history_readers", "ignored", "inspector",
        "is_clock_doubtful", "late", "limits", "loaded", "messages", "needs_dispatch",
        "next_deadline_ms", "next_number", "next_scheduled", "now", "on_drained", "pending",
        "publish_keys", "queues", "queues_by_id", "rate_limited", "refused", "registry",
        "schedules", "staging", "starved", "subscriptions", "transitioned", "unique", "vacated",
    )  # fmt: skip

    def __init__(
        self,
        stored: RecoveredState,
        limits: Limits,
        defaults: QueueSettings,
        inspector: EnvelopeInspector | None = None,
    ) -> None:
        self.limits = limits
        self.inspector = inspector  # None if contents are never inspected
        counters = stored.counters
        self.registry = QueueRegistry(limits, defaults, has_inspector=inspector is not None)
        self.registry.load(stored)
        self.queues = self.registry.queues
        self.queues_by_id = self.registry.queues_by_id
        # -- the open batch
        self.now = ClockReading(0, 0)
        self.batch = Batch(0)
        self.batch_number = 0
        self.transitioned: set[int] = set()  # seqs of rows loaded last and changed since then
        self.loaded: dict[int, Message | None] = {}  # rows loaded by seq in this batch
        self.unique: dict[tuple[int, str], int | None] = {}  # looked up or changed: live message
        # -- numbers
        self.next_number = counters.get("next_number", 1)  # the next seq or position; one sequence
        self._next_client = counters.get("next_client", 1)
        self._next_audit = counters.get("next_audit", 1)
        self._publishers: dict[tuple[str, str], int] = {}  # (source, actor) -> client number
        self._tokens: list[int] = []  # random numbers of 63 bits each
        # -- messages
        self.messages: dict[int, Message] = {}  # seq -> message held by a consumer or in a window
        self.pending = PendingMessages()
        self.bodies = BodyCache()
        self.held = self.held_bytes = 0
        self.next_deadline_ms = stored.next_deadline_ms  # no ready message expires before this
        self.next_scheduled = stored.next_scheduled  # no scheduled message is due before this
        self.schedules = ScheduleBook(stored.schedules, stored.ran_ticks)
        self.is_clock_doubtful = counters.get("clock_doubt_ms", 0) != 0  # if so, dates wait
        self.ack_timeouts = AckTimeouts()
        self.late = LateSettlements()
        self.publish_keys = PublishKeys(limits.receipts, limits.receipt_window_ms)
        self.publish_keys.load(stored.receipts, stored.newest_key)
        self.checksums: dict[int, int | None] = {}  # of messages whose keys were repeated, by seq
        # -- connections
        self.connections: dict[int, Connection] = {}  # keyed by client number
        self.needs_dispatch: dict[int, Queue] = {}  # queues that may have messages and credit
        self.rate_limited: dict[int, int] = {}  # queue_id -> steady time of the next dispatch
        self.heads = {(queue_id, group): seq for queue_id, group, seq in stored.heads}
        self.vacated = set[tuple[int, str]]()  # groups of which one has left or moved in this batch
        self.starved: dict[int, Queue] = {}  # queues that other queues must leave room for
        self.batch_limited = OrderedSet[Connection]()  # connections that reached limits.write_bytes
        self.on_drained: Reply | None = None  # called as soon as no messages are held
        # -- the pipeline
        self.subscriptions = Subscriptions(stored.pipeline)
        self.staging = StagingArea(stored.pipeline)
        # name -> owner of each history reader, least recently active first
        self.history_readers: dict[str, str | None] = dict(stored.pipeline.readers)
        # -- numbers of events since startup
        self.audit_counts: Counter[str] = Counter()  # audit rows, by action
        self.ignored: Counter[str] = Counter()  # commands without effect, by reason
        self.refused: Counter[str] = Counter()  # refused publish commands, by reason
        self.dispatch_pauses = 0  # number of times consumers reached the held limits

    # -- the open batch

    def open_batch(self, batch: Batch, now: ClockReading) -> None:
        self.now = now
        self.batch = batch
        self.batch_number += 1
        self.loaded = {}
        self.unique = {}
        self.vacated.clear()
        if self.batch_number == 1:  # the buckets of all rates begin to fill
            for queue in self.queues.values():
                queue.start_rate(now.steady_ms)

    def update_clock(self, now: ClockReading) -> None:
        self.now = now
        self.batch.wall_ms = now.wall_ms

    def reply(self, reply: Reply, value: object) -> None:
        """Call ``reply`` with ``value`` once the open batch is stored."""
        self.batch.replies.append((reply, value))

    def run_late(self, command: Callable[[], None], reply: Reply) -> bool:
        """Run a command that had to wait; if it is refused, reply with that and return False."""
        try:
            command()
        except RefusedError as error:
            self.reply(reply, error)
            return False
        return True

    @property
    def next_wake_ms(self) -> int | None:
        """Return the steady-clock time, in ms, of the next deadline or timeout, or None."""
        deadline_ms = None if self.pending.is_full else self.next_deadline_ms
        times = (
            deadline_ms, self.ack_timeouts.next_ms, self.staging.due_ms, self.next_scheduled.due_ms,
            min(self.rate_limited.values()) if self.rate_limited else None,
        )  # fmt: skip
        return min([at for at in times if at is not None], default=None)

    @property
    def next_date_ms(self) -> int | None:
        """Return the wall-clock time, in Unix ms, of the next message's date or schedule's tick."""
        if self.is_clock_doubtful:
            return None
        date_ms, tick_ms = self.next_scheduled.deliver_at, self.schedules.next_ms
        if tick_ms is None or self.on_drained is not None:
            return date_ms
        return tick_ms if date_ms is None else min(date_ms, tick_ms)

    @property
    def is_draining(self) -> bool:
        return self.on_drained is not None

    def check_not_draining(self) -> None:
        """Check that the broker is not stopping.  Raises RefusedError: ``draining``."""
        if self.is_draining:
            raise RefusedError("draining", "the broker is stopping and no longer accepts messages")

    def drain(self, answer: Reply) -> None:
        """Stop dispatching but keep running commands; call ``answer`` once no messages are held."""
        self.on_drained = answer

    def continue_from(self, former: "Broker") -> None:
        """Keep what is not stored: counters, numbers that were given, and whether publishing stops.

        Call this before the first batch.
        """
        self.audit_counts, self.ignored = former.audit_counts, former.ignored
        self.refused = former.refused
        self._next_client = former._next_client
        self._next_audit = former._next_audit
        self.schedules.counts = former.schedules.counts
        registry, former_registry = self.registry, former.registry
        registry.next_queue_id = max(registry.next_queue_id, former_registry.next_queue_id)
        for queue_id, queue in registry.queues_by_id.items():
            if (earlier := former_registry.queues_by_id.get(queue_id)) is not None:
                queue.counters = earlier.counters
                queue.rate = earlier.rate  # what was taken from it may have been sent
                queue.apply_limits()
        registry.stop_publishing(self.batch, former_registry.publishing_stop)

    # -- numbers

    def take_number(self) -> int:
        """Return the next seq or position; the counter is stored with the batch."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def take_token(self) -> int:
        """Return a random token of 63 bits."""
        if not self._tokens:
            self._draw_tokens(1)
        return self._tokens.pop()

    def _draw_tokens(self, number: int) -> None:
        """Draw at least ``number`` tokens with a single system call."""
        size = max(_TOKENS_AT_ONCE, number)
        drawn = unpack(f">{size}Q", urandom(8 * size))
        self._tokens += [token >> 1 for token in drawn]

    def take_client_number(self) -> int:
        """Return the next client number; the counter is stored with the batch."""
        number = self._next_client
        self._next_client = number + 1
        self.batch.counters["next_client"] = self._next_client
        return number

    def client_number_of(self, entry: AuditEntry) -> int:
        """Return the client number of a user without a connection; assign it on the first call."""
        publisher = (entry.source, entry.actor)
        number = self._publishers.get(publisher)
        if number is None:
            number = self._publishers[publisher] = self.take_client_number()
            address = bounded_text(f"{entry.actor} ({entry.address})", AUDIT_BYTES["address"])
            self.batch.opened_clients += (number, entry.source, address, self.now.wall_ms)
        return number

    def run_after_load(self, command: Callable[[], None], reply: Reply) -> None:
        """Run a command in the next batch, when what this one requested is loaded."""

        def resume(_rows: list[Message], _is_last: bool) -> None:
            self.run_late(command, reply)

        self.batch.rows.append(RowsRequest(resume, ()))

    # -- connections

    def connect(self, peer: Peer, kind: str, address: str) -> Connection:
        """Register a new connection and assign it the next client number."""
        number = self.take_client_number()
        connection = Connection(number, peer, kind, address, self.now.wall_ms)
        self.connections[number] = connection
        self.batch.opened_clients += (number, kind, address, self.now.wall_ms)
        return connection

    def set_blocked(self, connection: Connection, *, is_blocked: bool) -> None:
        """Stop dispatching to a connection whose write buffer is full, or resume dispatching."""
        connection.is_blocked = is_blocked
        if not is_blocked:
            self.wake_consumers(connection)

    def wake_consumers(self, connection: Connection) -> None:
        for consumer in connection.consumers.values():
            self.wake_consumer(consumer)

    def wake_consumer(self, consumer: Consumer) -> None:
        """Resume dispatching to a consumer with free credit."""
        queue = consumer.queue
        if not consumer.is_waiting:
            consumer.is_waiting = True
            queue.waiting_consumers.append(consumer)
        self.needs_dispatch[queue.queue_id] = queue

    def request_dispatch(self, queue: Queue) -> None:
        """Add a queue that may have messages and consumers with credit to the next dispatch."""
        self.needs_dispatch[queue.queue_id] = queue

    # -- queues

    def find_queue(self, name: str) -> Queue:
        """Return a queue by name.  Raises RefusedError: ``unknown_queue``."""
        queue = self.queues.get(name)
        if queue is None:
            raise RefusedError("unknown_queue", f"there is no queue {name!r}")
        return queue

    def destination(self, name: str, creator: str, *, create: bool) -> Queue | None:
        """Return the destination queue, or None if it must be created first.

        Raises RefusedError: ``unknown_queue``, ``bad_name`` or ``too_many_queues``.
        """
        queue = self.queues.get(name)
        if queue is None:
            if not create:
                return self.find_queue(name)
            check_name(name)
            if not self.registry.counts_with_origin(name):
                self.check_queues(creator, 1)
        return queue

    def check_queues(self, creator: str, more: int) -> None:
        """Check that ``creator`` may create ``more`` queues.

        Raises RefusedError: ``too_many_queues``.
        """
        if not self.registry.has_room(creator, more):
            created, removed = self.registry.created, len(self.registry.removed)
            if removed >= REMOVED_QUEUES * self.limits.queues:
                raise RefusedError(
                    "too_many_queues",
                    f"{removed} queues were removed since the start; the limit is"
                    f" {REMOVED_QUEUES} times limits.max_queues. Restart the broker to forget those"
                    " without a history, or raise the limit.",
                )
            raise RefusedError(
                "too_many_queues",
                f"there are {created.total()} queues, {created[creator]} of them created by"
                f" {creator!r}; the limit is {self.limits.queues} (limits.max_queues). Remove"
                " empty queues or raise the limit.",
            )

    def remove_queue(self, queue: Queue) -> None:
        self.registry.remove(self.batch, queue)
        self.needs_dispatch.pop(queue.queue_id, None)

    # -- bookkeeping

    def record_event(self, message: Message, kind: str, detail: str | None = None) -> None:
        self.batch.events += (message.seq, self.now.wall_ms, str(kind), detail)

    def record_audit(self, entry: AuditEntry, number: int, *, is_last: bool = True) -> None:
        """Record an audit row for an entry; if it already has one, add ``number`` to the count.

        The row is stored in the same transaction as the change that it describes.  It says
        ``running`` until the last part of the work is done.  After a restart, such a row shows that
        the work was interrupted.
        """
        entry.count += number
        result = entry.result if is_last else "running"
        texts = {
            name: bounded_text(result if name == "result" else getattr(entry, name), limit)
            for name, limit in AUDIT_BYTES.items()
        }
        if entry.audit_id is not None:
            self.batch.writes.append(AdvanceAudit(number, texts["result"], entry.audit_id))
            return
        entry.audit_id = self._next_audit
        self._next_audit = self.batch.counters["next_audit"] = entry.audit_id + 1
        self.audit_counts[entry.action] += 1
        at_ms = self.now.wall_ms
        self.batch.writes.append(InsertAudit(entry.audit_id, at_ms, number=entry.count, **texts))

    def note_transition(self, seq: int) -> None:
        """Record that a message has changed, so that its row, if loaded, is no longer used."""
        self.transitioned.add(seq)

    def has_changed(self, seq: int) -> bool:
        """Return whether a message settles or has changed since its row was loaded."""
        return seq in self.pending or seq in self.transitioned

    def note_deadline(self, deadline_ms: int | None) -> None:
        """Schedule a wake-up for this deadline (steady ms), unless an earlier one is scheduled."""
        if deadline_ms is not None and (
            self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms
        ):
            self.next_deadline_ms = deadline_ms

    def note_scheduled(self, message: Message) -> None:
        """Schedule a wake-up for a scheduled message, unless an earlier one is scheduled."""
        due_ms, deliver_at = self.next_scheduled
        options = message.options
        if options.deliver_at is not None:
            if deliver_at is None or options.deliver_at < deliver_at:
                self.next_scheduled = NextScheduled(due_ms, options.deliver_at)
        elif due_ms is None or (options.due_ms is not None and options.due_ms < due_ms):
            self.next_scheduled = NextScheduled(options.due_ms, deliver_at)

    def set_ttl(self, message: Message, ttl_s: int) -> None:
        """Set a message to expire in ``ttl_s`` seconds, or never if 0."""
        message.ttl_s, message.deadline_ms = deadline_of(ttl_s, self.now.steady_ms)

    def can_inspect_inline(self, size: int) -> bool:
        """Return whether this batch may validate content of this size or create a record for it.

        Either takes 0.1 s for 1 MiB, during which the event loop is blocked.
        """
        batch = self.batch
        if size > BACKGROUND_BYTES or batch.inspected_bytes + size > INLINE_BYTES:
            return False
        batch.inspected_bytes += size
        return True

    def record_hold_time(self, message: Message, queue: Queue) -> None:
        """Add the hold time of a message that is about to be settled to the queue's histogram."""
        if message.last_dispatched_at is not None:
            hold = queue.hold_histogram = queue.hold_histogram or [0] * BUCKETS
            hold[bucket(self.now.wall_ms - message.last_dispatched_at)] += 1

    # -- create

    def create_messages(
        self,
        runs: Sequence[QueueRun],
        contents: Sequence[bytes],
        ttls: Sequence[int | None],
        publisher: int | None,
    ) -> list[Message]:
        """Create and record messages at the end of their queues without adding them to windows.

        ``ttls`` are in seconds; 0 means no expiry, and None means the queue's default.
        """
        tokens = self._tokens
        if len(tokens) < len(contents):
            self._draw_tokens(len(contents))
        batch = self.batch
        wall_ms = self.now.wall_ms
        queue_ids = chain.from_iterable([repeat(queue.queue_id, number) for queue, number in runs])
        # The checksum is model.checksum, inlined.
        created = [
            Message(
                seq, tokens.pop(), queue_id, seq, 0, None, None, wall_ms, None, None, 0,
                0, len(body), crc32(body, crc32(seq.to_bytes(8, "big"))), publisher, None,
            )
            for seq, queue_id, body in zip(
                count(self.next_number), queue_ids, contents, strict=False
            )
        ]  # fmt: skip
        self.next_number += len(created)
        queue_rows = batch.queue_rows
        expires = any(ttls)
        start = 0
        for queue, number in runs:
            end = start + number
            default_s = queue.settings.default_ttl_s
            if expires or default_s:
                for message, own_s in zip(created[start:end], ttls[start:end], strict=True):
                    ttl_s = default_s if own_s is None else own_s
                    if ttl_s:
                        self.set_ttl(message, ttl_s)
                        self.note_deadline(message.deadline_ms)
            total = len(contents[start]) if number == 1 else sum(map(len, contents[start:end]))
            batch.created_bytes += total
            row = queue_rows[queue.queue_id] = queue.row  # as in add_counts, without a call
            row.live_count += number
            row.live_bytes += total
            queue.counters.published += number
            if created[start].position <= queue.claimed_to:  # claimed beyond it: a lower priority
                queue.claimed_to = created[start].position - 1
            start = end
        batch.created += created
        batch.bodies += contents
        return created

    def add_to_window(
        self, queue: Queue, created: Sequence[Message], contents: Sequence[bytes]
    ) -> None:
        """Add as many of a queue's new messages to its ready window as fit."""
        window = queue.window
        if window is None:
            return
        room = self.free_body_bytes(window)
        for message, body in zip(created, contents, strict=True):
            if message.size <= room:
                message.body = body
                room -= message.size
        if created[0].position < window.covered_to:  # before messages of a lower priority
            for message in created:
                if window.insert(message):
                    self.messages[message.seq] = message
            if len(window) > 2 * window.limit:  # trimming costs as much for one as for many
                self.trim_window(queue)
        else:
            added = window.add(created)
            self.messages.update(zip(map(_seq_of, created), created[:added], strict=False))
        self.needs_dispatch[queue.queue_id] = queue

    # -- ready windows

    def free_body_bytes(self, window: ReadyWindow) -> int:
        limits = self.limits
        room = limits.window_bytes - window.body_bytes
        total_room = limits.bodies_bytes - self.bodies.total_bytes
        if total_room < room:
            room = total_room
        return room if room > 0 else 0

    def trim_window(self, queue: Queue) -> None:
        """Drop messages that exceed the window's limit after messages were returned to it."""
        if queue.window is not None:
            dropped = queue.window.trim()
            if dropped:
                self.cancel_page(queue, queue.window)
                self.request_dispatch(queue)
            for message in dropped:
                del self.messages[message.seq]

    def cancel_page(self, queue: Queue, window: ReadyWindow) -> None:
        """Cancel the request for a window's next page, because the window's end has moved."""
        window.is_loading = False
        batch = self.batch
        batch.windows = [page for page in batch.windows if page.queue_id != queue.queue_id]

    def close_window(self, queue: Queue) -> None:
        """Drop the window of a queue that no longer has consumers."""
        if queue.window is not None:
            self.cancel_page(queue, queue.window)
            queue.window.drop_bodies()
            for message in queue.window:
                del self.messages[message.seq]
            queue.window = None

    def restart_window(self, queue: Queue) -> None:
        """Load a queue's window again, because the writer makes messages ready."""
        queue.claimed_to = BEFORE_ALL
        if queue.window is not None:
            self.close_window(queue)
            queue.window = ReadyWindow(self.limits.window, self.bodies)
            self.request_dispatch(queue)

    def make_ready(self, message: Message, queue: Queue, event: StateEvent) -> None:
        """Return a message to its position, or block it there behind others of its group."""
        if message.options.group is None or not self._must_wait(message, queue, event):
            self.admit(message, queue, event)

    def admit(self, message: Message, queue: Queue, event: StateEvent) -> None:
        """Enter a message as ready at its position, in the window or on disk."""
        queue.claimed_to = min(queue.claimed_to, message.position - 1)
        window = queue.window
        is_in_window = window is not None and window.insert(message)
        self._record_ready(message, event, is_in_window=is_in_window)
        if window is not None:
            self.request_dispatch(queue)

    def make_ready_at_end(self, message: Message, queue: Queue, event: StateEvent) -> None:
        """Move a message to the end of ``queue``, keeping its id."""
        message.position = position_of(self.take_number(), priority_of(message.position))
        message.queue_id = queue.queue_id
        self.make_ready(message, queue, event)

    def _must_wait(self, message: Message, queue: Queue, event: StateEvent) -> bool:
        """Block a message unless it has no group, or is its head; return whether it is blocked.

        Only the first of a group becomes ready, once it is known: others would overtake it.
        """
        place = self.group_place(message, queue)
        if place is None or self.heads.get(place) == message.seq:
            return False
        self.block(message, event)
        if place not in self.heads:
            self.batch.change_delivery().groups.add(place)
        return True

    def block(self, message: Message, event: StateEvent | None = None) -> None:
        """Keep a message on disk until it is the first of its group and no other is in flight.

        ``event`` would make it ready otherwise.
        """
        self._record_ready(message, event, is_in_window=False)
        message.state = next_state(message.state, StateEvent.BLOCK)

    def _record_ready(
        self, message: Message, event: StateEvent | None, *, is_in_window: bool
    ) -> None:
        message.state = message.state if event is None else next_state(message.state, event)
        message.is_sent = False
        self.batch.changed[message.seq] = message
        self.note_deadline(message.deadline_ms)
        if is_in_window:
            self.messages[message.seq] = message
        else:
            self.messages.pop(message.seq, None)

    def make_scheduled(
        self, message: Message, queue: Queue, due_ms: int, deliver_at: int | None
    ) -> None:
        """Keep a detached message on disk until its time; ``due_ms`` is steady."""
        self.set_due(message, queue, due_ms, deliver_at)
        # A new number also tells ``decide_clock`` that the time is right already.
        message.position = position_of(self.take_number(), priority_of(message.position))
        message.is_sent = False
        self.messages.pop(message.seq, None)
        self.batch.changed[message.seq] = message
        self.store_options(message)

    def set_due(self, message: Message, queue: Queue, due_ms: int, deliver_at: int | None) -> None:
        """Set when a message becomes ready, and keep what is left of its time to live."""
        old = message.options.due_ms if message.state == SCHEDULED else None
        if message.deadline_ms is not None:
            left_ms = message.deadline_ms - (self.now.steady_ms if old is None else old)
            message.deadline_ms = due_ms + max(0, left_ms)
        message.options = message.options._replace(due_ms=due_ms, deliver_at=deliver_at)
        message.queue_id = queue.queue_id
        if message.state != SCHEDULED:
            message.state = SCHEDULED
            self.count_scheduled(queue, 1)
        self.note_scheduled(message)

    def end_schedule(self, message: Message, queue: Queue) -> None:
        """Continue the time to live of a scheduled message, before it becomes ready."""
        options = message.options
        if message.deadline_ms is not None and options.due_ms is not None:
            message.deadline_ms += self.now.steady_ms - options.due_ms
        message.options = DeliveryOptions(self.now.wall_ms, None, None, *options[3:])
        self.store_options(message)
        self.count_scheduled(queue, -1)

    def store_options(self, message: Message) -> None:
        """Store the delivery options of a message that is already on disk."""
        self.batch.change_delivery().rescheduled[message.seq] = message

    def is_future(self, due_ms: int, deliver_at: int | None) -> bool:
        """Return whether a message must still wait; for dates, a doubtful clock cannot tell."""
        return due_ms > self.now.steady_ms or (deliver_at is not None and self.is_clock_doubtful)

    def due_of(self, delay_s: float, deliver_at: int | None) -> int:
        """Return the steady time after a delay, or when a date in Unix ms is expected."""
        if deliver_at is None:
            return self.now.steady_ms + round(delay_s * 1_000)
        return self.now.steady_ms + deliver_at - self.now.wall_ms

    def replace_content(self, message: Message, content: bytes) -> None:
        """Replace the content of a stored message that no consumer holds."""
        queue = self.queues_by_id[message.queue_id]
        self.add_counts(queue, 0, len(content) - message.size)
        message.size, message.crc = len(content), checksum(message.seq, content)
        message.body = None
        self.batch.change_delivery().rewritten[message.seq] = (message, content)
        self.batch.changed[message.seq] = message

    def end_rate_limits(self) -> None:
        """Serve the queues again whose rate allows another dispatch by now."""
        for queue_id, at_ms in list(self.rate_limited.items()):
            if at_ms <= self.now.steady_ms:
                del self.rate_limited[queue_id]
                if (queue := self.queues_by_id.get(queue_id)) is not None:
                    self.needs_dispatch[queue_id] = queue

    def count_scheduled(self, queue: Queue, change: int) -> None:
        queue.row.scheduled_count += change
        self.batch.queue_rows[queue.queue_id] = queue.row

    def group_place(self, message: Message, queue: Queue) -> tuple[int, str] | None:
        """Return the queue_id and the group of a message, or None if it is in no group there."""
        group = message.options.group
        if group is None or not queue.has_groups or message.is_record:
            return None
        return queue.queue_id, group

    def release_group(self, message: Message, *, leaves: bool) -> None:
        """Ask for the next message of a group, because this one gives up its place.

        The head of a group stays its head unless it ``leaves`` the queue.
        """
        place = self.group_place(message, self.queues_by_id[message.queue_id])
        if place is None:
            return
        if leaves and self.heads.get(place) == message.seq:
            del self.heads[place]
        if place not in self.heads:
            self.batch.change_delivery().groups.add(place)
            self.vacated.add(place)

    def detach(self, message: Message) -> Queue:
        """Remove a message from its holder or window; return its queue."""
        queue = self.queues_by_id[message.queue_id]
        if message.options.group is not None:
            self.release_group(message, leaves=False)
        consumer = message.holder
        if consumer is not None:
            self.ack_timeouts.forget(message)
            self.late.take(message.seq)
        if consumer is SUBSCRIPTION:
            message.holder = None
            queue.claimed -= 1
            self.needs_dispatch[queue.queue_id] = queue  # queue.max_in_flight may allow another
            self.batch.claims_removed.append(message.seq)
        elif consumer is not None:
            message.holder = None
            del consumer.held[message.message_id]
            self.count_held(consumer, -1, -message.size)
            if consumer.credit:
                self.wake_consumer(consumer)
            else:
                self.needs_dispatch[queue.queue_id] = queue
        elif queue.window is not None and message.state != SCHEDULED:
            queue.window.discard(message)
            self.needs_dispatch[queue.queue_id] = queue  # the first message may have changed
        return queue

    def count_held(self, consumer: Consumer, change: int, size: int) -> None:
        """Count messages that a consumer now holds, or with negative numbers no longer holds."""
        queue = consumer.queue
        consumer.held_bytes += size
        queue.held += change
        queue.held_bytes += size
        self.held += change
        self.held_bytes += size

    # -- dispatch

    def dispatch_in_turn(self, messages: Sequence[Message], consumers: Sequence[Consumer]) -> None:
        """Dispatch messages taken from a window to consumers with credit, in round-robin order.

        All messages belong to one queue; the first message goes to the first consumer.
        """
        self.batch.dispatched += messages
        if messages and len(consumers) == 1:
            self._dispatch_to(consumers[0], messages)
            return
        for place, consumer in enumerate(consumers):
            if part := messages[place :: len(consumers)]:
                self._dispatch_to(consumer, part)

    def _dispatch_to(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        queue, connection = consumer.queue, consumer.connection
        wall_ms, steady_ms = self.now
        number, held, total, redelivered = connection.number, consumer.held, 0, 0
        if (wait := queue.wait_histogram) is None:
            wait = queue.wait_histogram = [0] * BUCKETS
        for message in messages:
            message.state = DISPATCHED
            message.holder = consumer
            message.held_since_ms = steady_ms
            message.consumer = number
            message.deliveries += 1
            message.last_dispatched_at = wall_ms
            if message.first_dispatched_at is None:
                message.first_dispatched_at = wall_ms
                # Both histograms cost 0.17 µs per message.
                ms = wall_ms - (message.options.ready_at or message.published_at)
                wait[NEAR[ms] if 0 <= ms < NEAR_MS else bucket(ms)] += 1
            else:
                redelivered += 1
            held[message.message_id] = message
            total += message.size
        dispatched = len(messages)
        connection.batch_bytes += total
        self.count_held(consumer, dispatched, total)
        queue.counters.dispatched += dispatched
        queue.counters.redelivered += redelivered
        self.batch.sends[connection].dispatches.extend(messages)

    # -- settle

    def settle(self, message: Message, outcome: int, reason: str | None) -> None:
        """Move a message's row from the live table to the history.

        ``message.state`` is unchanged, because a row created in this batch is inserted with it.
        """
        queue = self.detach(message)
        if message.state == SCHEDULED:
            self.count_scheduled(queue, -1)
        if message.options is not NO_OPTIONS:
            self.settle_options(message)
        self.messages.pop(message.seq, None)
        self.batch.settled.setdefault((outcome, reason), []).append(message.seq)
        self.subtract_counts(queue, 1, message.size)
        if (source_id := message.source.queue_id) is not None:
            queue.count_record(source_id, -1)

    def settle_options(self, message: Message) -> None:
        """Keep the options of a settled message in the history; free its unique key and group."""
        self.batch.change_delivery().settled.add(message.seq)
        self.leave_queue(message)

    def leave_queue(self, message: Message) -> None:
        """Free the unique key of a message that leaves its queue, and its group."""
        place = self.unique_place(message, self.queues_by_id[message.queue_id])
        if place is not None:
            self.unique[place] = None
        self.release_group(message, leaves=True)

    def enter_queue(self, message: Message, queue: Queue) -> None:
        """Register the unique key and the group of a message that is new in a queue."""
        options = message.options
        if (place := self.unique_place(message, queue)) is not None:
            self.unique[place] = message.seq
        if options.head_since is not None:
            message.options = options._replace(head_since=None)
            self.store_options(message)
        if message.state == SCHEDULED:
            self.count_scheduled(queue, 1)

    def unique_place(self, message: Message, queue: Queue) -> tuple[int, str] | None:
        """Return the queue_id and the unique key of a message that has one there, or None."""
        key = message.options.unique_key
        return None if key is None or message.is_record else (queue.queue_id, key)

    def set_source(self, record: Message, source: MessageSource) -> None:
        """Record which message a new dead letter is about, and count it."""
        record.source = source
        if source.queue_id is not None:
            self.queues_by_id[record.queue_id].count_record(source.queue_id, 1)

    # -- counts

    def add_counts(self, queue: Queue, count: int, size: int) -> None:
        """Add messages, ``size`` bytes in total, to a queue's live counts."""
        row = queue.row
        row.live_count += count
        row.live_bytes += size
        self.batch.queue_rows[queue.queue_id] = row

    def subtract_counts(self, queue: Queue, count: int, size: int) -> None:
        """Subtract messages, ``size`` bytes in total, from a queue's live counts."""
        row = queue.row
        row.live_count -= count
        row.live_bytes -= size
        self.batch.queue_rows[queue.queue_id] = row
        if queue.parked:
            self.registry.wake_publishers(self.batch, queue)

    def refuse(self, queue: Queue | None, refusal: Refusal, detail: str) -> NoReturn:
        """Count a refused publish, and raise RefusedError with the refusal's code."""
        if queue is not None:
            queue.counters.refused += 1
        self.refused[refusal.reason] += 1
        raise RefusedError(refusal.code, detail)
