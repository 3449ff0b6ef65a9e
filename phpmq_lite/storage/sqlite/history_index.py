"""Indexes messages after they are stored, in slices that do not delay batches.

Settled messages are indexed by queue: by outcome and offset for pages of the history, by number
for searches.  A row stands for a run of messages with consecutive offsets, the same queue and
outcome, and increasing numbers.  Settled and live messages are indexed by trace.

With a regular index of the history, each commit would write a page per queue.  Here, a page is
written once for many messages: under load by a batch, in the writer's thread, while the event loop
works on the next batch; otherwise between batches.  Rows above the offset ``placed_upto`` are not
indexed yet; queries read this short tail by offset, in the same statement.  Indexed rows are added
to the totals, which count deleted messages separately.

The trace of a message is indexed when the message settles, usually soon.  Live messages are
indexed up to the number ``traced_upto``, a slice at a time, once many numbers are above it.
"""

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

from phpmq_lite.errors import StorageFullError
from phpmq_lite.storage.sqlite.errors import translate_errors
from phpmq_lite.storage.statements import load

MAX_ROWS: Final = 10_000  # maximum number of rows per slice, reached on a fast disk
MIN_ROWS: Final = 1_000
BATCH_ROWS: Final = 500  # from this number, settled messages are indexed within a batch
_ROWS_PER_QUEUE: Final = 50  # the same for each queue that the batch changes
SLICE_S: Final = 0.025
WAIT_MS: Final = 5_000  # after this time, even smaller slices are indexed
# Estimated WAL bytes per row if rows belong to a hundred queues and all traces differ.
_WAL_BYTES: Final = {
    "index_runs": 400,
    "index_singly": 400,
    "index_traces": 500,
    "index_live_traces": 100,
}
_MANY_RUNS: Final = 32  # with more runs than this among 64 messages, each message is indexed singly
_LIVE: Final = ("index_live_traces", "advance_traced")


class HistoryIndexer:
    """Indexes the next rows.  Its speed is kept in memory, and its progress in the database."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._sql = load("history_index", "sqlite")
        self._timer = timer
        self._rows = {"placed": MAX_ROWS, "traced": MAX_ROWS}  # rows per slice, adapted to the disk
        self._due_ms = 0  # when to index even a partial slice, in steady ms
        self._was_settled = False  # whether the last slice contained settled messages
        self._waiting = 0  # estimated number of settled messages that are not indexed
        self.batch_rows = 0  # settled messages to be indexed by ``index_in_batch``
        self.has_more = False  # whether another full slice is waiting
        self.wal_bytes = 0  # estimated bytes that the last step added to the WAL

    def run(self, connection: sqlite3.Connection, now_ms: int, *, is_idle: bool) -> int:
        """Index the next rows in one transaction if there are many or they have waited long enough.

        Runs in the writer's thread, outside of a batch.  Returns the number of settled messages
        indexed, or of live messages read.  If the disk is full, nothing is indexed.

        Raises:
            NotWritableError: nothing was indexed.
            OutcomeUnknownError: fail-stop, as for a batch.
        """
        after, first, last, traced, low, high = connection.execute(self._sql["progress"]).fetchone()
        self.has_more = False
        self.wal_bytes = 0
        behind = 0 if first is None else last - first + 1
        alive = 0 if low is None else high - low + 1  # may include messages that have settled
        if not behind:
            self._due_ms = now_ms + WAIT_MS
        is_due = behind and (behind >= self._rows["placed"] or is_idle or now_ms >= self._due_ms)
        if alive >= self._rows["traced"] and (self._was_settled or not is_due):
            indexed, alive = self._index_live(connection, traced, high)
        elif is_due:
            rows = min(behind, self._rows["placed"])
            ends = {"count": first + rows - 1 - after}
            self._was_settled = True
            names = self._settled_statements(connection, ends)
            indexed = rows if self._run_slice(connection, names, "placed", ends) else 0
            behind -= indexed
        else:
            return 0
        self._waiting = behind
        if indexed:
            # Continue only with full slices, because each commit adds rows to be indexed.
            has_settled = behind >= self._rows["placed"]
            # Live messages may settle soon, so do not index all of them in one go.
            # Indexing all at once cost an eighth of the throughput at 50,000 messages/s.
            self.has_more = has_settled or (is_idle and alive >= self._rows["traced"])
        if indexed and self._was_settled and behind < self._rows["placed"]:
            self._due_ms = now_ms + WAIT_MS
        return indexed

    def is_due(self, settled: int, queues: int) -> bool:
        """Return whether to index settled messages in the transaction of a batch.

        ``settled`` is the number of messages that the batch settles, and ``queues`` the number of
        queues that it changes; with more of them, a slice must be larger to write few pages.  A
        transaction between two batches would keep the event loop waiting: with 10,000 rows in each,
        the flow reached 60,000 messages/s instead of 65,000.
        """
        self._waiting += settled
        if self._waiting < max(BATCH_ROWS, min(MAX_ROWS, _ROWS_PER_QUEUE * queues)):
            return False
        self.batch_rows, self._waiting = self._waiting, 0
        self._was_settled = True
        return True

    def index_in_batch(self, connection: sqlite3.Connection) -> None:
        self.wal_bytes = 0
        ends = {"count": MAX_ROWS}
        self._execute(connection, self._settled_statements(connection, ends), ends)

    def _settled_statements(
        self, connection: sqlite3.Connection, ends: dict[str, int]
    ) -> Sequence[str]:
        [(runs,)] = connection.execute(self._sql["count_runs"], ends)
        index = "index_singly" if runs > _MANY_RUNS else "index_runs"
        return index, "index_traces", "count_indexed"

    def _index_live(self, connection: sqlite3.Connection, after: int, last: int) -> tuple[int, int]:
        """Index traces of live messages; return how many were read (0: disk full) and are left."""
        ends = {"after": after, "limit": self._rows["traced"]}
        upto, rows = connection.execute(self._sql["next_live_numbers"], ends).fetchone()
        self._was_settled = False
        is_done = self._run_slice(connection, _LIVE, "traced", ends | {"upto": upto})
        return (rows if is_done else 0), last - upto

    def _run_slice(
        self, connection: sqlite3.Connection, names: Sequence[str], line: str, ends: dict[str, int]
    ) -> bool:
        """Run the statements for one slice of an index; return False if the disk is full."""
        began_s = self._timer()
        try:
            with translate_errors(connection):
                connection.execute("BEGIN IMMEDIATE")
                self._execute(connection, names, ends)
                connection.execute("COMMIT")
        except StorageFullError:
            self.wal_bytes = 0
            return False
        # How long a slice takes depends on the number of queues and on the disk.
        took_s = self._timer() - began_s
        if took_s > SLICE_S:
            self._rows[line] = max(MIN_ROWS, self._rows[line] // 2)
        elif took_s < SLICE_S / 2:
            self._rows[line] = min(MAX_ROWS, self._rows[line] * 2)
        return True

    def _execute(
        self, connection: sqlite3.Connection, names: Sequence[str], ends: dict[str, int]
    ) -> None:
        for name in names:
            rows = connection.execute(self._sql[name], ends).rowcount
            self.wal_bytes += rows * _WAL_BYTES.get(name, 0)
