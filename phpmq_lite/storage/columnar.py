"""Statements whose rows come as ``pyarrow.Table``: SQLite through ADBC, or row by row.

Importing this module needs the standard library only.

ADBC brings an SQLite of its own, and two of them in one process undo each other's locks on a file
(sqlite.org/howtocorrupt.html 2.2.1).  So nobody uses it in a process that has the same database
open by ``sqlite3``, and all of a ``Database`` goes through one of the two.
"""

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from phpmq_lite.errors import StorageError

BUSY_MS: Final = 5_000  # waited for a lock; ADBC sets none by itself

Engine = Literal["auto", "adbc", "python"]
ColumnType = Literal["int32", "int64", "string", "binary", "timestamp"]

_PLACE: Final = re.compile(r":(\w+)")


@dataclass(slots=True, frozen=True)
class Column:
    """One column: ``timestamp`` is Arrow's of milliseconds in UTC."""

    name: str
    type: ColumnType
    is_nullable: bool = False


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Give the ``pyarrow.Schema`` of columns."""
    import pyarrow as pa

    types = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
    }
    return pa.schema([pa.field(c.name, types[c.type], c.is_nullable) for c in columns])


class Database(Protocol):
    """One open connection.  Methods raise StorageError where the database cannot be read."""

    def table(self, text: str, given: dict[str, Any], columns: Sequence[Column]) -> Any:
        """Run a statement to its end; parameters by their names."""

    def close(self) -> None:
        """Close the connection."""


def open_database(uri: str, engine: Engine, rows: int) -> Database:
    """Open a connection for statements that give at most so many rows; auto: ADBC if installed.

    Raises:
        StorageError: it cannot be opened.
    """
    is_adbc = engine == "adbc" or (engine == "auto" and has_adbc())
    return _Adbc(uri, rows) if is_adbc else _Python(uri)


def has_adbc() -> bool:
    """Tell whether ADBC is installed."""
    try:
        import adbc_driver_sqlite.dbapi  # noqa: F401
    except ImportError:
        return False
    return True


class _Python:
    """Python's own SQLite: each value becomes an object on its way."""

    def __init__(self, uri: str) -> None:
        try:
            self._connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=BUSY_MS / 1_000
            )
            self._connection.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            raise StorageError(f"cannot open the database: {error}") from error

    def table(self, text: str, given: dict[str, Any], columns: Sequence[Column]) -> Any:
        import pyarrow as pa

        try:
            cursor = self._connection.execute(text, given)
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the history: {error}") from error
        if not columns:
            names = [column[0] for column in cursor.description]
            return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
        schema = arrow_schema(columns)
        lists = zip(*rows, strict=True) if rows else [()] * len(columns)
        arrays = [pa.array(values, field.type) for values, field in zip(lists, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        self._connection.close()


class _Adbc:
    """SQLite to Arrow in C."""

    def __init__(self, uri: str, rows: int) -> None:
        import adbc_driver_sqlite
        from adbc_driver_sqlite import dbapi

        # A type is guessed from the first batch, so each statement has to fit into one.
        self._options = {adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(rows + 1)}
        self._error = dbapi.Error
        try:  # autocommit: else each read would be part of one long transaction
            self._connection = dbapi.connect(uri, autocommit=True)
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
                cursor.fetchall()
        except dbapi.Error as error:
            raise StorageError(f"cannot open the database: {error}") from error

    def table(self, text: str, given: dict[str, Any], columns: Sequence[Column]) -> Any:
        values = [given[name] for name in dict.fromkeys(_PLACE.findall(text))]  # by their order
        try:
            with closing(self._connection.cursor(adbc_stmt_kwargs=self._options)) as cursor:
                cursor.execute(text, values or None)
                table = cursor.fetch_arrow_table()
        except self._error as error:
            raise StorageError(f"cannot read the history: {error}") from error
        return _cast(table, arrow_schema(columns)) if columns else table

    def close(self) -> None:
        self._connection.close()


def _cast(table: Any, schema: Any) -> Any:
    """Give a table the types that it is to have; what is all null came as a number."""
    import pyarrow as pa

    if table.num_rows == 0:
        return schema.empty_table()
    arrays = [
        pa.nulls(table.num_rows, field.type)
        if column.null_count == table.num_rows
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
