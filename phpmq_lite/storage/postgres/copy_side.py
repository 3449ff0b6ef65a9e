"""A PostgreSQL database as the source or target of a copy.

It holds the epoch as an active broker does: what is stored here is fenced and replicated, and a
broker that finds the mark of a copy does not take over.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from phpmq_lite.errors import NotWritableError, StartRefusedError
from phpmq_lite.storage.copy_state import CopyState, Progress
from phpmq_lite.storage.postgres.leadership import SILENCE_S, read_row, take_over
from phpmq_lite.storage.postgres.migrate import create_schema, has_schema, migrate
from phpmq_lite.storage.postgres.store import (
    Check,
    ConnectionBrokenError,
    PostgresStore,
    connect,
    connection_info,
    place_of,
    quorum_problem,
)
from phpmq_lite.storage.postgres.writer import release
from phpmq_lite.storage.read.read_pool import Row

_INITIAL_ROWS: Final = {"client": 1}  # those that the migrations insert


class PostgresSide:
    """A database whose epoch this process holds."""

    collation = '"C"'  # by which bytes are compared
    replaced_files = None

    def __init__(self, store: PostgresStore, name: str) -> None:
        self.name = name  # servers and database
        self.store = store
        self.replaced = 0  # characters that PostgreSQL cannot store
        self._sql = store.sql("copy")
        # Rows are read in the order of the keys; sorting all of them first would need room.
        store.execute("SET enable_sort = off")

    def rows(self, query: str) -> Iterator[Row]:
        with self.store.translating(), self.store.connection.cursor() as cursor:
            yield from cursor.stream(query.encode())

    def insert(self, table: str, columns: str, rows: list[Row]) -> None:
        query = f'COPY "{table}" ({columns}) FROM STDIN'
        with self.store.connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def states(self) -> dict[str, CopyState]:
        rows = self.store.execute(self._sql["states"]).fetchall()
        return {role: CopyState.from_json(text) for role, text in rows}

    def set_source(self, state: CopyState | None) -> None:
        with self.store.transaction():
            self._set("source", state)

    def set_target(self, state: CopyState) -> None:
        """Store the progress; call it in a transaction."""
        self._set("target", state)

    def _set(self, role: str, state: CopyState | None) -> None:
        if state is None:
            self.store.execute(self._sql["drop_state"], (role,))
        else:
            self.store.execute(self._sql["set_state"], (role, state.to_json()))

    def is_empty(self, tables: list[str]) -> bool:
        """Return whether the tables contain only what the migrations insert."""
        for name in tables:
            more = f'SELECT 1 FROM "{name}" OFFSET {_INITIAL_ROWS.get(name, 0)} LIMIT 1'
            if self.store.execute(more).fetchall():
                return False
        return True

    def begin(self, state: CopyState, tables: list[str]) -> None:
        with self.store.transaction():
            self.store.execute("TRUNCATE " + ", ".join(f'"{name}"' for name in tables))
            self._set("source", None)
            self._set("target", state)

    def finish(self, progress: Progress) -> None:
        """Set the numbers that the server assigns, and count rows for the planner."""
        progress("analyzing", 0, None)
        with self.store.transaction():
            for table, column in self.store.execute(self._sql["identities"]).fetchall():
                self.store.execute(
                    f"SELECT setval(pg_get_serial_sequence('\"{table}\"', '{column}'), "
                    f'coalesce(max("{column}"), 0) + 1, false) FROM "{table}"'
                )
            self.store.execute("ANALYZE")
            self._set("target", None)


@contextmanager
def open_database(
    url: str, *, is_target: bool, allow_asynchronous: bool = False
) -> Iterator[PostgresSide]:
    """Acquire the epoch of a database that no broker uses, and migrate it.

    Raises:
        StartRefusedError: a broker is active, or the database is of another program.
        NotWritableError: no server can be reached, or its commits are not replicated.
        OutcomeUnknownError: another process has taken over.
    """
    conninfo = connection_info(url)
    name = f"postgresql://{place_of(conninfo)}"
    check: Check = (lambda *_: None) if allow_asynchronous else quorum_problem
    try:
        with connect(conninfo) as connection:
            store = PostgresStore(connection, check)
            _acquire(store, name, is_target=is_target)
            yield PostgresSide(store, name)
            release(store)
    except ConnectionBrokenError as error:
        raise NotWritableError(f"{name}: {error}") from error


def _acquire(store: PostgresStore, name: str, *, is_target: bool) -> None:
    if not is_target and not has_schema(store):
        raise StartRefusedError(f"there is no data of a broker in {name}")
    create_schema(store)
    row = read_row(store)
    if not row.is_released:  # the broker is active, or has failed
        time.sleep(SILENCE_S)
    broker = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "role": "copy"})
    if read_row(store)[:3] != row[:3] or not take_over(store, row, broker):
        raise StartRefusedError(f"a broker is active on {name}; stop all of its brokers first")
    migrate(store)
