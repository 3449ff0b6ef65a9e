"""Migrations on real SQLite files: order, transactions, copies and refusals."""

import hashlib
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import DataDamagedError, StartRefusedError, UnreleasedDataError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.migrations import Migration
from phpmq_lite.storage.sqlite.migrate import migrate, pending

FIRST = "CREATE TABLE a (x INTEGER); -- a comment; with a semicolon\nINSERT INTO a VALUES (1);\n"
SECOND = "ALTER TABLE a ADD COLUMN y TEXT DEFAULT ';';\nUPDATE a SET x = x + 1;\n"
THIRD = """CREATE TRIGGER t AFTER INSERT ON a BEGIN
  UPDATE a SET y = 'old; ' || y WHERE x < new.x;
  DELETE FROM a WHERE x < 0;
END;
"""

RELEASED = {  # the checksum of each file
    "0001_initial.sql": "55fba212a33a6dec892ea85bbd818cde732dca3fc52a370e93d804139aa33f03",
    "postgres/0001_initial.sql": "96a4a95e828fe026074fdc836b177b3c2299090319abdb8ebd7f42aad8216896",
}


class MigrationFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path / "migrations"
        self.folder.mkdir()
        self.connection = self.connect()

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path / "phpmq.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        return connection

    def write(self, *texts: str) -> None:
        for number, text in enumerate(texts, start=1):
            (self.folder / f"{number:04d}_step.sql").write_text(text, encoding="utf-8")

    def version(self) -> int:
        number: int = self.connection.execute("PRAGMA user_version").fetchone()[0]
        return number

    def schema(self) -> list[str]:
        found = self.connection.execute("SELECT sql FROM sqlite_schema ORDER BY name")
        return [sql for (sql,) in found if sql]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[MigrationFolder]:
    made = MigrationFolder(tmp_path)
    yield made
    made.connection.close()


# -- applying


def test_new_database_is_migrated_in_order(place: MigrationFolder) -> None:
    place.write(FIRST, SECOND, THIRD)
    seen: list[str] = []
    applied = migrate(place.connection, place.folder, before=lambda each: seen.append(each.name))
    assert applied == seen == ["0001_step", "0002_step", "0003_step"]
    assert place.version() == 3
    assert place.connection.execute("SELECT x, y FROM a").fetchall() == [(2, ";")]
    assert list(place.path.glob("before-migration-*")) == []  # there was nothing to copy


def test_applied_migrations_are_recorded(place: MigrationFolder) -> None:
    place.write(FIRST)
    migrate(place.connection, place.folder)
    ((number, name, sha256, applied_at),) = place.connection.execute("SELECT * FROM migration")
    assert (number, name) == (1, "0001_step")
    assert sha256 == hashlib.sha256(FIRST.encode()).hexdigest()
    assert applied_at > 1_700_000_000_000


def test_migrated_database_is_unchanged(place: MigrationFolder) -> None:
    place.write(FIRST, SECOND)
    migrate(place.connection, place.folder)
    assert pending(place.connection, place.folder) == []
    assert migrate(place.connection, place.folder) == []
    assert place.connection.execute("SELECT x FROM a").fetchall() == [(2,)]


def test_pending_migrations_are_listed_without_a_change(place: MigrationFolder) -> None:
    place.write(FIRST, SECOND)
    assert pending(place.connection, place.folder) == [
        Migration(1, "0001_step", FIRST),
        Migration(2, "0002_step", SECOND),
    ]
    assert place.schema() == []


def test_released_migrations_never_change() -> None:
    """Change nothing here but by adding lines: a broker refuses a database of another text."""
    for name, checksum in RELEASED.items():
        content = (migrations_folder() / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == checksum, name


def test_own_migrations_create_the_schema(place: MigrationFolder) -> None:
    names = [path.stem for path in sorted(migrations_folder().glob("*.sql"))]
    assert migrate(place.connection, migrations_folder()) == names
    tables = {row[0] for row in place.connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table'")}  # fmt: skip
    assert tables >= {
        "queue",
        "message",
        "body",
        "history",
        "event",
        "client",
        "receipt",
        "counter",
    }
    assert place.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# -- the copy


def test_database_is_copied_before_it_is_changed(place: MigrationFolder) -> None:
    place.write(FIRST)
    migrate(place.connection, place.folder)
    place.write(FIRST, SECOND, THIRD)
    migrate(place.connection, place.folder)
    (copy,) = place.path.glob("before-migration-*")
    assert copy.name == "before-migration-0002.db"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    restored = copy.rename(place.path / "restored.db")
    with closing(sqlite3.connect(restored, isolation_level=None)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (1,)
        assert old.execute("SELECT * FROM a").fetchall() == [(1,)]
        assert migrate(old, place.folder) == ["0002_step", "0003_step"]


def test_copy_replaces_that_of_an_earlier_attempt(place: MigrationFolder) -> None:
    place.write(FIRST)
    migrate(place.connection, place.folder)
    place.write(FIRST, "SELECT nonsense;")
    (place.path / ".before-migration-0002.db.new").write_bytes(b"left by a crash")
    for value in (10, 20):
        place.connection.execute("UPDATE a SET x = ?", (value,))
        with pytest.raises(StartRefusedError):
            migrate(place.connection, place.folder)
        with closing(sqlite3.connect(place.path / "before-migration-0002.db")) as old:
            assert old.execute("SELECT x FROM a").fetchall() == [(value,)]


def test_nothing_is_changed_when_the_copy_fails(place: MigrationFolder) -> None:
    place.write(FIRST)
    migrate(place.connection, place.folder)
    place.write(FIRST, SECOND)
    (place.path / "before-migration-0002.db").mkdir()
    with pytest.raises(StartRefusedError, match="cannot copy the database"):
        migrate(place.connection, place.folder)
    assert place.version() == 1
    assert list(place.path.glob(".before*")) == []


def test_database_in_memory_is_migrated_without_a_copy(place: MigrationFolder) -> None:
    place.write(FIRST)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, place.folder)
        place.write(FIRST, SECOND)
        assert migrate(connection, place.folder) == ["0002_step"]


# -- failures


@pytest.mark.parametrize(
    "bad",
    [
        "UPDATE a SET x = 99; SELECT nonsense;",
        "UPDATE a SET x = 99; CREATE TABLE b (",
        "UPDATE a SET x = 99; COMMIT; SELECT nonsense;",
        "UPDATE a SET x = 99; ROLLBACK;",
        "UPDATE a SET x = 99; SAVEPOINT s;",
        "UPDATE a SET x = 99; PRAGMA user_version = 7;",
        "UPDATE a SET x = 99; ATTACH ':memory:' AS other;",
        "UPDATE a SET x = 99; VACUUM;",
        "CREATE TABLE migration (y);",  # ours
    ],
)
def test_failed_migration_is_rolled_back_and_earlier_ones_are_kept(
    place: MigrationFolder, bad: str
) -> None:
    place.write(FIRST)
    migrate(place.connection, place.folder)
    place.write(FIRST, SECOND, bad)
    with pytest.raises(StartRefusedError, match="migration 0003_step failed and was rolled back"):
        migrate(place.connection, place.folder)
    assert place.version() == 2
    assert not place.connection.in_transaction
    assert place.connection.execute("SELECT * FROM a").fetchall() == [(2, ";")]
    place.write(FIRST, SECOND, THIRD)
    assert migrate(place.connection, place.folder) == ["0003_step"]


def test_newer_database_is_refused_with_both_versions(place: MigrationFolder) -> None:
    place.write(FIRST, SECOND, THIRD)
    migrate(place.connection, place.folder)
    (place.folder / "0003_step.sql").unlink()
    with pytest.raises(StartRefusedError, match=r"schema version 3, .* versions only up to 2"):
        pending(place.connection, place.folder)


def test_changed_migration_is_refused(place: MigrationFolder) -> None:
    place.write(FIRST, SECOND)
    migrate(place.connection, place.folder)
    place.write(FIRST, SECOND + "-- better\n", THIRD)
    with pytest.raises(StartRefusedError, match="migration 0002_step differs"):
        migrate(place.connection, place.folder)
    assert place.version() == 2


def test_database_of_an_unreleased_version_is_refused_with_its_folder(
    place: MigrationFolder,
) -> None:
    """Its first migration had another text, and there were more of them."""
    place.write(FIRST, SECOND, THIRD)
    migrate(place.connection, place.folder)
    (place.folder / "0003_step.sql").unlink()
    place.write(f"{FIRST}-- the text of the release")
    (place.folder / "0002_step.sql").unlink()
    before = place.schema()
    with pytest.raises(UnreleasedDataError, match=f"^{place.path} was made by an unreleased"):
        migrate(place.connection, place.folder)
    assert (place.version(), place.schema()) == (3, before)


@pytest.mark.parametrize("setup", ["CREATE TABLE other (x)", "PRAGMA user_version = 1"])
def test_foreign_database_is_refused(place: MigrationFolder, setup: str) -> None:
    place.write(FIRST)
    place.connection.execute(setup)
    with pytest.raises(StartRefusedError, match="was not created by phpmq-lite"):
        migrate(place.connection, place.folder)


def test_damaged_file_is_distinguished_from_a_bad_migration(
    place: MigrationFolder, tmp_path: Path
) -> None:
    place.write(FIRST)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    with (
        closing(sqlite3.connect(damaged, isolation_level=None)) as connection,
        pytest.raises(DataDamagedError),
    ):
        migrate(connection, place.folder)


@pytest.mark.parametrize(
    "names",
    [[], ["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["first.sql"]],
)
def test_numbers_must_be_complete_and_unique(place: MigrationFolder, names: list[str]) -> None:
    for name in names:
        (place.folder / name).write_text(FIRST, encoding="utf-8")
    with pytest.raises(StartRefusedError):
        pending(place.connection, place.folder)
