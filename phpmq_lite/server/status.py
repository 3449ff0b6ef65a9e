"""Live statistics for the pages, the API and the metrics, read from the core between batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

from phpmq_lite.broker.broker import Broker, Operation, P, T
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.broker.queue import Connection, Queue, QueueCounters
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry, Reply, Shortage
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.addresses import PhpmqListener
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.backpressure import MemoryLimiter, ReadBackpressure, memory_bound
from phpmq_lite.server.counters import CommitCounters, ConnectionCounters
from phpmq_lite.server.engine import Engine, Tap
from phpmq_lite.server.session import Session
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backend import StoreStatus
from phpmq_lite.storage.disk_space import DiskSpace

RATE_WINDOW_S: Final = 10.0
NO_RATES: Final = (0.0, 0.0, 0.0)
SLICE: Final = 500  # number of queues per slice
LATE_S: Final = 5.0  # from this age of a batch on, nothing can be stored
_TOTALS: Final = tuple(field.name for field in fields(QueueCounters))  # all of them are counts
_totals: Final = attrgetter(*_TOTALS)  # asdict() takes ten times as long


@dataclass(slots=True)  # not frozen, because creating frozen objects takes four times as long
class QueueStatus:
    """A queue's statistics; rates cover the last ten seconds, and totals the time since startup.

    An idle queue's object is reused, so do not modify it.
    """

    queue_id: int
    name: str
    ready: int  # blocked messages of groups included
    scheduled: int
    dispatched: int
    dead: int  # number of its records in the dead-letter queue; 0 if the home queue counts them
    bytes: int  # total size of the bodies of live messages
    published_per_s: float
    dispatched_per_s: float
    acked_per_s: float
    consumers: int
    credit: int  # total unused credit of all consumers
    delivery_paused: bool
    publishing_paused: bool
    settings: QueueSettings
    totals: dict[str, int]
    wait: Sequence[int] = ()  # histograms; empty if nothing was measured
    hold: Sequence[int] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)  # totals["dead"], split by reason
    is_dead_letter_queue: bool = False  # True if its name or another queue's setting says so
    dead_letter_queue: str = ""  # queue that receives its dead-letter records

    @property
    def waiting(self) -> int:
        """Return the number of messages that no consumer holds."""
        return self.ready + self.scheduled

    @property
    def records_queue(self) -> str:
        """Return the queue with its dead-letter records: a dead-letter queue itself."""
        return self.name if self.is_dead_letter_queue else self.dead_letter_queue


@dataclass(slots=True, frozen=True)
class ClientStatus:
    """A connection's statistics; ``queues`` maps names to credit and number of held messages."""

    client: int
    kind: str
    address: str
    opened_at: int  # Unix ms
    queues: dict[str, tuple[int, int]]
    published: int
    acked: int
    framing: str | None = None
    packet_header: int | None = None
    revision: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    paused_reasons: tuple[str, ...] = ()  # why the connection is not being read, in order
    acked_per_s: float = 0.0
    relay: str = ""  # name of the broker that relays the connection
    certificate: str = ""  # subject of the client's certificate
    # What the client says of itself in a 014; empty or None if it says nothing.
    name: str = ""
    version: str = ""
    pid: int | None = None
    host: str = ""

    @property
    def program(self) -> str:
        """Return those that the client says of its name, version, process and host."""
        process = "" if self.pid is None else f"process {self.pid}"
        place = " ".join(filter(None, (process, self.host and f"on {self.host}")))
        return ", ".join(filter(None, (f"{self.name} {self.version}".strip(), place)))

    @property
    def paused_reason(self) -> str | None:
        """Return the reasons as text, or None if the connection is being read."""
        return ", ".join(self.paused_reasons) or None


@dataclass(slots=True, frozen=True)
class BrokerStatus:
    """The broker's current statistics."""

    started_at: int = 0  # Unix ms
    is_ready: bool = False
    step: str = "starting"
    is_draining: bool = False
    queues: tuple[QueueStatus, ...] = ()
    clients: tuple[ClientStatus, ...] = ()
    held: int = 0
    held_bytes: int = 0
    window_messages: int = 0
    body_cache_bytes: int = 0
    inbox: int = 0
    loop_lag_ms: float = 0.0
    acks_ignored: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    schedule_runs: Mapping[str, int] = field(default_factory=dict)  # by outcome
    listeners: tuple[PhpmqListener, ...] = ()
    last_error: str | None = None
    shortage: Shortage | None = None  # why publishing is stopped
    write_problem: str | None = None  # why nothing can be stored now
    oldest_batch_s: float = 0.0  # age of the oldest batch without an answer
    has_ballast: bool = False
    store: StoreStatus = field(default_factory=StoreStatus)
    audited: Mapping[str, int] = field(default_factory=dict)  # number of audit-log rows, by action
    clock_jumps: int = 0
    clock_jump_ms: int = 0  # size of the last clock jump
    clock_doubt_ms: int = 0  # clock difference that awaits a decision
    clock_doubt_number: int = 0  # first message number assigned since the clock was doubted
    clock_steady_ms: int = 0
    consumer_bytes: int = 0  # highest number of bytes held by one consumer
    unsent_bytes: int = 0  # highest number of unsent bytes on one connection
    held_times: int = 0  # number of times that consumers reached the held limits
    queue_count: int = 0
    publish_keys: int = 0  # number of remembered keys
    evicted_keys: int = 0  # number of keys forgotten because there were too many
    counters: ConnectionCounters = field(default_factory=ConnectionCounters)
    # The following continue to count.
    commits: CommitCounters = field(default_factory=CommitCounters)
    backpressure: ReadBackpressure = field(default_factory=lambda: ReadBackpressure(0))
    admission: Admission = field(default_factory=lambda: Admission(0, 0, 0))
    memory_limiter: MemoryLimiter = field(default_factory=lambda: MemoryLimiter(0))

    @property
    def is_relaying(self) -> bool:
        """Return whether this broker is a standby of an active one."""
        return not self.store.is_active and bool(self.store.active_broker)


class Rates:
    """Samples of every queue's totals in the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[int, tuple[QueueCounters, int, int, int]]]] = deque()

    def sample(self, queues: dict[int, Queue], at_s: float) -> None:
        """Record the current totals; call this about once a second."""
        counts = {
            number: (totals, totals.published, totals.dispatched, totals.acked)
            for number, queue in queues.items()
            for totals in (queue.counters,)
        }
        self._samples.append((at_s, counts))
        while at_s - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()

    def of(self, queue: Queue, at_s: float) -> tuple[float, float, float]:
        """Return the number of messages published, dispatched and acked per second."""
        if not self._samples:
            return NO_RATES
        since, counts = self._samples[0]
        totals, span_s = queue.counters, max(at_s - since, 0.5)
        before = counts.get(queue.queue_id)
        if before is None or before[0] is not totals:  # count from 0 for a new queue
            before = (totals, 0, 0, 0)
        _, published, dispatched, acked = before
        if (totals.published, totals.dispatched, totals.acked) == (published, dispatched, acked):
            return NO_RATES
        return (
            (totals.published - published) / span_s,
            (totals.dispatched - dispatched) / span_s,
            (totals.acked - acked) / span_s,
        )


class RunOperation(Protocol):
    """Runs operations for the admin: ``await handle.run(operations.purge, entry, name)``."""

    async def __call__(self, operation: Operation[T, P], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in the next batch, and return its reply after the commit."""


class BrokerHandle:
    """The admin's view of the broker; usable before the engine exists."""

    def __init__(self, settings: Settings) -> None:
        self.counters = ConnectionCounters()
        self.backpressure = ReadBackpressure(settings.limits.unstored_total)
        self.admission = Admission.from_settings(settings)
        self.memory_limiter = MemoryLimiter(memory_bound(settings.limits.memory))
        self.rates = Rates()
        self.engine: Engine | None = None
        self.space: DiskSpace | None = None
        self.store: Callable[[], StoreStatus] = StoreStatus
        self.loop_lag_ms = 0.0
        self._base = BrokerStatus(started_at=time.time_ns() // 1_000_000)
        self._idle: dict[int, tuple[int, QueueStatus]] = {}  # queue_id -> (activity, status)

    def set(self, **changes: object) -> None:
        """Change ``step``, ``is_ready``, ``is_draining``, ``listeners`` or ``last_error``."""
        self._base = replace(self._base, **changes)  # type: ignore[arg-type]

    @property
    def run(self) -> RunOperation:
        """Return ``Engine.run_operation`` if the broker is accepting changes.

        Raises RefusedError: ``not_ready`` during start and stop; ``not_writable`` if storing fails.
        """
        if self.engine is None or self.engine.is_stopping:
            raise RefusedError("not_ready", f"the broker is not ready: {self._base.step}")
        if self.space is not None and self.space.write_problem is not None:
            raise RefusedError(
                "not_writable", f"nothing can be stored now: {self.space.write_problem}"
            )
        return self.engine.run_operation

    async def decide_clock(self, entry: AuditEntry, *, is_right: bool) -> None:
        """Apply the decision on whether a clock that was far ahead at startup is correct.

        Raises RefusedError: ``no_doubt``: no decision is pending.
        """

        def decide(core: Broker, reply: Reply) -> None:
            clock = None if self.engine is None else self.engine.clock
            if clock is None or not clock.doubt_ms:
                raise RefusedError("no_doubt", "no decision about the clock is pending")
            away_ms, clock.doubt_ms = clock.doubt_ms, 0
            number = clock.doubt_number
            queue_operations.decide_clock(core, reply, entry, away_ms, number, is_right=is_right)

        await self.run(decide)

    @property
    def has_messages(self) -> bool:
        """Whether a message has ever been stored."""
        return self.engine is not None and self.engine.core.next_number > 1

    @property
    def live_queues(self) -> Collection[Queue]:
        """The queues in memory."""
        return () if self.engine is None else self.engine.core.queues_by_id.values()

    def hold_ends(self, seqs: Iterable[int]) -> dict[int, int]:
        """Return when the holds of those messages end that a consumer holds, in Unix ms, by seq.

        Messages that may be held forever are omitted.
        """
        if self.engine is None:
            return {}
        core, now = self.engine.core, self.engine.clock.now()
        ends: dict[int, int] = {}
        for seq in seqs:
            message = core.messages.get(seq)
            if message is None or message.holder is None:
                continue
            if (end_ms := core.ack_timeouts.end_of(message)) is not None:
                ends[seq] = now.wall_ms + end_ms - now.steady_ms
        return ends

    def extending(self) -> Collection[tuple[int, int | None]]:
        """Return the queue_ids and client numbers of consumers that extended a hold they have."""
        return () if self.engine is None else self.engine.core.ack_timeouts.extending()

    async def pause(self) -> None:
        """Yield to the event loop; see ``Engine.pause``."""
        if self.engine is None:
            await asyncio.sleep(0)
        else:
            await self.engine.pause()

    def tap(self, on_batch: Tap) -> Callable[[], None]:
        """Call ``on_batch`` with each stored batch; return a function that removes the tap.

        ``on_batch`` is called between commit and replies, so it must be fast and must not raise.
        """
        engine = self.engine
        if engine is None:
            raise RefusedError("not_ready", f"the broker is not ready: {self._base.step}")
        engine.taps.add(on_batch)
        return lambda: engine.taps.discard(on_batch)

    @property
    def oldest_batch_s(self) -> float:
        """Age of the oldest batch that the database has not answered, or 0."""
        age_s = 0.0 if self.engine is None else self.engine.oldest_batch_s
        return max(age_s, self.store().oldest_work_s)

    def status(self, is_wanted: Callable[[str], bool] | None = None) -> BrokerStatus:
        """Return statistics in O(queues + clients) time; each idle queue adds about 1 µs.

        ``is_wanted`` selects queues by name; other queues cost almost nothing.
        """
        queues = tuple(chain.from_iterable(self.queue_slices(is_wanted=is_wanted)))
        return replace(self.summary(), queues=queues)

    def summary(self) -> BrokerStatus:
        """Return the statistics other than those of the queues, in O(clients) time."""
        engine, space, counters = self.engine, self.space, self.counters
        problem, oldest_s = None if space is None else space.write_problem, self.oldest_batch_s
        if oldest_s >= LATE_S:
            problem = problem or f"a batch has waited {oldest_s:,.0f} s for the database's answer"
        counted = ("closed", "paused", "protocol_errors")
        copies = {name: getattr(counters, name).copy() for name in counted}
        base = replace(
            self._base,
            store=self.store(),
            loop_lag_ms=self.loop_lag_ms,
            counters=replace(counters, **copies),
            shortage=None if space is None else space.shortage,
            write_problem=problem,
            oldest_batch_s=oldest_s,
            has_ballast=space is not None and space.has_ballast,
            backpressure=self.backpressure,
            admission=self.admission,
            memory_limiter=self.memory_limiter,
        )
        if engine is None:
            return base
        core, clock = engine.core, engine.clock
        connections = core.connections.values()
        held = (consumer.held_bytes for c in connections for consumer in c.consumers.values())
        unsent = (c.peer.unsent_bytes for c in connections if isinstance(c.peer, Session))
        return replace(
            base,
            clients=tuple(_client(connection) for connection in connections),
            held=core.held,
            held_bytes=core.held_bytes,
            window_messages=sum(len(q.window) for q in core.queues.values() if q.window),
            body_cache_bytes=core.bodies.total_bytes,
            inbox=engine.waiting,
            commits=engine.commits,
            acks_ignored=dict(core.ignored),
            refused=dict(core.refused),
            schedule_runs=dict(core.schedules.counts),
            audited=dict(core.audit_counts),
            clock_jumps=clock.jumps,
            clock_jump_ms=clock.last_jump_ms,
            clock_doubt_ms=clock.doubt_ms,
            clock_doubt_number=clock.doubt_number,
            clock_steady_ms=clock.now().steady_ms,
            consumer_bytes=max(held, default=0),
            unsent_bytes=max(unsent, default=0),
            held_times=core.dispatch_pauses,
            queue_count=len(core.queues),
            publish_keys=len(core.publish_keys),
            evicted_keys=core.publish_keys.evicted,
        )

    def queue_slices(
        self, size: int = SLICE, is_wanted: Callable[[str], bool] | None = None
    ) -> Iterator[list[QueueStatus]]:
        """Yield queue statistics, ``size`` queues at a time, so that the event loop can run.

        Queues that are created or removed during the iteration may be missing.
        """
        engine = self.engine
        if engine is None:
            return
        core = engine.core
        queues = list(core.queues.values())
        if is_wanted is not None:
            queues = [queue for queue in queues if is_wanted(queue.name)]
        at_s = asyncio.get_running_loop().time()
        for at in range(0, len(queues), size):
            yield [self._queue(queue, core, at_s) for queue in queues[at : at + size]]
        if len(self._idle) > 2 * len(core.queues):
            self._idle.clear()  # many queues were removed

    def _queue(self, queue: Queue, core: Broker, at_s: float) -> QueueStatus:
        """Return a queue's statistics, reusing the previous object if the queue was idle."""
        dead_letter_name = core.registry.dead_letter_name(queue)
        dead = core.registry.count_records(queue)
        rates = self.rates.of(queue, at_s)
        turns, row = queue.counters.activity, queue.row
        if queue.consumers or rates is not NO_RATES:
            return _queue(queue, dead_letter_name, dead, rates)
        last = self._idle.get(queue.queue_id)
        if last is not None:
            before, status = last
            if (
                before == turns
                and status.settings is queue.settings
                and status.dead == dead
                and status.dead_letter_queue == dead_letter_name
                and status.is_dead_letter_queue is queue.is_dead_letter_queue
                and status.bytes == row.live_bytes
                and status.ready + status.scheduled + status.dispatched == row.live_count
                and status.scheduled == row.scheduled_count
                and status.dispatched == queue.dispatched
            ):
                return status
        status = _queue(queue, dead_letter_name, dead, rates)
        self._idle[queue.queue_id] = (turns, status)
        return status


def _queue(
    queue: Queue, dead_letter_name: str, dead: int, rates: tuple[float, float, float]
) -> QueueStatus:
    published, dispatched, acked = rates
    credit = sum(max(0, c.credit - len(c.held)) for c in queue.consumers.values())
    return QueueStatus(
        queue_id=queue.queue_id,
        name=queue.name,
        ready=queue.row.live_count - queue.dispatched - queue.row.scheduled_count,
        scheduled=queue.row.scheduled_count,
        dispatched=queue.dispatched,
        dead=dead,
        bytes=queue.row.live_bytes,
        published_per_s=published,
        dispatched_per_s=dispatched,
        acked_per_s=acked,
        consumers=len(queue.consumers),
        credit=credit,
        delivery_paused=queue.settings.delivery_paused,
        publishing_paused=queue.settings.publishing_paused,
        settings=queue.settings,  # never modified, because a change replaces the object
        totals=dict(zip(_TOTALS, _totals(queue.counters), strict=True)),
        wait=queue.wait_histogram or (),
        hold=queue.hold_histogram or (),
        deaths=queue.dead_by_reason,
        is_dead_letter_queue=queue.is_dead_letter_queue,
        dead_letter_queue=dead_letter_name,
    )


def _client(connection: Connection) -> ClientStatus:
    status = ClientStatus(
        client=connection.number,
        kind=connection.kind,
        address=connection.address,
        opened_at=connection.opened_at,
        queues={c.queue.name: (c.credit, len(c.held)) for c in connection.consumers.values()},
        published=connection.published,
        acked=connection.acked,
    )
    session = connection.peer
    if not isinstance(session, Session):
        return status
    reasons = set(session.paused)
    if session.is_parked:
        queue = connection.parked
        reasons.add("disk" if queue is not None and queue.stop else "queue")
    return replace(
        status,
        framing=session.side.parser.framing,
        packet_header=session.side.packet_header,
        revision=session.side.parser.revision_seen,
        bytes_in=session.bytes_in,
        bytes_out=session.bytes_out,
        paused_reasons=tuple(sorted(reasons)),
        acked_per_s=session.acks.per_s,
        relay=session.relay,
        certificate=session.certificate,
        **session.client_facts,
    )
