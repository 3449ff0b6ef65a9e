"""Read-only connections: each read is one call to a thread, whole, with a limit on its time.

So no transaction stays open over an ``await`` and no checkpoint waits for a reader.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiosqlite

from phpmq_lite.errors import ReadTooLongError, StorageError
from phpmq_lite.storage.statements import load

READ_LIMIT_S: Final = 2.0  # one read
_STEPS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's machine, below a millisecond

Row = tuple[Any, ...]


class _Reader(sqlite3.Connection):
    """A connection that cannot write and stops each statement after a time.

    It gives SQL the function ``body_part(seq, start, size)``.
    """

    def __init__(self, *args: Any, limit_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit_s = limit_s
        self._ends_s = monotonic() + limit_s
        super().execute("PRAGMA query_only = 1")
        self.create_function("body_part", 3, self.body_part)
        self.set_progress_handler(self._is_over, _STEPS_BETWEEN_LOOKS)

    def body_part(self, seq: int, start: int, size: int) -> bytes:
        """Read part of a body; ``substr`` would read all of it first."""
        with self.blobopen("body", "content", seq, readonly=True) as blob:
            blob.seek(min(start, len(blob)))
            return blob.read(size)

    def _is_over(self) -> bool:
        return monotonic() > self._ends_s

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Run a statement; its time counts from here, in the connection's own thread."""
        self._ends_s = monotonic() + self._limit_s
        return super().execute(*args)


class Readers:
    """A few read-only connections to one database, opened on first use.

    All methods may raise ReadTooLongError, and StorageError where the database cannot be read.
    """

    def __init__(self, path: Path, *, count: int = 2, limit_s: float = READ_LIMIT_S) -> None:
        self._path = path
        self._limit_s = limit_s
        self._free: asyncio.LifoQueue[aiosqlite.Connection | None] = asyncio.LifoQueue()
        for _ in range(count):
            self._free.put_nowait(None)  # not opened yet
        self._count = count
        self._closing = asyncio.Lock()  # two that close at once would wait for each other
        self._others: list[Readers] = []

    def apart(self, *, count: int = 1, limit_s: float = READ_LIMIT_S) -> "Readers":
        """Give further connections to the same database, for what may take long.

        They are closed with these.
        """
        made = Readers(self._path, count=count, limit_s=limit_s)
        self._others.append(made)
        return made

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    async def close(self) -> None:
        """Close the connections, after the reads that are under way; a later one opens them again.

        Each is waited for: one that is left open answers a loop which may be closed by then.
        """
        for other in self._others:
            await other.close()
        async with self._closing:
            taken: list[aiosqlite.Connection | None] = []
            try:
                while len(taken) < self._count:
                    taken.append(await self._free.get())
                for at, connection in enumerate(taken):
                    if connection is not None:
                        await connection.close()
                        taken[at] = None
            finally:
                for connection in taken:
                    self._free.put_nowait(connection)

    async def read(self, file: str, name: str, /, **parameters: Any) -> list[Row]:
        """Run the statement ``name`` of ``sql/<file>.sql`` and return all its rows."""
        return await self.run(name, load(file)[name], parameters)

    async def run(self, name: str, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run a statement put together from the parts of a file; ``name`` is for errors."""
        async with self._connection() as connection:
            try:
                rows = await connection.execute_fetchall(text, parameters)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname == "SQLITE_INTERRUPT":
                    raise ReadTooLongError(
                        f"reading {name} took longer than {self._limit_s:g} s"
                    ) from error
                raise StorageError(f"cannot read {name}: {error}") from error
            except sqlite3.Error as error:
                raise StorageError(f"cannot read {name}: {error}") from error
        return [tuple(row) for row in rows]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[aiosqlite.Connection]:
        connection = await self._free.get()
        try:
            if connection is None:
                opening = asyncio.create_task(self._connect())
                try:
                    connection = await asyncio.shield(opening)
                except asyncio.CancelledError:  # by then it is open, and would be lost
                    connection = await opening
                    raise
            yield connection
        finally:
            self._free.put_nowait(connection)

    async def _connect(self) -> aiosqlite.Connection:
        try:
            return await aiosqlite.connect(
                self._uri(),
                uri=True,
                isolation_level=None,
                factory=self._reader,
            )
        except sqlite3.Error as error:
            raise StorageError(f"cannot open {self._path.name} for reading: {error}") from error

    def _uri(self) -> str:
        if not self._path.is_file():  # a connection that fails to open leaves a thread behind
            raise StorageError(f"there is no database {self._path.name}")
        return f"{self._path.resolve().as_uri()}?mode=ro"

    def _reader(self, *args: Any, **kwargs: Any) -> _Reader:
        return _Reader(*args, limit_s=self._limit_s, **kwargs)
