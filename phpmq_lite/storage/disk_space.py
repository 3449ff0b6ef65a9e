"""Room on the disk and in the database: when publishing stops, and a reserve for the rest.

A full disk would block acknowledgements and checkpoints too, and consumers could never drain it.
So publishing stops well ahead; and where the disk is full all the same, because somebody else
fills it, the *ballast* is deleted: a file that does nothing but keep room.
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
from phpmq_lite.storage.atomic_files import create_private

BALLAST: Final = "ballast"
PATIENCE_S: Final = 30.0  # without any write, where the disk is not just full
AGAIN_S: Final = 1.0
_MIB: Final = 1 << 20
_LEAST: Final = 8 * _MIB  # free, where the settings ask for nothing: what a batch takes, and more

DISK_LOW: Final = ("disk_full", "disk full: storage.free_bytes")  # code, reason
DISK_FULL: Final = ("disk_full", "disk full")
DATABASE_FULL: Final = ("database_full", "database full: storage.max_bytes")


@dataclass(slots=True, frozen=True)
class DiskSpaceBounds:
    """What the settings say about room, in bytes."""

    free_bytes: int = 0  # on the disk: publishing stops below it; 0: only once it is full
    max_bytes: int = 0  # in use in the database: publishing stops above it; 0: no limit
    ballast_bytes: int = 0  # larger than what a batch takes; 0: none


@dataclass(slots=True, frozen=True)
class Shortage:
    """Why nothing is published."""

    code: str  # for HTTP
    reason: str  # short and always the same, for receipts and counters
    detail: str  # with the bounds, for people


class Watermark:
    """Whether there is too little of something: with a gap, so that it does not go to and fro."""

    __slots__ = ("is_short",)

    def __init__(self) -> None:
        self.is_short = False

    def note(self, left: int, least: int, enough: int) -> bool:
        """Take in what is left: too little below ``least``, then until it is ``enough``."""
        self.is_short = left < (enough if self.is_short else least)
        return self.is_short


class DiskSpace:
    """Looks after the room for one database.  Its owner is the writer's thread.

    Others read ``shortage`` and ``trouble``, and are told by ``on_change`` when one of them is
    another.  ``bounds`` may be replaced at any time.
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
        self.shortage: Shortage | None = None  # why nothing is published
        self.trouble: str | None = None  # why nothing at all can be stored now
        self.free_bytes = 0  # on the disk, at the last look
        self.used_bytes = 0  # of the database, the same
        self.on_change: Callable[[], None] = lambda: None
        self._folder = folder
        self._ballast = folder / BALLAST
        self._timer = timer
        self._sleep = sleep
        self._disk = Watermark()
        self._database = Watermark()
        self._is_bare = False  # the disk was full; until there is room for the ballast again
        self._since = 0.0  # of the trouble

    @property
    def has_ballast(self) -> bool:
        """Tell whether the reserve is there, and whole: a kill may have cut it off."""
        try:
            size = self._ballast.stat().st_size
        except OSError:
            return False
        return 0 < self.bounds.ballast_bytes <= size

    # -- looking

    def begin(self) -> None:
        """Look ahead of the first write: on a full disk SQLite cannot even open the database."""
        self.free_bytes = _free(self._folder)
        self._is_bare = self.free_bytes < self.bounds.ballast_bytes // 2
        if self._is_bare or not self.bounds.ballast_bytes:
            self._give_up_ballast()

    def measure(self, used_bytes: int) -> None:
        """Look how much room there is, with what the database has in use; make the ballast."""
        self.used_bytes = used_bytes
        try:
            self.free_bytes = free = _free(self._folder)
        except OSError:  # the next write tells what it means
            return
        if free >= self._reserve * 3 // 2:
            self._is_bare = False
        if free >= self._enough_for_ballast and self._make_ballast():
            self.free_bytes = free = _free(self._folder)
        shortage = self._shortage_of(free, used_bytes)
        if shortage != self.shortage:
            self.shortage = shortage
            self.on_change()

    def _shortage_of(self, free: int, used_bytes: int) -> Shortage | None:
        least, most = self.bounds.free_bytes, self.bounds.max_bytes
        enough = least * 3 // 2
        is_low = self._disk.note(free, least, enough)
        is_over = most > 0 and self._database.note(most - used_bytes, 0, most // 16)
        if self._is_bare:
            return self._full()
        if is_low:
            return Shortage(
                *DISK_LOW,
                f"less than storage.free_bytes, {_text(least)}, is free on the disk; "
                f"publishing goes on once {_text(enough)} are",
            )
        if is_over:
            return Shortage(
                *DATABASE_FULL,
                f"more than storage.max_bytes, {_text(most)}, is in use in the database; "
                f"publishing goes on below {_text(most - most // 16)}",
            )
        return None

    def _full(self) -> Shortage:
        enough = (
            f"the disk is full; publishing goes on once {_text(self._reserve * 3 // 2)} are free"
        )
        if self.bounds.free_bytes or self.bounds.ballast_bytes:
            enough += ", one and a half times storage.free_bytes and storage.ballast_bytes"
        return Shortage(*DISK_FULL, enough)

    @property
    def _reserve(self) -> int:
        return max(self.bounds.free_bytes, self.bounds.ballast_bytes) or _LEAST

    @property
    def _enough_for_ballast(self) -> int:
        """With it, publishing goes on or stays: what it needs is free beside it."""
        return max(
            self._reserve * 3 // 2, self.bounds.free_bytes * 3 // 2 + self.bounds.ballast_bytes
        )

    # -- the ballast

    def _make_ballast(self) -> bool:
        """Make it where there is none; tell whether it is there."""
        size = self.bounds.ballast_bytes
        if not size or self.has_ballast:
            return True
        self._give_up_ballast()  # one that is not whole
        try:
            file = create_private(self._ballast)
            try:
                _allocate(file, size)
            finally:
                os.close(file)
        except OSError:
            self._give_up_ballast()
            return False
        return True

    def _give_up_ballast(self) -> bool:
        try:
            self._ballast.unlink()
        except OSError:
            return False
        return True

    def make_way(self) -> None:
        """Give up the ballast where the disk is as good as full: the last files want room too."""
        if self._is_bare or _free(self._folder) < _MIB:
            self._give_up_ballast()

    # -- when nothing could be stored

    def note_full(self) -> bool:
        """The disk is full: give up the ballast.  False: there was none any more."""
        self._is_bare = True
        if self.shortage != (full := self._full()):
            self.shortage = full
            self.on_change()
        return self._give_up_ballast()

    def note_held_up(self, error: NotWritableError) -> None:
        """Nobody can write now.

        Raises:
            NotWritableError: nobody could for too long.
        """
        self._note_trouble(str(error))
        if self._timer() - self._since >= PATIENCE_S:
            raise error

    def wait_after(self, error: StorageFullError | NotWritableError) -> None:
        """Wait until it is worth storing the same once more, or make room for it at once.

        A full disk is waited for as long as it takes: nothing is lost meanwhile, and after a
        restart it would be as full.

        Raises:
            NotWritableError: nobody could write for too long.
        """
        if isinstance(error, NotWritableError):
            self.note_held_up(error)
        elif self.note_full():
            return
        else:
            self._note_trouble(str(error))
        self._sleep(AGAIN_S)

    def _note_trouble(self, text: str) -> None:
        if self.trouble != text:
            self.trouble = text
            self._since = self._timer()
            self.on_change()

    def note_stored(self) -> None:
        """Something was stored: there is no trouble any more."""
        if self.trouble is not None:
            self.trouble = None
            self.on_change()


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _allocate(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for _ in range(0, size, _MIB):  # macOS
        os.write(file, bytes(_MIB))


def _text(size: int) -> str:
    if size < 1_024 * _MIB:
        return f"{size / _MIB:,.0f} MiB"
    return f"{size / (1_024 * _MIB):,.1f}".removesuffix(".0") + " GiB"


_SUFFIXES: Final = {"database": "", "wal": "-wal", "shm": "-shm"}


@dataclass(slots=True, frozen=True)
class DiskUsage:
    """Bytes on the file system of the data folder."""

    files: dict[str, int]  # database, wal, shm; 0 if a file does not exist
    total: int
    free: int  # for the account that the broker runs under


async def measure_disk(database: Path) -> DiskUsage:
    """Measure the files and their file system, in a thread.

    Raises:
        OSError: the data folder does not exist any more.
    """
    return await asyncio.to_thread(_measure_disk, database)


def _measure_disk(database: Path) -> DiskUsage:
    usage = shutil.disk_usage(database.parent)
    sizes = {
        kind: path.stat().st_size if path.exists() else 0
        for kind, suffix in _SUFFIXES.items()
        for path in [database.with_name(database.name + suffix)]
    }
    return DiskUsage(sizes, usage.total, usage.free)
