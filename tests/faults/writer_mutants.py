"""Defects of the store, which both writing processes have, and of the writer process.

Run as a program, this is the writer process of a broker with such defects, see ``mutants.py``.
"""

import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from phpmq_lite.errors import OutcomeUnknownError, StorageFullError
from phpmq_lite.storage.data_folder import locking_pid
from phpmq_lite.storage.sqlite import store, writer_process
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.sqlite.writer_process import Outcome

SLOW_DISK_S: Final = 0.02
_END_S: Final = 10.0
_finish: Final = SqliteStore.finish


def _answer_full_as_stored() -> None:
    """Treat a batch as stored although the disk is full."""

    def careless(self: SqliteStore, *, with_index: bool) -> float:
        try:
            return _finish(self, with_index=with_index)
        except StorageFullError:
            return 0.0

    setattr(SqliteStore, "finish", careless)  # noqa: B010 - a method is not assigned to


def _carry_on() -> None:
    """Repeat a failed COMMIT."""

    def stubborn(self: SqliteStore, *, with_index: bool) -> float:
        try:
            return _finish(self, with_index=with_index)
        except OutcomeUnknownError:
            if self.connection.in_transaction:
                return _finish(self, with_index=False)
            return 0.0

    setattr(SqliteStore, "finish", stubborn)  # noqa: B010 - a method is not assigned to


# -- defects of the writer process alone


class _EagerSocket(socket.socket):
    """Sends one reply early, and then not again."""

    has_replied = False

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send everything else."""
        if self.has_replied:
            self.has_replied = False
            return len(data)
        return super().send(data, flags)


def _reply_before_commit() -> None:
    """Reply, and store a little later."""
    sockets: list[_EagerSocket] = []

    def connected(fileno: int) -> _EagerSocket:
        sockets.append(_EagerSocket(fileno=fileno))
        return sockets[0]

    def late(self: SqliteStore, *, with_index: bool) -> float:
        reply = Outcome.STORED, 0.0, 0, b""
        sockets[0].send(writer_process._REPLY.pack(*reply))
        sockets[0].has_replied = True
        time.sleep(SLOW_DISK_S)
        return _finish(self, with_index=with_index)

    setattr(writer_process, "socket", SimpleNamespace(socket=connected))  # noqa: B010
    setattr(SqliteStore, "finish", late)  # noqa: B010


def _close_the_database() -> None:
    """Close the database at the end, which removes the WAL."""
    connections: list[sqlite3.Connection] = []

    def connect(*given: Any, **more: Any) -> sqlite3.Connection:
        connections.append(sqlite3.connect(*given, **more))
        return connections[0]

    def end(code: int) -> None:
        connections[0].close()
        os._exit(code)

    setattr(writer_process, "sqlite3", SimpleNamespace(connect=connect))  # noqa: B010
    setattr(writer_process, "os", SimpleNamespace(_exit=end))  # noqa: B010


def _share_no_lock() -> None:
    """Close the shared lock, which is the third of the arguments."""
    os.close(int(sys.argv[3]))


def _sync_less() -> None:
    """Use NORMAL; the history is not trimmed, because that ends with FULL and a check."""
    store._PRAGMAS.update(synchronous=1)
    setattr(SqliteStore, "remove_after_batch", lambda *_: None)  # noqa: B010


STORE_MUTANTS: Final[dict[str, Callable[[], Any]]] = {
    "AnswersFullAsStored": _answer_full_as_stored,
    "CarriesOn": _carry_on,
    "SyncsLess": _sync_less,
}
PROCESS_MUTANTS: Final[dict[str, Callable[[], Any]]] = {
    "RepliesBeforeCommit": _reply_before_commit,
    "ClosesTheDatabase": _close_the_database,
    "SharesNoLock": _share_no_lock,
}
_ALL: Final = STORE_MUTANTS | PROCESS_MUTANTS


def pass_on(names: Iterable[str]) -> None:
    """Start this broker's writer process with those of the defects that affect it."""
    passed = [name for name in names if name in _ALL]
    if passed:
        program = "-m", "tests.faults.writer_mutants", ",".join(passed)
        setattr(writer_process, "PROGRAM", program)  # noqa: B010 - a constant is not assigned to


# -- the writer process of a running broker


def writer_pid(data: Path) -> int:
    """Return the pid of a broker's writer process, which must run."""
    _, *writers = (data / "lock").read_text(encoding="ascii").split()
    assert writers, "there is no writer process"
    assert is_running(int(writers[0])), "the writer process has ended"
    return int(writers[0])


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that its parent has not awaited has."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_unlocked(data: Path) -> None:
    """Wait until a broker that was killed, and its writer process, have ended."""
    until_s = time.monotonic() + _END_S
    while locking_pid(data) is not None:
        assert time.monotonic() < until_s, "the writer process has not ended"
        time.sleep(0.005)


if __name__ == "__main__":
    for name in sys.argv.pop(1).split(","):
        _ALL[name]()
    writer_process.run(sys.argv[1:])
