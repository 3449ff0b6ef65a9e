"""What the broker needs from the engine that stores its data: SQLite, or PostgreSQL."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Protocol, TypeVar

from phpmq_lite.model import BatchStore, ClockReading, RecoveredState
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store_status import StoreStatus

T = TypeVar("T")


class StoreWriter(BatchStore, Protocol):
    """Stores batches and does other work on the store, in the order of the calls."""

    @property
    def space(self) -> DiskSpace:
        """Room for messages, and why nothing can be stored at the moment."""

    def start(self, work: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run a function on the store after all earlier work; it may be repeated if it failed."""

    async def run(self, work: Callable[[Any], T]) -> T:
        """Run a function on the store and return its result."""

    async def close(self) -> None:
        """Stop writing, and close the database."""


class Upkeep(Protocol):
    """Maintenance between batches."""

    bounds: RetentionBounds  # can be replaced at any time


class Backend(Protocol):
    """One broker's database, from its start to its end; call the methods in this order."""

    @property
    def writer(self) -> StoreWriter:
        """What stores batches."""

    @property
    def read_clocks(self) -> Callable[[], tuple[int, int]] | None:
        """Wall and running time in ms, if the database has a clock of its own; see ``Clock``."""

    @property
    def is_structure_due(self) -> bool:
        """Whether a check of the structure was skipped and should run soon."""

    def status(self) -> StoreStatus:
        """Return the state of the store, without reading it."""

    async def watch(self) -> None:
        """Keep ``status`` up to date until this is cancelled; only for an open database."""

    def readers(self, count: int = 2) -> Readers:
        """Return connections for pages."""

    def read_replica(self) -> RecoveredState | None:
        """Return the state of another server to show, if no broker can store; blocks."""

    async def open(self, starting: StartRecorder, tell: Callable[[str], None]) -> None:
        """Check, open and migrate the database; ``tell`` is called with each step.

        Raises:
            StartRefusedError, DataDamagedError: the broker cannot start.
        """

    def close_with(self, stack: AsyncExitStack) -> None:
        """Add to ``stack`` what ends the use of the open database."""

    def record_use(self, stack: AsyncExitStack) -> None:
        """Record that the database is in use and, when ``stack`` unwinds, that it no longer is."""

    async def start_maintenance(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> Upkeep:
        """Begin maintenance, with limits for retention and the clocks to be stored."""
