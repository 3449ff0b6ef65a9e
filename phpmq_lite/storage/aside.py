"""Reading the database of a stopped broker, so that no file around it changes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from phpmq_lite.storage.wal_scan import has_commits


@contextmanager
def opened_aside(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for a short read, while ``held_still`` keeps every broker away.

    The index of the WAL stays as it is, for ``check_wal`` to ask: SQLite reads the WAL into memory
    where it may not share it.  A WAL in which it finds no commit, be it damaged or of a broker that
    has just begun it anew, SQLite removes as it closes; so such a one is not shown to it.
    """
    database = database.resolve()
    how = "vfs=unix-none" if _has_log(database) else "immutable=1"
    uri = f"{database.as_uri()}?mode=ro&{how}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        yield connection


def _has_log(database: Path) -> bool:
    try:
        with database.with_name(f"{database.name}-wal").open("rb") as file:
            return has_commits(file)
    except FileNotFoundError:
        return False
