"""Verifies a database, also while its broker runs: each rule is one statement, so one snapshot."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import psycopg

from phpmq_lite.errors import StartRefusedError, StorageError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.database_check import DatabaseCheck, check_bodies, check_tables
from phpmq_lite.storage.postgres.migrate import pending
from phpmq_lite.storage.postgres.quorum import ConnectionBrokenError, summary
from phpmq_lite.storage.postgres.store import PostgresStore, connect
from phpmq_lite.storage.postgres.url import connection_info, reading

# Tables are read without their indexes, which might hide rows.
_SESSION: Final = (
    "SET default_transaction_read_only = on; SET enable_indexscan = off;"
    " SET enable_indexonlyscan = off; SET enable_bitmapscan = off"
)


@contextmanager
def opened(url: str) -> Iterator[PostgresStore]:
    """Connect to the server that accepts writes, to read.

    Raises:
        SettingsError: the URL cannot be used.
        StorageError: no server can be reached, or the connection broke.
    """
    try:
        with closing(connect(reading(connection_info(url)))) as connection:
            # Another name than the writer's, whose sessions a takeover may end.
            connection.execute("SET application_name = 'phpmq-lite-check'")
            yield PostgresStore(connection, lambda *_: None)
    except (ConnectionBrokenError, psycopg.Error) as error:
        raise StorageError(f"the database cannot be read: {summary(error)}") from error


def schema_version(store: PostgresStore) -> tuple[int, int]:
    """Return the schema version, 0 if the database is empty, and how many migrations are pending.

    Raises:
        StartRefusedError: no broker of this version could use the database.
    """
    sql = store.sql("migrate")
    tables = {name for (name,) in store.execute(sql["tables"])}
    if not tables:
        return 0, 0
    if "migration" not in tables:
        raise StartRefusedError("the database was not created by phpmq-lite")
    waiting = pending(store, migrations_folder() / "postgres")
    return max(number for number, _ in store.execute(sql["applied"])), len(waiting)


def verify(url: str) -> list[DatabaseCheck]:
    """Verify the schema, every body, and whether the tables agree.

    Raises:
        SettingsError, StorageError: as ``opened``.
    """
    schema, *others = checks = [DatabaseCheck(name) for name in ("schema", "bodies", "tables")]
    with opened(url) as store:
        store.connection.execute(_SESSION)
        try:
            version, waiting = schema_version(store)
        except StartRefusedError as error:
            schema.problems.append(str(error))
            return checks[:1]
        schema.found = f"version {version}" + (f", {waiting} migrations pending" if waiting else "")
        if not version:
            schema.problems.append("the database is empty")
            return checks[:1]
        for check, look in zip(others, (check_bodies, check_tables), strict=True):
            try:
                look(store.execute, store.sql("database_check"), check)
            except psycopg.Error as error:
                if store.connection.closed:
                    raise
                check.problems.append(f"cannot be read: {summary(error)}")
    return checks
