"""The root command, which imports other commands on demand, and shell completion."""

import sys
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final, NamedTuple

import click
from click.exceptions import NoSuchCommand

from phpmq_lite import __version__, installation, standard_streams
from phpmq_lite.cli.errors import WORDS, describe_error, exit_code_of, expected_error, explain_usage
from phpmq_lite.cli.progress import shown_silence
from phpmq_lite.cli.signals import become_child_of_first_process


class CommandEntry(NamedTuple):
    """A command that is imported only when it is called, not when its ``help`` is shown."""

    module: str  # name of the module in this package
    help: str


SECTIONS: Final = {  # section of the help text -> commands
    "Broker": {
        "serve": ("serve", "Run the broker."),
        "doctor": ("doctor", "Check whether a broker can run here and suggest fixes."),
        "status": ("status", "Show the broker's key figures and whether it accepts messages."),
        "check": ("status", "Run one check as a monitoring plugin."),
        "config": ("config", "Create a configuration file, or show the effective settings."),
        "clock": ("status", "Show clock changes and decide how to treat a doubtful one."),
        "bench": ("bench", "Measure throughput and latency."),
    },
    "Messages": {
        "publish": ("publish_consume", "Publish messages and wait until they are stored."),
        "consume": ("publish_consume", "Consume messages from a queue and print them."),
        "message": ("messages", "Search, show, move, delete, export and import messages."),
        "dead-letter": ("messages", "List, redrive and delete dead letters."),
        "trace": ("messages", "Show a trace's messages from all queues, newest first."),
    },
    "Queues": {
        "queue": ("queues", "List, create, configure, pause, purge and delete queues."),
        "schedule": ("schedules", "Publish messages at the times of cron expressions."),
    },
    "Applications": {
        "worker": ("worker", "Handle a queue's envelopes with an app's handlers."),
        "outbox": ("outbox", "Publish rows from an outbox table in a service's database."),
        "envelope": ("envelopes", "Create, check and show BabelQueue envelopes."),
        "schema": ("envelopes", "Check schemas, and check payloads against them."),
        "frame": ("frames", "Explain PHPMQ protocol bytes without a broker."),
    },
    "History in Spark": {
        "pipeline": ("pipeline.commands", "Archive, measure and replay the history with Spark.")
    },
    "Data": {
        "backup": ("backups", "Create, list, restore and test backups of the database."),
        "standby": ("backups", "Replicate the database with Litestream, and promote a replica."),
        "database": ("database", "Upgrade the database and check it for damage."),
        "store": ("database", "Move everything from SQLite to PostgreSQL, or back."),
        "import": ("importers", "Import messages from beanstalkd or InitPHP Queue."),
    },
    "Access": {
        "user": ("accounts", "List, create and delete users; set their roles and passwords."),
        "token": ("accounts", "List, create and revoke API tokens."),
        "context": ("contexts", "Name brokers and choose which one commands use."),
    },
    "Shell": {
        "docs": ("docs", "Open the broker's documentation."),
        "completion": ("main", "Print a shell completion script."),
    },
}
DOCS: Final = {  # command -> documentation page, shown at the end of --help
    "serve": "operate/operations",
    "doctor": "operate/operations",
    "check": "operate/operations",
    "config": "reference/settings",
    "clock": "guides/admin#the-clock",
    "bench": "operate/performance",
    "publish": "start/which-client",
    "consume": "start/which-client",
    "message": "guides/admin#find-a-message",
    "dead-letter": "concepts/dead-letters",
    "schedule": "concepts/schedules",
    "worker": "guides/workers",
    "outbox": "guides/workers#outbox",
    "envelope": "guides/envelopes",
    "schema": "guides/schemas",
    "frame": "reference/protocol",
    "pipeline": "guides/pipeline",
    "backup": "operate/operations#back-up",
    "standby": "operate/standby",
    "database": "operate/operations#when-a-start-refuses-exit-code-65",
    "store": "operate/moving",
    "import": "guides/migrate",
    "user": "guides/admin#users-and-roles",
    "token": "guides/admin#users-and-roles",
}
DOCS_OF_CODES: Final = {  # exit code -> documentation page that explains it
    65: "operate/operations#when-a-start-refuses-exit-code-65",
    74: "operate/reliability#a-write-or-an-fsync-that-fails",
    78: "reference/settings",
}
COMMANDS: Final = {
    name: CommandEntry(*entry) for group in SECTIONS.values() for name, entry in group.items()
}


class RootGroup(click.Group):
    """The root command, which imports a subcommand only to run it, not to list it in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and add its documentation page to its help; return None if unknown."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        attribute = cmd_name.replace("-", "_") + ("_" if iskeyword(cmd_name) else "")
        module = import_module(f"phpmq_lite.cli.{entry.module}")
        command: click.Command = getattr(module, attribute)
        if command.epilog is None and (page := DOCS.get(cmd_name)):
            command.epilog = f"\b\nDocumentation: phpmq-lite docs {page}"  # never wrapped
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to call; the error for an unknown command suggests similar names."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands to each section of the help text without importing them."""
        width = max(map(len, COMMANDS))
        for section, entries in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, (_, text) in entries.items()]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the root command's options, and save all arguments for ``explain_usage``."""
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if an expected error occurs, print one line and exit with its code."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise explain_usage(error) from None
        except Exception as raised:
            expected = expected_error(raised)
            if expected is None:
                raise
            click.echo(f"Error: {describe_error(expected)}", err=True)
            code = exit_code_of(expected)
            if page := DOCS_OF_CODES.get(code):
                click.echo(f"See: phpmq-lite docs {page}", err=True)
            ctx.exit(code)


def _print_version(ctx: click.Context, _option: click.Parameter, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        commit = installation.commit()
        named = f", commit {commit}" if commit else ""
        click.echo(f"phpmq-lite {__version__}{named} ({installation.build_kind()})")
        ctx.exit()


@click.command(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Output is a table on a terminal and JSON lines in a pipe, unless -o or the variable "
    "PHPMQ_OUTPUT says otherwise.\n\nExit codes: 0 success, 1 error, 2 usage, 3 not found, "
    "4 refused, 5 timed out; 65 damaged data, 74 unknown commit outcome, 78 invalid settings.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def root_command() -> None:
    """PHPMQ Lite, a message broker that stores everything in SQLite."""


def main() -> None:
    """Run the command that this process's arguments specify."""
    standard_streams.prepare()
    become_child_of_first_process()
    with shown_silence(sys.argv[1:]):
        root_command(prog_name="phpmq-lite")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script.

    For example, in ~/.bashrc: eval "$(phpmq-lite completion bash)"
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is not None:
        script = completion_class(root_command, {}, "phpmq-lite", "_PHPMQ_LITE_COMPLETE").source()
        click.echo(script)
