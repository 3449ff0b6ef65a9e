"""Errors that end a command: one line on standard error, and the exit code."""

import errno
import os
from typing import Final

from phpmq_lite.errors import (
    DataDamagedError,
    NotWritableError,
    OutcomeUnknownError,
    PhpmqError,
    PublishRefusedError,
    RefusedError,
    SettingsError,
    os_reason,
)

DONE: Final = 0
ERROR: Final = 1  # 2 is click's, for wrong usage
NOT_FOUND: Final = 3
REFUSED: Final = 4
TIMED_OUT: Final = 5
DAMAGED: Final = os.EX_DATAERR  # 65

_EXIT_CODES: Final[list[tuple[type[Exception], int]]] = [  # the first that fits
    (PublishRefusedError, REFUSED),
    (RefusedError, REFUSED),
    (DataDamagedError, os.EX_DATAERR),  # 65
    (OutcomeUnknownError, os.EX_IOERR),  # 74
    (NotWritableError, os.EX_IOERR),
    (SettingsError, os.EX_CONFIG),  # 78
    (PhpmqError, ERROR),
    (TimeoutError, TIMED_OUT),
    (OSError, ERROR),
    (UnicodeError, ERROR),
]


_AROUND: Final = 20  # characters shown before and after what is not UTF-8


class CommandError(Exception):
    """Ends the command with one line on standard error and this exit code."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self.code = code


def expected_error(error: Exception) -> Exception | None:
    """Find what we or the system raised on purpose, also in the group of a TaskGroup."""
    if isinstance(error, ExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return None  # click ends quietly: the reader of our output has gone
    is_ours = isinstance(error, CommandError | PhpmqError | OSError | UnicodeError)
    return error if is_ours else None


def exit_code_of(error: Exception) -> int:
    """Return the exit code of an expected error."""
    if isinstance(error, CommandError):
        return error.code
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def describe_error(error: Exception) -> str:
    """Return an expected error as one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, OSError) and error.args:
        return os_reason(error)
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        around = error.object[max(0, error.start - _AROUND) : error.end + _AROUND]
        return f"{around!r} is not UTF-8"
    return str(error) or type(error).__name__
