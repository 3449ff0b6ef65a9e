"""Empty databases of the engine under test: PostgreSQL if PHPMQ_TEST_STORE is ``postgres``.

Databases of PostgreSQL are emptied and used again, because creating one takes ten times as long.
"""

import asyncio
import atexit
import os
import select
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from phpmq_lite import broker_process, testing
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import Batch, ClockReading, LoadedRows
from phpmq_lite.settings import Settings
from phpmq_lite.storage.batch_sql import Step, batch_statements
from phpmq_lite.storage.database_check import DatabaseCheck, check_bodies, check_tables
from phpmq_lite.storage.migrations import read_migrations
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.backend import WriterMaintenance
from phpmq_lite.storage.sqlite.integrity.database_check import check_all
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from phpmq_lite.storage.postgres.backend import PostgresMaintenance
    from phpmq_lite.storage.postgres.store import PostgresStore
    from tests.support.postgres_server import PostgresServer

ON_POSTGRES: Final = os.environ.get("PHPMQ_TEST_STORE") == "postgres"

Counters = Callable[[ClockReading], Mapping[str, int]]
Rows = list[tuple[Any, ...]]

# Empty all tables.  TRUNCATE takes 1 ms for each table, so small tables are emptied by DELETE.
_EMPTY: Final = """
DO $$
DECLARE
  found RECORD;
BEGIN
  PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
  FOR found IN SELECT oid::regclass AS name, relkind AS kind, pg_relation_size(oid) AS size
      FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S')
        AND relname <> 'migration' LOOP
    IF found.kind = 'S' THEN
      PERFORM setval(found.name, 1, false);
    ELSIF found.size > 65536 THEN
      EXECUTE 'TRUNCATE ' || found.name;
    ELSIF found.size > 0 THEN
      EXECUTE 'DELETE FROM ' || found.name;
    END IF;
  END LOOP;
  INSERT INTO client (client, kind, address, opened_at) VALUES (0, 'admin', 'admin', 0);
  INSERT INTO epoch VALUES (0, 0, 0, now(), true, '{}');
END
$$"""


_OTHERS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""


class DrivenStore(Protocol):
    connection: Any
    execute: Any
    recover: Any

    def begin(self, steps: Sequence[Step]) -> object:
        """Take the steps of a batch."""

    def end(self, batch: Batch) -> LoadedRows | None:
        """Store them, and load what the batch requests."""


class Database(Protocol):
    """A migrated, empty database, and what belongs to it."""

    @property
    def place(self) -> Path | str:
        """Where ``open_place`` opens it from another process: a path, or a libpq address."""

    def wait_for_killed(self) -> None:
        """Wait until nothing of the connections of a killed process is executed any more."""

    def open_store(self) -> Any:
        """Return a new connection that writes, as the store of the engine."""

    def open_reader(self) -> Callable[..., Rows]:
        """Return a function that executes a query on a connection of its own."""

    def maintenance(self, bounds: RetentionBounds, counters: Counters) -> Any:
        """Return what the engine runs between batches."""

    def problems(self, store: Any) -> dict[str, list[str]]:
        """Check the database and return the problems of each check."""

    def close(self) -> None:
        """End its use."""


def rows_of(cursor: Any) -> Rows:
    """Return the rows of a query, or nothing for another statement."""
    return cursor.fetchall() if cursor.description else []


def read_tables(read: Callable[..., Rows]) -> dict[str, Rows]:
    """Return the rows of all tables, in any order; ``epoch`` changes with each batch."""
    names = read(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'epoch'"
        if ON_POSTGRES
        else "SELECT name FROM sqlite_schema WHERE type = 'table'"
    )
    return {name: sorted(read(f'SELECT * FROM "{name}"'), key=repr) for (name,) in names}


# -- SQLite


@cache
def empty_database() -> bytes:
    with sqlite3.connect(":memory:", isolation_level=None) as connection:
        migrate(connection, migrations_folder())
        content = connection.serialize()
    connection.close()
    return content


def make_database(folder: Path) -> Path:
    path = folder / "messages.db"
    path.write_bytes(empty_database())
    return path


def open_store(path: Path) -> SqliteStore:
    """Open the writable connection as the writer does."""
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    store = SqliteStore(connection)
    try:
        store.configure(1 << 20)
    except StartRefusedError:
        connection.close()
        raise
    return store


def commit(store: SqliteStore, batch: Batch) -> LoadedRows | None:
    """Store a batch in one transaction, then load the rows that it requests."""
    store.begin(batch_statements(batch) if batch.stores else [])
    return store.end(batch)


class SqliteDatabase:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = self.place = path
        self._readers: list[sqlite3.Connection] = []

    def wait_for_killed(self) -> None:
        """Its locks have ended with it."""

    def open_store(self) -> SqliteStore:
        return open_store(self._path)

    def open_reader(self) -> Callable[..., Rows]:
        connection = sqlite3.connect(self._path, isolation_level=None)
        self._readers.append(connection)
        return lambda sql, *values: connection.execute(sql, values).fetchall()

    def maintenance(self, bounds: RetentionBounds, counters: Counters) -> WriterMaintenance:
        return WriterMaintenance(self._path, bounds, 64 << 20, counters)

    def problems(self, store: SqliteStore) -> dict[str, list[str]]:
        checks = check_all(store.connection)
        return {check.name: check.problems for check in checks}

    def close(self) -> None:
        for connection in self._readers:
            connection.close()


# -- PostgreSQL


class PostgresDatabase:
    """A database of this worker's server, taken from the pool."""

    def __init__(self) -> None:
        self.name = take_database()
        self.conninfo = self.place = shared_server().conninfo(self.name)
        self._readers: list[PostgresStore] = []

    def wait_for_killed(self) -> None:
        store = plain_store(self.conninfo)
        while rows_of(store.execute(_OTHERS)) != [(0,)]:
            time.sleep(0.001)
        store.connection.close()

    def open_store(self) -> "PostgresStore":
        return _driven_store(self.conninfo)

    def open_reader(self) -> Callable[..., Rows]:
        store = plain_store(self.conninfo)
        self._readers.append(store)
        return lambda sql, *values: rows_of(store.execute(sql, values))

    def maintenance(self, bounds: RetentionBounds, counters: Counters) -> "PostgresMaintenance":
        from phpmq_lite.storage.postgres.backend import PostgresMaintenance

        return PostgresMaintenance(bounds, counters)

    def problems(self, store: "PostgresStore") -> dict[str, list[str]]:
        checks = [DatabaseCheck("bodies"), DatabaseCheck("tables")]
        execute, sql = store.execute, store.sql("database_check")
        check_bodies(execute, sql, checks[0])
        check_tables(execute, sql, checks[1], version=len(read_migrations(migrations_folder())))
        return {check.name: check.problems for check in checks}

    def close(self) -> None:
        for store in self._readers:
            store.connection.close()
        return_database(self.name)


def new_database(path: Path) -> Any:
    """Return an empty ``Database`` of the engine under test; SQLite's is the file.

    Tests of one engine use what only its stores have, so there is no common type.
    """
    if ON_POSTGRES:
        return PostgresDatabase()
    path.write_bytes(empty_database())
    return SqliteDatabase(path)


def open_place(place: Path | str) -> Any:
    """Open the store of a ``Database.place``."""
    return open_store(place) if isinstance(place, Path) else _driven_store(place)


_servers: Final = ExitStack()
_wal: Final[list[Path]] = []  # folder of the replicas
_free: Final[list[str]] = []
_numbers: Final[dict[str, int]] = {"next": 1}


@cache
def shared_server() -> "PostgresServer":
    """Return the server of this worker; it stops with the process."""
    from tests.support.postgres_server import postgres_server

    atexit.register(stop_server)
    server = _servers.enter_context(postgres_server())
    if ON_POSTGRES:
        _wal.append(_servers.enter_context(server.replicas()))
    return server


def stop_server() -> None:
    _servers.close()


def take_database() -> str:
    for folder in _wal:
        for segment in folder.glob("*/*[0-9A-F]"):  # complete, so no longer written
            segment.unlink()
    if _free:
        name = _free.pop()
        shared_server().execute(_EMPTY, name)
        return name
    from tests.support.postgres_server import TEMPLATE

    name, _numbers["next"] = f"pooled_{_numbers['next']}", _numbers["next"] + 1
    shared_server().execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    return name


def return_database(name: str) -> None:
    """Allow the next use of a database; it is emptied then."""
    _free.append(name)


_of_folders: Final[dict[Path, str]] = {}  # names of databases


def store_settings(data: Path) -> dict[str, Any]:
    """Return the section ``store`` of the settings of the broker in a data folder.

    Brokers in the same folder, one after the other, use the same database.
    """
    if not ON_POSTGRES:
        return {}
    return {"url": shared_server().url(_database_of(data))}


def conninfo_of(data: Path) -> str:
    """Return the libpq address of the database of the broker in a data folder."""
    return shared_server().conninfo(_database_of(data))


def _database_of(data: Path) -> str:
    data = data.absolute()
    if data not in _of_folders:
        _of_folders[data] = take_database()
    return _of_folders[data]


@contextmanager
def returning_databases() -> Iterator[None]:
    """Return the databases of the data folders that are new at the end."""
    before = {*_of_folders}
    yield
    for data in {*_of_folders} - before:
        return_database(_of_folders.pop(data))


def use_postgres() -> None:
    """Make the brokers of ``phpmq_lite.testing`` and all processes use databases of the server."""
    command = broker_process.BrokerProcess.command
    settings_for = testing.settings_for

    def with_store(self: broker_process.BrokerProcess) -> list[str]:
        store = store_settings(self.data)
        return [*command.__get__(self), "--store", store["url"]]

    def settings_with_store(data: Path, **sections: Any) -> Settings:
        return settings_for(data, **{"store": store_settings(data)} | sections)

    setattr(broker_process.BrokerProcess, "command", property(with_store))  # noqa: B010
    testing.settings_for = settings_with_store
    _wait_until_active()


def _wait_until_active() -> None:
    """Wait until started brokers are active, because a standby opens its listeners earlier."""
    start = broker_process.BrokerProcess.start

    def start_active(self: broker_process.BrokerProcess) -> float:
        began_at = time.monotonic()
        start(self)
        while not _is_active(self.data / "control.sock"):
            if self.process is None or self.process.poll() is not None:
                raise broker_process.StartFailedError(1, self.log.read_text("utf-8")[-2_000:])
            time.sleep(0.01)
        return time.monotonic() - began_at

    setattr(broker_process.BrokerProcess, "start", start_active)  # noqa: B010


def _is_active(control: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(control))
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
        return answer.startswith(b"HTTP/1.1 200") and b"role: active" in answer
    return False


class _BlockingLoop:
    """The part of an event loop that the pipeline uses."""

    def __init__(self) -> None:
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._ready: list[Callable[[], None]] = []

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self._readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        self._readers.pop(fd, None)

    def add_writer(self, fd: int, call: Callable[[], None]) -> None:
        self._writers[fd] = call

    def remove_writer(self, fd: int) -> None:
        self._writers.pop(fd, None)

    def call_soon(self, call: Callable[..., None], *values: Any) -> None:
        self._ready.append(lambda: call(*values))

    def run_once(self) -> None:
        """Wait until a call is due, and make it."""
        if self._ready:
            self._ready.pop(0)()
            return
        readable, writable, _ = select.select(self._readers, self._writers, [], 60)
        assert readable or writable, "the server does not answer"
        for fds, calls in ((writable, self._writers), (readable, self._readers)):
            for fd in fds:
                if call := calls.get(fd):
                    call()


def plain_store(conninfo: str) -> "PostgresStore":
    """Connect to a database."""
    from phpmq_lite.storage.postgres.store import PostgresStore, connect

    return PostgresStore(connect(conninfo))


def _driven_store(conninfo: str) -> "PostgresStore":
    """Return a store that sends batches as the writer does, but waits for each."""
    from phpmq_lite.storage.postgres.pipeline import EncodedStep, Pipeline, encode_steps
    from phpmq_lite.storage.postgres.store import PostgresStore, connect

    class Driven(PostgresStore):
        def __init__(self) -> None:
            super().__init__(connect(conninfo), lambda *_: None)
            self._loop = _BlockingLoop()
            self._pipeline = Pipeline(self, cast("asyncio.AbstractEventLoop", self._loop))
            self._steps: list[EncodedStep] = []

        def begin(self, steps: Sequence[Step]) -> None:
            self._steps = encode_steps(steps)

        def end(self, batch: Batch) -> LoadedRows | None:
            if self._steps:
                self._send(self._steps)
                self._steps = []
            return self.load(batch)

        def _send(self, steps: list[EncodedStep]) -> None:
            answers: list[Exception | None] = []
            self._pipeline.send(steps, answers.append)
            while not answers:
                self._loop.run_once()
            [answer] = answers
            if answer is not None:
                raise answer

    return Driven()
