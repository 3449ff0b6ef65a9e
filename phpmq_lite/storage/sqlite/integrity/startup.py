"""Checks of WAL, seal and structure before SQLite writes anything.

A failed check raises DataDamagedError and changes nothing; with ``accept_loss``, startup continues
with the remaining data.  ``read_stopped`` reports what the next startup will find, but only what
takes less than a second to check; ``database_check.py`` checks everything.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DataFolder, prevent_start
from phpmq_lite.storage.migrations import table_names
from phpmq_lite.storage.sqlite.database_file import has_wal, open_read_only, wal_of
from phpmq_lite.storage.sqlite.integrity.database_check import check_log, integrity_problems
from phpmq_lite.storage.sqlite.integrity.seal import break_seal, checksum_of
from phpmq_lite.storage.sqlite.integrity.wal_check import (
    WalScan,
    check_wal,
    has_commits,
    refuse_damaged_database,
)
from phpmq_lite.storage.sqlite.litestream import has_closed_database
from phpmq_lite.storage.sqlite.migrate import pending, schema_problems
from phpmq_lite.storage.statements import load

CHECKED_BYTES: Final = 256 << 20  # the scrub checks larger databases while the broker runs


@dataclass(slots=True)
class StartupCheck:
    """Results of the startup checks."""

    wal: WalScan
    checks: list[str] = field(default_factory=list)  # descriptions of completed checks
    is_structure_due: bool = False  # whether the structure check was skipped and should run soon


def check_files(
    folder: DataFolder,
    *,
    accept_loss: bool = False,
    tell: Callable[[str], None] = lambda step: None,
) -> StartupCheck:
    """Check the files of a locked folder before its database is opened for writing.

    Blocks for up to 0.3 s; after a clean stop, for 0.3 s per GiB, or 1 s per GiB with a slow zlib.
    ``tell`` is called with a description of each step.

    Raises:
        DataDamagedError: commits or contents are lost or damaged.
        StartRefusedError: the database cannot be read at the moment, but may be intact.
    """
    tell("checking the write-ahead log")
    check = StartupCheck(check_wal(folder, accept_loss=accept_loss))
    check.checks.append("every frame of the write-ahead log against its checksum")
    tell("checking the database")
    if break_seal(folder, accept_loss=accept_loss):
        check.checks.append("every byte of the database against what the broker left")
    elif folder.has_journal or folder.database.stat().st_size > CHECKED_BYTES:
        check.is_structure_due = True
    else:
        _check_structure(folder, accept_loss=accept_loss)
        check.checks.append("the structure of the database")
    return check


def _check_structure(folder: DataFolder, *, accept_loss: bool) -> None:
    with closing(open_read_only(folder.database)) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()  # opens the WAL and its index
            problems = integrity_problems(connection)
            problems = problems or schema_problems(connection, migrations_folder())
        except sqlite3.OperationalError as error:  # damage would raise a different error
            raise StartRefusedError(f"cannot read {folder.database}: {error}") from error
        except sqlite3.DatabaseError as error:
            problems = [str(error)]
    if problems:
        loss = f"{folder.database} is damaged: {'; '.join(problems[:3])}"
        refuse_damaged_database(folder, loss, checksum_of(folder.database), accept_loss=accept_loss)


@contextmanager
def open_stopped(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for a brief read; the caller must keep a broker from starting meanwhile.

    The WAL index stays unchanged for ``check_wal``, because SQLite builds an index in memory if it
    cannot share one.  On close, SQLite removes a WAL without a commit, whether the WAL is damaged
    or was just restarted; such a WAL is therefore hidden from SQLite.
    """
    has_log = False
    with suppress(FileNotFoundError), wal_of(database.resolve()).open("rb") as file:
        has_log = has_commits(file)
    how = "vfs=unix-none" if has_log else "immutable=1"
    with closing(open_read_only(database, how)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        yield connection


@dataclass(slots=True)
class StoppedDatabase:
    """Result of checking a stopped broker's files; the check ends at the first problem."""

    is_new: bool = False  # True if no message has ever been stored
    was_clean: bool = True  # whether the last stop was clean
    log: str = ""  # description of the write-ahead log
    last_error: str = ""  # error that stopped the broker immediately, if any
    schema: int = 0
    waiting: list[str] = field(default_factory=list)  # migrations that the next startup will apply
    used_bytes: int = 0
    problems: list[str] = field(default_factory=list)  # damage that prevents startup
    refusal: str = ""  # why startup would be refused although nothing is damaged


def read_stopped(path: Path) -> StoppedDatabase:
    """Check an existing data folder.

    Raises:
        StartRefusedError: a broker is running there.
        OSError: a file cannot be read.
    """
    with prevent_start(path):
        folder = DataFolder.open_unlocked(path)
        stopped = StoppedDatabase(was_clean=not folder.meta.is_running)
        error = folder.read_last_error()
        if error is not None and not stopped.was_clean:
            stopped.last_error = str(error.get("message") or error.get("error") or "unknown")
        try:
            folder.check_copy()
            folder.check_database()
        except StartRefusedError as refusal:
            stopped.refusal = str(refusal)
            return stopped
        except DataDamagedError as damage:
            stopped.problems.append(str(damage))
            return stopped
        is_empty = not folder.database.exists() or not folder.database.stat().st_size
        if is_empty or folder.has_journal:
            stopped.is_new = True
            return stopped
        _check_log(folder, stopped)
        if not stopped.problems:
            _check_database(folder, stopped)
        return stopped


def _check_log(folder: DataFolder, stopped: StoppedDatabase) -> None:
    is_needed = folder.meta.needs_wal and not has_closed_database(folder)
    check = check_log(folder.wal, is_needed=is_needed)
    stopped.log = check.result
    stopped.problems += check.problems
    expected = folder.meta.seal
    is_large = folder.database.stat().st_size > CHECKED_BYTES
    if expected is None or has_wal(folder.database) or is_large:
        return
    if checksum_of(folder.database) != expected:
        stopped.problems.append(
            f"{folder.database} differs from what the last clean stop left: it is damaged, or "
            "another program wrote to it"
        )


def _check_database(folder: DataFolder, stopped: StoppedDatabase) -> None:
    try:
        with open_stopped(folder.database) as connection:
            waiting = pending(connection, migrations_folder())
            stopped.waiting = [migration.name for migration in waiting]
            stopped.schema, pages, free, size = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("user_version", "page_count", "freelist_count", "page_size")
            )
            stopped.used_bytes = (pages - free) * size
    except StartRefusedError as error:
        stopped.refusal = str(error)
    except DataDamagedError as error:
        stopped.problems.append(str(error))
    except sqlite3.Error as error:
        stopped.problems.append(f"cannot read {folder.database}: {error}")


def has_admin(database: Path) -> bool:
    """Return whether a database has a user with the admin role; call this before startup.

    Returns False if there is no database or it has no users, but True if the database cannot be
    read or a broker is running, because startup will report that problem.
    """
    if not database.is_file():
        return False
    try:
        with prevent_start(database.parent), open_stopped(database) as connection:
            execute, has_admin = connection.execute, load("accounts", "sqlite")["has_admin"]
            has_users = "user" in table_names(execute, load("migrate", "sqlite"))
            return has_users and bool(execute(has_admin).fetchone()[0])
    except (sqlite3.Error, StartRefusedError, OSError):
        return True
