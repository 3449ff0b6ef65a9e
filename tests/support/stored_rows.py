"""The database of a broker, read and changed by a test on a connection of its own."""

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from phpmq_lite.storage.data_folder import DATABASE
from tests.support.stores import ON_POSTGRES, Rows, conninfo_of, plain_store, read_tables, rows_of


def stored_rows(data: Path, text: str, *values: Any) -> Rows:
    """Execute a statement on the database of the broker in ``data``; return the rows of a query."""
    if ON_POSTGRES:
        store = plain_store(conninfo_of(data))
        with closing(store.connection):
            return rows_of(store.execute(text, values))
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as connection:
        return rows_of(connection.execute(text, values))


def stored_tables(data: Path, excluded: Collection[str] = ()) -> dict[str, Rows]:
    """Return all rows of all tables but those in ``excluded``."""
    tables = read_tables(lambda text, *values: stored_rows(data, text, *values))
    return {name: rows for name, rows in tables.items() if name not in excluded}
