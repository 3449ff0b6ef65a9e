"""Verifies a complete database: its structure, its contents and the consistency of its tables.

It changes nothing, not even what SQLite changes on opening a file: a database without a WAL is
opened as immutable, and a database with a WAL is first copied together with the WAL.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from phpmq_lite.errors import DataDamagedError, StartRefusedError, StorageError, UnreleasedDataError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import checksum
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, prevent_start, read_meta
from phpmq_lite.storage.database_check import DatabaseCheck, check_bodies, check_tables
from phpmq_lite.storage.migrations import naming
from phpmq_lite.storage.sqlite.database_file import has_wal, open_read_only, wal_of
from phpmq_lite.storage.sqlite.errors import is_damage
from phpmq_lite.storage.sqlite.integrity.wal_check import (
    HEADER_BYTES,
    describe_damage,
    scan_wal_files,
)
from phpmq_lite.storage.sqlite.litestream import has_closed_database
from phpmq_lite.storage.sqlite.migrate import pending, schema_problems, schema_version
from phpmq_lite.storage.statements import load

_COPIES: Final = 5  # maximum number of copies of a database that changes
_PROBLEMS_MAX: Final = 100  # maximum number of problems that SQLite reports


def verify(path: Path, migrations: Path | None = None) -> list[DatabaseCheck]:
    """Verify the data folder of a stopped broker, a backup or a database file.

    ``migrations`` is the folder of the applied and pending migrations; None means the default one.

    Raises:
        StartRefusedError: a broker is running there, or the database is of an unreleased version.
        DataDamagedError: there is no database.
        StorageError: there is not enough space to copy the database and WAL; change TMPDIR.
    """
    database = path / DATABASE if path.is_dir() else path
    is_data_folder = database.name == DATABASE
    with prevent_start(database.parent) if is_data_folder else nullcontext():
        needs_wal = False
        if is_data_folder and read_meta(database.parent).needs_wal:
            needs_wal = not has_closed_database(DataFolder.open_unlocked(database.parent))
        if not database.is_file():
            raise DataDamagedError(f"database {database} does not exist")
        wal = wal_of(database)
        checks = [check_log(wal, is_needed=needs_wal)]
        with naming(path), _open_unchanged(database) as connection:
            return checks + check_all(connection, migrations)


def check_all(
    connection: sqlite3.Connection, migrations: Path | None = None
) -> list[DatabaseCheck]:
    connection.create_function("checksum", 2, _checksum, deterministic=True)
    checks = [
        _run_check("structure and indexes", connection, _check_structure),
        _run_check("schema", connection, partial(_check_schema, migrations or migrations_folder())),
    ]
    if checks[-1].problems:
        return checks  # the tables are not ours, so the other checks do not apply
    execute, sql = connection.execute, load("database_check", "sqlite")
    version = schema_version(connection)
    return [
        *checks,
        _run_check("bodies", connection, lambda _, check: check_bodies(execute, sql, check)),
        _run_check(
            "tables", connection, lambda _, check: check_tables(execute, sql, check, version)
        ),
    ]


def check_log(wal: Path, *, is_needed: bool) -> DatabaseCheck:
    """Check a write-ahead log, which must exist if ``is_needed``."""
    check = DatabaseCheck("write-ahead log", "none; the database was closed")
    try:
        scan = scan_wal_files(wal, wal.with_name(wal.name.removesuffix("-wal") + "-shm"))
    except FileNotFoundError:
        if is_needed:
            check.result = "missing"
            check.problems.append("the log is missing, but the broker did not stop cleanly")
        return check
    check.result = f"{scan.frames:,} frames, {scan.commits:,} commits"
    if scan.is_damaged:
        check.problems.append(describe_damage(wal.name, scan))
    return check


def _check_structure(connection: sqlite3.Connection, check: DatabaseCheck) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    check.result = f"{pages:,} pages"
    check.problems += integrity_problems(connection)


def integrity_problems(
    connection: sqlite3.Connection, pragma: str = "integrity_check"
) -> list[str]:
    """Return problems in the structure and, unless ``pragma`` is ``quick_check``, in the indexes.

    Raises:
        sqlite3.Error: the check was interrupted, or the file cannot be read but is not damaged.
    """
    try:
        rows = connection.execute(f"PRAGMA {pragma}({_PROBLEMS_MAX})").fetchall()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return [str(error)]
    return [text for (text,) in rows if text != "ok"]


def _check_schema(migrations: Path, connection: sqlite3.Connection, check: DatabaseCheck) -> None:
    check.result = f"version {schema_version(connection)}"
    try:
        waiting = pending(connection, migrations)
    except UnreleasedDataError:
        raise
    except (StartRefusedError, DataDamagedError) as error:
        check.problems.append(str(error))
        return
    check.problems += schema_problems(connection, migrations)
    if waiting:
        check.result += f"; a start will migrate it to {waiting[-1].number}"


def _run_check(
    name: str,
    connection: sqlite3.Connection,
    look: Callable[[sqlite3.Connection, DatabaseCheck], None],
) -> DatabaseCheck:
    """Run a check, recording anything that SQLite cannot read as a problem."""
    check = DatabaseCheck(name)
    try:
        look(connection, check)
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise
        check.problems.append(f"cannot be read: {error}")
    return check


def _checksum(seq: int, content: object) -> int:
    """Return a body's checksum; if the content is not a body, return -1, which matches no row."""
    return checksum(seq, content) if isinstance(content, bytes) and seq >= 0 else -1


@contextmanager
def _open_unchanged(database: Path) -> Iterator[sqlite3.Connection]:
    if not has_wal(database):
        with closing(_open(database, "immutable=1")) as connection:
            yield connection
        return
    wal = wal_of(database)
    with tempfile.TemporaryDirectory(prefix="phpmq-verify-") as place:
        need = database.stat().st_size + wal.stat().st_size
        free = shutil.disk_usage(place).free
        if need > free:
            raise StorageError(
                f"{place} has {free:,} bytes free, but the copy requires {need:,}; "
                "set TMPDIR to another folder"
            )
        copies = [Path(place) / file.name for file in (database, wal)]
        for _ in range(_COPIES):
            header = _wal_header(wal)
            shutil.copyfile(database, copies[0])
            shutil.copyfile(wal, copies[1])
            if header == _wal_header(wal):  # otherwise Litestream has restarted the WAL
                break
        with closing(_open(copies[0])) as connection:
            yield connection


def _wal_header(wal: Path) -> bytes:
    with wal.open("rb") as file:
        return file.read(HEADER_BYTES)


def _open(database: Path, *options: str) -> sqlite3.Connection:
    try:
        connection = open_read_only(database, *options)
        connection.execute("PRAGMA cell_size_check=1")
    except sqlite3.Error as error:
        raise DataDamagedError(f"cannot open {database}: {error}") from error
    return connection
