"""Reads for pages, shared fairly between callers, whichever engine stores the rows.

Each read is a single statement with a time limit, so that no transaction stays open across an
``await``.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from phpmq_lite.errors import ReadTooLongError, StorageError
from phpmq_lite.storage.statements import load


class _Connection(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T")
D = TypeVar("D")  # where the database is
C = TypeVar("C", bound=_Connection)  # a connection of an engine's driver

READ_LIMIT_S: Final = 2.0  # time limit for each read
_CLOSING: Final = "close"  # owner of the slots acquired by ``close``

Row = tuple[Any, ...]

# The user or client on whose behalf the current task reads.
read_owner: Final[ContextVar[str]] = ContextVar("read_owner", default="")


class FairReadSlots:
    """Assigns free read slots to the owners that hold the fewest; in a tie, owners take turns.

    A single owner can use all slots.  Each owner's requests are served in order of arrival.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self.held: Counter[str] = Counter()  # number of slots held by each owner
        # The most recently served owner is at the end.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, owner: str) -> None:
        if self.free:
            self.free -= 1
            self.held[owner] += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # the slot was handed over just before the cancellation
                self.release(owner)
            elif waiter in (line := self._waiting.get(owner, deque())):
                line.remove(waiter)
                if not line:
                    del self._waiting[owner]
            raise

    def release(self, owner: str) -> None:
        self.held[owner] -= 1
        if not self.held[owner]:
            del self.held[owner]
        self.free += 1
        while self.free and self._waiting:
            following = min(self._waiting, key=lambda waiting: self.held[waiting])
            line = self._waiting.pop(following)
            waiter = line.popleft()
            if line:
                self._waiting[following] = line  # move the owner behind all others
            if not waiter.done():  # a waiter that is already done has been cancelled
                self.free -= 1
                self.held[following] += 1
                waiter.set_result(None)


class ReadPool(ABC, Generic[D, C]):
    """A few read-only connections to one database, opened on first use.

    Callers (``read_owner``) take turns, so that one caller's many reads do not delay other callers.
    Methods raise ReadTooLongError after the time limit, and StorageError if reading fails.
    """

    engine: ClassVar[str]  # name of the folder with the engine's statements

    def __init__(self, database: D, *, count: int = 2, limit_s: float = READ_LIMIT_S) -> None:
        self.limit_s = limit_s
        self._database = database
        self._slots = FairReadSlots(count)
        self._free: list[C | None] = [None] * count  # None means not opened yet
        self._count = count
        self._busy: set[C] = set()
        self.closes = 0  # number of ``close`` calls; a call makes all earlier reads fail
        # Two concurrent ``close`` calls would wait for each other.
        self._closing = asyncio.Lock()
        self._pools: list[Self] = []

    @property
    @abstractmethod
    def export_databases(self) -> tuple[str, str]:
        """Path or URL from which exports read the history, and from which they read claims."""

    @abstractmethod
    async def _connect(self) -> C:
        """Open a connection."""

    @abstractmethod
    def _interrupt(self, connection: C) -> None:
        """Interrupt the statement that a connection is executing."""

    @abstractmethod
    async def _fetch(
        self, connection: C, name: str, text: str, parameters: Mapping[str, Any]
    ) -> list[Row]:
        """Execute a statement; raise ReadTooLongError or StorageError."""

    def _is_broken(self, connection: C) -> bool:
        """Return whether a connection has to be opened again."""
        return False

    def _failure(
        self, name: str, failure: StorageError, closes: int, *, is_late: bool
    ) -> StorageError:
        """Return why a read failed that began after ``closes`` calls of ``close``."""
        if closes != self.closes:
            return StorageError(f"cannot read {name}: the broker is stopping")
        if is_late:
            return ReadTooLongError(f"reading {name} took longer than {self.limit_s:g} s")
        return failure

    def separate(self, *, count: int = 1, limit_s: float = READ_LIMIT_S) -> Self:
        """Return a separate pool for slow reads of the same database, closed with this one."""
        pool = type(self)(self._database, count=count, limit_s=limit_s)
        self._pools.append(pool)
        return pool

    async def close(self) -> None:
        """Close the connections; later reads open them again.

        Running and waiting reads fail with StorageError, because they must not delay a stop.  The
        call waits for each connection, because an open one might call a closed event loop.
        """
        for other in self._pools:
            await other.close()
        async with self._closing:
            taken: list[C | None] = []
            try:
                self.closes += 1
                for connection in self._busy:
                    self._interrupt(connection)
                while len(taken) < self._count:
                    await self._slots.acquire(_CLOSING)
                    taken.append(self._free.pop())
                for at, open_one in enumerate(taken):
                    if open_one is not None:
                        await open_one.close()
                        taken[at] = None
            finally:
                for open_one in taken:
                    self._free.append(open_one)
                    self._slots.release(_CLOSING)

    async def read(self, file: str, name: str, /, **parameters: Any) -> list[Row]:
        """Execute the statement ``name`` from the engine's ``<file>.sql`` and return all rows."""
        return await self.run(name, load(file, self.engine)[name], parameters)

    async def run(self, name: str, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Execute a statement composed of parts; ``name`` appears in error messages."""
        owner, closes = read_owner.get(), self.closes
        await self._slots.acquire(owner)
        connection = self._free.pop()
        try:
            if closes != self.closes:
                raise StorageError("the broker is stopping")
            if connection is None:
                opening = asyncio.create_task(self._connect())
                try:
                    connection = await asyncio.shield(opening)
                except asyncio.CancelledError:  # otherwise, the connection would open and leak
                    connection = await opening
                    raise
            self._busy.add(connection)
            return await self._fetch(connection, name, text, parameters)
        finally:
            if connection is not None:
                self._busy.discard(connection)
            is_open = connection is not None and not self._is_broken(connection)
            self._free.append(connection if is_open else None)
            self._slots.release(owner)


# A pool of any engine.
Readers = ReadPool[Any, Any]


class RowReader:
    """Base class for classes that read with the statements in the engine's ``<file>.sql``.

    Methods raise ReadTooLongError, and StorageError if the database cannot be read.
    """

    file: ClassVar[str]

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def _read(self, name: str, /, **parameters: Any) -> list[Row]:
        return await self._readers.read(self.file, name, **parameters)

    async def _all(self, kind: Callable[..., T], name: str, /, **parameters: Any) -> list[T]:
        """Run a statement and return all rows, each converted to an instance of ``kind``."""
        return [kind(*row) for row in await self._read(name, **parameters)]

    async def _one(self, kind: Callable[..., T], name: str, /, **parameters: Any) -> T | None:
        """Run a statement and return the first row as a ``kind``, or None if there is no row."""
        rows = await self._read(name, **parameters)
        return kind(*rows[0]) if rows else None


Item = TypeVar("Item")
Place = TypeVar("Place")  # what a page starts from: a position here, an opaque cursor for users


@dataclass(slots=True, frozen=True)
class Page(Generic[Item, Place]):
    """The rows of one page, and where the adjacent pages start; None means there is none.

    About ``searched`` of ``total`` rows have been searched since the first page.
    """

    rows: Sequence[Item]
    next: Place | None = None
    previous: Place | None = None
    is_cut: bool = False  # whether a limit ended the search before the page was full
    searched: int = 0
    total: int = 0
