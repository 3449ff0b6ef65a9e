"""Errors that end a command, with their exit codes."""

import errno
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
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
_CONTEXT: Final = 20  # number of characters shown on each side of invalid UTF-8


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
        excerpt = error.object[max(0, error.start - _CONTEXT) : error.end + _CONTEXT]
        return f"{excerpt!r} is not valid UTF-8"
    return str(error) or type(error).__name__


# Commands that do not exist -> what to use instead.
_REPLACEMENTS: Final = {
    "import rabbitmq": "its consumers to empty the queues (`phpmq-lite docs guides/migrate`)",
    "import redis": "`redis-cli --raw LRANGE LIST 0 -1 | tac | phpmq-lite publish QUEUE --lines`",
}


_LISTENER_OPTIONS: Final = frozenset({"--port", "--host", "--bind"})  # other servers have them
WORDS: Final = "phpmq_lite.words"  # the key for the process's arguments in the context's ``meta``


def explain_usage(error: click.UsageError) -> click.UsageError:
    """Return the error with the name or the value that was probably meant, if there is one."""
    context = error.ctx
    if context is None:
        return error
    group = context.command_path.partition(" ")[2]
    if isinstance(error, NoSuchCommand):
        command = _REPLACEMENTS.get(f"{group} {error.command_name}")
        return error if command is None else _with_hint(error, f"Use {command} instead.")
    if isinstance(error, click.NoSuchOption):
        if group == "serve" and error.option_name in _LISTENER_OPTIONS:
            return _with_hint(error, "Use --listen HOST:PORT instead.")
        options = [
            name.strip("-")
            for parameter in context.command.get_params(context)
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("--")
        ]
        # The dashes, which all options have, are not compared: --port is not similar to --store.
        similar = get_close_matches(error.option_name.strip("-"), options)
        possibilities = [f"--{name}" for name in similar]
        return click.NoSuchOption(error.option_name, possibilities=possibilities, ctx=context)
    if isinstance(error, click.BadParameter) and error.param is not None:
        choice = error.param.type
        names = choice.choices if isinstance(choice, click.Choice) else ()
        for value in _values_of(error.param, context.find_root().meta.get(WORDS, ())):
            similar = [] if value in names else get_close_matches(value, map(str, names), 1)
            if similar:
                message = f"{error.message} Did you mean {similar[0]!r}?"
                return click.BadParameter(message, context, error.param, error.param_hint)
    return error


def _with_hint(error: click.UsageError, hint: str) -> click.UsageError:
    return click.UsageError(f"{error.message} {hint}", ctx=error.ctx)


def _values_of(parameter: click.Parameter, words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line that may be values of a parameter."""
    is_option = isinstance(parameter, click.Option)
    for previous, word in pairwise(["", *words]):
        name, _, value = word.partition("=")
        if previous in parameter.opts or not is_option:
            yield word
        elif value and name in parameter.opts:
            yield value
