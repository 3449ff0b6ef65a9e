"""A database of each released version is migrated to a next schema with all its rows."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from phpmq_lite.cli import database as database_command
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.migrations import read_migrations
from phpmq_lite.storage.sqlite.integrity import startup
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from phpmq_lite.storage.sqlite.integrity.seal import seal
from phpmq_lite.storage.sqlite.integrity.startup import read_stopped
from phpmq_lite.storage.sqlite.migrate import migrate
from tests.integration.test_schedules import new as new_schedule
from tests.support import stores
from tests.support.cli_runner import invoke
from tests.support.core_and_store import Driver, MakeDriver, drivers_in, stored_bodies

RELEASED = len(read_migrations(migrations_folder()))
NEXT = """ALTER TABLE queue ADD COLUMN colour TEXT;
CREATE TABLE later (x INTEGER);
INSERT INTO later SELECT seq FROM message;
"""
TODAY = "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"


def next_version(folder: Path) -> Path:
    """Create the migrations of the next version: the released ones, and one that is made up."""
    shutil.copytree(migrations_folder(), folder, ignore=shutil.ignore_patterns("postgres"))
    number = RELEASED + 1
    (folder / f"{number:04d}_later.sql").write_text(NEXT, encoding="utf-8")
    return folder


def columns(connection: sqlite3.Connection, schema: str, table: str) -> list[str]:
    rows = connection.execute("SELECT name FROM pragma_table_info(?, ?)", (table, schema))
    return [f'"{name}"' for (name,) in rows]


def as_of(version: int, today: Path, folder: Path) -> Path:
    """Create a database of a released version with the rows of a current one, as far as they fit.

    Rows of a table whose columns changed their meaning have to be converted back here.
    """
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
            both = set(columns(connection, "main", table))
            names = ", ".join(n for n in columns(connection, "today", table) if n in both)
            connection.execute(
                f"REPLACE INTO main.{table} ({names}) SELECT {names} FROM today.{table}"
            )
        next_number = "SELECT 'next_number', next_number FROM today.line"
        connection.execute(f"REPLACE INTO main.counter (name, value) {next_number}")
    return path


def fill(driver: Driver) -> None:
    """Leave live messages, an acknowledged and a dead one, a key, clients, and a schedule."""
    driver.ask("schedule.create", new_schedule("each"))
    driver.publish(b"acked", b"dead", b"alive", b"requeued")
    worker = driver.consume(4)
    acked, dead, _, requeued = worker.take()
    worker.acknowledge("orders", acked.message_id)
    worker.dead_letter("orders", dead.message_id)
    worker.requeue("orders", requeued.message_id, 0)
    driver.connect().publish("orders", b"known", key=b"key-1")
    driver.step()


@pytest.mark.parametrize("version", range(1, RELEASED + 1))
def test_database_of_a_released_version_keeps_everything(
    version: int, make: MakeDriver, tmp_path: Path
) -> None:
    driver = make()
    fill(driver)
    driver.store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    settled, expected = driver.outcomes(), stored_bodies(driver)
    (tmp_path / "older").mkdir()
    older = as_of(version, driver.path, tmp_path / "older")
    newer = next_version(tmp_path / "next")
    assert [check.problems for check in verify(older, newer) if check.problems] == []
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        migrate(connection, migrations_folder())
        assert connection.execute(TODAY).fetchall() == driver.rows(TODAY)
        assert migrate(connection, newer) == [f"{RELEASED + 1:04d}_later"]
        live = connection.execute("SELECT x FROM later ORDER BY x").fetchall()
        assert live == driver.rows("SELECT seq FROM message ORDER BY seq")
    assert [check.problems for check in verify(older, newer) if check.problems] == []
    with driver_on(older) as upgraded:
        assert (upgraded.outcomes(), stored_bodies(upgraded)) == (settled, expected)
        upgraded.connect().publish("orders", b"known", key=b"key-1")
        upgraded.publish(b"new")
        got = [delivery.body for delivery in upgraded.consume(10).take()]
        assert got == [*expected, b"new"]  # the key is still known: nothing was stored twice
        assert list(upgraded.core.schedules.by_name) == ["each"] * (version >= 3)
        numbers = upgraded.rows("SELECT seq FROM body")
        assert len(numbers) == len(set(numbers))


@contextmanager
def driver_on(database: Path) -> Iterator[Driver]:
    """Run a broker on a copy of a migrated database."""
    folder = database.parent / "upgraded"
    folder.mkdir()
    with drivers_in(folder) as start, patch.object(stores, "empty_database", database.read_bytes):
        yield start()


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a data folder of this version, for a command line of the next one."""
    newer = next_version(tmp_path / "next")
    data = tmp_path / "data"
    with closing(DataFolder.open(data)) as folder:
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            migrate(connection, migrations_folder())
        seal(folder)
    for module in (database_command, startup):
        monkeypatch.setattr(module, "migrations_folder", lambda: newer)
    return data


def version_of(data: Path) -> int:
    with closing(sqlite3.connect(f"file:{data / DATABASE}?mode=ro", uri=True)) as connection:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def test_dry_run_changes_nothing(upgraded: Path) -> None:
    name = f"{RELEASED + 1:04d}_later"
    shown = invoke("database", "migrate", "--dry-run", "--data", upgraded)
    assert shown.stdout == f"{name}\n"
    assert version_of(upgraded) == RELEASED
    assert read_stopped(upgraded).waiting == [name]
    assert invoke("database", "migrate", "--data", upgraded).stdout == f"{name}\n"
    assert version_of(upgraded) == RELEASED + 1
    assert list(upgraded.glob("before-migration-*.db"))
    again = invoke("database", "migrate", "--data", upgraded)
    assert (again.stdout, again.stderr) == ("", "no migrations are pending\n")


def test_downgrade_is_refused_until_the_copy_is_restored(
    upgraded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("database", "migrate", "--data", upgraded)
    monkeypatch.undo()
    newer = f"schema version {RELEASED + 1}, but this phpmq-lite supports versions only up to"
    assert newer in read_stopped(upgraded).refusal
    copy = f"before-migration-{RELEASED + 1:04d}.db"
    invoke("backup", "restore", copy, "--yes", "--data", upgraded)
    assert read_stopped(upgraded).refusal == ""
