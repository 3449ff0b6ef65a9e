"""The SQLite backend: one database file in the data folder, which one broker uses."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

from phpmq_lite.errors import DatabaseReplacedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.logs import get_logger
from phpmq_lite.model import ClockReading
from phpmq_lite.storage.backend import Backend
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.integrity.seal import LiveSeal, seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.maintenance import WriterMaintenance
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from phpmq_lite.storage.sqlite.standby.litestream import check_standby, is_configured, is_running
from phpmq_lite.storage.sqlite.writer import Writer
from phpmq_lite.storage.start_report import StartRecorder
from phpmq_lite.storage.store_status import StoreStatus

_log = get_logger(__name__)


class SqliteBackend(Backend):
    """The database of a locked data folder."""

    def __init__(
        self,
        folder: DataFolder,
        space: DiskSpace,
        on_fatal: Callable[[BaseException], None],
        *,
        accept_loss: bool,
        cache_bytes: int,
        wal_bytes: int,
    ) -> None:
        self.writer: Writer = Writer(folder.database, space, on_fatal, folder)
        self.database = folder.database
        self._folder = folder
        self._on_fatal = on_fatal
        self._accept_loss = accept_loss
        self._cache_bytes = cache_bytes
        self._wal_bytes = wal_bytes
        self._live_seal: LiveSeal | None = None

    def status(self) -> StoreStatus:
        """Return the state of the store; pages measure that of the files."""
        return StoreStatus(place=str(self._folder.path))

    def readers(self, count: int = 2) -> Readers:
        """Return connections for pages."""
        return SqliteReaders(self._folder.database, count=count)

    async def open(self, starting: StartRecorder, tell: Callable[[str], None]) -> None:
        """Check the files, open the database and migrate it."""
        await asyncio.to_thread(check_standby, self._folder.path)
        check = await asyncio.to_thread(
            check_files, self._folder, accept_loss=self._accept_loss, tell=tell
        )
        starting.note_wal(check.wal.frames, check.wal.commits, check.wal.commits_lost)
        starting.report.checks += check.checks
        self.is_structure_due = check.is_structure_due
        await self.writer.open(self._cache_bytes)
        tell("migrating")
        starting.note_migrations(
            await self.writer.run(lambda store: migrate(store.connection, migrations_folder()))
        )

    def close_with(self, stack: AsyncExitStack) -> None:
        """Add to ``stack`` what closes and seals the database."""
        stack.push_async_callback(asyncio.to_thread, self._seal)
        if not self.writer.checkpoint_right.is_shared:  # otherwise Litestream changes the database
            self._live_seal = LiveSeal(self._folder.database, self.writer.files)
            stack.callback(self._live_seal.close)
        stack.push_async_callback(self.writer.close)

    def record_use(self, stack: AsyncExitStack) -> None:
        """Record that the database is in use and, when ``stack`` unwinds, that it no longer is."""
        self._folder.record(is_running=True, has_messages=True)
        stack.push(partial(record_stop, self._folder, self.writer))

    async def start_maintenance(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> WriterMaintenance:
        """Begin checkpoints, indexing and retention."""
        writer, space = self.writer, self.writer.space
        await writer.run(lambda store: space.measure(store.used_bytes()))
        maintenance = writer.maintenance = WriterMaintenance(
            self._folder.database,
            bounds,
            self._wal_bytes,
            counters,
            space,
            self._live_seal,
            writer.checkpoint_right,
        )
        return maintenance

    def _seal(self) -> None:
        """Seal the closed database, so that the next start need not check its structure."""
        if is_configured(self._folder.path):
            _log.info("not_sealed", reason="Litestream may change the database after this stop")
            return
        try:
            seal(self._folder, self.writer.files)
        except DatabaseReplacedError as error:
            self._on_fatal(error)
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
