"""Errors that end a command, with their exit codes."""

import errno
import os
from typing import Final

import click
from click.exceptions import NoSuchCommand

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
ERROR: Final = 1  # click uses 2 for usage errors
NOT_FOUND: Final = 3
REFUSED: Final = 4
TIMED_OUT: Final = 5
DAMAGED: Final = os.EX_DATAERR  # 65

_EXIT_CODES: Final[list[tuple[type[Exception], int]]] = [  # the first matching class applies
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
_AROUND: Final = 20  # number of characters shown on each side of invalid UTF-8


class CommandError(Exception):
    """An error that prints a line on standard error and ends the command with an exit code."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self.code = code


def expected_error(error: Exception) -> Exception | None:
    """Return the error, unwrapped from any ExceptionGroup, or None if it is not an expected one."""
    if isinstance(error, ExceptionGroup):
        expected = [expected_error(inner) for inner in error.exceptions]
        return expected[0] if all(expected) else None
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return None  # the reader of the output has closed the pipe, so click exits silently
    is_ours = isinstance(error, CommandError | PhpmqError | OSError | UnicodeError)
    return error if is_ours else None


def exit_code_of(error: Exception) -> int:
    """Return the exit code that an expected error causes."""
    if isinstance(error, CommandError):
        return error.code
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def describe_error(error: Exception) -> str:
    """Return one line that describes an expected error."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, OSError) and error.args:
        return os_reason(error)
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        around = error.object[max(0, error.start - _AROUND) : error.end + _AROUND]
        return f"{around!r} is not valid UTF-8"
    return str(error) or type(error).__name__


# Commands that do not exist -> what to use instead.
_ELSEWHERE: Final = {
    "import rabbitmq": "its consumers to empty the queues (`phpmq-lite docs guides/migrate`)",
    "import redis": "`redis-cli --raw LRANGE LIST 0 -1 | tac | phpmq-lite publish QUEUE --lines`",
}


def explain_missing(error: click.UsageError) -> click.UsageError:
    """Return the error, with what to use instead if it is about a command in ``_ELSEWHERE``."""
    if not isinstance(error, NoSuchCommand) or error.ctx is None:
        return error
    group = error.ctx.command_path.partition(" ")[2]
    instead = _ELSEWHERE.get(f"{group} {error.command_name}")
    if instead is None:
        return error
    return click.UsageError(f"{error.message} Use {instead} instead.", ctx=error.ctx)
