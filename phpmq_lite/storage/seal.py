"""The checksum of the whole database, taken at a clean stop and compared at the next start.

SQLite notices few flipped bits, and a CRC covers bodies only; while nobody writes to the file any
bit of it can be watched.  zlib sums 1 to 6 GiB/s.  A file above ``SEALED_BYTES`` is not sealed.
``resting.py`` seals a database that is open, for the start behind a crash.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage import seal_file
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.opened_files import OpenedFiles
from phpmq_lite.storage.wal_guard import keep_damaged

SEALED_BYTES: Final = 1 << 30
_CHUNK_BYTES: Final = 1 << 20


def seal(folder: DataFolder, files: OpenedFiles | None = None) -> None:
    """Seal a database that was closed; not where a WAL lies beside it, or it is too large.

    Raises:
        DatabaseReplacedError: it is not the one of ``files``; nothing was sealed.
    """
    if files is not None:
        files.check_database()
    if _has_wal(folder) or folder.database.stat().st_size > SEALED_BYTES:
        return
    checksum = checksum_of(folder.database)
    if files is not None:
        files.check_database()
    folder.seal(checksum)


def break_seal(folder: DataFolder, *, accept_loss: bool = False) -> bool:
    """Compare the database with its seal, and take that away: the file is about to be written.

    To be called behind ``check_wal`` and before SQLite opens the file.  False: there was no seal,
    or it is another file and that is accepted.

    Raises:
        DataDamagedError: it is not the file that the broker left; a copy of it is in
            ``damaged-<time>/``.  With ``accept_loss`` it is copied, and taken as it is.
            Or it cannot be read.
    """
    expected = folder.meta.seal
    if expected is not None and _has_wal(folder):  # who left one has written since
        expected = None
    if folder.meta.is_running:
        expected = seal_file.read(folder.path)
    is_whole = False
    if expected is not None:
        found = _read(folder.database)
        is_whole = found == expected
        if not is_whole:
            _refuse(folder, found, accept_loss=accept_loss)
    folder.seal(None)
    seal_file.strike_left(folder.path)
    return is_whole


def checksum_of(path: Path) -> int:
    """Return the CRC-32 of a file."""
    with path.open("rb") as file:
        return checksum_of_file(file)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def checksum_of_file(file: _Readable, goes_on: Callable[[], bool] = lambda: True) -> int:
    """Return the CRC-32 of what is left to read; of less where it is to go on no longer."""
    found = 0
    while goes_on() and (chunk := file.read(_CHUNK_BYTES)):
        found = zlib.crc32(chunk, found)
    return found


def _read(database: Path) -> int:
    try:
        return checksum_of(database)
    except OSError as error:
        raise DataDamagedError(f"cannot read {database}: {error.strerror}") from error


def _has_wal(folder: DataFolder) -> bool:
    return folder.wal.exists() and folder.wal.stat().st_size > 0


def _refuse(folder: DataFolder, found: int, *, accept_loss: bool) -> None:
    loss = (
        f"{folder.database} is not as the broker left it: it was damaged since, or another program "
        "wrote to it"
    )
    copies = keep_damaged(folder, loss, f"crc32:{found:08x}")
    if not accept_loss:
        raise DataDamagedError(
            f"{loss}; it was copied to {copies}; `phpmq-lite verify` says what is wrong with it, "
            "`phpmq-lite restore` puts a backup in its place, and storage.accept_loss "
            "(--accept-loss) starts with it as it is, once"
        )
