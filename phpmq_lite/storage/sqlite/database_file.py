"""The files of a database: its write-ahead log, and connections that only read."""

import sqlite3
from pathlib import Path


def wal_of(database: Path) -> Path:
    """Return the path of a database's write-ahead log."""
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
