"""Pages for the admin: what is in the queues and the history, read without touching it.

Every read runs on a read-only connection, in one call to its thread, with a limit on rows and
on time; so no transaction stays open and no checkpoint waits for a reader (``storage.md`` 2).
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiosqlite

from phpmq_lite.errors import StorageError
from phpmq_lite.model import State, checksum
from phpmq_lite.storage.statements import load

READ_LIMIT_S: Final = 2.0  # one read
PAGE_ROWS: Final = 200  # at most
BODY_WHOLE_BYTES: Final = 256 * 1024  # shown whole up to here
BODY_HEAD_BYTES: Final = 64 * 1024  # of a larger one
EVENT_ROWS: Final = 500
EXPIRING_ROWS: Final = 10_000
_HISTORY_SLICE: Final = 20_000  # offsets looked at in one read when a filter has no index
_HISTORY_LIMIT_S: Final = 1.0  # for all slices of one page
_STEPS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's machine, below a millisecond
_ID_DIGITS: Final = frozenset("0123456789abcdef")

Row = tuple[Any, ...]


class ReadTooLongError(StorageError):
    """A read passed its time limit and was stopped; narrow it or continue from a cursor."""


@dataclass(slots=True, frozen=True)
class MessageRow:
    """A message as stored, alive or settled; the order is that of the columns in browse.sql.

    Times ending in ``_at`` are Unix milliseconds.  ``offset``, ``reason`` and ``settled_at``
    are None while it is alive; names and addresses are None where their row is gone.
    """

    offset: int | None
    seq: int
    token: int
    queue_id: int
    queue: str | None
    position: int
    state: int
    reason: str | None
    settled_at: int | None
    ttl_s: int | None
    deadline_at: int | None
    published_at: int
    first_dispatched_at: int | None
    last_dispatched_at: int | None
    deliveries: int
    charged: int
    size: int
    crc: int
    publisher: int | None
    publisher_kind: str | None
    publisher_address: str | None
    consumer: int | None
    consumer_kind: str | None
    consumer_address: str | None
    urn: str | None
    trace_id: str | None
    source_seq: int | None
    source_token: int | None
    source_queue: str | None
    source_reason: str | None
    preview: bytes | None  # at most 480 bytes; None: there is no body, or it is empty

    @property
    def message_id(self) -> str:
        """The id on the wire, 32 hex digits."""
        return wire_id(self.seq, self.token)

    @property
    def is_alive(self) -> bool:
        """Tell whether it is ready or dispatched."""
        return self.state in (State.READY, State.DISPATCHED)

    @property
    def source_id(self) -> str | None:
        """The id of the message that this dead-letter record is about, while history has it."""
        if self.source_seq is None or self.source_token is None:
            return None
        return wire_id(self.source_seq, self.source_token)


@dataclass(slots=True, frozen=True)
class DeadGroup:
    """Dead-letter records that share queue, origin and reason; None: published by a client."""

    queue_id: int
    queue: str
    origin: str | None
    reason: str | None
    records: int
    size: int  # bytes of their bodies
    first_at: int
    last_at: int
    last_seq: int
    last_token: int

    @property
    def sample_id(self) -> str:
        """The id of the newest record."""
        return wire_id(self.last_seq, self.last_token)


@dataclass(slots=True, frozen=True)
class Body:
    """The content of a message, or the beginning of a large one."""

    size: int
    content: bytes
    is_damaged: bool | None  # the stored CRC differs; None: not all of it was read

    @property
    def is_whole(self) -> bool:
        """Tell whether ``content`` is all of it."""
        return len(self.content) == self.size


@dataclass(slots=True, frozen=True)
class EventRow:
    """One unusual turn of a life."""

    at_ms: int
    kind: str
    detail: str | None


@dataclass(slots=True, frozen=True)
class HistoryPage:
    """Settled messages, newest first, and how far was looked.

    ``searched_to`` is the last offset looked at where the time ran out first, else None.
    """

    rows: list[MessageRow]
    has_more: bool
    searched_to: int | None
    lowest: int | None
    highest: int | None


def wire_id(seq: int, token: int) -> str:
    """Give the message id as it stands on the wire: 16 hex digits each."""
    return f"{seq:016x}{token:016x}"


def is_message_id(text: str) -> bool:
    """Tell whether ``text`` can be a message id: 32 lower-case hex digits."""
    return len(text) == 32 and _ID_DIGITS.issuperset(text)


class _Reader(sqlite3.Connection):
    """A connection that cannot write and stops each statement after a time."""

    def __init__(self, *args: Any, limit_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit_s = limit_s
        self._ends_s = monotonic() + limit_s
        super().execute("PRAGMA query_only = 1")
        self.set_progress_handler(self._is_over, _STEPS_BETWEEN_LOOKS)

    def _is_over(self) -> bool:
        return monotonic() > self._ends_s

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Run a statement; its time counts from here, in the connection's own thread."""
        self._ends_s = monotonic() + self._limit_s
        return super().execute(*args)


class Browser:
    """A few read-only connections to the database, opened on first use.

    All methods may raise ReadTooLongError, and StorageError where the database cannot be read.
    Pages are in the order they are shown; ``limit`` above ``PAGE_ROWS`` is cut to it.
    """

    def __init__(self, path: Path, *, readers: int = 2, limit_s: float = READ_LIMIT_S) -> None:
        self._path = path
        self._limit_s = limit_s
        self._statements = load("browse")
        self._free: asyncio.LifoQueue[aiosqlite.Connection | None] = asyncio.LifoQueue()
        for _ in range(readers):
            self._free.put_nowait(None)  # not opened yet
        self._open: list[aiosqlite.Connection] = []

    async def close(self) -> None:
        """Close the connections; a later read opens them again."""
        for connection in self._open:
            await connection.close()
        for _ in range(self._free.qsize()):
            self._free.get_nowait()
            self._free.put_nowait(None)
        self._open.clear()

    # -- queues

    async def oldest_ready(self, queue_ids: Iterable[int]) -> dict[int, int]:
        """Say when the first ready message of each queue was published; empty ones are left out."""
        asked = json.dumps(list(queue_ids))
        rows = await self._read("oldest_ready", queue_ids=asked)
        return {queue_id: published_at for queue_id, published_at in rows if published_at}

    async def expiring(self, before_ms: int) -> dict[int, tuple[int, int]]:
        """Count ready messages whose deadline is before that time: queue_id -> (count, soonest).

        The soonest ``EXPIRING_ROWS`` are counted, so counts that add up to it are lower bounds.
        """
        rows = await self._read("expiring", before_ms=before_ms, limit=EXPIRING_ROWS)
        return {queue_id: (count, soonest_ms) for queue_id, count, soonest_ms in rows}

    async def messages(
        self,
        queue_id: int,
        *,
        after: int | None = None,
        before: int | None = None,
        state: State | None = None,
        limit: int = 50,
    ) -> list[MessageRow]:
        """Give a page of a queue in order, behind or ahead of a position (exclusive)."""
        is_backwards = before is not None
        position = before if before is not None else after if after is not None else -1
        kind = "held" if state is State.DISPATCHED else "messages"
        parameters: dict[str, Any] = {"queue_id": queue_id, "position": position}
        if kind == "messages":
            parameters["state"] = state
        rows = await self._read(
            f"{kind}_{'before' if is_backwards else 'after'}", **parameters, limit=_page(limit)
        )
        return [MessageRow(*row) for row in (reversed(rows) if is_backwards else rows)]

    async def dead_groups(self, limit: int = PAGE_ROWS) -> list[DeadGroup]:
        """Group the records of all dead-letter queues by origin and reason, newest first."""
        rows = await self._read("dead_groups", limit=_page(limit))
        return [DeadGroup(*row) for row in rows]

    # -- one message

    async def message(self, message_id: str) -> MessageRow | None:
        """Find a message, alive or settled; None where the id is unknown or its row is gone."""
        if not is_message_id(message_id):
            return None
        seq = int(message_id[:16], 16)
        rows = await self._read("by_seq", seq=seq) if seq < 1 << 63 else []
        if not rows:
            return None
        found = MessageRow(*rows[0])
        return found if compare_digest(found.message_id, message_id) else None

    async def was_given(self, message_id: str) -> bool:
        """Tell whether this broker has given out the number in this id: then its row is gone."""
        rows = await self._read("next_number")
        return bool(rows) and 0 < int(message_id[:16], 16) < int(rows[0][0])

    async def body(self, message: MessageRow) -> Body | None:
        """Give the body, of one above 256 KiB the first 64 KiB; None where there is none."""
        rows = await self._read(
            "body_head", seq=message.seq, whole=BODY_WHOLE_BYTES, head=BODY_HEAD_BYTES
        )
        if not rows:
            return None
        size, content = rows[0][0], rows[0][1] or b""  # substr of an empty BLOB is NULL
        is_whole = len(content) == size
        return Body(size, content, _is_damaged(message, content) if is_whole else None)

    async def whole_body(self, message: MessageRow) -> Body | None:
        """Give the body, however large."""
        rows = await self._read("body", seq=message.seq)
        if not rows:
            return None
        content = rows[0][0]
        is_damaged = await asyncio.to_thread(_is_damaged, message, content)
        return Body(len(content), content, is_damaged)

    async def events(self, seq: int) -> list[EventRow]:
        """Give the unusual turns of one life, oldest first."""
        return [EventRow(*row) for row in await self._read("events", seq=seq, limit=EVENT_ROWS)]

    # -- history

    async def history(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        queue_id: int | None = None,
        outcome: State | None = None,
        limit: int = 50,
    ) -> HistoryPage:
        """Give settled messages older than ``before``, newer than ``after``, or the newest.

        A filter has no index: it looks at slices of offsets until the page is full, the end is
        reached or a second is over; then ``searched_to`` says where to continue.
        """
        lowest, highest = (await self._read("history_ends"))[0]
        if lowest is None or highest is None:
            return HistoryPage([], False, None, None, None)
        limit = _page(limit)
        is_newer = after is not None
        step = _HISTORY_SLICE if queue_id is not None or outcome is not None else 1 << 62
        start = after if after is not None else highest + 1 if before is None else before
        rows: list[Row] = []
        ends_s = monotonic() + _HISTORY_LIMIT_S
        while start < highest if is_newer else start > lowest:
            stop = min(start + step, highest) if is_newer else max(start - step, lowest)
            rows += await self._read(
                "history_newer" if is_newer else "history_older",
                start=start, stop=stop, queue_id=queue_id, outcome=outcome,
                limit=limit + 1 - len(rows),
            )  # fmt: skip
            start = stop
            if len(rows) > limit or monotonic() > ends_s:
                break
        is_done = len(rows) > limit or (start >= highest if is_newer else start <= lowest)
        page = [MessageRow(*row) for row in rows[:limit]]
        return HistoryPage(
            page[::-1] if is_newer else page,
            len(rows) > limit,
            None if is_done else start,
            lowest,
            highest,
        )

    # -- connections

    async def _read(self, name: str, **parameters: Any) -> list[Row]:
        async with self._connection() as connection:
            try:
                rows = await connection.execute_fetchall(self._statements[name], parameters)
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
                connection = await self._connect()
            yield connection
        finally:
            self._free.put_nowait(connection)

    async def _connect(self) -> aiosqlite.Connection:
        try:
            connection = await aiosqlite.connect(
                self._uri(),
                uri=True,
                isolation_level=None,
                factory=self._reader,
            )
        except sqlite3.Error as error:
            raise StorageError(f"cannot open {self._path.name} for reading: {error}") from error
        self._open.append(connection)
        return connection

    def _uri(self) -> str:
        if not self._path.is_file():  # a connection that fails to open leaves a thread behind
            raise StorageError(f"there is no database {self._path.name}")
        return f"{self._path.resolve().as_uri()}?mode=ro"

    def _reader(self, *args: Any, **kwargs: Any) -> _Reader:
        return _Reader(*args, limit_s=self._limit_s, **kwargs)


def _page(limit: int) -> int:
    return max(1, min(limit, PAGE_ROWS))


def _is_damaged(message: MessageRow, content: bytes) -> bool:
    return checksum(message.seq, content) != message.crc
