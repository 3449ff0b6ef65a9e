"""Errors that end a command, with their exit codes, and hints about renamed commands."""

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
        found = [expected_error(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
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


# Maps old commands and options to their new names; an option's key may include the command.
RENAMED: Final = {
    "queues": "queue list",
    "show": "queue show",
    "purge": "queue purge",
    "flush": "queue delete QUEUE --with-messages",
    "flushall": "queue delete --all --with-messages",
    "top": "queue top",
    "monitor": "queue top",
    "tail": "queue tail",
    **{f"{group} ls": f"{group} list" for group in ("queue", "user", "token", "context")},
    **{f"{group} add": f"{group} create" for group in ("user", "token", "context")},
    **{f"{group} rm": f"{group} delete" for group in ("queue", "user", "context")},
    "token rm": "token revoke",
    "user passwd": "user set-password",
    "search": "message search",
    "msg": "message",
    "msg ls": "message list",
    "msg get": "message show",
    "msg rm": "message delete",
    **{f"msg {name}": f"message {name}" for name in ("requeue", "release", "move", "restore")},
    "expect": "message wait",
    "export": "message export",
    "import *": "message import FILE",
    "import --queue": "message import --queue",
    "import --dry-run": "message import --dry-run",
    "import-beanstalkd": "import beanstalkd",
    "import-initphp": "import initphp",
    "dead": "dead-letter",
    "dead ls": "dead-letter list",
    "dead groups": "dead-letter list --by-cause",
    "dead redrive": "dead-letter redrive",
    "dead rm": "dead-letter delete",
    "dead-letter redrive --filter": "--query",
    "envelope make": "envelope create",
    "envelope lint": "envelope check",
    "schema compat": "schema compare",
    "check consumer": "check consumers",
    "check dead": "check dead-letters",
    "backup --list": "backup list",
    "backup --to": "backup create --copy-to",
    "restore": "backup restore",
    "restore --drill": "backup test",
    "backup restore --drill": "backup test",
    **{name: f"database {name}" for name in ("migrate", "verify", "scrub")},
    "init": "config init",
    "--node": "--url",
    "--connect": "--url",
    "--tls": "--url phpmqs://HOST:PORT",
    "--number": "--limit",
    "--least": "--min",
    "--apply": "--selection",
    "--release-delay": "--app with connect(release_delay_s=...)",
    "--backoff-base": "--backoff, or --app with connect(backoff=...)",
    "--backoff-max": "--backoff, or --app with connect(backoff=...)",
    "--backoff-multiplier": "--backoff, or --app with connect(backoff=...)",
    "--set": "--config FILE, or PHPMQ_SECTION__NAME in the environment",
}
_NEVER: Final = {  # commands that never existed -> what to use
    "import rabbitmq": "its consumers to empty the queues (`phpmq-lite docs guides/migrate`)",
    "import redis": "`redis-cli --raw LRANGE LIST 0 -1 | tac | phpmq-lite publish QUEUE --lines`",
}
WORDS: Final = "phpmq_lite.words"  # the key for the process's arguments in the context's ``meta``


def explain_rename(error: click.UsageError) -> click.UsageError:
    """Return the error, with the new name added if it is about a renamed command or option."""
    context = error.ctx
    if context is None:
        return error
    group = " ".join(context.command_path.split()[1:])
    if isinstance(error, click.NoSuchOption):
        keys = [f"{group} {error.option_name}", error.option_name]
    elif isinstance(error, NoSuchCommand):
        called = f"{group} {error.command_name}".strip()
        words = context.meta.get(WORDS, ())
        keys = [*(f"{called} {word}" for word in words), called, f"{group} *"]
    else:
        return error
    new = next(((RENAMED | _NEVER)[key] for key in keys if key in RENAMED | _NEVER), None)
    if new is None:
        return error
    if not new.startswith("--") and "`" not in new:
        new = f"`phpmq-lite {new}`"
    return click.UsageError(f"{error.message} Use {new} instead.", ctx=context)
