"""A connection to the server that writes, with the rows of a store.

Its methods block and are called in the writer's thread; batches are sent by ``pipeline.py``.

Whether a commit is on a majority of the servers is read in the session that commits, before and
after COMMIT: Patroni's plain mode, for example, empties the setting while commits wait, and
PostgreSQL then reports them as successful.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper

from phpmq_lite.errors import (
    BatchRefusedError,
    EpochEndedError,
    NotWritableError,
    OutcomeUnknownError,
    SettingsError,
    StorageError,
)
from phpmq_lite.storage.statements import compiled
from phpmq_lite.storage.store import Store

EPOCH_ENDED: Final = "PMQ01"  # raised by begin_batch
# Nothing is stored, and trying again may help: resources, locks, a server that became a replica.
_TEMPORARY: Final = ("25006", "40001", "40P01", "53", "55P03", "57014", "58030")
_REFUSED: Final = ("22", "23", "54")  # nothing is stored: a value, a constraint, a limit
# Tables whose constraints always hold, and the checks of them that are ours; a key of another table
# that is taken, for example, is repaired when the core loads its state again.
_INVARIANT_TABLES: Final = ("message", "history", "epoch")
_INVARIANT_CHECKS: Final = ("message_state_check", "history_outcome_check")
_BROKEN: Final = ("08", "57P")  # the connection has ended or is about to

# Columns: those of Quorum.
QUORUM_SQL: Final = (
    "SELECT current_setting('synchronous_standby_names'), pg_conf_load_time()::text,"
    " (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_postmaster_start_time()::text,"
    " clock_timestamp() < pg_conf_load_time() + interval '2 s'"
)
_COUNTED: Final = re.compile(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\(", re.IGNORECASE)


def required_replicas(names: str) -> int:
    """Return how many replicas a value of ``synchronous_standby_names`` requires."""
    counted = _COUNTED.match(names)
    return int(counted[1]) if counted else int(bool(names.strip()))


class Quorum(NamedTuple):
    """An answer to ``QUORUM_SQL``."""

    names: str  # synchronous_standby_names
    loaded_at: str  # when the session read the configuration
    server_ms: int  # Unix ms
    started_at: str  # when the server was started
    is_fresh: bool  # whether the configuration was read less than 2 s ago

    @property
    def replicas(self) -> int:
        """How many replicas must have flushed a commit; 0 without synchronous replication."""
        return required_replicas(self.names)


class ConnectionBrokenError(Exception):
    """The connection to the server broke, so what it was doing may or may not have happened."""


def quorum_problem(
    before: Quorum, after: Quorum, notices: list[str], trusted: Quorum | None = None
) -> str | None:
    """Return why a successful COMMIT may not be replicated, or None if it is.

    A session reads the setting before the checkpointer does, without which no commit waits.  So a
    new setting is not relied on at once, unless ``trusted``, the last quorum without a problem,
    shows that there was one before on this server.
    """
    if notices:
        return f"the server warned at COMMIT: {notices[0]}"
    if not before.replicas or not after.replicas:
        return "synchronous_standby_names names no quorum of replicas"
    if before[:2] != after[:2]:
        return "the server's configuration changed during a commit"
    if after.is_fresh and (trusted is None or trusted.started_at != after.started_at):
        return "synchronous_standby_names may have been set just now"
    return None


def failure_of(
    sqlstate: str | None, text: str, table: str | None = None, constraint: str | None = None
) -> Exception:
    """Return the error to raise for an error that a statement before COMMIT reported.

    ``table`` and ``constraint`` are named by errors about constraints.
    """
    state = sqlstate or ""
    if state == EPOCH_ENDED:
        return EpochEndedError(text)
    if not state or state.startswith(_BROKEN):
        return ConnectionBrokenError(text)
    if state.startswith(_TEMPORARY):
        return NotWritableError(text)
    is_broken = table in _INVARIANT_TABLES and (
        constraint in _INVARIANT_CHECKS if state == "23514" else state.startswith("23")
    )
    if state.startswith(_REFUSED) and not is_broken:
        return BatchRefusedError(f"{state}: {text}")
    return OutcomeUnknownError(f"{state}: {text}")


def summary(error: Any) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


Connection = psycopg.Connection[tuple[Any, ...]]
# Called with the quorum before and after each COMMIT and the server's warnings; returns why the
# commit may not be replicated, or None.
Check = Callable[[Quorum, Quorum, list[str]], str | None]
SHARD: Final = 0  # the only one today
STUCK_S: Final = 5.0  # without an answer for this long, ``disconnect_if_lost`` should be called
BEGIN_BATCH: Final = "SELECT begin_batch($1::int, $2, $3, $4::tid)::text"
_SESSION: Final = (
    "SET synchronous_commit = on;"
    "SET statement_timeout = 0;"
    "SET idle_in_transaction_session_timeout = 0;"
    "SET lock_timeout = '5s';"
    "SET default_transaction_isolation = 'read committed';"
    "SET client_min_messages = warning"
)


def connect(conninfo: str) -> Connection:
    """Connect to a server that accepts writes, or raise ConnectionBrokenError."""
    try:
        # In a fixed order, a primary that has been replaced could hide the new one.
        connection = psycopg.connect(conninfo, autocommit=True, load_balance_hosts="random")
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.execute(_SESSION)
    except psycopg.Error as error:
        raise ConnectionBrokenError(summary(error)) from error
    return connection


def disconnect(connection: Connection | psycopg.AsyncConnection[Any]) -> None:
    """Close the socket under the driver, which then fails at once instead of waiting."""
    with (
        suppress(psycopg.Error, OSError),  # closed already
        socket.socket(fileno=os.dup(connection.fileno())) as shared,
    ):
        shared.shutdown(socket.SHUT_RDWR)


def disconnect_if_lost(store: "PostgresStore", conninfo: str) -> bool:
    """Disconnect unless a new connection reaches the same server; return whether it does.

    A server that stands still, or a primary that waits for replicas that follow another one now,
    would otherwise never answer.  Callable from any thread, while another one waits.
    """
    with suppress(ConnectionBrokenError, StorageError, psycopg.Error), connect(conninfo) as other:
        probe = PostgresStore(other)
        [(count,)] = probe.execute(probe.sql("epoch")["has_session"], (store.pid,))
        if count:
            return True
    disconnect(store.connection)
    return False


class PostgresStore(Store):
    """Executes the statements of a broker that is active in ``epoch``, or of a standby (0)."""

    engine = "postgres"
    has_index_tables = False

    def __init__(self, connection: Connection, check: Check = lambda *_: None) -> None:
        self.connection = connection
        self.execute = self._execute
        self.pid = connection.info.backend_pid  # of the server process
        self.epoch = 0
        self.batch = 0  # number of the last batch in this epoch
        self.place = "(0,0)"  # of the row of the epoch
        self.notices: list[str] = []  # the server's warnings since they were last cleared
        self.check = check
        connection.add_notice_handler(
            lambda notice: self.notices.append(notice.message_primary or "")
        )

    def _execute(self, text: str, values: Any = (), /) -> psycopg.RawCursor[tuple[Any, ...]]:
        query, names = compiled(text)
        ordered = [values[name] for name in names] if isinstance(values, Mapping) else values
        cursor = psycopg.RawCursor(self.connection)
        with self.translating():
            cursor.execute(query.encode(), [int(v) if v.__class__ is bool else v for v in ordered])
        return cursor

    def many(self, name: str, flat: Sequence[Any]) -> list[Any]:
        text = self.sql("batch")[name]
        width = text.count("[]")
        columns = [list(flat[at::width]) for at in range(width)]
        return self._execute(text, columns).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store what is executed within in one transaction, as the next batch of the epoch.

        Raises:
            NotWritableError, BatchRefusedError: nothing is stored.
            ConnectionBrokenError: it may be stored; see ``PostgresWriter``.
            EpochEndedError: nothing is stored; another broker is active.
            OutcomeUnknownError: nothing is stored, because of a defect.
        """
        with self.translating():
            self.execute("BEGIN")
            first = self.execute(BEGIN_BATCH, (SHARD, self.epoch, self.batch + 1, self.place))
            [(self.place,)] = first
            yield
            self.commit()
        self.batch += 1

    def commit(self) -> None:
        """Commit, and raise ConnectionBrokenError if the commit may not be replicated."""
        before = self.quorum()
        self.notices.clear()
        self.execute("COMMIT")
        if problem := self.check(before, self.quorum(), self.notices):
            raise ConnectionBrokenError(problem)

    def quorum(self) -> Quorum:
        [row] = self.execute(QUORUM_SQL)
        return Quorum(*row)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Translate the driver's errors, and roll back if the connection is intact."""
        try:
            yield
        except psycopg.Error as error:
            diagnosis = error.diag
            translated = failure_of(
                error.sqlstate, summary(error), diagnosis.table_name, diagnosis.constraint_name
            )
            if not isinstance(translated, ConnectionBrokenError):
                try:
                    self.connection.execute("ROLLBACK")
                except psycopg.Error as second:
                    translated = ConnectionBrokenError(summary(second))
            raise translated from error

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Raise errors as OutcomeUnknownError; a query is repeated if the connection broke."""
        try:
            yield
        except (NotWritableError, BatchRefusedError) as error:
            raise OutcomeUnknownError(str(error)) from error


# A broken connection is noticed within seconds, so that another server can be tried.
_DEFAULTS: Final = {
    "application_name": "phpmq-lite",
    "connect_timeout": "2",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "client_encoding": "UTF8",
}


def connection_info(url: str) -> str:
    """Return libpq's connection string for the setting ``store.url``.

    Raises:
        SettingsError: the URL is malformed, contains a password, or would connect to another
            machine without checking its certificate.
    """
    try:
        parameters = conninfo_to_dict(url)
    except ProgrammingError as error:
        raise SettingsError(f"store.url: {str(error).strip()}") from None
    if "password" in parameters:
        raise SettingsError(
            "store.url contains a password, which other accounts of the machine could read: put it "
            "into a file and name the file in PGPASSFILE, or pass it as the credential pgpass"
        )
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    remote = [host for host in hosts if not _is_local(host)]
    if remote and parameters.get("sslmode") != "verify-full":
        raise SettingsError(
            f"store.url: {remote[0]} is another machine, so sslmode=verify-full is required, not "
            f"{parameters.get('sslmode') or 'none'}. Add &sslmode=verify-full&sslrootcert=FILE"
        )
    folder = os.environ.get("CREDENTIALS_DIRECTORY")  # of systemd
    if folder is not None and (password_file := Path(folder) / "pgpass").is_file():
        parameters.setdefault("passfile", str(password_file))
    parts: dict[str, Any] = {**_DEFAULTS, "target_session_attrs": "read-write", **parameters}
    return make_conninfo(**parts)


def reading(conninfo: str, servers: str = "primary") -> str:
    """Return the connection string for reads, by ``primary`` or with ``prefer-standby``."""
    return make_conninfo(conninfo, target_session_attrs=servers)


def place_of(conninfo: str) -> str:
    parts = conninfo_to_dict(conninfo)
    ports = str(parts.get("port") or "5432").split(",")
    hosts = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    pairs = zip(hosts, ports, strict=True)
    return f"{','.join(f'{host}:{port}' for host, port in pairs)}/{parts.get('dbname') or ''}"


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host in ("", "localhost") or host.startswith(("/", "@"))
