"""Verifies a database, also while its broker runs: each rule is one statement, so one snapshot."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

import psycopg

from phpmq_lite.errors import StartRefusedError, StorageError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.database_check import DatabaseCheck, check_bodies, check_tables
from phpmq_lite.storage.migrations import read_migrations
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


def verify(url: str) -> list[DatabaseCheck]:
    """Verify the schema, the indexes, every body, and whether the tables agree.

    Raises:
        SettingsError, StorageError: as ``opened``.
    """
    with opened(url) as store:
        store.connection.execute(_SESSION)
        checks = [_run("schema", store, _check_schema)]
        if not checks[0].problems:
            sql = store.sql("database_check")
            checks += [
                _run("indexes", store, _check_indexes),
                _run("bodies", store, lambda _, check: check_bodies(store.execute, sql, check)),
                _run("tables", store, lambda _, check: check_tables(store.execute, sql, check)),
            ]
        return checks


def schema_version(store: PostgresStore) -> tuple[int, int]:
    """Return the schema version, 0 if the database is empty, and how many migrations are pending.

    Raises:
        StartRefusedError: no broker of this version could use the database.
    """
    sql, folder = store.sql("migrate"), migrations_folder() / "postgres"
    tables = {name for (name,) in store.execute(sql["tables"])}
    if not tables:
        return 0, len(read_migrations(folder))
    if "migration" not in tables:
        raise StartRefusedError("the database was not created by phpmq-lite")
    waiting = pending(store, folder)
    return max(number for number, _ in store.execute(sql["applied"])), len(waiting)


def _check_schema(store: PostgresStore, check: DatabaseCheck) -> None:
    try:
        version, waiting = schema_version(store)
    except StartRefusedError as error:
        check.problems.append(str(error))
        return
    if not version:
        check.problems.append("the database is empty")
    check.found = f"version {version}"
    if waiting:
        check.found += f"; a broker of this version will migrate it to {version + waiting}"


def _check_indexes(store: PostgresStore, check: DatabaseCheck) -> None:
    sql = store.sql("server")
    indexes = store.execute(sql["indexes"]).fetchall()
    check.found = f"{len(indexes)} indexes"
    check.problems += [f"{name} is not valid" for name, is_valid in indexes if not is_valid]
    if not store.execute(sql["has_amcheck"]).fetchone()[0]:
        check.found += "; their rows were not checked, because the extension amcheck is missing"
        return
    for name, _ in indexes:
        try:
            store.execute(sql["check_index"], (name,))
        except psycopg.errors.IndexCorrupted as error:
            check.problems.append(f"{name}: {summary(error)}")


def _run(
    name: str, store: PostgresStore, look: Callable[[PostgresStore, DatabaseCheck], None]
) -> DatabaseCheck:
    """Run a check, recording anything that the server cannot read as a problem."""
    check = DatabaseCheck(name)
    try:
        look(store, check)
    except psycopg.Error as error:
        if store.connection.closed:
            raise
        check.problems.append(f"cannot be read: {summary(error)}")
    return check
