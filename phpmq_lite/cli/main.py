"""Entry of the command line: finds the command, and turns errors into one line and an exit code."""

import errno
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

import click
from click.exceptions import NoSuchCommand

from phpmq_lite import __version__, installation
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


class Entry(NamedTuple):
    """A command that is imported when it is used; ``help`` is shown without importing it."""

    module: str
    help: str
    attribute: str = ""  # of the module, where it is not called like the command


SECTIONS: Final = {  # of the help
    "Broker": {
        "serve": Entry("phpmq_lite.cli.serve", "Run the broker."),
        "init": Entry(
            "phpmq_lite.cli.init", "Write a configuration file in which every setting is explained."
        ),
        "doctor": Entry(
            "phpmq_lite.cli.doctor", "Look whether a broker can run here, and say what to do."
        ),
        "status": Entry("phpmq_lite.cli.status", "Show whether the broker works, and its figures."),
        "check": Entry(
            "phpmq_lite.cli.check",
            "Check a figure for monitoring: exit 0 fine, 1 warning, 2 critical, 3 unknown.",
        ),
        "config": Entry("phpmq_lite.cli.config", "Show the settings in force."),
        "clock": Entry(
            "phpmq_lite.cli.clock", "Show whether the clock was set; decide what counts then."
        ),
        "bench": Entry("phpmq_lite.cli.bench", "Measure throughput and latency."),
    },
    "Messages": {
        "publish": Entry("phpmq_lite.cli.publish", "Publish messages, each confirmed."),
        "consume": Entry("phpmq_lite.cli.consume", "Take messages from a queue and print them."),
        "search": Entry(
            "phpmq_lite.cli.msg", "Find messages, alive and settled, the newest first."
        ),
        "trace": Entry(
            "phpmq_lite.cli.msg", "Show the messages of a trace over all queues, the newest first."
        ),
        "msg": Entry(
            "phpmq_lite.cli.msg", "Look at messages; requeue, move, delete or restore them."
        ),
        "tail": Entry(
            "phpmq_lite.cli.tail",
            "Show what happens in QUEUE as it happens, one JSON line each; Ctrl-C ends it.",
        ),
        "expect": Entry(
            "phpmq_lite.cli.expect", "Wait until a message of QUEUE matches QUERY; print it."
        ),
        "export": Entry(
            "phpmq_lite.cli.transfer", "Write all messages that match QUERY to standard output."
        ),
        "import": Entry(
            "phpmq_lite.cli.transfer",
            "Publish the messages of FILE: an export, or lines of {queue, content, encoding, ttl_s}.",  # noqa: E501
            "import_",
        ),
    },
    "Queues": {
        "queues": Entry("phpmq_lite.cli.queue", "List the queues, or those that match GLOB."),
        "show": Entry("phpmq_lite.cli.queue", "Show one queue: its figures and its settings."),
        "queue": Entry("phpmq_lite.cli.queue", "List, show, set, purge, pause and remove queues."),
        "purge": Entry("phpmq_lite.cli.queue", "Delete the messages of a queue."),
        "flush": Entry(
            "phpmq_lite.cli.queue",
            "Delete all messages of a queue, held ones too, and the queue unless it is pinned.",
        ),
        "flushall": Entry(
            "phpmq_lite.cli.queue", "Do as flush does, with every queue that is not pinned."
        ),
        "top": Entry(
            "phpmq_lite.cli.tail", "Show the busiest queues, again and again; Ctrl-C ends it."
        ),
        "monitor": Entry(
            "phpmq_lite.cli.tail",
            "Show the busiest queues, again and again; Ctrl-C ends it.",
            "top",
        ),
        "dead": Entry("phpmq_lite.cli.dead", "List dead letters, send them back to their queue."),
    },
    "Applications": {
        "worker": Entry(
            "phpmq_lite.cli.worker", "Work on the envelopes of QUEUE with handlers by URN."
        ),
        "outbox": Entry(
            "phpmq_lite.cli.outbox", "Send what services wrote into their outbox tables."
        ),
        "envelope": Entry("phpmq_lite.cli.envelope", "Make, check and show BabelQueue envelopes."),
        "schema": Entry(
            "phpmq_lite.cli.schema", "Check schemas of payloads, and payloads by them."
        ),
        "frame": Entry(
            "phpmq_lite.cli.frame", "Look at bytes of the PHPMQ protocol, without a broker."
        ),
    },
    "History in Spark": {
        "pipeline": Entry(
            "phpmq_lite.cli.pipeline", "Read the history with Spark: archive, metrics, replay."
        ),
    },
    "Data": {
        "backup": Entry(
            "phpmq_lite.cli.backup", "Make a backup: a whole copy of the database at one moment."
        ),
        "restore": Entry(
            "phpmq_lite.cli.restore", "Put BACKUP in the place of the database of a stopped broker."
        ),
        "verify": Entry(
            "phpmq_lite.cli.verify",
            "Check a database whose broker is stopped, or a backup; change nothing.",
        ),
        "scrub": Entry(
            "phpmq_lite.cli.scrub",
            "Have a running broker look at every body and at its database's structure.",
        ),
        "migrate": Entry("phpmq_lite.cli.migrate", "Bring the database to this version's schema."),
    },
    "Access": {
        "user": Entry("phpmq_lite.cli.user", "List, add and remove users; change their passwords."),
        "token": Entry("phpmq_lite.cli.token", "List, add and revoke API tokens."),
        "context": Entry(
            "phpmq_lite.cli.context", "Name brokers, and choose the one that commands talk to."
        ),
    },
    "Moving in": {
        "import-initphp": Entry(
            "phpmq_lite.cli.import_initphp",
            "Publish what waits in the tables jobs and jobs_failed of an InitPHP Queue database.",
            "import_initphp",
        ),
        "import-beanstalkd": Entry(
            "phpmq_lite.cli.import_beanstalkd",
            "Publish the jobs of a running beanstalkd: a copy, or with --move a move.",
            "import_beanstalkd",
        ),
    },
    "Shell": {
        "completion": Entry(
            "phpmq_lite.cli.completion",
            'Print the completion script: eval "$(phpmq-lite completion bash)".',
        ),
    },
}
COMMANDS: Final = {name: entry for group in SECTIONS.values() for name, entry in group.items()}

_RENAMED: Final = {"--node": "--url", "--connect": "--url", "--tls": "--url phpmqs://HOST:PORT"}


class CommandError(Exception):
    """Ends the command with one line on standard error and this exit code."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self.code = code


class LazyGroup(click.Group):
    """Imports a command when it is called: the help of ``entries`` imports none."""

    entries: ClassVar[Mapping[str, Entry]]
    sections: ClassVar[Mapping[str, Mapping[str, Entry]]] = {}  # of the help

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, in the order of their use."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; the function is called like the command."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.attribute or cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; an unknown one is answered with those close to it."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=self.entries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, section by section, without importing one."""
        width = max(map(len, self.entries))
        for section, entries in (self.sections or {"Commands": self.entries}).items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), entries[name].help) for name in entries])


class Commands(LazyGroup):
    """All commands; knows what each of our errors means outside."""

    entries = COMMANDS
    sections = SECTIONS

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what is raised on purpose ends it with a line and an exit code."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as unknown:
            if now := _RENAMED.get(unknown.option_name):
                raise click.NoSuchOption(
                    unknown.option_name, f"{unknown.message} It is {now} now.", ctx=unknown.ctx
                ) from None
            raise
        except Exception as raised:
            error = _on_purpose(raised)
            if error is None:
                raise
            click.echo(f"Error: {_describe(error)}", err=True)
            ctx.exit(_exit_code(error))


def _on_purpose(error: Exception) -> Exception | None:
    """Find what we or the system raised on purpose, also in the group of a TaskGroup."""
    if isinstance(error, ExceptionGroup):
        found = [_on_purpose(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return None  # click ends quietly: the reader of our output has gone
    is_ours = isinstance(error, CommandError | PhpmqError | OSError | UnicodeError)
    return error if is_ours else None


def _exit_code(error: Exception) -> int:
    if isinstance(error, CommandError):
        return error.code
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, OSError) and error.args:
        return os_reason(error)
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        around = error.object[max(0, error.start - _AROUND) : error.end + _AROUND]
        return f"{around!r} is not UTF-8"
    return str(error) or type(error).__name__


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 refused, 5 timed out; "
    "65 damaged data, 74 unknown outcome of a commit, 78 settings refused.",
)
@click.version_option(
    f"{__version__} ({installation.kind()})",
    "-V",
    "--version",
    prog_name="phpmq-lite",
    message="%(prog)s %(version)s",
)
def commands() -> None:
    """PHPMQ Lite, a message broker that keeps everything in SQLite."""


def main() -> None:
    """Run the command line with the arguments of this process."""
    commands(prog_name="phpmq-lite")
