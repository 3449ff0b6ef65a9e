"""Reading a database from outside, so that no file around it changes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def opened_aside(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for a short read, whoever has it locked.

    The index of the WAL stays as it is, for ``check_wal`` to ask: SQLite reads the WAL into memory
    where it may not share it.  While a broker writes, what is read may be of two moments.
    """
    uri = f"{database.resolve().as_uri()}?mode=ro&vfs=unix-none"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        yield connection
