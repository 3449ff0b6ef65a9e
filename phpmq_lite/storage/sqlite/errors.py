"""Translates SQLite errors into StorageError, depending on whether the outcome is known.

If the disk is full during a statement or COMMIT, SQLite rolls the transaction back, and no part of
it reappears after a crash, because its last frame was not written.  After a failed fsync, the
outcome is unknown: the transaction is gone now, but may reappear at the next startup.
"""

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from phpmq_lite.errors import (
    BatchRefusedError,
    NotWritableError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
)

# These errors are caused by the disk rather than the statement; damage is not included.
DISK_ERRORS: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}
)
_CORRUPTION_ERRORS: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# A value or a row is refused before anything is stored; the others mean that it cannot be bound.
_REFUSAL_ERRORS: Final = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}
)
_BINDING_ERRORS: Final = (OverflowError, UnicodeError)
_ERRORS: Final = (sqlite3.Error, MemoryError, *_BINDING_ERRORS)
# A constraint on messages or the history that does not hold: the state in memory is wrong.
_BROKEN_INVARIANT: Final = re.compile(
    r": (message|history|history_run)\.|: message_state_check|outcome BETWEEN "
)
# SQLite reports EROFS as one of these if a file system was remounted read-only.
_MAY_BE_READ_ONLY: Final = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE})


class translate_errors:  # noqa: N801 - a context manager; each batch enters several of them
    """Translate the errors of a transaction and roll it back if the outcome is known.

    Raises:
        StorageFullError: the disk is full; nothing is stored.
        NotWritableError: the database is locked or read-only; nothing is stored.
        BatchRefusedError: the database refused a value or a row; nothing is stored.
        OutcomeUnknownError: anything else.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _place: object) -> None:
        if error is not None and isinstance(error, _ERRORS):
            raise translated_error(self._connection, error) from error


class raise_as_unknown:  # noqa: N801 - as above
    """Raise any error as OutcomeUnknownError, because the batch is already stored."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _place: object) -> None:
        if error is not None and isinstance(error, (sqlite3.Error, MemoryError)):
            raise OutcomeUnknownError(_text(error)) from error


@contextmanager
def translate_file_errors() -> Iterator[None]:
    """Translate errors from writing a small file next to the database."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError("the disk is full") from error
        if error.errno == errno.EROFS:
            raise NotWritableError("the file system is read-only") from error
        raise OutcomeUnknownError(str(error)) from error


def translated_error(connection: sqlite3.Connection, error: Exception) -> StorageError:
    """Return the error for ``translate_errors`` and roll back if the outcome is known."""
    code = primary_code(error)
    translated: StorageError
    if code == sqlite3.SQLITE_FULL:
        translated = StorageFullError("the disk is full")
    elif code == sqlite3.SQLITE_BUSY:
        translated = NotWritableError("another program keeps the database locked")
    elif code == sqlite3.SQLITE_READONLY or (
        getattr(error, "sqlite_errorcode", 0) in _MAY_BE_READ_ONLY and _is_read_only(connection)
    ):
        translated = NotWritableError("the file system is read-only")
    elif is_refusal(error):
        translated = BatchRefusedError(_text(error))
    else:
        return OutcomeUnknownError(_text(error))
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            return OutcomeUnknownError(f"{_text(error)}, and then {_text(second)}")
    return translated


def is_refusal(error: Exception) -> bool:
    """Return whether a value or row was refused, and no invariant is broken (a defect)."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_CONSTRAINT and _BROKEN_INVARIANT.search(str(error)):
        return False
    return code in _REFUSAL_ERRORS or isinstance(error, _BINDING_ERRORS)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means damage to the file rather than a temporary failure."""
    return is_corrupt(error) or primary_code(error) == sqlite3.SQLITE_IOERR


def is_corrupt(error: Exception) -> bool:
    """Return whether the content of a file is not that of a database."""
    return primary_code(error) in _CORRUPTION_ERRORS


def primary_code(error: Exception) -> int:
    """Return SQLite's primary result code, or 0 if an error is not one of SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _text(error: Exception) -> str:
    return f"{getattr(error, 'sqlite_errorname', '') or type(error).__name__}: {error}"


def _is_read_only(connection: sqlite3.Connection) -> bool:
    """Return whether creating a file next to the database fails with EROFS."""
    name = connection.execute("PRAGMA database_list").fetchone()[2]
    probe = Path(name).with_name(".probe")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return error.errno == errno.EROFS
    with suppress(OSError):
        probe.unlink()
    return False
