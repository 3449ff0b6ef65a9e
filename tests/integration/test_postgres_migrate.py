"""Migrations of a PostgreSQL database: order, transactions and refusals."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from phpmq_lite.errors import PhpmqError, StartRefusedError, UnreleasedDataError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.postgres import inspection
from phpmq_lite.storage.postgres import migrate as migrations
from phpmq_lite.storage.postgres.leadership import read_row, take_over
from phpmq_lite.storage.postgres.store import PostgresStore, connect
from tests.support.cli_runner import invoke
from tests.support.postgres_server import PostgresServer

RELEASED = len(list((migrations_folder() / "postgres").glob("*.sql")))
NEXT = "ALTER TABLE queue ADD COLUMN colour TEXT; CREATE TABLE later (x BIGINT);"


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as name:
        yield name


@pytest.fixture
def store(postgres: PostgresServer, database: str) -> Iterator[PostgresStore]:
    with closing(connect(postgres.conninfo(database))) as connection:
        store = PostgresStore(connection, lambda *_: None)
        assert take_over(store, read_row(store), "{}")
        yield store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the migrations of the next version, without its own."""
    shutil.copytree(migrations_folder(), tmp_path / "migrations")
    monkeypatch.setattr(migrations, "migrations_folder", lambda: tmp_path / "migrations")
    return tmp_path / "migrations" / "postgres"


def write_next(folder: Path, text: str) -> str:
    name = f"{RELEASED + 1:04d}_later"
    (folder / f"{name}.sql").write_text(text, encoding="utf-8")
    return name


def columns(store: PostgresStore) -> set[str]:
    rows = store.execute("SELECT attname FROM pg_attribute WHERE attrelid = 'queue'::regclass")
    return {name for (name,) in rows.fetchall()}


def test_active_broker_applies_what_is_pending(store: PostgresStore, folder: Path) -> None:
    assert migrations.migrate(store) == []
    name = write_next(folder, NEXT)
    assert [migration.name for migration in migrations.pending(store)] == [name]
    assert "colour" not in columns(store)
    assert migrations.migrate(store) == [name]
    assert "colour" in columns(store)
    assert (migrations.pending(store), migrations.migrate(store)) == ([], [])
    rows = store.execute("SELECT number, name FROM migration ORDER BY number").fetchall()
    assert rows[-1] == (RELEASED + 1, name)


def test_failed_migration_is_rolled_back(store: PostgresStore, folder: Path) -> None:
    write_next(folder, f"{NEXT} SELECT nonsense;")
    with pytest.raises(PhpmqError):
        migrations.migrate(store)
    assert "colour" not in columns(store)
    assert len(migrations.pending(store)) == 1
    write_next(folder, NEXT)
    assert len(migrations.migrate(store)) == 1


def test_newer_database_is_refused_with_both_versions(
    postgres: PostgresServer, database: str, store: PostgresStore, folder: Path
) -> None:
    name = write_next(folder, NEXT)
    migrations.migrate(store)
    (folder / f"{name}.sql").unlink()
    message = f"schema version {RELEASED + 1}, .* versions only up to {RELEASED}"
    with pytest.raises(StartRefusedError, match=message):
        migrations.pending(store)
    assert f"schema version {RELEASED + 1}" in inspection.probe(postgres.url(database)).refusal


def test_changed_migration_is_refused(store: PostgresStore, folder: Path) -> None:
    name = write_next(folder, NEXT)
    migrations.migrate(store)
    write_next(folder, f"{NEXT} -- better")
    with pytest.raises(StartRefusedError, match=f"migration {name} differs"):
        migrations.pending(store)


def test_database_of_an_unreleased_version_is_refused_by_its_name(
    postgres: PostgresServer, database: str, store: PostgresStore, tmp_path: Path
) -> None:
    store.execute("UPDATE migration SET sha256 = 'another'")
    message = f"postgresql://127.0.0.1:{postgres.port}/{database} was made by an unreleased version"
    for call in (migrations.create_schema, migrations.pending, migrations.migrate):
        with pytest.raises(UnreleasedDataError, match=message):
            call(store)
    url = postgres.url(database)
    assert message in inspection.probe(url).refusal
    for arguments in (
        ("serve", "--admin", "none", "--set", "store.allow_asynchronous=true"),
        ("database", "verify"),
    ):
        data = ("--data", tmp_path / "data", "--store", url)
        assert message in invoke(*arguments, *data, code=1).stderr
    with psycopg.connect(postgres.conninfo(database)) as connection:
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (0,)
        others = "datname = current_database() AND pid NOT IN (pg_backend_pid(), %s)"
        query = f"SELECT count(*) FROM pg_stat_activity WHERE {others}"
        own = store.connection.info.backend_pid
        assert connection.execute(query, [own]).fetchone() == (0,)  # `serve` has closed its own
