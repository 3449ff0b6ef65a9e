"""A PostgreSQL database as the source or target of a copy.

It holds the epoch as an active broker does: what is stored here is fenced and replicated, and a
broker that finds the mark of a copy does not take over.  The statements follow from the schema, so
they are composed here.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from psycopg import sql

from phpmq_lite.errors import NotWritableError, StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.copy_state import (
    BLOCK_BYTES,
    Block,
    CopyMark,
    CopyState,
    Table,
    tables_of,
)
from phpmq_lite.storage.postgres.leadership import SILENCE_S, read_row, take_over
from phpmq_lite.storage.postgres.migrate import create_schema, migrate
from phpmq_lite.storage.postgres.quorum import ConnectionBrokenError, Quorum, quorum_problem
from phpmq_lite.storage.postgres.store import PostgresStore, connect
from phpmq_lite.storage.postgres.url import connection_info, shown
from phpmq_lite.storage.postgres.writer import release

_INITIAL_ROWS: Final = {"client": 1}  # those that the migrations insert
# Rows are read in the order of the keys; sorting all of them first would need room on the disk.
_READ_IN_ORDER: Final = "SET enable_sort = off"


class PostgresSide:
    """A database whose epoch this process holds."""

    def __init__(self, store: PostgresStore, name: str, block_bytes: int = BLOCK_BYTES) -> None:
        self.name = name
        self.store = store
        self._sql = store.sql("copy")
        self._block_bytes = block_bytes
        store.execute(_READ_IN_ORDER)

    # -- both sides

    def tables(self) -> dict[str, Table]:
        """Return the tables by name."""
        return tables_of(self.store.execute(self._sql["tables"]).fetchall())

    def count(self, table: Table) -> int:
        """Return the number of rows."""
        return int(self.store.execute(f'SELECT count(*) FROM "{table.name}"').fetchone()[0])

    def blocks(self, table: Table, after: Sequence[Any] | None) -> Iterator[Block]:
        """Yield all rows after a key, in the order of the keys."""
        key = [
            sql.SQL("{}{}").format(
                sql.Identifier(name),
                sql.SQL(' COLLATE "C"' if table.columns[name] == "TEXT" else ""),
            )
            for name in table.key
        ]
        query = sql.SQL("COPY (SELECT {} FROM {} {} ORDER BY {}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            sql.Identifier(table.name),
            sql.SQL("")
            if after is None
            else sql.SQL("WHERE ({}) > ({})").format(
                sql.SQL(", ").join(key), sql.SQL(", ").join(map(sql.Literal, after))
            ),
            sql.SQL(", ").join(key),
        )
        with (
            self.store.translating(),
            self.store.connection.cursor() as cursor,
            cursor.copy(query) as rows,
        ):
            pieces, size = [], 0
            for row in rows:
                pieces.append(row)
                size += len(row)
                if size >= self._block_bytes:
                    yield Block(b"".join(pieces), len(pieces))
                    pieces, size = [], 0
            if pieces:
                yield Block(b"".join(pieces), len(pieces))

    # -- as a source

    def mark(self) -> CopyMark | None:
        """Return where the data was copied to."""
        text = self._states().get("source")
        return None if text is None else CopyMark.from_json(text)

    def set_mark(self, mark: CopyMark) -> None:
        """Store where the data was copied to."""
        with self.store.transaction():
            self.store.execute(self._sql["set_state"], ("source", mark.to_json()))

    def release(self) -> None:
        """Use the data here again, with new numbers if the copy may have been used."""
        mark = self.mark()
        if mark is None:
            raise StartRefusedError(f"{self.name} was not copied, so there is nothing to release")
        with self.store.transaction():
            if mark.is_complete:
                self.store.renumber()
            self.store.execute(self._sql["drop_states"])

    # -- as a target

    def state(self) -> CopyState | None:
        """Return the progress of an incomplete copy."""
        text = self._states().get("target")
        return None if text is None else CopyState.from_json(text)

    def _states(self) -> dict[str, str]:
        return dict(self.store.execute(self._sql["states"]).fetchall())

    def is_empty(self) -> bool:
        """Return whether the database contains only what the migrations insert."""
        return all(
            self.count(one) <= _INITIAL_ROWS.get(one.name, 0) for one in self.tables().values()
        )

    def begin(self, state: CopyState) -> None:
        """Empty all tables."""
        names = ", ".join(f'"{name}"' for name in self.tables())
        with self.store.transaction():
            self.store.execute(f"TRUNCATE {names}")
            self.store.execute(self._sql["drop_states"])
            self._update(state)

    def write(self, table: Table, block: Block, state: CopyState) -> None:
        """Store a block and the progress in one transaction."""
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, table.columns))
        )
        with self.store.transaction():
            with self.store.connection.cursor() as cursor, cursor.copy(query) as copy:
                copy.write(block.text)
            self._update(state)

    def save(self, state: CopyState) -> None:
        """Store whether the copy is verified."""
        with self.store.transaction():
            self._update(state)

    def _update(self, state: CopyState) -> None:
        self.store.execute(self._sql["set_state"], ("target", state.to_json()))

    def is_finishing(self) -> bool:
        """Return False: the progress is removed last."""
        return False

    def finish(self, progress: Callable[[str, int, int | None], None]) -> None:
        """Set the numbers that the server assigns, and let the planner know the tables."""
        progress("analyzing", 0, None)
        with self.store.transaction():
            for table, column in self.store.execute(self._sql["identities"]).fetchall():
                self.store.execute(
                    f"SELECT setval(pg_get_serial_sequence('\"{table}\"', '{column}'), "
                    f'coalesce(max("{column}"), 0) + 1, false) FROM "{table}"'
                )
            self.store.execute("ANALYZE")
            self.store.execute(self._sql["drop_states"])


@contextmanager
def open_database(
    url: str, *, allow_asynchronous: bool = False, block_bytes: int = BLOCK_BYTES
) -> Iterator[PostgresSide]:
    """Acquire the epoch of a database that no broker uses; create or migrate its schema.

    Raises:
        StartRefusedError: a broker is active, or the database is of another program.
        NotWritableError: no server can be reached, or its commits are not replicated.
        OutcomeUnknownError: another process has taken over.
    """

    def check(before: Quorum, after: Quorum, notices: list[str]) -> None:
        problem = quorum_problem(before, after, notices)
        if problem is not None and not allow_asynchronous:
            raise NotWritableError(f"{name}: {problem}")

    conninfo = connection_info(url)
    name = f"postgresql://{shown(conninfo)}"
    try:
        with connect(conninfo) as connection:
            store = PostgresStore(connection, check)
            _take_over(store, name)
            yield PostgresSide(store, name, block_bytes)
            release(store)
    except ConnectionBrokenError as error:
        raise NotWritableError(f"{name}: {error}") from error


def _take_over(store: PostgresStore, name: str) -> None:
    create_schema(store, migrations_folder() / "postgres")
    row = read_row(store)
    if not row.is_released:  # the broker is active, or has failed
        time.sleep(SILENCE_S)
    broker = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "role": "copy"})
    if read_row(store)[:3] != row[:3] or not take_over(store, row, broker):
        raise StartRefusedError(f"a broker is active on {name}; stop all of its brokers first")
    migrate(store, migrations_folder() / "postgres")
