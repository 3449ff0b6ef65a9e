"""SQLite files of clients, which several processes may share, and the locks of these processes.

The locks end with their process, so that others on the machine see at once that it has died. A
process locks one byte, at a random offset, of an empty file beside the shared file. POSIX locks end
when the process ends, however it does, and a forked child has none of them. They also end when the
process closes *any* descriptor of the file: it stays open.
"""

import fcntl
import os
import secrets
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from phpmq_lite.os_process import reset_after_fork

PURGE_ROWS: Final = 1_000  # per transaction, to keep other writers from waiting long
BUSY_S: Final = 10.0  # maximum time to wait for other writers to release the lock
_RETRY_S: Final = 0.01

Transaction = AbstractContextManager[sqlite3.Connection]


def open_file(path: str | Path, *, is_wal: bool = False) -> sqlite3.Connection:
    """Open an SQLite file for reading and writing in autocommit mode with ``synchronous=FULL``.

    ``is_wal`` switches to WAL mode, for files that only this package uses. Close the connection
    before a fork, or do not use it after the fork.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        if is_wal:
            _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode, retrying because SQLite does not wait while another process switches."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Lock the file for writing during the block; commit at its end, or roll back on an error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # False if SQLite rolled back because the disk was full
            connection.execute("ROLLBACK")
        raise


def purge(begin: Callable[[], Transaction], statement: str, values: Any) -> int:
    """Run a DELETE of up to ``PURGE_ROWS`` rows until none is left; return their number."""
    deleted, count = 0, PURGE_ROWS
    while count == PURGE_ROWS:
        with begin() as connection:
            count = connection.execute(statement, values).rowcount
        deleted += count
    return deleted


def wall_ms() -> int:
    """Return the Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


_OFFSETS: Final = 1 << 62


class ProcessLocks:
    """The locks of this process; there is one instance."""

    def __init__(self) -> None:
        self.forked()
        reset_after_fork(self)

    def forked(self) -> None:
        """Forget the locks of the parent process."""
        self._mutex = threading.Lock()
        self._held: dict[Path, tuple[int, str, int]] = {}  # file -> descriptor, name, offset

    def name(self, shared: Path) -> str | None:
        """Return the name of this process, locked beside a shared file; None without locks."""
        with self._locked(shared) as held:
            return None if held is None else f"{held[1]}:{held[2]:x}"

    def is_alive(self, shared: Path, name: str) -> bool | None:
        """Return whether the process with a name is alive; None if this machine cannot know."""
        machine, _, number = name.partition(":")
        with self._locked(shared) as held:
            if held is None or machine != held[1]:
                return None
            descriptor, _, own_offset = held
            if (offset := int(number, 16)) == own_offset:  # our own lock would be replaced
                return True
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError:
                return True
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, offset)
            return False

    @contextmanager
    def _locked(self, shared: Path) -> Iterator[tuple[int, str, int] | None]:
        with self._mutex:
            if shared not in self._held:
                with suppress(OSError):  # a read-only folder, or a file system without locks
                    self._held[shared] = _lock(shared)
            yield self._held.get(shared)


def _lock(shared: Path) -> tuple[int, str, int]:
    mode = shared.stat().st_mode & 0o666
    descriptor = os.open(f"{shared}-holders", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    offset = secrets.randbelow(_OFFSETS)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
    return descriptor, f"{_machine()}.{os.fstat(descriptor).st_ino}", offset


def _machine() -> str:
    """Return a name of this machine since its start, the same in all its containers."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()}-{uuid.getnode():x}"


LOCKS: Final = ProcessLocks()
