"""Checks of WAL, seal and structure before SQLite writes anything.

A failed check raises DataDamagedError and changes nothing; with ``accept_loss``, startup continues
with the remaining data.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.database_file import open_read_only
from phpmq_lite.storage.sqlite.integrity.database_check import integrity_problems
from phpmq_lite.storage.sqlite.integrity.seal import break_seal, checksum_of
from phpmq_lite.storage.sqlite.integrity.wal_check import (
    WalScan,
    check_wal,
    refuse_damaged_database,
)
from phpmq_lite.storage.sqlite.migrate import schema_problems

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
    done = StartupCheck(check_wal(folder, accept_loss=accept_loss))
    done.checks.append("every frame of the write-ahead log against its checksum")
    tell("checking the database")
    if break_seal(folder, accept_loss=accept_loss):
        done.checks.append("every byte of the database against what the broker left")
    elif folder.has_journal or folder.database.stat().st_size > CHECKED_BYTES:
        done.is_structure_due = True
    else:
        _check_structure(folder, accept_loss=accept_loss)
        done.checks.append("the structure of the database")
    return done


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
