"""The only connection that writes; it stores batches, loads rows and runs checkpoints.

SQLite before 3.51.3 can corrupt a WAL when two connections write or checkpoint at once, so no
other connection opens the file writable, and checkpoints run here.
"""

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

from phpmq_lite.errors import BatchRefusedError, OutcomeUnknownError, StartRefusedError
from phpmq_lite.model import Batch, LoadedRows, checksum
from phpmq_lite.storage.batch_sql import Step, step_statements
from phpmq_lite.storage.retention import RetentionBounds, remove_in_batch
from phpmq_lite.storage.sqlite.errors import raise_as_unknown, translate_errors
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from phpmq_lite.storage.statements import load, many
from phpmq_lite.storage.store import Store

# Later batches do not rewrite the pages of messages this large, so these are checkpointed at once.
# A checkpoint of 1 MiB delays other batches by 3 ms, one of 8 MiB by 17 ms.
_LARGE_BYTES: Final = 256 << 10
_STAGED_WEIGHT: Final = 8  # staged rows are not rewritten either; this forces a checkpoint per MiB
LONG_WAL_BYTES: Final = 8 << 20  # a WAL of this size is checkpointed between two batches
_RETRY_BYTES: Final = 1 << 20  # bytes to write before a blocked checkpoint is retried
# Growth of the WAL per commit is estimated, because getting its size requires an SQLite call.
_ROW_BYTES: Final = 500
_COMMIT_BYTES: Final = 16 << 10
_COMMITS: Final = 8  # number of commits in the moving average

_PRAGMAS: Final[dict[str, Any]] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL; no setting can lower it (see docs/concepts/durability.md)
    "locking_mode": "normal",
    "wal_autocheckpoint": 0,  # we run checkpoints ourselves, after sending the replies
    "busy_timeout": 5_000,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "secure_delete": 0,  # some systems overwrite deleted content by default, at triple the cost
    "mmap_size": 0,
    "cell_size_check": 1,
    "temp_store": 2,
} | ({"fullfsync": 1, "checkpoint_fullfsync": 1} if sys.platform == "darwin" else {})


class SqliteStore(Store):
    """The synchronous store; ``writer.py`` runs blocking calls in the writer's thread."""

    engine = "sqlite"
    has_index_tables = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self._sql = step_statements(self.engine)
        self.wal_bytes = 0  # estimated bytes written since the last checkpoint
        self.commit_s = 1.0  # moving average of COMMIT durations; initially assumed slow
        self.indexer = HistoryIndexer()
        # Bounds and steady time for removing history within batches; None: not until maintenance.
        self.retention: tuple[RetentionBounds, int] | None = None
        self._waits_for_locks = True  # whether SQLite currently waits for locks

    def configure(self, cache_bytes: int) -> None:
        """Set the pragmas; raise StartRefusedError if SQLite did not accept one."""
        for name, value in _PRAGMAS.items():
            self.execute(f"PRAGMA {name}={value}").fetchall()
            row = self.execute(f"PRAGMA {name}").fetchone()
            # SQLite built without memory-mapped I/O returns no row for mmap_size.
            if row is None and name == "mmap_size":
                continue
            if row is None or row[0] != value:
                raise StartRefusedError(f"PRAGMA {name} is {row and row[0]!r}, not {value!r}")
        self.execute(f"PRAGMA cache_size=-{cache_bytes // 1024}")
        self.connection.create_function("checksum", 2, checksum, deterministic=True)

    def set_lock_wait(self, is_patient: bool) -> None:
        """Set whether SQLite waits for locks; setting it each time would cost a third of BEGIN."""
        if is_patient is not self._waits_for_locks:
            self.execute(f"PRAGMA busy_timeout={_PRAGMAS['busy_timeout'] if is_patient else 0}")
            self._waits_for_locks = is_patient

    def many(self, name: str, flat: Sequence[Any]) -> list[Any]:
        return many("batch", name).run(self.execute, flat)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            with translate_errors(self.connection):
                self.execute("BEGIN IMMEDIATE")
                yield
                self.execute("COMMIT")
        except BatchRefusedError as error:  # only batches contain values that are not ours
            raise OutcomeUnknownError(str(error)) from error

    @contextmanager
    def loading(self) -> Iterator[None]:
        with raise_as_unknown():
            self.set_lock_wait(True)
            yield

    def begin(self, steps: Sequence[Step], *, at_once: bool = False) -> None:
        """Begin a transaction and execute a batch's steps; without steps, do nothing.

        With ``at_once``, fail instead of waiting for another program's lock.

        Raises:
            StorageFullError, NotWritableError, BatchRefusedError: nothing is stored.
            OutcomeUnknownError: the batch may or may not be on disk; send no replies.
        """
        if not steps:
            return
        execute, sql = self.execute, self._sql
        with translate_errors(self.connection):
            self.set_lock_wait(not at_once)
            execute("BEGIN IMMEDIATE")
            for name, values, before in steps:
                if before is None:
                    execute(sql[name], values)
                else:
                    many("batch", name).write(execute, values, before)

    def end(self, batch: Batch, *, with_index: bool = False) -> LoadedRows | None:
        """Commit the transaction begun by ``begin``, then load the rows that the batch requests.

        If ``with_index``, first index settled messages once many are waiting for that, and remove
        old ones.

        Raises:
            StorageFullError, NotWritableError: nothing is stored; call ``begin`` again.
            OutcomeUnknownError: as for ``begin``.
        """
        if self.connection.in_transaction:
            commit_s = self.finish(with_index=with_index and self.needs_index(batch))
            self.count(batch, commit_s)
        return self.load(batch)

    def needs_index(self, batch: Batch) -> bool:
        """Return whether enough settled messages wait to be indexed within this batch."""
        queues = len(batch.queue_rows)
        return bool(batch.settled) and self.indexer.is_due(batch.settled_count, queues)

    def finish(self, *, with_index: bool) -> float:
        """Commit as ``end`` does, without loading; return the duration of COMMIT in seconds."""
        with translate_errors(self.connection):
            if with_index:
                self.indexer.index_in_batch(self.connection)
                self.wal_bytes += self.indexer.wal_bytes
                if self.retention is not None:
                    remove_in_batch(self, *self.retention, self.indexer.batch_rows)
            began_at = perf_counter()
            self.execute("COMMIT")
            return perf_counter() - began_at

    def remove_after_batch(self, bounds: RetentionBounds, now_ms: int) -> None:
        """Remove old rows of the history, as ``finish`` does, in a transaction of their own.

        It is not synced: the next batch syncs what is before it in the WAL, and rows that a power
        cut brings back are removed again.

        Raises:
            StorageFullError, NotWritableError: nothing is removed.
            OutcomeUnknownError: as for ``begin``.
        """
        self.execute("PRAGMA synchronous=NORMAL")
        try:
            with self.transaction():
                remove_in_batch(self, bounds, now_ms, self.indexer.batch_rows)
        finally:
            self.execute("PRAGMA synchronous=FULL")
        if self.execute("PRAGMA synchronous").fetchone() != (_PRAGMAS["synchronous"],):
            raise OutcomeUnknownError("PRAGMA synchronous is not FULL again")

    def count(self, batch: Batch, commit_s: float, index_bytes: int = 0) -> None:
        """Add a stored batch to the average of COMMIT's durations and the estimated WAL size."""
        self.commit_s += (commit_s - self.commit_s) / _COMMITS
        created = len(batch.created)
        changed = created + len(batch.dispatched) + len(batch.changed)
        if batch.delivery is not None:
            changed += len(batch.delivery.came_due)
        self.wal_bytes += index_bytes + _COMMIT_BYTES + batch.created_bytes + _ROW_BYTES * changed
        if batch.staged_rows:
            size = sum(len(row.content) + len(row.record or b"") for row in batch.staged_rows)
            self.wal_bytes += _STAGED_WEIGHT * size
        if batch.created_bytes >= _LARGE_BYTES * created > 0:
            self.wal_bytes = max(self.wal_bytes, LONG_WAL_BYTES)

    def used_bytes(self) -> int:
        """Return the size of the database without its free pages."""
        pages, free, page_bytes = self.execute(load("database_size", "sqlite")["pages"]).fetchone()
        return int((pages - free) * page_bytes)

    def checkpoint(self, mode: str, *, waits: bool = True) -> bool:
        """Copy the WAL into the database and restart the WAL; mode TRUNCATE also truncates it.

        The other mode is RESTART.  Waits a few seconds for readers if ``waits``; the next batch
        would wait, too.  Returns False if a reader still uses the WAL, which then keeps growing;
        the caller tries again soon.
        """
        self.wal_bytes = LONG_WAL_BYTES - _RETRY_BYTES  # set beforehand, in case the disk is full
        self.set_lock_wait(waits)
        try:
            is_busy, _, _ = self.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        finally:
            self.set_lock_wait(True)
        if not is_busy:
            self.wal_bytes = 0
        return not is_busy
