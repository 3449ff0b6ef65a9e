"""Stops publishing if disk space runs low or the database is too large, and keeps a reserve.

A full disk would also block acknowledgements and checkpoints, so consumers could not drain the
queues.  Publishing therefore stops early.  If another program still fills the disk, the *ballast*,
a file that only reserves space, is deleted.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phpmq_lite.errors import NotWritableError, StorageFullError
from phpmq_lite.model import DATABASE_FULL, DISK_FULL, DISK_LOW, Shortage
from phpmq_lite.storage.atomic_files import create_private
from phpmq_lite.storage.read.read_pool import Readers

BALLAST: Final = "ballast"
MAX_TROUBLE_S: Final = 30.0  # maximum time without a successful write, unless the disk is full
RETRY_S: Final = 1.0
_MIB: Final = 1 << 20
_MIN_RESERVE: Final = 8 * _MIB  # default reserve in bytes; a batch requires less


@dataclass(slots=True, frozen=True)
class DiskSpaceBounds:
    """Limits on disk space and database size, in bytes."""

    free_bytes: int = 0  # publishing stops if less is free; with 0, only if the disk is full
    max_bytes: int = 0  # publishing stops when the database exceeds this size; 0 means no limit
    ballast_bytes: int = 0  # size of the ballast file, more than a batch needs; 0: no ballast


@dataclass(slots=True)
class LowWatermark:
    """Detects a shortage, with hysteresis to prevent flapping."""

    is_short: bool = False

    def update(self, left: int, least: int, recovered: int) -> bool:
        """Return whether ``left`` is below ``least``, or was and is still below ``recovered``."""
        self.is_short = left < (recovered if self.is_short else least)
        return self.is_short


class DiskSpace:
    """Tracks disk space for one database; used in the writer's thread.

    Other threads can read ``shortage`` and ``write_problem``; ``on_change`` is called when either
    changes.  ``bounds`` can be replaced at any time.
    """

    def __init__(
        self,
        folder: Path,
        bounds: DiskSpaceBounds | None = None,
        *,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bounds = bounds or DiskSpaceBounds()
        self.shortage: Shortage | None = None  # why publishing is stopped, or None if it is not
        self.write_problem: str | None = None  # why nothing can be stored now, or None
        self.free_bytes = 0  # free disk space, as last measured
        self.used_bytes = 0  # used size of the database, as last measured
        self.on_change: Callable[[], None] = lambda: None
        self._folder = folder
        self._ballast = folder / BALLAST
        self._timer = timer
        self._sleep = sleep
        self._disk = LowWatermark()
        self._database = LowWatermark()
        self._was_full = False  # whether the disk was full and has not recovered yet
        self._trouble_since = 0.0  # when writes began to fail

    @property
    def has_ballast(self) -> bool:
        """Return whether the ballast has its full size; after a crash, it may be incomplete."""
        try:
            size = self._ballast.stat().st_size
        except OSError:
            return False
        return 0 < self.bounds.ballast_bytes <= size

    def prepare(self) -> None:
        """Measure before the first write; SQLite cannot open a database on a full disk."""
        self.free_bytes = _free(self._folder)
        self._was_full = self.free_bytes < self.bounds.ballast_bytes // 2
        if self._was_full or not self.bounds.ballast_bytes:
            self._delete_ballast()

    def measure(self, used_bytes: int) -> None:
        """Measure free space, record the database's used size and create the ballast if it fits."""
        self.used_bytes = used_bytes
        try:
            self.free_bytes = free = _free(self._folder)
        except OSError:  # the next write will report the actual error
            return
        if free >= self._reserve * 3 // 2:
            self._was_full = False
        if free >= self._ballast_threshold and self._make_ballast():
            self.free_bytes = free = _free(self._folder)
        shortage = self._shortage_of(free, used_bytes)
        if shortage != self.shortage:
            self.shortage = shortage
            self.on_change()

    def _shortage_of(self, free: int, used_bytes: int) -> Shortage | None:
        free_bound, size_bound = self.bounds.free_bytes, self.bounds.max_bytes
        resume_bytes = free_bound * 3 // 2
        is_low = self._disk.update(free, free_bound, resume_bytes)
        is_over = size_bound > 0 and self._database.update(
            size_bound - used_bytes, 0, size_bound // 16
        )
        if self._was_full:
            return self._full()
        if is_low:
            return Shortage(
                DISK_LOW,
                f"the disk has less free space than storage.free_bytes ({_text(free_bound)}); "
                f"publishing resumes once {_text(resume_bytes)} are free",
            )
        if is_over:
            return Shortage(
                DATABASE_FULL,
                f"the database uses more than storage.max_bytes ({_text(size_bound)}); "
                f"publishing resumes below {_text(size_bound - size_bound // 16)}",
            )
        return None

    def _full(self) -> Shortage:
        detail = (
            f"the disk is full; publishing resumes once {_text(self._reserve * 3 // 2)} are free"
        )
        if self.bounds.free_bytes or self.bounds.ballast_bytes:
            detail += " (1.5 times the larger of storage.free_bytes and storage.ballast_bytes)"
        return Shortage(DISK_FULL, detail)

    @property
    def _reserve(self) -> int:
        return max(self.bounds.free_bytes, self.bounds.ballast_bytes) or _MIN_RESERVE

    @property
    def _ballast_threshold(self) -> int:
        """Number of free bytes above which creating the ballast does not stop publishing."""
        return max(
            self._reserve * 3 // 2, self.bounds.free_bytes * 3 // 2 + self.bounds.ballast_bytes
        )

    def _make_ballast(self) -> bool:
        size = self.bounds.ballast_bytes
        if not size or self.has_ballast:
            return True
        self._delete_ballast()  # remove an incomplete file
        try:
            file = create_private(self._ballast)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file, 0, size)
                else:  # macOS
                    for _ in range(0, size, _MIB):
                        os.write(file, bytes(_MIB))
            finally:
                os.close(file)
        except OSError:
            self._delete_ballast()
            return False
        return True

    def _delete_ballast(self) -> bool:
        try:
            self._ballast.unlink()
        except OSError:
            return False
        return True

    def release_ballast_if_full(self) -> None:
        """Delete the ballast if the disk is nearly full, so that shutdown can write its files."""
        if self._was_full or _free(self._folder) < _MIB:
            self._delete_ballast()

    def note_full(self) -> bool:
        """Record that the disk is full and delete the ballast; return False if there was none."""
        self._was_full = True
        if self.shortage != (full := self._full()):
            self.shortage = full
            self.on_change()
        return self._delete_ballast()

    def note_not_writable(self, error: NotWritableError) -> None:
        """Record that nothing can be written; raise ``error`` after ``MAX_TROUBLE_S`` of that."""
        self.note_trouble(str(error))
        if self._timer() - self._trouble_since >= MAX_TROUBLE_S:
            raise error

    def wait_after(self, error: StorageFullError | NotWritableError) -> None:
        """Free some space or wait before the caller retries the write.

        A full disk has no time limit: waiting loses nothing, and a restart would not help.

        Raises:
            NotWritableError: nothing could be written for ``MAX_TROUBLE_S``.
        """
        if isinstance(error, NotWritableError):
            self.note_not_writable(error)
        elif self.note_full():
            return
        else:
            self.note_trouble(str(error))
        self._sleep(RETRY_S)

    def note_trouble(self, text: str) -> None:
        if self.write_problem != text:
            self.write_problem = text
            self._trouble_since = self._timer()
            self.on_change()

    def note_stored(self) -> None:
        if self.write_problem is not None:
            self.write_problem = None
            self.on_change()


def _free(folder: Path) -> int:
    file_system = os.statvfs(folder)
    return file_system.f_bavail * file_system.f_frsize


def _text(size: int) -> str:
    if size < 1_024 * _MIB:
        return f"{size / _MIB:,.0f} MiB"
    return f"{size / (1_024 * _MIB):,.1f}".removesuffix(".0") + " GiB"


_SUFFIXES: Final = {"database": "", "wal": "-wal", "shm": "-shm"}


@dataclass(slots=True, frozen=True)
class DiskUsage:
    """Disk usage of the data folder and its file system, in bytes."""

    files: dict[str, int]  # sizes of the database, WAL and shm; 0 if a file does not exist
    total: int
    free: int  # bytes available to the account that runs the broker

    @property
    def used_share(self) -> float:
        return 1 - self.free / self.total if self.total else 0.0


async def measure_disk(database: Path) -> DiskUsage:
    """Measure the database files and their file system in a thread, or raise OSError."""

    def measure() -> DiskUsage:
        usage = shutil.disk_usage(database.parent)
        sizes = {}
        for kind, suffix in _SUFFIXES.items():
            path = database.with_name(database.name + suffix)
            sizes[kind] = path.stat().st_size if path.exists() else 0
        return DiskUsage(sizes, usage.total, usage.free)

    return await asyncio.to_thread(measure)


@dataclass(slots=True, frozen=True)
class DatabaseSize:
    """Sizes of the stored data; times are in Unix ms, or None if there are no rows."""

    pages: int
    pages_free: int
    page_bytes: int
    schema: int  # number of the newest applied migration
    history_rows: int  # number of settled messages, including deleted ones
    history_bytes: int
    deleted_rows: int
    deleted_bytes: int
    history_oldest_at: int | None
    history_offset: int  # highest offset ever assigned
    removed: int  # number of rows removed by retention since the database was created
    audit_rows: int
    audit_oldest_at: int | None
    last_seen_ms: int | None  # the most recently stored time of the steady clock, in ms

    @property
    def deleted_share(self) -> float:
        return self.deleted_rows / self.history_rows if self.history_rows else 0.0


async def measure_database(readers: Readers) -> DatabaseSize:
    """Compute the sizes from counters, the first and last rows, and the rows not yet counted."""
    counters: dict[str, int] = dict(await readers.read("batch", "counters"))
    pages = (await readers.read("database_size", "pages"))[0]
    [ends] = await readers.read("database_size", "ends")
    oldest_at, offset, audit_at, audit_rows, schema = ends
    rows, size, deleted_rows, deleted_bytes = (await readers.read("database_size", "totals"))[0]
    return DatabaseSize(
        pages=pages[0],
        pages_free=pages[1],
        page_bytes=pages[2],
        schema=schema,
        history_rows=rows + deleted_rows,
        history_bytes=size + deleted_bytes,
        deleted_rows=deleted_rows,
        deleted_bytes=deleted_bytes,
        history_oldest_at=oldest_at,
        history_offset=offset or 0,
        removed=counters.get("retention_removed", 0),
        audit_rows=audit_rows,
        audit_oldest_at=audit_at,
        last_seen_ms=counters.get("last_seen_ms"),
    )
