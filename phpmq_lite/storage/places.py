"""Places settled messages by queue and outcome, behind the writer, in slices that do not stall.

An index of the history would have each commit write a page for every queue in it.  Here a page is
written once for many rows.  What has no place yet, behind the offset in ``placed_upto``, is a short
tail: whoever reads the places reads that by offset, in the same statement.
"""

import sqlite3
import time
from collections.abc import Callable
from typing import Final

from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.storage.statements import load

ROWS: Final = 10_000  # placed at once where it is fast
FEWEST: Final = 1_000
SLICE_S: Final = 0.025
WAIT_MS: Final = 5_000  # then fewer rows are placed too
WAL_BYTES: Final = 100  # a row adds, where the rows are of some hundred queues


class Places:
    """Remembers how fast it was; what is placed stands in the database only."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._sql = load("places")
        self._timer = timer
        self._rows = ROWS
        self._due_ms = 0  # steady; when the last rows are placed, however few
        self.has_more = False  # a whole slice waits for its turn

    def step(self, connection: sqlite3.Connection, now_ms: int, *, is_idle: bool) -> int:
        """Place the next rows if they are enough, or have waited, in one transaction.

        Runs in the writer's thread, outside of a batch.  Returns the rows placed.  Where the disk
        is full nothing is placed.

        Raises:
            OutcomeUnknownError: fail-stop, as for a batch.
        """
        after, first, last = connection.execute(self._sql["behind"]).fetchone()
        self.has_more = False
        if first is None:
            self._due_ms = now_ms + WAIT_MS
            return 0
        behind = last - first + 1
        if behind < self._rows and not is_idle and now_ms < self._due_ms:
            return 0
        rows = min(behind, self._rows)
        began_s = self._timer()
        if not self._place(connection, after, first + rows - 1):
            return 0
        self._adapt(self._timer() - began_s)
        # Not for fewer rows: each commit adds some, and the two would go round in circles.
        self.has_more = behind - rows >= self._rows
        if not self.has_more:
            self._due_ms = now_ms + WAIT_MS
        return int(rows)

    def _place(self, connection: sqlite3.Connection, after: int, upto: int) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(self._sql["place"], {"after": after, "upto": upto})
            connection.execute(load("live")["set_counter"], ("placed_upto", upto))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_FULL:
                name = getattr(error, "sqlite_errorname", type(error).__name__)
                raise OutcomeUnknownError(f"{name}: {error}") from error
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return False
        return True

    def _adapt(self, took_s: float) -> None:
        """Take fewer rows where they are of so many queues, or the disk so slow, that it lasts."""
        if took_s > SLICE_S:
            self._rows = max(FEWEST, self._rows // 2)
        elif took_s < SLICE_S / 2:
            self._rows = min(ROWS, self._rows * 2)
