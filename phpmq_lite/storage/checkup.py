"""What a start looks at before SQLite may write: the WAL, the seal, the structure.

Each refuses with DataDamagedError, and then nothing was changed; ``accept_loss`` goes on with what
is there.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.resources import migrations_folder
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.migrate import schema_problems
from phpmq_lite.storage.seal import break_seal, checksum_of
from phpmq_lite.storage.verify import integrity_problems
from phpmq_lite.storage.wal_guard import check_wal, keep_damaged
from phpmq_lite.storage.wal_scan import WalScan

CHECKED_BYTES: Final = 256 << 20  # a larger database is looked at by the scrub, while it is served


@dataclass(slots=True)
class Checkup:
    """What was looked at."""

    wal: WalScan
    checks: list[str] = field(default_factory=list)  # done, in words
    is_owed: bool = False  # the structure was not checked, and should be soon


def check_files(
    folder: DataFolder,
    *,
    accept_loss: bool = False,
    tell: Callable[[str], None] = lambda step: None,
) -> Checkup:
    """Check the files of a locked folder before its database is opened for writing.

    Blocks: up to 0.3 s; behind a clean stop 0.3 s for a GiB, with a slow zlib 1 s.  ``tell`` gets
    what is being done.

    Raises:
        DataDamagedError: commits or contents would be lost, or come out wrong.
        StartRefusedError: the database cannot be read now, which need not be damage.
    """
    tell("checking the write-ahead log")
    done = Checkup(check_wal(folder, accept_loss=accept_loss))
    done.checks.append("every frame of the write-ahead log against its checksum")
    tell("checking the database")
    if break_seal(folder, accept_loss=accept_loss):
        done.checks.append("every byte of the database against what the broker left")
    elif folder.has_journal or folder.database.stat().st_size > CHECKED_BYTES:
        done.is_owed = True
    else:
        _check_structure(folder, accept_loss=accept_loss)
        done.checks.append("the structure of the database")
    return done


def _check_structure(folder: DataFolder, *, accept_loss: bool) -> None:
    uri = f"{folder.database.as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()  # opens the WAL and its index
            problems = integrity_problems(connection)
            problems = problems or schema_problems(connection, migrations_folder())
        except sqlite3.OperationalError as error:  # damage is another error
            raise StartRefusedError(f"cannot read {folder.database}: {error}") from error
        except sqlite3.DatabaseError as error:
            problems = [str(error)]
    if not problems:
        return
    loss = f"{folder.database} is damaged: {'; '.join(problems[:3])}"
    copies = keep_damaged(folder, loss, f"crc32:{checksum_of(folder.database):08x}")
    if not accept_loss:
        raise DataDamagedError(
            f"{loss}; it was copied to {copies}; `phpmq-lite verify` says more, `phpmq-lite "
            "restore` puts a backup in its place, and storage.accept_loss (--accept-loss) starts "
            "with it as it is, once"
        )
