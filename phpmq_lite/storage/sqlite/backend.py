"""The SQLite backend: one database file in the data folder, which one broker uses."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from phpmq_lite.errors import DatabaseReplacedError, NotWritableError, StorageFullError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.logs import get_logger
from phpmq_lite.model import ClockReading
from phpmq_lite.storage.backend import Backend, StoreMaintenance, StoreStatus
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.database_file import wal_of
from phpmq_lite.storage.sqlite.errors import translate_errors, translate_file_errors
from phpmq_lite.storage.sqlite.integrity.seal import LiveSeal, seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.litestream import (
    CheckpointRight,
    check_standby,
    is_configured,
    is_running,
)
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES, SqliteStore
from phpmq_lite.storage.sqlite.writer import Writer
from phpmq_lite.storage.start_report import StartRecorder

_log = get_logger(__name__)


@dataclass(eq=False)
class SqliteBackend(Backend):
    """The database of a locked data folder."""

    folder: DataFolder
    space: DiskSpace
    on_fatal: Callable[[BaseException], None]
    _: KW_ONLY
    accept_loss: bool
    cache_bytes: int
    wal_bytes: int

    def __post_init__(self) -> None:
        self.writer: Writer = Writer(self.folder.database, self.space, self.on_fatal, self.folder)
        self.database = self.folder.database
        self._live_seal: LiveSeal | None = None

    def status(self) -> StoreStatus:
        return StoreStatus(place=str(self.folder.path))

    def readers(self, count: int = 2) -> Readers:
        return SqliteReaders(self.folder.database, count=count)

    async def open(self, starting: StartRecorder, tell: Callable[[str], None]) -> None:
        await asyncio.to_thread(check_standby, self.folder.path)
        check = await asyncio.to_thread(
            check_files, self.folder, accept_loss=self.accept_loss, tell=tell
        )
        starting.note_wal(check.wal.frames, check.wal.commits, check.wal.commits_lost)
        starting.report.checks += check.checks
        self.is_structure_due = check.is_structure_due
        await self.writer.open(self.cache_bytes)
        tell("migrating")
        starting.note_migrations(
            await self.writer.run(lambda store: migrate(store.connection, migrations_folder()))
        )

    def close_with(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(asyncio.to_thread, self._seal)
        if not self.writer.checkpoint_right.is_shared:  # otherwise Litestream changes the database
            self._live_seal = LiveSeal(self.folder.database, self.writer.files)
            stack.callback(self._live_seal.close)
        stack.push_async_callback(self.writer.close)

    def record_use(self, stack: AsyncExitStack) -> None:
        self.folder.record(is_running=True, has_messages=True)
        stack.push(partial(record_stop, self.folder, self.writer))

    async def start_maintenance(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> StoreMaintenance:
        writer, space = self.writer, self.writer.space
        await writer.run(lambda store: space.measure(store.used_bytes()))
        maintenance = writer.maintenance = WriterMaintenance(
            self.folder.database,
            bounds,
            self.wal_bytes,
            counters,
            space,
            self._live_seal,
            writer.checkpoint_right,
        )
        return maintenance

    def _seal(self) -> None:
        """Seal the closed database, so that the next start need not check its structure."""
        if is_configured(self.folder.path):
            _log.info("not_sealed", reason="Litestream may change the database after this stop")
            return
        try:
            seal(self.folder, self.writer.files)
        except DatabaseReplacedError as error:
            self.on_fatal(error)
        except OSError as error:
            _log.warning("not_sealed", reason=str(error))


def record_stop(
    folder: DataFolder, writer: Writer, _kind: object, failure: BaseException | None, _trace: object
) -> None:
    """Record a clean stop; if that is impossible, exit and keep the WAL.

    ``failure`` is the error that ended the broker, or None if it was asked to stop.  If another
    database has replaced this one, the process exits here: closing would remove the other's log.
    """
    writer.check_files()
    writer.space.release_ballast_if_full()
    try:
        # Only a running Litestream keeps the WAL after a clean stop.
        folder.record(is_running=False, leaves_wal=is_running(folder.path))
    except OSError as error:
        if failure is not None:
            _log.error("stopped immediately", reason=str(failure))
        _log.warning("stopped as if killed: a clean stop could not be recorded", reason=str(error))
        sys.stderr.flush()
        # Everything is stored. Exit here, because closing the database would remove the WAL.
        os._exit(0 if failure is None else os.EX_IOERR)


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
