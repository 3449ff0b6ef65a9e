"""A database of each older version is migrated to the current schema with all its rows."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from phpmq_lite.broker.pipeline.state import KnownAppId, StageWriter
from phpmq_lite.broker.publish_keys import expand_run
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.migrations import read_migrations
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from phpmq_lite.storage.sqlite.migrate import migrate
from tests.support import stores
from tests.support.core_and_store import (
    CLOCK_STEP_MS,
    START_MS,
    Driver,
    MakeDriver,
    drivers_in,
    run_operation,
    stored_bodies,
)

OLDER = range(1, len(read_migrations(migrations_folder())))
RECEIPT_RUNS = 8  # since this version, a row of the table receipt has the keys of several messages
TODAY = "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"


def columns(connection: sqlite3.Connection, schema: str, table: str) -> list[str]:
    found = connection.execute("SELECT name FROM pragma_table_info(?, ?)", (table, schema))
    return [f'"{name}"' for (name,) in found]


def as_of(version: int, today: Path, folder: Path) -> Path:
    """Create a database of an older version with the rows of a current one, as far as they fit."""
    steps = folder / "migrations"
    steps.mkdir()
    for path in sorted(migrations_folder().glob("*.sql"))[:version]:
        (steps / path.name).write_bytes(path.read_bytes())
    path = folder / "older.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, steps)
        connection.execute("ATTACH ? AS today", (str(today),))
        tables = connection.execute(
            "SELECT name FROM main.sqlite_schema JOIN today.sqlite_schema USING (type, name)"
            " WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'migration'"
        ).fetchall()
        for (table,) in tables:
            if table == "receipt" and version < RECEIPT_RUNS:
                runs = connection.execute("SELECT * FROM today.receipt").fetchall()
                keys = [key for run in runs for key in expand_run(run)]
                connection.executemany(
                    "INSERT INTO receipt (queue_id, key, seq, at_ms) VALUES (?, ?, ?, ?)", keys
                )
                continue
            both = set(columns(connection, "main", table))
            names = ", ".join(n for n in columns(connection, "today", table) if n in both)
            connection.execute(
                f"REPLACE INTO main.{table} ({names}) SELECT {names} FROM today.{table}"
            )
        next_number = "SELECT 'next_number', next_number FROM today.line"
        connection.execute(f"REPLACE INTO main.counter (name, value) {next_number}")
    return path


def fill(driver: Driver) -> None:
    """Leave live messages, an acknowledged and a dead one, a publish key, and clients."""
    driver.publish(b"acked", b"dead", b"alive", b"requeued")
    worker = driver.consume(4)
    acked, dead, _, requeued = worker.take()
    worker.acknowledge("orders", acked.message_id)
    worker.dead_letter("orders", dead.message_id)
    worker.requeue("orders", requeued.message_id, 0)
    driver.connect().publish("orders", b"known", key=b"key-1")
    driver.step()


@pytest.mark.parametrize("version", OLDER)
def test_database_of_an_older_version_keeps_everything(
    version: int, make: MakeDriver, tmp_path: Path
) -> None:
    driver = make()
    fill(driver)
    driver.store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    settled, expected = driver.outcomes(), stored_bodies(driver)
    (tmp_path / "older").mkdir()
    older = as_of(version, driver.path, tmp_path / "older")
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        migrate(connection, migrations_folder())
        fresh = driver.rows(TODAY)
        assert connection.execute(TODAY).fetchall() == fresh
    assert [check.problems for check in verify(older) if check.problems] == []
    with driver_on(older) as upgraded:
        assert (upgraded.outcomes(), stored_bodies(upgraded)) == (settled, expected)
        upgraded.connect().publish("orders", b"known", key=b"key-1")
        upgraded.publish(b"new")
        got = [delivery.body for delivery in upgraded.consume(10).take()]
        assert got == [*expected, b"new"]  # the key is still known: nothing was stored twice
        numbers = upgraded.rows("SELECT seq FROM body")
        assert len(numbers) == len(set(numbers))


@contextmanager
def driver_on(database: Path) -> Iterator[Driver]:
    """Run a broker on a copy of a migrated database."""
    folder = database.parent / "upgraded"
    folder.mkdir()
    with (
        drivers_in(folder) as start,
        patch.object(stores, "empty_database", database.read_bytes),
    ):
        yield start()


def test_app_id_without_an_owner_belongs_to_the_next_writer(
    make: MakeDriver, tmp_path: Path
) -> None:
    driver = make()
    single = f"batch-{'0' * 32}"
    for app_id in ("stream", single):
        run_operation(driver, "publish_staged", app_id, 0, (), writer=StageWriter("ann"))
    driver.store.execute("INSERT INTO clock_step VALUES (1, 1, 0, ?)", (CLOCK_STEP_MS,))
    driver.store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    older = as_of(4, driver.path, tmp_path)
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        migrate(connection, migrations_folder())
    with driver_on(older) as upgraded:
        found = upgraded.core.staging.app_ids.known
        assert found == {
            "stream": KnownAppId(0, None, START_MS),
            single: KnownAppId(0, None, START_MS, is_single=True),
        }
        assert run_operation(
            upgraded, "publish_staged", "stream", 0, (), writer=StageWriter("bob")
        ).is_repeated
        assert found["stream"].owner == "bob"


def test_older_versions_exist() -> None:
    assert len(OLDER) >= 3
