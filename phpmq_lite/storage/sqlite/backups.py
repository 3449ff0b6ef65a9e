"""Creates, verifies, lists and removes backups, which are complete copies of the database.

The backup folder contains one folder per backup, named after the time of the backup and holding
the database and ``manifest.json``.  ``VACUUM INTO`` on a separate reader makes the copy, so it
includes all earlier commits and needs no WAL.  The name of an incomplete backup begins with a dot.
"""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from time import time_ns
from typing import Final

from phpmq_lite.errors import (
    DataDamagedError,
    RefusedError,
    StorageError,
    StorageFullError,
    os_reason,
)
from phpmq_lite.storage.atomic_files import (
    PRIVATE_FOLDER,
    create_private,
    sha256_of,
    sync_file,
    sync_folder,
    unused_path,
    write_json,
)
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.sqlite.database_file import has_wal, open_read_only
from phpmq_lite.storage.sqlite.errors import is_corrupt
from phpmq_lite.storage.sqlite.integrity.database_check import integrity_problems
from phpmq_lite.storage.sqlite.migrate import schema_version
from phpmq_lite.storage.statements import load

MANIFEST: Final = "manifest.json"
BACKUP_LIMIT_S: Final = 600.0  # time limit for copying the database
_STEPS_BETWEEN_CHECKS: Final = 100_000  # in SQLite virtual-machine steps; 100,000 take a few ms
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?")


@dataclass(slots=True, frozen=True)
class BackupManifest:
    """A backup's manifest, in which all counts and numbers refer to the copied database."""

    id: str
    made_at: int  # when the backup began, in Unix ms
    took_ms: int
    version: str  # version of phpmq-lite that made the backup
    schema: int
    sha256: str
    bytes: int
    queues: int
    messages: int  # number of live messages
    settled: int
    bodies: int
    last_seq: int
    last_offset: int


_TYPES: Final = {field.name: field.type for field in fields(BackupManifest)}


@dataclass(slots=True, frozen=True)
class Backup:
    """A complete backup."""

    folder: Path
    manifest: BackupManifest

    @property
    def database(self) -> Path:
        return self.folder / DATABASE


@dataclass(eq=False)
class BackupMaker:
    """Makes one backup.  Call ``run`` in a separate thread; ``stop`` can be called from any thread.

    ``is_open`` means that a broker has the database open; if not, the caller must lock its folder.
    """

    database: Path
    folder: Path
    version: str
    _: KW_ONLY
    reserve: int = 0  # number of bytes to leave free on the database's disk
    is_open: bool = True
    check_files: Callable[[], None] = lambda: None  # raises StorageError if it has been replaced

    def __post_init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Cancel the backup; ``run`` raises an error shortly afterwards."""
        self._is_stopped.set()
        if (connection := self._connection) is not None:
            with suppress(sqlite3.ProgrammingError):  # the connection may just have been closed
                connection.interrupt()

    def run(self, limit_s: float = BACKUP_LIMIT_S) -> Backup:
        """Create the backup: copy the database and check the copy.  Blocks for about 4 s per GiB.

        Raises:
            StorageFullError: free space is below twice the database size, or would be below the
                reserve afterwards.
            DataDamagedError: the database or its copy is damaged.
            StorageError: the backup took longer than ``limit_s``, was stopped or cannot be written.
        """
        began_at = time_ns() // 1_000_000
        clock = threading.Timer(limit_s, self.stop)
        clock.daemon = True
        clock.start()
        try:
            self._prepare()
            with self._temporary_folder() as place:
                self._copy(place / DATABASE)
                self.check_files()
                return self._finish(place, began_at)
        except sqlite3.Error as error:
            raise self._translated(error, limit_s) from error
        except OSError as error:
            raise StorageError(
                f"cannot make a backup in {self.folder}: {os_reason(error)}"
            ) from error
        finally:
            clock.cancel()

    def _prepare(self) -> None:
        if not self.folder.exists():
            self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True)
            sync_folder(self.folder.parent)
        for left in self.folder.glob(".*.new"):  # these remain from interrupted backups
            shutil.rmtree(left, ignore_errors=True)
        size = _size(self.database)
        is_beside = self.folder.stat().st_dev == self.database.stat().st_dev
        check_space(self.folder, max(2 * size, size + self.reserve * is_beside))

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        place = self.folder / f".{token_hex(8)}.new"
        place.mkdir(mode=PRIVATE_FOLDER)
        try:
            yield place
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _copy(self, copy: Path) -> None:
        os.close(create_private(copy))  # SQLite accepts an existing empty file and keeps its mode
        # SQLite would create a WAL even to read a closed database.
        is_alone = not self.is_open and not has_wal(self.database)
        with self._open(self.database, *["immutable=1"] * is_alone) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        sync_file(copy)

    @contextmanager
    def _open(self, database: Path, *options: str) -> Iterator[sqlite3.Connection]:
        with closing(open_read_only(database, *options)) as connection:
            self._connection = connection
            # ``interrupt`` does not affect a statement that has not started yet.
            connection.set_progress_handler(self._is_stopped.is_set, _STEPS_BETWEEN_CHECKS)
            try:
                if self._is_stopped.is_set():  # ``stop`` was called before the statement began
                    raise StorageError("the backup was stopped before it was complete")
                yield connection
            finally:
                self._connection = None

    def _finish(self, place: Path, began_at: int) -> Backup:
        """Check the copy, write its manifest and rename the folder."""
        copy = place / DATABASE
        with self._open(copy, "immutable=1") as connection:
            problems = integrity_problems(connection, "quick_check")
            if problems:
                raise DataDamagedError(f"the copy is damaged: {'; '.join(problems[:3])}")
            schema = schema_version(connection)
            sql = load("database_check", "sqlite")
            counts = connection.execute(sql["counts"]).fetchone()
            ends = connection.execute(sql["ends"]).fetchone()
        stamp = f"{datetime.fromtimestamp(began_at / 1_000, UTC):%Y%m%dT%H%M%SZ}"
        folder = unused_path(self.folder, stamp)
        manifest = BackupManifest(
            folder.name,
            began_at,
            time_ns() // 1_000_000 - began_at,
            self.version,
            schema,
            sha256_of(copy),
            _size(copy),
            *counts,
            *ends,
        )
        write_json(place / MANIFEST, asdict(manifest))
        place.rename(folder)
        sync_folder(self.folder)
        return Backup(folder, manifest)

    def _translated(self, error: sqlite3.Error, limit_s: float) -> StorageError:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_INTERRUPT":
            return StorageError(f"the backup was stopped or exceeded its limit of {limit_s:g} s")
        if name == "SQLITE_FULL":
            return StorageFullError(f"not enough space for a backup in {self.folder}")
        if is_corrupt(error):
            return DataDamagedError(f"cannot copy {self.database}: {error}")
        return StorageError(f"cannot copy {self.database}: {error}")


def list_backups(folder: Path) -> list[Backup]:
    """Return the complete backups in a folder, newest first."""
    if not folder.is_dir():
        return []
    names = sorted((path for path in folder.iterdir() if is_id(path.name)), reverse=True)
    backups = (read_backup(path) for path in names)
    return sorted(filter(None, backups), key=lambda backup: -backup.manifest.made_at)


def is_id(text: str) -> bool:
    """Return whether a text is a valid backup id and therefore safe to use in a path."""
    return _ID.fullmatch(text) is not None


def read_backup(folder: Path) -> Backup | None:
    """Read a backup; return None if its manifest is invalid or its database is missing."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        manifest = BackupManifest(**content)
    except (OSError, ValueError, TypeError):
        return None
    if not all(type(value) is _TYPES[name] for name, value in asdict(manifest).items()):
        return None
    return Backup(folder, manifest) if (folder / DATABASE).is_file() else None


def remove_old(folder: Path, keep: int, newest_id: str) -> list[str]:
    """Remove all but the ``keep`` newest backups and return the ids of those removed.

    ``newest_id`` always counts as the newest, because others may have been created with a wrong
    clock.
    """
    removed = []
    others = [backup for backup in list_backups(folder) if backup.manifest.id != newest_id]
    for backup in others[keep - 1 :]:
        # rename the folder first, so that a partly removed backup never looks complete
        hidden = folder / f".{backup.manifest.id}.new"
        backup.folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
        removed.append(backup.manifest.id)
    return removed


def check_space(folder: Path, need: int) -> None:
    """Raise StorageFullError, which says how much is needed, if a folder has too little space."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise StorageFullError(f"{folder} has {free:,} bytes free, but {need:,} are required")


def verify_backup(backup: Backup) -> None:
    """Compare a backup with its manifest; raise DataDamagedError if the backup was modified."""
    database, manifest = backup.database, backup.manifest
    size = _size(database)
    if size != manifest.bytes:
        raise DataDamagedError(
            f"{database} has {size:,} bytes, but its manifest specifies {manifest.bytes:,}"
        )
    if sha256_of(database) != manifest.sha256:
        raise DataDamagedError(f"{database} is damaged: its SHA-256 differs from the manifest")


def _size(path: Path) -> int:
    return path.stat().st_size


RETRY_S: Final = 600.0  # delay before retrying a failed backup


@dataclass(eq=False)
class BackupSchedule:
    """Makes backups on a schedule and on demand, and remembers the result of the last one.

    ``keep`` returns how many backups to keep.  ``reserve`` returns how many bytes to leave free on
    the database's disk, so that publishing does not stop.
    """

    database: Path
    folder: Path
    _: KW_ONLY
    keep: Callable[[], int]
    reserve: Callable[[], int] = lambda: 0
    every_h: float = 0  # time between backups; 0 disables the schedule
    version: str = ""
    tell: Callable[[Backup | StorageError], None] = lambda result: None
    check_files: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.last_manifest: BackupManifest | None = None
        self.last_id: str | None = None  # id of the last backup made since startup
        self.error: str | None = None  # error message of the last backup if it failed
        self.interval_s = self.every_h * 3_600
        self._is_starting = False  # whether a requested backup is still waiting for its audit row
        self._maker: BackupMaker | None = None
        self._task: asyncio.Task[Backup] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def all(self) -> list[Backup]:
        """Return all complete backups, newest first; raise StorageError if it cannot be read."""
        try:
            return await asyncio.to_thread(list_backups, self.folder)
        except OSError as error:
            raise StorageError(f"cannot read {self.folder}: {error.strerror}") from error

    def start(self) -> "asyncio.Task[Backup]":
        """Start a backup in a task, which may raise StorageError; raise RefusedError during one."""
        self._check_idle()
        self._task = asyncio.create_task(self._make())
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def start_after(self, ahead: Callable[[], Awaitable[None]]) -> None:
        """Await ``ahead``, then start a backup; if ``ahead`` raises an error, start none.

        Raises:
            RefusedError: a backup is in progress or about to start; ``ahead`` is not called.
        """
        self._check_idle()
        self._is_starting = True
        try:
            await ahead()
        finally:
            self._is_starting = False
        self.start()

    def _check_idle(self) -> None:
        if self.is_running or self._is_starting:
            raise RefusedError(
                "backup_running", "a backup is in progress; only one can run at a time"
            )

    async def _make(self) -> Backup:
        self._maker = maker = BackupMaker(
            self.database,
            self.folder,
            self.version,
            reserve=self.reserve(),
            check_files=self.check_files,
        )
        try:
            backup = await asyncio.to_thread(maker.run)
            self.last_manifest = backup.manifest
            self.last_id = backup.manifest.id
            try:
                await asyncio.to_thread(remove_old, self.folder, self.keep(), self.last_id)
            except OSError as error:
                raise StorageError(
                    f"cannot remove old backups in {self.folder}: {error.strerror}"
                ) from error
        except Exception as error:  # the broker keeps running, and the next backup may succeed
            if isinstance(error, StorageError):
                failure = error
            else:
                failure = StorageError(f"the backup failed: {error!r}")
                failure.__cause__ = error
            self.error = str(failure)
            self.tell(failure)
            raise failure from failure.__cause__
        self.error = None
        self.tell(backup)
        return backup

    async def wait(self) -> None:
        """Wait for the backup in progress, if any; raise StorageError if it failed."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def run(self) -> None:
        """Create backups when they are due; when cancelled, stop the backup thread."""
        try:
            with suppress(StorageError):  # if the problem persists, the next backup will report it
                now_ms = time_ns() // 1_000_000
                for backup in await self.all():
                    if backup.manifest.made_at <= now_ms:  # the clock may since have been set back
                        self.last_manifest = backup.manifest
                        break
            while self.interval_s:
                manifest = self.last_manifest
                made_s = manifest.made_at / 1_000 if manifest is not None else 0.0
                delay_s = max(0.0, made_s + self.interval_s - time.time())
                await asyncio.sleep(min(delay_s, self.interval_s))
                try:
                    if not self.is_running:
                        self.start()
                    await self.wait()
                except (StorageError, RefusedError):  # another backup may be about to start
                    await asyncio.sleep(min(RETRY_S, self.interval_s))
            await asyncio.Event().wait()
        finally:
            if self._maker is not None and self._task is not None:
                self._maker.stop()
                await asyncio.wait({self._task})
