"""The interface of an engine to the composition root: SQLite or PostgreSQL."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from phpmq_lite.model import ClockReading, RecoveredState
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store_status import StoreStatus
from phpmq_lite.storage.store_writer import StoreMaintenance, StoreWriter


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
        """Follow the state of the server that has the database, until cancelled.

        This is only called if ``database`` is None.
        """
        raise NotImplementedError
