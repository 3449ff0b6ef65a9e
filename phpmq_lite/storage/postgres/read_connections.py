"""Read-only connections to PostgreSQL; the server limits the time of each read.

A read that loses its connection is repeated on a new one, so that pages survive a failover.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from phpmq_lite.errors import StorageError
from phpmq_lite.storage.postgres.store import disconnect, summary
from phpmq_lite.storage.read.read_pool import ReadPool, Row
from phpmq_lite.storage.statements import compiled, postgres_value

_GRACE_S: Final = 1.0  # a server that has not answered this long after the limit is lost
# Each statement reads a few rows by an index, and its parameters decide by which one.  Without
# these settings, a table whose statistics are old would be read as a whole.
_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}

Connection = psycopg.AsyncConnection[Row]


class _ConnectionLostError(StorageError):
    """The server closed the connection; another connection may succeed."""


class PostgresReaders(ReadPool[Callable[[], str], Connection]):
    """Read-only connections to a PostgreSQL database, given by a function, in libpq's format."""

    engine = "postgres"

    async def run(self, name: str, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Execute a statement; repeat it if a failover or a restart closed the connections."""
        for _ in range(self._count):
            with suppress(_ConnectionLostError):
                return await super().run(name, text, parameters)
        return await super().run(name, text, parameters)

    @property
    def export_databases(self) -> tuple[str, str]:
        """URLs of a replica, so that exports cost the primary nothing, and of the primary.

        A claim is read as soon as it is stored, when replicas may not have it yet.
        """
        conninfo = self._database()
        return _url(conninfo, "prefer-standby"), _url(conninfo, "primary")

    def _is_broken(self, connection: Connection) -> bool:
        return connection.closed

    async def _connect(self) -> Connection:
        limits = _SETTINGS | {"statement_timeout": str(round(self.limit_s * 1_000))}
        options = " ".join(f"-c {name}={value}" for name, value in limits.items())
        conninfo = self._database()
        try:
            own = conninfo_to_dict(conninfo).get("options") or ""
            connection = await psycopg.AsyncConnection.connect(
                conninfo,
                options=f"{own} {options}",
                autocommit=True,
                cursor_factory=psycopg.AsyncRawCursor,
            )
        except (psycopg.Error, OSError) as error:
            raise StorageError(f"cannot connect to the database: {summary(error)}") from error
        # The type of a parameter must not depend on its value: a statement is prepared once.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        return connection

    def _interrupt(self, connection: Connection) -> None:
        disconnect(connection)

    async def _fetch(
        self, connection: Connection, name: str, text: str, parameters: Mapping[str, Any]
    ) -> list[Row]:
        statement, names = compiled(text)
        values = [postgres_value(parameters[name]) for name in names]
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.limit_s + _GRACE_S, disconnect, connection)
        closes, ends_s = self.closes, loop.time() + self.limit_s
        try:
            cursor = await connection.execute(statement, values, binary=True)
            return await cursor.fetchall()
        except (psycopg.Error, OSError) as error:
            is_late = isinstance(error, psycopg.errors.QueryCanceled) or loop.time() > ends_s
            kind = _ConnectionLostError if connection.closed else StorageError
            text = f"cannot read {name}: {summary(error)}"
            raise self._failure(name, kind(text), closes, is_late=is_late) from error
        finally:
            timer.cancel()


def _url(conninfo: str, servers: str) -> str:
    parts = {**conninfo_to_dict(conninfo), "target_session_attrs": servers}
    return f"postgresql:///?{urlencode(parts, quote_via=quote)}"
