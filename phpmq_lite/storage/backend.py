"""The interface of an engine to the composition root: SQLite or PostgreSQL."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from phpmq_lite.errors import BatchRefusedError
from phpmq_lite.logs import get_logger
from phpmq_lite.model import ClockReading, RecoveredState
from phpmq_lite.storage import retention
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store import Store, note_clock

if TYPE_CHECKING:
    from phpmq_lite.model import BatchStore
else:
    BatchStore = ABC  # mypyc: no class of an interpreted module inherits from a compiled protocol

_log = get_logger(__name__)
T = TypeVar("T")
RETENTION_EVERY_MS: Final = 1_000
# The pause doubles up to this while nothing is found.  The 25 statements take 40 ms beside a busy
# event loop, for whose GIL each of them waits; once a second, that was the p99 of publishing.
_RETENTION_MOST_MS: Final = 10_000
_CLOCK_EVERY_MS: Final = 60_000  # maximum time between two stored clock states


@dataclass(slots=True, frozen=True)
class Replica:
    """A server that replicates the database; None means that the broker may not see the value."""

    name: str
    address: str | None = None
    state: str | None = None
    is_counted: bool | None = None  # whether it counts for the quorum
    lag_bytes: int | None = None  # written on the primary, but not flushed on the replica
    lag_s: float | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether it can confirm a commit; True if the broker may not see that."""
        return self.state in ("streaming", None) and self.is_counted is not False


@dataclass(slots=True, frozen=True)
class ServerStatus:
    """The PostgreSQL server that accepts writes, as last read; sizes are in bytes."""

    version: str
    database_bytes: int
    schema: int  # number of the newest applied migration
    has_checksums: bool  # whether the server verifies the checksums of its pages
    connections: int
    max_connections: int
    folder: str | None  # the server's data folder, if it is on this machine and the role may see it
    replicas: tuple[Replica, ...] = ()
    oldest_transaction: str | None = None  # it keeps VACUUM from removing rows
    oldest_transaction_s: float = 0.0
    disk_free: int = 0  # of the folder's disk
    disk_bytes: int = 0  # 0 if unknown


@dataclass(slots=True, frozen=True)
class StoreStatus:
    """The state of the store; the defaults describe SQLite."""

    engine: str = "SQLite"
    is_reached: bool = True  # False: a standby, or a broker that starts, does not reach the server
    place: str = ""  # hosts and database, without secrets
    is_active: bool = True  # False: a standby
    active_broker: str = ""  # name of the active broker's machine, if this one is a standby
    standby_problem: str = ""  # why this standby could not take over
    epoch: int = 0  # raised by each broker that takes over
    quorum: str = ""  # the servers' setting for synchronous replication
    replicas_required: int = 0  # how many replicas must confirm a commit
    allows_asynchronous: bool = False  # store.allow_asynchronous
    asynchronous: str | None = None  # why the last commit was confirmed without a quorum
    asynchronous_commits: int = 0  # since startup, as below
    reconnects: int = 0
    unknown_batches: int = 0  # batches of unknown outcome, which were found or stored again
    server: ServerStatus | None = None  # None until it has been read
    problem: str | None = None  # why the server cannot be read at the moment
    oldest_work_s: float = 0.0  # age of what the server has not answered, such as a heartbeat
    # How long ago the replica was written that pages show while no broker is active, in seconds.
    replica_age_s: float | None = None

    @property
    def has_file(self) -> bool:
        """Return whether the database is a file of this machine, which the broker looks after."""
        return self.engine == "SQLite"

    @property
    def replicas_ready(self) -> int | None:
        """Return how many replicas can confirm commits, or None if that is not known."""
        if self.server is None:
            return None
        return sum(replica.is_ready for replica in self.server.replicas)


class StoreWriter(BatchStore):
    """Stores batches and does other work on the store, in order of the calls."""

    space: DiskSpace  # room for messages, and why nothing can be stored at the moment
    # Called between batches; returns True if it should be called again soon.
    maintenance: Callable[[Any, ClockReading, bool], bool] = staticmethod(lambda *_: False)

    @abstractmethod
    def start(self, work: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run a function on the store after all earlier work; it may be repeated if it failed."""

    @abstractmethod
    async def close(self) -> None:
        """Close the database after all earlier work; can be called twice."""

    async def run(self, work: Callable[[Any], T]) -> T:
        return await self.start(work)

    def store_clock_jump(self, counters: Mapping[str, int]) -> asyncio.Future[None]:
        """Store the clocks after a jump, before any later batches are stored."""
        return self.start(lambda store: note_clock(store, counters, has_jumped=True))

    async def maintain(self, now: ClockReading, *, is_idle: bool) -> bool:
        """Run ``maintenance`` after all earlier work; return True if it should run again soon."""
        try:
            return await self.run(lambda store: self.maintenance(store, now, is_idle))
        except BatchRefusedError as error:  # nothing was stored; it is tried again as scheduled
            _log.error("maintenance_refused", reason=str(error))
            return False


def essential_steps(
    steps: Sequence[T], is_optional: Callable[[T], bool], error: BatchRefusedError
) -> list[T]:
    """Return a refused batch's steps without optional rows; raise ``error`` if it has none."""
    essential = [step for step in steps if not is_optional(step)]
    if len(essential) == len(steps):
        raise error
    _log.error("optional_rows_dropped", reason=str(error), steps=len(steps) - len(essential))
    return essential


class StoreMaintenance:
    """The writer's work between batches, in short slices; ``bounds`` can be replaced at any time.

    ``counters`` returns the state of the clocks, which is stored once a minute, so that the next
    startup knows the downtime.
    """

    _most_pause_ms = _RETENTION_MOST_MS

    def __init__(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> None:
        self.bounds = bounds
        self._counters = counters
        self._retention_due_ms = 0  # when retention is next due, in steady ms
        self._pause_ms = RETENTION_EVERY_MS // 2  # between the last two steps
        self._clock_due_ms = 0  # when the clocks must next be stored, in steady ms

    def _store_clocks(self, store: Store, now: ClockReading) -> None:
        if now.steady_ms >= self._clock_due_ms:
            note_clock(store, self._counters(now))
            self._clock_due_ms = now.steady_ms + _CLOCK_EVERY_MS

    def _retain(self, store: Store, now: ClockReading) -> bool:
        """Remove what has expired if that is due; return True if more work is due soon."""
        if now.steady_ms < self._retention_due_ms:
            return False
        if retention.remove_dropped_stages(store):
            return True
        removed, has_more = retention.remove_expired(store, self.bounds, now.steady_ms)
        if not has_more:
            longer_ms = min(2 * self._pause_ms, self._most_pause_ms)
            self._pause_ms = RETENTION_EVERY_MS if removed else longer_ms
            self._retention_due_ms = now.steady_ms + self._pause_ms
        return has_more


class Backend(ABC):
    """A database, from its opening to its last write."""

    writer: StoreWriter
    read_clocks: Callable[[], tuple[int, int]] | None = None  # None: the clocks of this machine
    database: Path | None = None  # file to back up and scrub; None if a server has the database
    is_structure_due = False  # whether the structure of that file must be checked soon

    @abstractmethod
    def status(self) -> StoreStatus:
        """Return the known state of the database, without reading it."""

    @abstractmethod
    def readers(self, count: int = 2) -> Readers:
        """Return connections for pages."""

    def read_replica(self) -> RecoveredState | None:
        """Return the state of a server that can be read if no broker is active; blocks."""
        return None

    @abstractmethod
    async def open(self, starting: StartRecorder, tell: Callable[[str], None]) -> None:
        """Wait until this broker may use the database, check it, open it and migrate it."""

    @abstractmethod
    def close_with(self, stack: AsyncExitStack) -> None:
        """Add to ``stack`` what closes the database."""

    @abstractmethod
    def record_use(self, stack: AsyncExitStack) -> None:
        """Record that the database is in use and, when ``stack`` unwinds, that it no longer is."""

    @abstractmethod
    async def start_maintenance(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> StoreMaintenance:
        """Begin the writer's work between batches, such as retention."""

    async def watch_server(self) -> None:
        """Follow the state of the server that has the database, if ``database`` is None."""
        raise NotImplementedError
