"""The ``check`` command group, whose exit codes and output are those of monitoring plugins."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click

from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, BrokerUnavailableError, admin_client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import Command
from phpmq_lite.cli.parameters import duration
from phpmq_lite.errors import PhpmqError
from phpmq_lite.logs import escape

OK, WARNING, CRITICAL, UNKNOWN = range(4)
WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_CLOCKS_DIFFER_S: Final = 60.0  # maximum difference between this machine's clock and the broker's

_ages = {"type": duration, "metavar": "DURATION"}
_counts: dict[str, Any] = {"type": click.IntRange(min=0), "metavar": "N"}
_percentages = {"type": click.FloatRange(0, 100)}


def threshold_options(
    kind: dict[str, Any], warning: object, critical: object, where: str = "at or above this value"
) -> Callable[[Command], Command]:
    """Add the options ``-w`` and ``-c`` for thresholds; ``where`` completes their help texts."""

    def add(command: Command) -> Command:
        for short, name, default in (("-c", "critical", critical), ("-w", "warning", warning)):
            command = click.option(
                short, f"--{name}", name, default=default, show_default=True,
                help=f"{name.capitalize()} {where}.", **kind,
            )(command)  # fmt: skip
        return command

    return add


@contextmanager
def _usage_errors_are_unknown() -> Iterator[None]:
    """Exit with UNKNOWN after a usage error, because click's exit code 2 would mean critical."""
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(UNKNOWN) from None


class MonitoringGroup(click.Group):
    """A command group that reports every error as UNKNOWN, as monitoring systems expect."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own options; exit with UNKNOWN if any of them is invalid."""
        with _usage_errors_are_unknown():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the check; if an error occurs, report UNKNOWN (exit code 3)."""
        try:
            with _usage_errors_are_unknown():
                return super().invoke(ctx)
        except (CommandError, PhpmqError, OSError, UnicodeError) as error:
            click.echo(f"UNKNOWN: {error}")
            ctx.exit(UNKNOWN)


@click.group(cls=MonitoringGroup)
def check() -> None:
    """Run one check as a monitoring plugin.

    Exit codes: 0 OK, 1 warning, 2 critical, 3 unknown.
    """


def report_check(level: int, text: str) -> NoReturn:
    """Print a status line for the monitoring system and exit with ``level`` as the exit code."""
    click.echo(f"{WORDS[level]}: {text}")
    click.get_current_context().exit(level)


def level_of(value: float, warning: float, critical: float) -> int:
    """Return the most severe level whose threshold the value reaches; higher values are worse."""
    return CRITICAL if value >= critical else WARNING if value >= warning else OK


@check.command()
@admin_client_options
def ready(admin: AdminClient) -> None:
    """Check whether the broker accepts messages. Critical if it does not answer."""
    try:
        stats = admin.get("/stats")
    except BrokerUnavailableError as error:
        report_check(CRITICAL, f"the broker does not accept messages: {error}")
    reason = stats["storing_stopped"] or stats["publishing_stopped"]
    if stats["is_ready"] and not stats["is_draining"] and reason is None:
        report_check(OK, "the broker accepts messages")
    report_check(CRITICAL, f"the broker does not accept messages: {reason or stats['step']}")


@check.command()
@click.argument("queue", required=False)
@threshold_options(_counts, 1_000, 10_000)
@admin_client_options
def backlog(admin: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """Check the number of ready messages.

    Without QUEUE, checks the queue with the most ready messages.
    """
    found = max(_queues(admin, queue), key=lambda row: row["ready"], default=None)
    if found is None:
        report_check(OK, "no queues")
    count = found["ready"]
    report_check(level_of(count, warning, critical), f"{count:,} ready in {escape(found['name'])}")


@check.command()
@click.argument("queue", required=False)
@threshold_options(_ages, "5m", "1h")
@admin_client_options
def age(admin: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """Check the age of the oldest message in QUEUE or anywhere."""
    rows = [row for row in _queues(admin, queue) if row["oldest_age_s"] is not None]
    found = max(rows, key=lambda row: row["oldest_age_s"], default=None)
    if found is None:
        report_check(OK, "no ready messages")
    oldest = found["oldest_age_s"]
    report_check(level_of(oldest, warning, critical), f"{oldest:,.0f} s in {escape(found['name'])}")


@check.command()
@click.argument("queue")
@click.option(
    "--min",
    "minimum",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Critical if there are fewer consumers.",
)
@admin_client_options
def consumers(admin: AdminClient, queue: str, minimum: int) -> None:
    """Check how many consumers QUEUE has."""
    count = _queues(admin, queue)[0]["consumers"]
    found = f"{count_of(count, 'consumer', 'consumers')} of {escape(queue)}"
    report_check(OK if count >= minimum else CRITICAL, found)


@check.command("dead-letters")
@click.argument("queue", required=False)
@threshold_options(_counts, 1, 100)
@admin_client_options
def dead_letters(admin: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """Check the number of dead letters, of QUEUE or of all."""
    counted = admin.get("/stats") if queue is None else _queues(admin, queue)[0]
    count = counted["dead"]  # this total counts messages in a shared dead-letter queue only once
    report_check(level_of(count, warning, critical), count_of(count, "dead letter", "dead letters"))


@check.command()
@threshold_options(_percentages, 15.0, 5.0, "at or below this percentage")
@admin_client_options
def disk(admin: AdminClient, warning: float, critical: float) -> None:
    """Check the percentage of free disk space."""
    stats = admin.get("/stats")
    share = 100 * stats["disk_free_bytes"] / max(1, stats["disk_bytes"])
    level = CRITICAL if share <= critical else WARNING if share <= warning else OK
    report_check(level, f"{share:.1f} % of the disk is free")


@check.command()
@threshold_options(_ages, "26h", "50h")
@admin_client_options
def backup(admin: AdminClient, warning: int, critical: int) -> None:
    """Check the age of the newest backup. Backups dated in the future also cause a warning."""
    found = admin.get("/backups")
    level, text = check_newest_backup(found["items"], time.time(), warning, critical)
    failed = f"; the latest attempt failed: {escape(found['error'])}" if found["error"] else ""
    report_check(max(level, WARNING) if failed else level, f"{text}{failed}")


def check_newest_backup(
    items: list[dict[str, Any]], now_s: float, warning: float, critical: float
) -> tuple[int, str]:
    """Return a pair: the level for the age of the newest backup, and a text that explains it.

    A backup dated in the future is ignored with a warning, because a clock was or is wrong.
    """
    ages = [(now_s - item["made_at"] / 1_000, item["id"]) for item in items]
    ahead = [name for age_s, name in ages if age_s < -_CLOCKS_DIFFER_S]
    over = [(max(0.0, age_s), name) for age_s, name in ages if name not in ahead]
    if not items:
        return CRITICAL, "there are no backups"
    level, text = WARNING, "the age of the newest backup is unknown"
    if over:
        age_s, name = min(over)
        level, text = level_of(age_s, warning, critical), f"{name} is {age_s:,.0f} s old"
    if not ahead:
        return level, text
    return max(level, WARNING), f"{text}; these are dated in the future: {', '.join(ahead)}"


def _queues(admin: AdminClient, queue: str | None) -> list[dict[str, Any]]:
    if queue is not None:
        return [admin.get(f"/queues/{encode_name(queue)}")]
    return list(admin.list("/queues"))
