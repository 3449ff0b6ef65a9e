"""Read-only connections; each read is a single call to a thread, with a time limit.

Therefore, no transaction stays open across an ``await``, and no checkpoint waits for a reader.
"""

import asyncio
import re
import sqlite3
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, AnyStr, Final, cast

import aiosqlite

from phpmq_lite.errors import ReadTooLongError, StorageError
from phpmq_lite.storage.read.read_pool import ReadPool, Row
from phpmq_lite.storage.sqlite.database_file import read_only_uri

_STEPS_BETWEEN_CHECKS: Final = 10_000  # in SQLite virtual-machine steps; 10,000 take under 1 ms


class _Reader(sqlite3.Connection):
    """A read-only connection that stops each statement after a time limit.

    SQLite checks the time between two rows, but not within a function.  Therefore, large bodies are
    read by our own functions, which take linear time and also stop at the limit.

    - ``body_part(seq, start, size)``: part of a body.
    - ``in_time()``: returns 1, or raises after the limit.  Called before SQLite reads a large body.
    - ``has_text(content, text)``: like ``instr(content, text) > 0``, for BLOBs.
    - ``matches_glob(content, glob)``: like ``CAST(content AS TEXT) GLOB glob``, without ranges.
    """

    def __init__(self, *args: Any, limit_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit_s = limit_s
        self._ends_s = monotonic() + limit_s
        super().execute("PRAGMA query_only = 1")
        self.create_function("body_part", 3, self.body_part)
        self.create_function("in_time", 0, self._check_time)
        for function in (has_text, matches_glob):
            self.create_function(function.__name__, 2, partial(function, check=self._check_time))
        self.set_progress_handler(self.is_over, _STEPS_BETWEEN_CHECKS)

    def body_part(self, seq: int, start: int, size: int) -> bytes:
        """Read part of a body; SQL's ``substr`` would read the complete body first."""
        with self.blobopen("body", "content", seq, readonly=True) as blob:
            blob.seek(min(start, len(blob)))
            return blob.read(size)

    def _check_time(self) -> int:
        sleep(0)  # this releases the GIL, so that the broker does not wait 5 ms for it
        if self.is_over():
            raise ReadTooLongError
        return 1

    def is_over(self) -> bool:
        """Return whether the time limit has passed or the statement has been interrupted."""
        return monotonic() > self._ends_s

    def interrupt(self) -> None:
        """Stop the current statement, even inside our functions.  Can be called from any thread."""
        self._ends_s = 0.0
        super().interrupt()

    def begin(self) -> None:
        """Reset the time limit for the next statement, which can be interrupted from now on."""
        self._ends_s = monotonic() + self._limit_s


class SqliteReaders(ReadPool[Path, aiosqlite.Connection]):
    """Read-only connections to an SQLite file, each with its own thread."""

    engine = "sqlite"

    @property
    def export_databases(self) -> tuple[str, str]:
        """Path of the file, twice."""
        return str(self._database), str(self._database)

    def _interrupt(self, connection: aiosqlite.Connection) -> None:
        cast(_Reader, connection._conn).interrupt()

    async def _fetch(
        self, connection: aiosqlite.Connection, name: str, text: str, parameters: Mapping[str, Any]
    ) -> list[Row]:
        reader = cast(_Reader, connection._conn)
        # An interrupt stops a read at the next row; the progress handler needs many rows.
        timer = asyncio.get_running_loop().call_later(self.limit_s, reader.interrupt)
        closes = self.closes
        reader.begin()
        try:
            rows = await connection.execute_fetchall(text, parameters)
        except sqlite3.Error as error:
            is_late = error.sqlite_errorname == "SQLITE_INTERRUPT" or reader.is_over()
            failure = StorageError(f"cannot read {name}: {error}")
            raise self._failure(name, failure, closes, is_late=is_late) from error
        finally:
            timer.cancel()
        return [tuple(row) for row in rows]

    async def _connect(self) -> aiosqlite.Connection:
        path = self._database
        if not path.is_file():  # a failed attempt to open it would leave a thread behind
            raise StorageError(f"database {path.name} does not exist")
        uri, factory = read_only_uri(path), partial(_Reader, limit_s=self.limit_s)
        try:
            return await aiosqlite.connect(uri, uri=True, isolation_level=None, factory=factory)
        except (sqlite3.Error, RuntimeError, MemoryError) as error:  # no memory for a thread
            raise StorageError(f"cannot open {path.name} for reading: {error}") from error


# -- text and patterns in large bodies

# SQLite's ``instr`` and ``GLOB`` compare the complete pattern at each position of a body.
# For 8 MiB of one letter and a pattern of 2,000, that takes half a minute without interruption.
# The functions below take linear time; before each piece, ``check`` raises if time is up.

PIECE: Final = 1 << 16  # in bytes or characters; searching this many bytes takes 20 µs
_GLOB_MARK: Final = re.compile(r"\[(.)\]|(\*)|(\?)|(.)", re.DOTALL)

DeadlineCheck = Callable[[], object]
PatternSegment = tuple[str | None, ...]  # characters between two stars; None matches any character


def has_text(content: bytes | None, text: bytes, check: DeadlineCheck) -> bool | None:
    return None if content is None else _find(content, text, 0, len(content), check) >= 0


def matches_glob(content: bytes | None, glob: str, check: DeadlineCheck) -> bool | None:
    """Return whether a glob from ``search.language.as_glob`` matches all of ``content``.

    Each segment between two stars is searched for only once, after the previous segment, because if
    a match exists, so does one with each segment as early as possible.
    """
    if content is None:
        return None
    first, *others = segments(glob)
    check()
    text = content.decode("utf-8", "surrogateescape")
    if not others:
        return len(text) == len(first) and _is_at(text, 0, first)
    *inner, last = others
    start, end = len(first), len(text) - len(last)
    if start > end or not _is_at(text, 0, first) or not _is_at(text, end, last):
        return False
    for segment in inner:
        if None in segment:
            place = _find_with_gaps(text, segment, start, end, check)
        else:
            place = _find(text, "".join(filter(None, segment)), start, end, check)
        if place < 0:
            return False
        start = place + len(segment)
    return True


@lru_cache(maxsize=64)
def segments(glob: str) -> tuple[PatternSegment, ...]:
    """Split a glob at its stars; the result has one segment more than there are stars."""
    parts: list[list[str | None]] = [[]]
    for quoted, star, any_one, plain in _GLOB_MARK.findall(glob):
        if star:
            parts.append([])
        else:
            parts[-1].append(None if any_one else quoted or plain)
    return tuple(map(tuple, parts))


def _is_at(text: str, start: int, segment: PatternSegment) -> bool:
    return all(mark is None or text[at] == mark for at, mark in enumerate(segment, start))


def _find(text: AnyStr, part: AnyStr, start: int, end: int, check: DeadlineCheck) -> int:
    """Return the first index of ``part`` in ``text[start:end]``, or -1."""
    for piece in range(start, end, PIECE):
        check()
        place = text.find(part, piece, min(end, piece + PIECE + len(part) - 1))
        if place >= 0:
            return place
    return -1 if part else start


def _find_with_gaps(
    text: str, segment: PatternSegment, start: int, end: int, check: DeadlineCheck
) -> int:
    """Return the first index of a segment that contains ``?``, or -1 (Shift-And algorithm).

    Bit n of ``state`` is set if the last characters match the segment's first n + 1 characters.
    """
    gaps = sum(1 << at for at, mark in enumerate(segment) if mark is None)
    masks: dict[str, int] = {}
    for at, mark in enumerate(segment):
        if mark is not None:
            masks[mark] = masks.get(mark, gaps) | 1 << at
    matched = 1 << len(segment) - 1
    state = 0
    for piece in range(start, end, PIECE):
        check()
        for at in range(piece, min(end, piece + PIECE)):
            state = (state << 1 | 1) & masks.get(text[at], gaps)
            if state & matched:
                return at - len(segment) + 1
    return -1
