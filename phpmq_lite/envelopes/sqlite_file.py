"""SQLite files of services, beside the broker: opened for several processes, written at once."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BUSY_S: Final = 10.0  # so long another writer is waited for
_LOOK_S: Final = 0.01


def open_file(path: str | Path, *, is_wal: bool = False) -> sqlite3.Connection:
    """Open for reading and writing, each statement its own transaction (``synchronous=FULL``).

    ``is_wal`` puts the file into WAL mode, where it is not: for files that are ours.  Close it
    before a fork, or leave it alone after one.

    Raises:
        sqlite3.Error: it is no database, or locked for longer than 10 s.
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
    """Switch to WAL mode; SQLite does not wait by itself for others that switch too."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Hold the file for writing from the first statement on; commit, or roll back on an error.

    Raises:
        sqlite3.Error: the file stays locked, the disk is full, a transaction is open already.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite rolls back by itself when the disk is full
            connection.execute("ROLLBACK")
        raise


def wall_ms() -> int:
    """Return the Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
