"""Translates SQLite errors by what they say about the disk; no other module reads their codes.

If the disk is full, in a statement or at COMMIT, SQLite rolls the transaction back, and none of it
returns after a crash, because the frame that ends it was not written.  After a failed fsync the
outcome is unknown: the transaction is gone now, and may be there after the next start.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from phpmq_lite.errors import NotWritableError, OutcomeUnknownError, StorageError, StorageFullError

# Errors about the disk rather than the statement, except damage.
DISK_ERRORS: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}
)
_DAMAGE_ERRORS: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}
)
# A file system that was remounted read-only returns EROFS, which SQLite reports only as these.
_MAY_BE_READ_ONLY: Final = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE})


@contextmanager
def translate_errors(connection: sqlite3.Connection) -> Iterator[None]:
    """Translate errors of a whole transaction; if the outcome is known, it is rolled back.

    Raises:
        StorageFullError: nothing is stored: the disk is full.
        NotWritableError: nothing is stored: another program holds the lock, or all is read-only.
        OutcomeUnknownError: anything else.
    """
    try:
        yield
    except (
        sqlite3.Error,
        MemoryError,
        OverflowError,
        UnicodeError,
    ) as error:  # the last two: values that cannot be bound
        raise translated_error(connection, error) from error


@contextmanager
def raise_as_unknown() -> Iterator[None]:
    """Raise OutcomeUnknownError for any error, because the batch is stored already."""
    try:
        yield
    except (sqlite3.Error, MemoryError) as error:
        raise OutcomeUnknownError(_text(error)) from error


@contextmanager
def translate_file_errors() -> Iterator[None]:
    """Translate errors of writing a small file next to the database, like ``translate_errors``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError("the disk is full") from error
        if error.errno == errno.EROFS:
            raise NotWritableError("the file system is read-only") from error
        raise OutcomeUnknownError(str(error)) from error


def translated_error(connection: sqlite3.Connection, error: Exception) -> StorageError:
    """Return what ``translate_errors`` raises, and roll back if the outcome is known."""
    code = getattr(error, "sqlite_errorcode", 0)
    found: StorageError
    if code & 0xFF == sqlite3.SQLITE_FULL:
        found = StorageFullError("the disk is full")
    elif code & 0xFF == sqlite3.SQLITE_BUSY:
        found = NotWritableError("another program keeps the database locked")
    elif code & 0xFF == sqlite3.SQLITE_READONLY or (
        code in _MAY_BE_READ_ONLY and _is_read_only(connection)
    ):
        found = NotWritableError("the file system is read-only")
    else:
        return OutcomeUnknownError(_text(error))
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            return OutcomeUnknownError(f"{_text(error)}, and then {_text(second)}")
    return found


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether the file itself is damaged, as opposed to a temporary error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE_ERRORS


def _text(error: Exception) -> str:
    return f"{getattr(error, 'sqlite_errorname', '') or type(error).__name__}: {error}"


def _is_read_only(connection: sqlite3.Connection) -> bool:
    """Try to create a file next to the database."""
    name = connection.execute("PRAGMA database_list").fetchone()[2]
    probe = Path(name).with_name(".probe")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return error.errno == errno.EROFS
    with suppress(OSError):
        probe.unlink()
    return False
