"""Migrates the schema with the numbered files in ``migrations/postgres/``.

The first file creates the row by which one broker is active; all others are applied by the active
broker.  A file is executed as a whole, in one transaction.
"""

import time
from collections.abc import Sequence

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.migrations import (
    Migration,
    check_applied,
    check_released,
    read_migrations,
    table_names,
)
from phpmq_lite.storage.postgres.store import PostgresStore, place_of


def pending(store: PostgresStore) -> list[Migration]:
    """Return the migrations that have not been applied yet, or raise as ``check_applied`` does."""
    migrations, applied = _migrations(), _applied(store)
    version = max(applied)
    check_applied(migrations, version, applied, _place(store))
    return migrations[version:]


def create_schema(store: PostgresStore) -> None:
    """Create the schema of an empty database; wait while another broker does."""
    if has_schema(store):
        return
    with store.translating():
        store.execute("BEGIN")
        store.execute(store.sql("migrate")["wait_for_others"])
        if not has_schema(store):
            _apply(store, _migrations())
        store.execute("COMMIT")


def migrate(store: PostgresStore) -> list[str]:
    """Apply pending migrations as the active broker, and return their names in order."""
    waiting = pending(store)
    if waiting:
        with store.transaction():
            _apply(store, waiting)
    return [migration.name for migration in waiting]


def has_schema(store: PostgresStore) -> bool:
    """Return whether the broker's tables exist; raise StartRefusedError if they are not ours."""
    tables = table_names(store.execute, store.sql("migrate"))
    if tables and "migration" not in tables:
        raise StartRefusedError("the database was not created by phpmq-lite")
    if tables:
        check_released(_migrations()[0], _applied(store), _place(store))
    return bool(tables)


def _migrations() -> list[Migration]:
    return read_migrations(migrations_folder() / "postgres")


def _applied(store: PostgresStore) -> dict[int, str]:
    return dict(store.execute(store.sql("migrate")["applied"]).fetchall())


def _place(store: PostgresStore) -> str:
    return f"postgresql://{place_of(store.connection.info.dsn)}"


def _apply(store: PostgresStore, migrations: Sequence[Migration]) -> None:
    sql = store.sql("migrate")
    store.execute(sql["create_migration_table"])
    for migration in migrations:
        store.connection.execute(migration.sql.encode())
        row = (migration.number, migration.name, migration.sha256, time.time_ns() // 1_000_000)
        store.execute(sql["add_migration"], row)
