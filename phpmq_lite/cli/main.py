"""The root command: finds and imports the command that was called; shell completion."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

import click
from click.exceptions import NoSuchCommand

from phpmq_lite import __version__, installation
from phpmq_lite.cli.errors import describe_error, exit_code_of, expected_error


class CommandEntry(NamedTuple):
    """A command that is imported when it is used; ``help`` is shown without importing it."""

    module: str
    help: str
    attribute: str = ""  # of the module, where it is not called like the command


SECTIONS: Final = {  # of the help
    "Broker": {
        "serve": CommandEntry("phpmq_lite.cli.serve", "Run the broker."),
        "init": CommandEntry(
            "phpmq_lite.cli.config",
            "Write a configuration file in which every setting is explained.",
        ),
        "doctor": CommandEntry(
            "phpmq_lite.cli.doctor", "Look whether a broker can run here, and say what to do."
        ),
        "status": CommandEntry(
            "phpmq_lite.cli.status", "Show whether the broker works, and its figures."
        ),
        "check": CommandEntry(
            "phpmq_lite.cli.checks",
            "Check a figure for monitoring: exit 0 fine, 1 warning, 2 critical, 3 unknown.",
        ),
        "config": CommandEntry("phpmq_lite.cli.config", "Show the settings in force."),
        "clock": CommandEntry(
            "phpmq_lite.cli.clock", "Show whether the clock was set; decide what counts then."
        ),
        "bench": CommandEntry("phpmq_lite.cli.bench", "Measure throughput and latency."),
    },
    "Messages": {
        "publish": CommandEntry(
            "phpmq_lite.cli.publish_consume", "Publish messages, each confirmed."
        ),
        "consume": CommandEntry(
            "phpmq_lite.cli.publish_consume", "Take messages from a queue and print them."
        ),
        "search": CommandEntry(
            "phpmq_lite.cli.messages", "Find messages, alive and settled, the newest first."
        ),
        "trace": CommandEntry(
            "phpmq_lite.cli.messages",
            "Show the messages of a trace over all queues, the newest first.",
        ),
        "msg": CommandEntry(
            "phpmq_lite.cli.messages", "Look at messages; requeue, move, delete or restore them."
        ),
        "tail": CommandEntry(
            "phpmq_lite.cli.live_events",
            "Show what happens in QUEUE as it happens, one JSON line each; Ctrl-C ends it.",
        ),
        "expect": CommandEntry(
            "phpmq_lite.cli.live_events", "Wait until a message of QUEUE matches QUERY; print it."
        ),
        "export": CommandEntry(
            "phpmq_lite.cli.transfer", "Write all messages that match QUERY to standard output."
        ),
        "import": CommandEntry(
            "phpmq_lite.cli.transfer",
            "Publish the messages of FILE: an export, or lines of {queue, content, encoding, ttl_s}.",  # noqa: E501
            "import_",
        ),
    },
    "Queues": {
        "queues": CommandEntry(
            "phpmq_lite.cli.queues", "List the queues, or those that match GLOB."
        ),
        "show": CommandEntry(
            "phpmq_lite.cli.queues", "Show one queue: its figures and its settings."
        ),
        "queue": CommandEntry(
            "phpmq_lite.cli.queues", "List, show, set, purge, pause and remove queues."
        ),
        "purge": CommandEntry("phpmq_lite.cli.queues", "Delete the messages of a queue."),
        "flush": CommandEntry(
            "phpmq_lite.cli.queues",
            "Delete all messages of a queue, held ones too, and the queue unless it is pinned.",
        ),
        "flushall": CommandEntry(
            "phpmq_lite.cli.queues", "Do as flush does, with every queue that is not pinned."
        ),
        "top": CommandEntry(
            "phpmq_lite.cli.queues",
            "Show the busiest queues, again and again; Ctrl-C ends it.",
        ),
        "monitor": CommandEntry(
            "phpmq_lite.cli.queues",
            "Show the busiest queues, again and again; Ctrl-C ends it.",
            "top",
        ),
        "dead": CommandEntry(
            "phpmq_lite.cli.dead_letters", "List dead letters, send them back to their queue."
        ),
    },
    "Applications": {
        "worker": CommandEntry(
            "phpmq_lite.cli.worker", "Work on the envelopes of QUEUE with handlers by URN."
        ),
        "outbox": CommandEntry(
            "phpmq_lite.cli.outbox", "Send what services wrote into their outbox tables."
        ),
        "envelope": CommandEntry(
            "phpmq_lite.cli.envelopes", "Make, check and show BabelQueue envelopes."
        ),
        "schema": CommandEntry(
            "phpmq_lite.cli.envelopes", "Check schemas of payloads, and payloads by them."
        ),
        "frame": CommandEntry(
            "phpmq_lite.cli.frames", "Look at bytes of the PHPMQ protocol, without a broker."
        ),
    },
    "History in Spark": {
        "pipeline": CommandEntry(
            "phpmq_lite.cli.pipeline", "Read the history with Spark: archive, metrics, replay."
        ),
    },
    "Data": {
        "backup": CommandEntry(
            "phpmq_lite.cli.backups", "Make a backup: a whole copy of the database at one moment."
        ),
        "restore": CommandEntry(
            "phpmq_lite.cli.backups", "Put BACKUP in the place of the database of a stopped broker."
        ),
        "verify": CommandEntry(
            "phpmq_lite.cli.database",
            "Check a database whose broker is stopped, or a backup; change nothing.",
        ),
        "scrub": CommandEntry(
            "phpmq_lite.cli.database",
            "Have a running broker look at every body and at its database's structure.",
        ),
        "migrate": CommandEntry(
            "phpmq_lite.cli.database", "Bring the database to this version's schema."
        ),
    },
    "Access": {
        "user": CommandEntry(
            "phpmq_lite.cli.accounts", "List, add and remove users; change their passwords."
        ),
        "token": CommandEntry("phpmq_lite.cli.accounts", "List, add and revoke API tokens."),
        "context": CommandEntry(
            "phpmq_lite.cli.contexts", "Name brokers, and choose the one that commands talk to."
        ),
    },
    "Moving in": {
        "import-initphp": CommandEntry(
            "phpmq_lite.cli.importers",
            "Publish what waits in the tables jobs and jobs_failed of an InitPHP Queue database.",
            "import_initphp",
        ),
        "import-beanstalkd": CommandEntry(
            "phpmq_lite.cli.importers",
            "Publish the jobs of a running beanstalkd: a copy, or with --move a move.",
            "import_beanstalkd",
        ),
    },
    "Shell": {
        "completion": CommandEntry(
            "phpmq_lite.cli.main",
            'Print the completion script: eval "$(phpmq-lite completion bash)".',
        ),
    },
}
COMMANDS: Final = {name: entry for group in SECTIONS.values() for name, entry in group.items()}

_RENAMED: Final = {"--node": "--url", "--connect": "--url", "--tls": "--url phpmqs://HOST:PORT"}


class LazyGroup(click.Group):
    """Imports a command when it is called: the help of ``entries`` imports none."""

    entries: ClassVar[Mapping[str, CommandEntry]]
    sections: ClassVar[Mapping[str, Mapping[str, CommandEntry]]] = {}  # of the help

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


class RootGroup(LazyGroup):
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
            error = expected_error(raised)
            if error is None:
                raise
            click.echo(f"Error: {describe_error(error)}", err=True)
            ctx.exit(exit_code_of(error))


@click.command(
    cls=RootGroup,
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
def root_command() -> None:
    """PHPMQ Lite, a message broker that keeps everything in SQLite."""


def main() -> None:
    """Run the command line with the arguments of this process."""
    root_command(prog_name="phpmq-lite")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script: eval "$(phpmq-lite completion bash)"."""
    from click.shell_completion import get_completion_class

    pass

    found = get_completion_class(shell)
    if found is not None:
        made = found(root_command, {}, "phpmq-lite", "_PHPMQ_LITE_COMPLETE")
        click.echo(made.source())
