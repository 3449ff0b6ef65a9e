"""Migrates the schema with numbered SQL files, each applied in its own transaction.

To add a migration:

1. Add ``migrations/NNNN_what_it_does.sql`` with the next number, four digits without gaps.  Never
   edit a released file: the broker refuses to start with a changed one.
2. Write plain statements, each ending with a semicolon, with the unit of every new column as a
   comment.  No BEGIN, COMMIT, ATTACH, VACUUM or PRAGMA: the file runs inside one transaction,
   which also sets ``user_version`` to NNNN.
3. Filling a column of a large table delays the start: add the column with a default; fill it later.
4. ``tests/integration/test_upgrade.py`` opens a database of each released version.  Add rows to
   the tables that your migration changes.

The code is synchronous: it runs in the writer's thread and in ``phpmq-lite database migrate``.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from phpmq_lite.errors import DataDamagedError, StartRefusedError, StorageError
from phpmq_lite.model import checksum
from phpmq_lite.storage.atomic_files import create_private, sync_file, sync_folder
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.migrations import Migration, check_applied, read_migrations, table_names
from phpmq_lite.storage.sqlite.errors import DISK_ERRORS, is_corrupt, primary_code, translated_error
from phpmq_lite.storage.statements import load

_OK, _DENY = sqlite3.SQLITE_OK, sqlite3.SQLITE_DENY
_NOT_INSIDE: Final = {
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
}


def pending(connection: sqlite3.Connection, folder: Path) -> list[Migration]:
    """Return the migrations in ``folder`` that have not been applied yet, in order.

    Raises:
        StartRefusedError: the database is newer than ``folder``, was not created by phpmq-lite, or
            was created with a different text of a migration.
        DataDamagedError: the file is damaged or not a database.
    """
    migrations = read_migrations(folder)
    try:
        version = schema_version(connection)
        _check_known(connection, migrations, version)
    except sqlite3.DatabaseError as error:
        raise _refusal("cannot read the schema", error) from error
    return migrations[version:]


def migrate(
    connection: sqlite3.Connection,
    folder: Path,
    *,
    before: Callable[[Migration], None] | None = None,
) -> list[str]:
    """Apply pending migrations and return their names in order.

    A database that has a schema is first copied to ``before-migration-NNNN.db`` in its folder,
    where NNNN is the first number applied.  ``before`` is called before each migration.  The
    connection must not be in a transaction and must have ``isolation_level=None``.

    Raises:
        StartRefusedError: as for ``pending``, or because the copy or a migration failed.  Earlier
            migrations stay applied; the failed one is rolled back.
        StorageFullError, NotWritableError, OutcomeUnknownError: as for a batch.
        DataDamagedError: the file is damaged or not a database.
    """
    waiting = pending(connection, folder)
    if waiting and waiting[0].number > 1:
        back_up(connection, waiting[0].number)
    for migration in waiting:
        if before is not None:
            before(migration)
        try:
            _apply(connection, migration)
        except sqlite3.Error as error:
            if primary_code(error) in DISK_ERRORS:
                raise translated_error(connection, error) from error
            problem = f"migration {migration.name} failed and was rolled back"
            raise _refusal(problem, error) from error
    return [migration.name for migration in waiting]


def schema_problems(connection: sqlite3.Connection, folder: Path) -> list[str]:
    """Return tables, indexes and views that differ from those created by the migrations.

    SQLite stores their statements as text and does not notice a flipped bit in the text.  Objects
    that another program added are ignored.

    Raises:
        StartRefusedError, DataDamagedError: as for ``pending``.
    """
    pending(connection, folder)
    migrations = read_migrations(folder)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        model.create_function("checksum", 2, checksum, deterministic=True)
        for migration in migrations[: schema_version(connection)]:
            _apply(model, migration)
        expected, actual = _statements(model), _statements(connection)
    return [
        f"the definition of {name!r} differs from the migrations"
        for name, text in sorted(expected.items())
        if actual.get(name) != text
    ]


def _statements(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the schema's statements, keyed by object name, without spaces or quotes."""
    return {
        name: "".join(text.replace('"', "").split())
        for name, text in connection.execute(load("migrate", "sqlite")["statements"])
    }


def back_up(connection: sqlite3.Connection, number: int) -> Path | None:
    """Copy a database that is not in memory to ``before-migration-NNNN.db``, or raise."""
    database = connection.execute("PRAGMA database_list").fetchone()[2]
    if not database:
        return None
    copy = Path(database).with_name(f"before-migration-{number:04d}.db")
    temporary = copy.with_name(f".{copy.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        os.close(create_private(temporary))  # SQLite accepts an empty file and keeps its file mode
        connection.execute("VACUUM INTO ?", (str(temporary),))
        sync_file(temporary)
        temporary.replace(copy)
        sync_folder(copy.parent)
    except (OSError, sqlite3.Error) as error:
        temporary.unlink(missing_ok=True)
        raise _refusal(f"cannot copy the database to {copy} before a migration", error) from error
    return copy


def split_statements(sql: str) -> Iterator[str]:
    """Yield the statements of a file without splitting at semicolons in triggers or strings."""
    statement = ""
    for piece in re.split(r"(?<=;)", sql):
        statement += piece
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement  # only comments, or an incomplete statement, which SQLite will reject


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    sql = load("migrate", "sqlite")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Deny actions that would end the transaction or access another file.
        connection.set_authorizer(lambda action, *_: _DENY if action in _NOT_INSIDE else _OK)
        try:
            for statement in split_statements(migration.sql):
                connection.execute(statement)
        finally:
            connection.set_authorizer(None)
        connection.execute(sql["create_migration_table"])
        row = (migration.number, migration.name, migration.sha256, time.time_ns() // 1_000_000)
        connection.execute(sql["add_migration"], row)
        connection.execute(f"PRAGMA user_version = {migration.number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration that was applied; 0 if there is none."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_known(connection: sqlite3.Connection, migrations: list[Migration], version: int) -> None:
    sql = load("migrate", "sqlite")
    file = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    tables = table_names(connection.execute, sql)
    if ("migration" in tables) != (version > 0) or (tables and not version):
        raise StartRefusedError("the database was not created by phpmq-lite")
    applied = dict(connection.execute(sql["applied"]).fetchall()) if version else {}
    place = file.parent if file.name == DATABASE else file
    check_applied(migrations, version, applied, str(place))


def _refusal(problem: str, error: Exception) -> StorageError | StartRefusedError:
    """Return the error to raise: DataDamagedError for damage, otherwise StartRefusedError."""
    kind = DataDamagedError if is_corrupt(error) else StartRefusedError
    return kind(f"{problem}: {error}")
