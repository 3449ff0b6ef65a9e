"""The database and its write-ahead log, as the broker opened them.

SQLite keeps writing to a file that was unlinked or replaced: the broker would confirm what no
start finds, and at its end remove the log of another database.
"""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.errors import DatabaseReplacedError

_REMEDY: Final = (
    "what was confirmed before is in the file that the broker had open: put it back from where it "
    "went, or restore a backup, before the next start"
)


# Since Linux 6.13, a stat that reads a file's times makes the next sync of that file slower: 35 of
# 120 µs for the log.  statx reads the numbers alone.  Where it is missing, os.stat does.
_STATX: Final = getattr(ctypes.PyDLL(None), "statx", None)
_AT_FDCWD: Final = -100
_MASK: Final = 0x4 | 0x100  # STATX_NLINK | STATX_INO; the device is always there
_STRUCT: Final = struct.Struct("=16x I 12x Q 96x I I 112x")  # nlink, ino, dev_major, dev_minor


class Identity(NamedTuple):
    """What tells one file from another of the same name."""

    device: int
    inode: int
    links: int

    @classmethod
    def of(cls, path: str) -> "Identity":
        """Return the identity of the file at ``path``.

        Raises:
            FileNotFoundError: there is none.
        """
        if _STATX is not None:
            found = ctypes.create_string_buffer(_STRUCT.size)
            if _STATX(_AT_FDCWD, os.fsencode(path), 0, _MASK, found) == 0:
                links, inode, major, minor = _STRUCT.unpack(found)
                return cls(os.makedev(major, minor), inode, links)
        status = os.stat(path)  # it raises what went wrong
        return cls(status.st_dev, status.st_ino, status.st_nlink)


class OpenedFiles:
    """Compares both files with what they were when they were opened: two system calls, 5 µs.

    ``note_database`` ahead of the connection, ``note_log`` once the log is there.  May be used in
    any thread.
    """

    __slots__ = ("_database", "_log", "_opened")

    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self._log = f"{database}-wal"
        self._opened: dict[str, Identity] = {}

    def note_database(self) -> None:
        """Remember the database, if it is there: a new one is made by the connection."""
        self._opened.clear()
        self._note(self._database)

    def note_log(self) -> None:
        """Remember the log, and the database if it is new.

        Raises:
            DatabaseReplacedError: the database is another file than before.
        """
        if self._opened:
            self.check()
        else:
            self._note(self._database)
        self._note(self._log)

    def check(self) -> None:
        """Compare the files with those that were opened.

        Raises:
            DatabaseReplacedError: one was unlinked, replaced, or linked once more.
        """
        for path, opened in self._opened.items():
            try:
                found = Identity.of(path)
            except FileNotFoundError:
                raise DatabaseReplacedError(
                    f"{path} was removed while the broker was running; {_REMEDY}"
                ) from None
            if found != opened:
                raise DatabaseReplacedError(
                    f"{path} was replaced while the broker was running: it was {_text(opened)}, "
                    f"and is {_text(found)}; {_REMEDY}"
                )

    def check_database(self) -> None:
        """Compare the database alone: its log is removed when the last connection closes.

        Raises:
            DatabaseReplacedError: as ``check``.
        """
        self._opened.pop(self._log, None)
        self.check()

    def _note(self, path: str) -> None:
        try:
            self._opened[path] = Identity.of(path)
        except FileNotFoundError:
            return


def _text(file: Identity) -> str:
    return f"inode {file.inode} of device {file.device} with {file.links} links"
