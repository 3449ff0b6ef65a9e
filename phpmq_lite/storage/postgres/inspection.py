"""Looks at a database server for ``doctor`` and ``database verify``, without changing it.

A broker may be running: each rule is one statement, so it sees one snapshot.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import psycopg

from phpmq_lite.errors import StartRefusedError, StorageError, UnreleasedDataError
from phpmq_lite.storage.backend import Replica
from phpmq_lite.storage.database_check import DatabaseCheck, Look, check_bodies, check_tables
from phpmq_lite.storage.postgres.leadership import EpochRow, read_row
from phpmq_lite.storage.postgres.migrate import has_schema, pending
from phpmq_lite.storage.postgres.store import (
    ConnectionBrokenError,
    PostgresStore,
    connect,
    connection_info,
    place_of,
    reading,
    required_replicas,
    summary,
)

# Tables are read without their indexes, which might hide rows.
_SESSION: Final = (
    "SET default_transaction_read_only = on; SET enable_indexscan = off;"
    " SET enable_indexonlyscan = off; SET enable_bitmapscan = off"
)


@contextmanager
def _opened(url: str) -> Iterator[PostgresStore]:
    try:
        with closing(connect(reading(connection_info(url)))) as connection:
            # Another name than the writer's, whose sessions a takeover may end.
            connection.execute("SET application_name = 'phpmq-lite-check'")
            yield PostgresStore(connection)
    except (ConnectionBrokenError, StorageError, psycopg.Error) as error:
        raise StorageError(f"the database cannot be read: {summary(error)}") from error


def _schema_version(store: PostgresStore) -> tuple[int, int]:
    """Return the schema version, 0 if there is none, and how many migrations are pending."""
    if not has_schema(store):
        return 0, 0
    waiting = pending(store)
    applied = store.execute(store.sql("migrate")["applied"])
    return max(number for number, _ in applied), len(waiting)


def verify(url: str) -> list[DatabaseCheck]:
    """Verify the schema, every body, and whether the tables agree.

    Raises:
        SettingsError, StorageError: as ``probe``.
        UnreleasedDataError: the database was made before version 0.1.0.
    """
    schema, *others = checks = [DatabaseCheck(name) for name in ("schema", "bodies", "tables")]
    with _opened(url) as store:
        store.connection.execute(_SESSION)
        try:
            version, waiting = _schema_version(store)
        except UnreleasedDataError:
            raise
        except StartRefusedError as error:
            schema.problems.append(str(error))
            return checks[:1]
        schema.result = f"version {version}" + f", {waiting} migrations pending" * bool(waiting)
        if not version:
            schema.problems.append("the database is empty")
            return checks[:1]
        looks: Sequence[Look] = (check_bodies, partial(check_tables, version=version))
        for check, look in zip(others, looks, strict=True):
            try:
                look(store.execute, store.sql("database_check"), check)
            except StorageError as error:
                check.problems.append(f"cannot be read: {error}")
    return checks


class ServerFacts(NamedTuple):
    """What a server says about itself and the broker's role."""

    version: int  # such as 150018
    can_create: bool
    can_write: bool | None  # None: there are no tables yet
    wall_ms: int
    pid: int  # of the server process
    quorum: str  # synchronous_standby_names
    fsync: str
    full_page_writes: str
    synchronous_commit: str  # of this session, which asked for "on"
    connections: int
    max_connections: int


@dataclass(slots=True)
class ServerProbe:
    """The state of a server and a database, seen from this machine."""

    place: str
    facts: ServerFacts
    clock_ms: int  # the server's clock less this machine's
    pooler: str  # "transaction", "session", or empty without one
    replicas_required: int
    replicas: list[Replica]
    schema: int = 0
    pending: int = 0  # number of migrations
    refusal: str = ""  # why a broker of this version cannot use the database
    epoch: EpochRow | None = None  # None if the database is empty


def probe(url: str) -> ServerProbe:
    """Connect to the server that accepts writes, and describe it.

    Raises:
        SettingsError: the URL cannot be used.
        StorageError: no server can be reached, or the connection broke.
    """
    info = reading(connection_info(url))
    with _opened(url) as store:
        began_s = time.time()
        facts = _facts(store)
        here_ms = round((began_s + time.time()) * 500)  # in the middle
        replicas = [Replica(*row) for row in store.execute(store.sql("server")["replicas"])]
        required = required_replicas(facts.quorum)
        pooler = _pooler(store, info)
        clock_ms = facts.wall_ms - here_ms
        server = ServerProbe(place_of(info), facts, clock_ms, pooler, required, replicas)
        try:
            server.schema, server.pending = _schema_version(store)
        except StartRefusedError as error:
            server.refusal = str(error)
        if server.schema:
            server.epoch = read_row(store)
    return server


def _facts(store: PostgresStore) -> ServerFacts:
    return ServerFacts(*store.execute(store.sql("server")["probe"]).fetchone())


def _pooler(store: PostgresStore, info: str) -> str:
    """Return which kind of connection pooler is in between, if any.

    With a pooler, the number of the server process differs from that in the connection's greeting.
    If it pools transactions, a transaction of another connection takes over the server process, and
    this connection gets a different one.
    """
    before = _facts(store).pid
    if before == store.connection.info.backend_pid:
        return ""
    with closing(connect(info)) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1")
        return "session" if before == _facts(store).pid else "transaction"
