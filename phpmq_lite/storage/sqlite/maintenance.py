"""The writer's work between batches: checkpoints, indexing and retention, in short slices."""

from collections.abc import Callable, Mapping
from pathlib import Path

from phpmq_lite.errors import NotWritableError, StorageFullError
from phpmq_lite.model import ClockReading
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.database_file import wal_of
from phpmq_lite.storage.sqlite.errors import translate_errors, translate_file_errors
from phpmq_lite.storage.sqlite.integrity.seal import LiveSeal
from phpmq_lite.storage.sqlite.standby.litestream import CheckpointRight
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES, SqliteStore
from phpmq_lite.storage.store_writer import StoreMaintenance


class WriterMaintenance(StoreMaintenance):
    """Maintenance that the engine runs in the writer's thread, for at most about 20 ms per call.

    Each call checks ``space`` first: once a second, and whenever the WAL is long.  If there is no
    space, or nothing can be written, the remaining work is left to the next call without waiting.

    ``wal_limit_bytes`` bounds the WAL file, which grows that large only if readers delay a
    checkpoint; the larger the file, the longer truncating it takes.  ``live_seal`` seals the
    database between checkpoints.  With a standby, Litestream checkpoints instead; while it is not
    running, only a WAL that has reached ``wal_limit_bytes`` is checkpointed here, because
    Litestream must copy the whole database when it continues after that.  The clocks are stored
    with each checkpoint, too.
    """

    def __init__(
        self,
        database: Path,
        bounds: RetentionBounds,
        wal_limit_bytes: int,
        counters: Callable[[ClockReading], Mapping[str, int]],
        space: DiskSpace | None = None,
        live_seal: LiveSeal | None = None,
        checkpoint_right: CheckpointRight | None = None,
    ) -> None:
        super().__init__(bounds, counters)
        self._wal = wal_of(database)
        self._wal_limit_bytes = wal_limit_bytes
        self._space = space or DiskSpace(database.parent)
        self._live_seal = live_seal
        self._checkpoint_right = checkpoint_right or CheckpointRight()

    def __call__(self, store: SqliteStore, now: ClockReading, is_idle: bool) -> bool:
        """Do the work that is due; return True if more work is due soon.

        Raises:
            NotWritableError: nothing could be written for too long.
            OutcomeUnknownError: SQLite failed; stop, as after a failed commit.
        """
        try:
            with translate_errors(store.connection):
                self._space.measure(store.used_bytes())
                has_more = self._step(store, now, is_idle)
        except StorageFullError:
            self._space.note_full()
        except NotWritableError as error:
            self._space.note_not_writable(error)
        else:
            self._space.note_stored()
            return has_more
        return False

    def _step(self, store: SqliteStore, now: ClockReading, is_idle: bool) -> bool:
        if store.wal_bytes >= LONG_WAL_BYTES or (is_idle and store.wal_bytes):
            self._checkpoint(store, is_idle)
            self._clock_due_ms = 0
        self._store_clocks(store, now)
        store.retention = self.bounds, now.steady_ms
        store.indexer.run(store.connection, now.steady_ms, is_idle=is_idle)
        store.wal_bytes += store.indexer.wal_bytes
        return store.indexer.has_more or self._retain(store, now)

    def _checkpoint(self, store: SqliteStore, is_idle: bool) -> None:
        size = self._wal.stat().st_size if self._wal.exists() else 0
        if self._checkpoint_right.is_shared:
            store.wal_bytes = 0  # look again after as many bytes
            if size > self._wal_limit_bytes:
                with self._checkpoint_right.hold() as may_checkpoint:
                    if may_checkpoint:
                        store.checkpoint("TRUNCATE", waits=False)
            return
        is_large = size > (1 if is_idle else 2) * self._wal_limit_bytes
        if self._live_seal is not None:
            with translate_file_errors():
                self._live_seal.erase()
        store.checkpoint("TRUNCATE" if is_large else "RESTART", waits=False)
        if self._live_seal is not None:
            self._live_seal.renew()
