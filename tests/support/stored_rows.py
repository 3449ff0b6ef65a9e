"""The database of a broker, read and changed by a test on a connection of its own."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from phpmq_lite.storage.data_folder import DATABASE
from tests.support.stores import ON_POSTGRES, Rows, conninfo_of, plain_store, read_tables, rows_of


def stored_rows(data: Path, text: str, *values: Any) -> Rows:
    """Execute a statement on the database of the broker in ``data``; return the rows of a query."""
    with _connected(data) as read:
        return read(text, *values)


def stored_tables(data: Path, excluded: Collection[str] = ()) -> dict[str, Rows]:
    with _connected(data) as read:
        tables = read_tables(read)
    return {name: rows for name, rows in tables.items() if name not in excluded}


def unseal(data: Path) -> None:
    """Allow changes to the database of a stopped broker."""
    if (meta := data / "meta.json").exists():
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"seal": None}))


@contextmanager
def _connected(data: Path) -> Iterator[Callable[..., Rows]]:
    if ON_POSTGRES:
        store = plain_store(conninfo_of(data))
        with closing(store.connection):
            yield lambda text, *values: rows_of(store.execute(text, values))
        return
    with closing(sqlite3.connect(data / DATABASE, isolation_level=None)) as connection:
        yield lambda text, *values: rows_of(connection.execute(text, values))
