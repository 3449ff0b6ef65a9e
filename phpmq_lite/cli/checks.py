"""The group ``check``: exit codes and output of monitoring plugins."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, BrokerUnavailableError, admin_client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.parameters import duration
from phpmq_lite.errors import PhpmqError
from phpmq_lite.logs import escape

Command = TypeVar("Command", bound=Callable[..., Any])

OK, WARNING, CRITICAL, UNKNOWN = range(4)
WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_CLOCKS_DIFFER_S: Final = 60.0  # at most: those of the broker and of who asks

_ages = {"type": duration, "metavar": "DURATION"}
_counts: dict[str, Any] = {"type": click.IntRange(min=0), "metavar": "N"}


def threshold_options(
    kind: dict[str, Any], warning: object, critical: object
) -> Callable[[Command], Command]:
    """Add ``-w`` and ``-c`` with their defaults."""

    def add(command: Command) -> Command:
        for short, name, default in (("-c", "critical", critical), ("-w", "warning", warning)):
            command = click.option(
                short, f"--{name}", name, default=default, show_default=True,
                help=f"{name.capitalize()} from here on.", **kind,
            )(command)  # fmt: skip
        return command

    return add


@contextmanager
def _wrong_use() -> Iterator[None]:
    """Have wrong usage end with UNKNOWN: click's 2 would be critical to monitoring."""
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(UNKNOWN) from None


class MonitoringGroup(click.Group):
    """A figure that cannot be read is unknown to monitoring, not an error of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the flags of the group itself."""
        with _wrong_use():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the check; what goes wrong ends with UNKNOWN and exit code 3."""
        try:
            with _wrong_use():
                return super().invoke(ctx)
        except (CommandError, PhpmqError, OSError, UnicodeError) as error:
            click.echo(f"UNKNOWN: {error}")
            ctx.exit(UNKNOWN)


@click.group(cls=MonitoringGroup)
def check() -> None:
    """Check a figure for monitoring: exit 0 fine, 1 warning, 2 critical, 3 unknown."""


def report_check(level: int, text: str) -> NoReturn:
    """Print the line that monitoring shows, and end with its code."""
    click.echo(f"{WORDS[level]}: {text}")
    click.get_current_context().exit(level)


def level_of(value: float, warning: float, critical: float) -> int:
    """Give the level of a figure that is worse when it is higher."""
    return CRITICAL if value >= critical else WARNING if value >= warning else OK


@check.command()
@admin_client_options
def ready(node: AdminClient) -> None:
    """Does the broker take messages? Critical, too, where nothing answers."""
    try:
        stats = node.get("/stats")
    except BrokerUnavailableError as error:
        report_check(CRITICAL, f"the broker does not take messages: {error}")
    reason = stats["storing_stopped"] or stats["publishing_stopped"]
    if stats["is_ready"] and not stats["is_draining"] and reason is None:
        report_check(OK, "the broker takes messages")
    report_check(CRITICAL, f"the broker does not take messages: {reason or stats['step']}")


@check.command()
@click.argument("queue", required=False)
@threshold_options(_counts, 1_000, 10_000)
@admin_client_options
def backlog(node: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """How many messages are ready, in QUEUE or in the fullest one?"""
    found = max(_queues(node, queue), key=lambda row: row["ready"], default=None)
    if found is None:
        report_check(OK, "no queues")
    count = found["ready"]
    report_check(level_of(count, warning, critical), f"{count:,} ready in {escape(found['name'])}")


@check.command()
@click.argument("queue", required=False)
@threshold_options(_ages, "5m", "1h")
@admin_client_options
def age(node: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """How old is the oldest ready message, in QUEUE or anywhere?"""
    rows = [row for row in _queues(node, queue) if row["oldest_age_s"] is not None]
    found = max(rows, key=lambda row: row["oldest_age_s"], default=None)
    if found is None:
        report_check(OK, "nothing waits")
    oldest = found["oldest_age_s"]
    report_check(level_of(oldest, warning, critical), f"{oldest:,.0f} s in {escape(found['name'])}")


@check.command()
@click.argument("queue")
@click.option(
    "--least",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Critical below this number.",
)
@admin_client_options
def consumer(node: AdminClient, queue: str, least: int) -> None:
    """Has QUEUE at least so many consumers?"""
    count = _queues(node, queue)[0]["consumers"]
    report_check(OK if count >= least else CRITICAL, f"{count:,} consumers of {escape(queue)}")


@check.command()
@click.argument("queue", required=False)
@threshold_options(_counts, 1, 100)
@admin_client_options
def dead(node: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """How many dead letters are there, of QUEUE or of all?"""
    counted = node.get("/stats") if queue is None else _queues(node, queue)[0]
    count = counted["dead"]  # of all queues each record once, although several may share a queue
    report_check(level_of(count, warning, critical), f"{count:,} dead letters")


@check.command()
@click.option(
    "-w",
    "--warning",
    type=click.FloatRange(0, 100),
    default=15.0,
    show_default=True,
    help="Warning from here down.",
)
@click.option(
    "-c",
    "--critical",
    type=click.FloatRange(0, 100),
    default=5.0,
    show_default=True,
    help="Critical from here down.",
)
@admin_client_options
def disk(node: AdminClient, warning: float, critical: float) -> None:
    """How many percent of the disk are free?"""
    stats = node.get("/stats")
    share = 100 * stats["disk_free_bytes"] / max(1, stats["disk_bytes"])
    level = CRITICAL if share <= critical else WARNING if share <= warning else OK
    report_check(level, f"{share:.1f} % of the disk are free")


@check.command()
@threshold_options(_ages, "26h", "50h")
@admin_client_options
def backup(node: AdminClient, warning: int, critical: int) -> None:
    """How old is the newest backup? Warns of one whose time is still to come, too."""
    found = node.get("/backups")
    level, text = judge_newest_backup(found["items"], time.time(), warning, critical)
    failed = f"; the last one failed: {escape(found['error'])}" if found["error"] else ""
    report_check(max(level, WARNING) if failed else level, f"{text}{failed}")


def judge_newest_backup(
    items: list[dict[str, Any]], now_s: float, warning: float, critical: float
) -> tuple[int, str]:
    """Judge the backups: a clock that was ahead, or is behind now, made some of them "new"."""
    ages = [(now_s - item["made_at"] / 1_000, item["id"]) for item in items]
    ahead = [name for age_s, name in ages if age_s < -_CLOCKS_DIFFER_S]
    over = [(max(0.0, age_s), name) for age_s, name in ages if name not in ahead]
    if not items:
        return CRITICAL, "there is no backup"
    level, text = WARNING, "nobody knows how old the newest backup is"
    if over:
        age_s, name = min(over)
        level, text = level_of(age_s, warning, critical), f"{name} is {age_s:,.0f} s old"
    if not ahead:
        return level, text
    return max(level, WARNING), f"{text}; {', '.join(ahead)} has a time that is still to come"


def _queues(node: AdminClient, queue: str | None) -> list[dict[str, Any]]:
    if queue is not None:
        return [node.get(f"/queues/{encode_name(queue)}")]
    return list(node.list("/queues"))
