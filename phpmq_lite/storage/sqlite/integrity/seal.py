"""The seal: a checksum of the entire database, written at a clean stop and verified at startup.

SQLite detects few flipped bits, and a message's CRC covers only its body.  The seal covers every
bit, as long as nothing is written to the file.  zlib processes 1 to 6 GiB/s.  Files larger than
``SEALED_BYTES`` are not sealed.  ``LiveSeal`` seals an open database, for startup after a crash.
"""

import os
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Final, Protocol
from zlib import crc32

from phpmq_lite.errors import DatabaseReplacedError, DataDamagedError
from phpmq_lite.storage.atomic_files import create_private
from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.database_file import OpenedFiles, has_wal
from phpmq_lite.storage.sqlite.integrity.wal_check import refuse_damaged_database

_NAME: Final = "seal"
# The seal has three fields: a fixed word, the database's checksum, and a checksum of both.
_RECORD: Final = struct.Struct(">4sII")
_WORD: Final = b"seal"


def open_seal(folder: Path) -> int:
    """Open the seal file of a data folder for writing and return its descriptor."""
    file = folder / _NAME
    return os.open(file, os.O_WRONLY) if file.exists() else create_private(file)


def read_seal(folder: Path) -> int | None:
    """Return the database checksum stored in the seal, or None if there is no valid seal."""
    with suppress(OSError, struct.error):
        word, checksum, check = _RECORD.unpack((folder / _NAME).read_bytes())
        if word == _WORD and check == _check(checksum):
            return int(checksum)
    return None


def write_seal(file: int, checksum: int) -> None:
    os.pwrite(file, _RECORD.pack(_WORD, checksum, _check(checksum)), 0)


def erase_seal(file: int) -> None:
    """Erase the seal and wait until the change is on disk."""
    os.pwrite(file, bytes(_RECORD.size), 0)
    os.fsync(file)


def erase_leftover_seal(folder: Path) -> None:
    """Erase any seal that an earlier broker left behind."""
    if (folder / _NAME).exists():
        file = open_seal(folder)
        try:
            erase_seal(file)
        finally:
            os.close(file)


def _check(checksum: int) -> int:
    return crc32(struct.pack(">I", checksum), crc32(_WORD))


SEALED_BYTES: Final = 1 << 30
_CHUNK_BYTES: Final = 1 << 20


def seal(folder: DataFolder, files: OpenedFiles | None = None) -> None:
    """Seal a closed database unless it has a WAL or is too large.

    Raises:
        DatabaseReplacedError: the database is not the one in ``files``; nothing was sealed.
    """
    if files is not None:
        files.check_database()
    if has_wal(folder.database) or folder.database.stat().st_size > SEALED_BYTES:
        return
    checksum = checksum_of(folder.database)
    if files is not None:
        files.check_database()
    folder.seal(checksum)


def break_seal(folder: DataFolder, *, accept_loss: bool = False) -> bool:
    """Compare the database with its seal, then erase the seal, because the database will change.

    Call it after ``check_wal`` and before SQLite opens the file.  Returns False if there was no
    seal, or if the database differs and ``accept_loss`` is set.

    Raises:
        DataDamagedError: the database cannot be read, or it differs from what the broker wrote and
            was copied to ``damaged-<time>/``.  With ``accept_loss``, a database that differs is
            copied and then used as it is.
    """
    expected = folder.meta.seal
    if expected is not None and has_wal(folder.database):  # the database was modified after sealing
        expected = None
    if folder.meta.is_running:
        expected = read_seal(folder.path)
    is_whole = False
    if expected is not None:
        try:
            actual = checksum_of(folder.database)
        except OSError as error:
            raise DataDamagedError(f"cannot read {folder.database}: {error.strerror}") from error
        is_whole = actual == expected
        if not is_whole:
            loss = (
                f"{folder.database} differs from what the broker wrote: it is damaged, or another "
                "program wrote to it"
            )
            refuse_damaged_database(folder, loss, actual, accept_loss=accept_loss)
    folder.seal(None)
    erase_leftover_seal(folder.path)
    return is_whole


def checksum_of(path: Path) -> int:
    with path.open("rb") as file:
        return checksum_of_file(file)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def checksum_of_file(file: _Readable, may_continue: Callable[[], bool] = lambda: True) -> int:
    """Return the CRC-32 of the rest of a file, ending early if ``may_continue`` returns False."""
    checksum = 0
    while may_continue() and (chunk := file.read(_CHUNK_BYTES)):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


_MAX_SHARE: Final = 100  # sealing may take at most 1/100 of the total time
_MIN_INTERVAL_S: Final = 1.0  # minimum interval between seals, because erasing one costs an fsync


class LiveSeal:
    """Seals an open database; call ``erase`` before each checkpoint and ``renew`` after it.

    Call both in the writer's thread, and ``close`` after the last connection is closed.  There must
    be no seal when the object is created.
    """

    def __init__(self, database: Path, files: OpenedFiles | None = None) -> None:
        self._files = files or OpenedFiles(database)
        # This stays open until ``close``, because closing it earlier would release SQLite's locks.
        self._database = database.open("rb", buffering=0)
        self._file = _open_erased(database.parent)
        self._lock = threading.Lock()  # guards the content of the seal file
        self._has_seal = False
        self._checkpoints = 0
        self._thread: threading.Thread | None = None
        self._due_s = 0.0  # when to seal next, in seconds on the monotonic clock

    def erase(self) -> None:
        """Erase the seal and cancel any sealing; if it raises OSError, write no more."""
        with self._lock:
            self._checkpoints += 1
            if self._file is not None and self._has_seal:
                erase_seal(self._file)
                self._has_seal = False

    def renew(self) -> None:
        """Start sealing the current file, unless sealing is in progress or finished recently."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if self._file is not None and not is_busy and monotonic() >= self._due_s:
            thread = threading.Thread(
                target=self._seal, args=(self._checkpoints,), name="seal", daemon=True
            )
            with suppress(RuntimeError):  # if no thread can start, the file stays unsealed
                thread.start()
                self._thread = thread

    def close(self) -> None:
        with self._lock:
            self._checkpoints += 1
        self._due_s = float("inf")
        if self._thread is not None:
            self._thread.join()
        self._database.close()
        if self._file is not None:
            os.close(self._file)

    def _seal(self, checkpoints: int) -> None:
        began_s = monotonic()
        # Without a seal, startup checks the structure after a crash.
        # A replaced database is not sealed; the writer detects the replacement too and stops.
        with suppress(OSError, DatabaseReplacedError):
            if os.fstat(self._database.fileno()).st_size <= SEALED_BYTES:
                self._database.seek(0)
                checksum = checksum_of_file(
                    self._database, lambda: checkpoints == self._checkpoints
                )
                with self._lock:
                    if self._file is not None and checkpoints == self._checkpoints:
                        self._files.check()
                        self._has_seal = True
                        write_seal(self._file, checksum)
        took_s = monotonic() - began_s
        self._due_s = max(self._due_s, began_s + max(_MIN_INTERVAL_S, _MAX_SHARE * took_s))


def _open_erased(folder: Path) -> int | None:
    """Open and allocate an empty seal file; return None if that fails."""
    with suppress(OSError), ExitStack() as stack:
        file = open_seal(folder)
        stack.callback(os.close, file)
        erase_seal(file)
        stack.pop_all()
        return file
    return None
