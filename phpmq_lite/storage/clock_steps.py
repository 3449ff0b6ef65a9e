"""Jumps of the wall clock, as stored: by them what was settled gets its age on the steady scale.

Times that people read are those of the wall clock.  Where that was set, they say nothing about an
age: a year ahead for a minute, everything would be a year old.  So each jump is a row in the table
``clock_step``, stored ahead of the batch that was decided after it.
"""

import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from phpmq_lite.errors import StorageFullError
from phpmq_lite.storage.outcomes import told
from phpmq_lite.storage.statements import load
from phpmq_lite.storage.store import Store

KEPT: Final = 1_000  # jumps; a clock that is set all the time must not fill the disk
_SMALL_MS: Final = 2_000  # not worth a row at a start


class Steps:
    """How far the wall clock was ahead of the steady scale when something was settled, in ms."""

    __slots__ = ("_from", "_steps")

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        """Take ``(first offset, step)``, in order; none: never ahead."""
        self._from = [row[0] for row in rows]
        self._steps = [row[1] for row in rows] or [0]

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> "Steps":
        """Read them all."""
        return cls(connection.execute(load("clock")["steps"]).fetchall())

    def of(self, offset: int) -> int:
        """Give the step under which the message with this offset was settled."""
        return self._steps[max(0, bisect_right(self._from, offset) - 1)]

    @property
    def least(self) -> int:
        """The smallest: by it nothing counts as older than it is."""
        return min(self._steps)


def note_clock(
    connection: sqlite3.Connection, counters: Mapping[str, int], *, has_jumped: bool = False
) -> None:
    """Store where the clocks stand, with the jump if there was one; in a transaction of its own.

    Runs in the writer's thread.  Without a jump a row is only made where the newest one is far off.
    Where the disk is full nothing is stored, and the next call makes up for it.

    Raises:
        NotWritableError: nothing was stored.
        OutcomeUnknownError: fail-stop, as for a batch.
    """
    with suppress(StorageFullError), told(connection):
        _note(connection, counters, has_jumped=has_jumped)


def jump_noted(counters: Mapping[str, int]) -> Callable[[Store], None]:
    """Give the work that stores a jump, for the writer's thread."""
    return lambda store: note_clock(store.connection, counters, has_jumped=True)


def _note(connection: sqlite3.Connection, counters: Mapping[str, int], *, has_jumped: bool) -> None:
    sql, step_ms = load("clock"), counters["clock_step_ms"]
    newest = connection.execute(sql["newest_step"]).fetchone()
    is_new = newest is None or has_jumped or abs(newest[0] - step_ms) > _SMALL_MS
    connection.execute("BEGIN IMMEDIATE")
    for counter in counters.items():
        connection.execute(load("live")["set_counter"], counter)
    if is_new:
        connection.execute(sql["add_step"], (counters["last_seen_ms"], step_ms))
    connection.execute("COMMIT")
