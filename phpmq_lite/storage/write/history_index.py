"""Places messages for those who look for them, behind the writer, in slices that do not stall.

Settled ones by queue: by outcome and offset for pages of the history, by number for searches.
Settled and alive ones by trace.

An index of the history would have each commit write a page for every queue in it.  Here a page is
written once for many rows.  What has no place yet, behind the offset in ``placed_upto``, is a short
tail: whoever reads the places reads that by offset, in the same statement.  With its place a row is
counted, too.

Messages get their trace's place when they settle, as most do soon.  Alive ones get theirs up to the
number in ``traced_upto`` when many numbers lie behind it, a slice at a time while the broker is
busy, so what has none is a short tail again as soon as it rests.
"""

import sqlite3
import time
from collections.abc import Callable
from typing import Final

from phpmq_lite.errors import StorageFullError
from phpmq_lite.storage.sqlite_errors import translate_errors
from phpmq_lite.storage.statements import load

ROWS: Final = 10_000  # placed at once where it is fast
FEWEST: Final = 1_000
SLICE_S: Final = 0.025
WAIT_MS: Final = 5_000  # then fewer rows are placed too
# Counters of what the history has, of the rows with a place; those of deleted messages are apart.
TOTALS: Final = ("history_rows", "history_bytes", "deleted_rows", "deleted_bytes")
# What a row adds to the WAL where the rows are of a hundred queues, each with a trace of its own.
_WAL_BYTES: Final = {
    "index_outcomes": 200,
    "index_numbers": 200,
    "index_traces": 500,
    "index_live_traces": 100,
}


class HistoryIndexer:
    """Remembers how fast it was; what is placed stands in the database only."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._sql = load("history_index")
        self._timer = timer
        self._rows = {"placed": ROWS, "traced": ROWS}  # in a slice
        self._due_ms = 0  # steady; when the last rows are placed, however few
        self._has_placed = False  # the last slice was of settled messages
        self.has_more = False  # a whole slice waits for its turn
        self.wal_bytes = 0  # guessed: what the last step added

    def step(self, connection: sqlite3.Connection, now_ms: int, *, is_idle: bool) -> int:
        """Place the next rows if they are enough, or have waited, in one transaction.

        Runs in the writer's thread, outside of a batch.  Returns the rows placed or, where it is
        the turn of messages alive, looked at.  Where the disk is full nothing is placed.

        Raises:
            NotWritableError: nothing was placed.
            OutcomeUnknownError: fail-stop, as for a batch.
        """
        after, first, last, traced, low, high = connection.execute(self._sql["progress"]).fetchone()
        self.has_more = False
        self.wal_bytes = 0
        behind = 0 if first is None else last - first + 1
        alive = 0 if low is None else high - low + 1  # numbers, of which some may have settled
        if not behind:
            self._due_ms = now_ms + WAIT_MS
        is_due = behind and (behind >= self._rows["placed"] or is_idle or now_ms >= self._due_ms)
        if alive >= self._rows["traced"] and (self._has_placed or not is_due):
            done, alive = self._walk(connection, traced, high)
        elif is_due:
            done = self._place(connection, after, first, min(behind, self._rows["placed"]))
            behind -= done
        else:
            return 0
        if done:
            # Not for fewer rows: each commit adds some, and the two would go round in circles.
            has_settled = behind >= self._rows["placed"]
            # Those alive may settle meanwhile; and where 50,000 come a second, entering them all
            # at once took an eighth of the rate.
            self.has_more = has_settled or (is_idle and alive >= self._rows["traced"])
        if done and self._has_placed and behind < self._rows["placed"]:
            self._due_ms = now_ms + WAIT_MS
        return done

    def _place(self, connection: sqlite3.Connection, after: int, first: int, rows: int) -> int:
        """Place settled messages; give how many, 0 where the disk is full."""
        ends = {"after": after, "upto": first + rows - 1}
        self._has_placed = True
        return (
            rows
            if self._store(
                connection, ("index_outcomes", "index_numbers", "index_traces"), "placed", ends
            )
            else 0
        )

    def _walk(self, connection: sqlite3.Connection, after: int, last: int) -> tuple[int, int]:
        """Enter the traces of messages alive; give how many, 0: full disk, and numbers left."""
        ends = {"after": after, "limit": self._rows["traced"]}
        upto, rows = connection.execute(self._sql["next_live_numbers"], ends).fetchone()
        self._has_placed = False
        is_done = self._store(connection, ("index_live_traces",), "traced", ends | {"upto": upto})
        return (rows if is_done else 0), last - upto

    def _store(
        self,
        connection: sqlite3.Connection,
        names: tuple[str, ...],
        line: str,
        ends: dict[str, int],
    ) -> bool:
        began_s = self._timer()
        try:
            with translate_errors(connection):
                connection.execute("BEGIN IMMEDIATE")
                for name in names:
                    rows = connection.execute(self._sql[name], ends).rowcount
                    self.wal_bytes += rows * _WAL_BYTES[name]
                if line == "placed":
                    self._count(connection, ends)
                connection.execute(load("batch")["set_counter"], (f"{line}_upto", ends["upto"]))
                connection.execute("COMMIT")
        except StorageFullError:
            self.wal_bytes = 0
            return False
        self._adapt(line, self._timer() - began_s)
        return True

    def _count(self, connection: sqlite3.Connection, ends: dict[str, int]) -> None:
        """Add to the totals of the history.  In each commit they cost a page of their own."""
        sums = connection.execute(self._sql["totals_of_range"], ends).fetchone()
        for name, number in zip(TOTALS, sums, strict=True):
            if number:
                connection.execute(load("batch")["add_counter"], (name, number))

    def _adapt(self, line: str, took_s: float) -> None:
        """Take fewer rows where they are of so many queues, or the disk so slow, that it lasts."""
        if took_s > SLICE_S:
            self._rows[line] = max(FEWEST, self._rows[line] // 2)
        elif took_s < SLICE_S / 2:
            self._rows[line] = min(ROWS, self._rows[line] * 2)
