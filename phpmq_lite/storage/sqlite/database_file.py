"""The files of a database: read-only connections, and whether a file was removed or replaced.

SQLite keeps writing to an unlinked or replaced file, and on closing removes the wrong WAL.  Without
this check, the broker would confirm messages that are lost at the next startup.
"""

import ctypes
import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from weakref import finalize

from phpmq_lite.errors import DatabaseReplacedError


def wal_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def has_wal(database: Path) -> bool:
    """Return whether a database has a write-ahead log that is not empty."""
    wal = wal_of(database)
    return wal.exists() and wal.stat().st_size > 0


def read_only_uri(database: Path, *options: str) -> str:
    """Return the URI by which SQLite opens a database read-only, such as with ``immutable=1``."""
    return f"{database.resolve().as_uri()}?{'&'.join(('mode=ro', *options))}"


def open_read_only(database: Path, *options: str) -> sqlite3.Connection:
    """Open a database read-only; any thread may use or interrupt the connection."""
    uri = read_only_uri(database, *options)
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


_REMEDY: Final = (
    "confirmed messages are in the file that the broker had open; move that file back, or restore "
    "a backup, before the next startup"
)

# Since Linux 6.13, reading a file's times slows down its next sync (for the WAL, by 40 of 120 µs).
# Here, statx reads only the link count and the inode; os.stat is the fallback.
_STATX: Final = getattr(ctypes.PyDLL(None), "statx", None)
_AT_FDCWD: Final = -100
_MASK: Final = 0x4 | 0x100  # STATX_NLINK | STATX_INO; the device is always returned
_STRUCT: Final = struct.Struct("=16x I 12x Q 96x I I 112x")  # links, inode, device (major, minor)


class _OpenedFile:
    """A file, and its link count, inode and device numbers at the time it was opened.

    The arguments of statx are created only once: on a cold cache, this saves a third of the time.
    """

    __slots__ = ("_arguments", "_identity", "opened", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity = bytearray(_STRUCT.size)
        self._arguments = (
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.c_int(0),
            ctypes.c_uint(_MASK),
            (ctypes.c_char * _STRUCT.size).from_buffer(self._identity),
        )
        self.opened = self.identity()

    def identity(self) -> tuple[int, ...]:
        """Return the identity of the file that exists at the path, or raise FileNotFoundError."""
        if _STATX is not None and _STATX(*self._arguments) == 0:
            return _STRUCT.unpack(self._identity)
        status = os.stat(self.path)  # raises an OSError that describes the failure
        device = status.st_dev
        return status.st_nlink, status.st_ino, os.major(device), os.minor(device)


_INDEX: Final = struct.Struct("=14x H I")  # of the WAL's index: page size, number of frames
_HOLE: Final = bytes(4)  # no page has the number 0


class OpenedFiles:
    """Detects, with six system calls (9 µs), whether one of SQLite's files was replaced or cut.

    These are the database, the WAL and its index; with different files for the index, two processes
    would not see each other's locks.  Call ``note_database`` before the connection is opened and
    ``note_log`` once the WAL exists.  Any thread can use this class.
    """

    __slots__ = (
        "__weakref__",
        "_close",
        "_database",
        "_descriptors",
        "_frames",
        "_logs",
        "_opened",
    )

    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self._logs = f"{database}-wal", f"{database}-shm"
        self._opened: dict[str, _OpenedFile] = {}
        self._descriptors: list[int] = []  # of the WAL and its index; empty while unchecked
        self._close: Callable[[], object] = lambda: None
        self._frames = 0  # number of frames in the WAL at the last check

    def note_database(self) -> None:
        """Record the identity of the database if it exists; otherwise the connection creates it."""
        self._opened.clear()
        self._note(self._database)

    def note_log(self) -> None:
        """Record which WAL and index are used; raise DatabaseReplacedError for another database."""
        if self._opened:
            self.check()
        else:
            self._note(self._database)
        for path in self._logs:
            self._note(path)
        self.close()
        descriptors: list[int] = []
        with suppress(FileNotFoundError), ExitStack() as stack:
            for path in self._logs:
                descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                stack.callback(os.close, descriptors[-1])
            self._descriptors = descriptors
            self._close = finalize(self, stack.pop_all().close)

    def close(self) -> None:
        """Close the WAL and its index after SQLite: closing the index releases SQLite's locks."""
        self._close()
        self._descriptors = []

    def check(self) -> None:
        """Compare the files on disk with those that were opened.

        Raises:
            DatabaseReplacedError: a file was unlinked or replaced, or has gained another hard link,
                or the WAL has lost frames.
        """
        for file in self._opened.values():
            try:
                identity = file.identity()
            except FileNotFoundError:
                raise DatabaseReplacedError(
                    f"{file.path} was removed while the broker was running; {_REMEDY}"
                ) from None
            if identity != file.opened:
                raise DatabaseReplacedError(
                    f"{file.path} was replaced while the broker was running: it was "
                    f"{_describe(file.opened)}, and is now {_describe(identity)}; {_REMEDY}"
                )
        self.check_log()

    def check_log(self) -> None:
        """Check that the WAL has all frames that its index names; takes 2 µs.

        Call this before each write, too: SQLite writes behind the new end of a WAL that was cut,
        and only some of the zeros between are noticed afterwards.

        Raises:
            DatabaseReplacedError: it was truncated.
        """
        if not self._descriptors:
            return
        log, index = self._descriptors
        page, frames = _INDEX.unpack(os.pread(index, 20, 0))
        frame = 24 + (65_536 if page == 1 else page)
        size = os.lseek(log, 0, os.SEEK_END)
        before, self._frames = self._frames, frames
        has_hole = 0 < before < frames and os.pread(log, 4, 32 + (before - 1) * frame) == _HOLE
        is_short = frames > 0 and size < 32 + frames * frame
        # Another process may just have checkpointed all frames and truncated the WAL.
        if (has_hole or is_short) and frames == _INDEX.unpack(os.pread(index, 20, 0))[1]:
            raise DatabaseReplacedError(
                f"{self._logs[0]} was truncated while the broker was running: it must have "
                f"{32 + frames * frame} bytes without holes, and has {size}; restore a backup, "
                "or start the broker again without the messages that were lost"
            )

    def check_database(self) -> None:
        """Check only the database, because closing the last connection removes the other files."""
        for path in self._logs:
            self._opened.pop(path, None)
        self._descriptors = []
        self.check()

    def _note(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._opened[path] = _OpenedFile(path)


def _describe(identity: tuple[int, ...]) -> str:
    links, inode, major, minor = identity
    return f"inode {inode} on device {major}:{minor} with {links} links"
