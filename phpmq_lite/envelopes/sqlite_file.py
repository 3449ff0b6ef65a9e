"""Helpers for the SQLite files of clients, which several processes may share."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BUSY_S: Final = 10.0  # maximum time to wait for other writers to release the lock
_RETRY_S: Final = 0.01


def open_file(path: str | Path, *, is_wal: bool = False) -> sqlite3.Connection:
    """Open an SQLite file for reading and writing in autocommit mode with ``synchronous=FULL``.

    ``is_wal`` switches to WAL mode, for files that only this package uses. Close the connection
    before a fork, or do not use it after the fork.

    Raises:
        sqlite3.Error: the file is not a database, or is locked for more than 10 s.
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
    """Lock the file for writing during the block; commit at its end, or roll back on an error.

    Raises:
        sqlite3.Error: the file stays locked, the disk is full, or a transaction is already open.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # False if SQLite rolled back because the disk was full
            connection.execute("ROLLBACK")
        raise


def wall_ms() -> int:
    """Return the Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
