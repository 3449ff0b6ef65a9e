"""The commands ``status`` and ``clock``, which show key figures and clock changes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final, NoReturn

import click

from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import count_of
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.checks import CHECKS, Bounds, Check
from phpmq_lite.cli.admin_client import (
    AdminClient,
    BrokerUnavailableError,
    admin_client_options,
    admin_output_options,
)
from phpmq_lite.cli.errors import ERROR, NOT_FOUND, CommandError, explain_usage
from phpmq_lite.cli.output import (
    Command,
    confirm,
    number_columns,
    output_format,
    write_record,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import duration, option
from phpmq_lite.errors import PhpmqError
from phpmq_lite.logs import escape


@click.command()
@admin_output_options
def status(admin: AdminClient, output: str | None) -> None:
    """Show the broker's key figures and whether it accepts messages.

    Exits with 1 if the broker rejects messages; use `phpmq-lite check ready` for monitoring.
    """
    stats = admin.get("/stats")
    stats["broker"] = str(admin.socket or admin.url)
    stats["listeners"] = [row["address"] for row in admin.get("/listeners")["items"]]
    reason = rejection(stats)
    if output_format(output) != "table":
        write_record(stats, output)
    else:
        free, disk = stats["disk_free_bytes"], stats["disk_bytes"]
        database = formats.format_size(stats["database_bytes"] or 0)
        if stats["wal_bytes"] is not None:
            database += f", log {formats.format_size(stats['wal_bytes'])}"
        else:
            store = stats["store"]
            database += f" in {store['engine']} at {store['place']}, epoch {store['epoch']}"
        up_ms = int(time.time() * 1_000) - stats["started_at"]
        write_record(
            {
                "broker": f"phpmq-lite {stats['version']} on {stats['broker']}",
                "state": reason or "ready",
                "running for": formats.format_duration(up_ms),
                "listeners": ", ".join(stats["listeners"]),
                "queues": f"{stats['queues']:,}",
                "messages": f"{stats['ready']:,} ready, {stats.get('scheduled', 0):,} scheduled, "
                f"{stats['dispatched']:,} dispatched, {stats['dead']:,} dead letters",
                "clients": f"{stats['clients']:,} connected, {stats['consumers']:,} consumers",
                "rates": f"{stats['published_per_s']:,.1f} published/s, "
                f"{stats['acked_per_s']:,.1f} acknowledged/s",
                "database": database,
                "disk": f"{formats.format_size(free)} of {formats.format_size(disk)} free",
            },
            output,
        )
    if reason is not None:
        click.get_current_context().exit(ERROR)


COLUMNS = number_columns(
    "jumps", last_jump_ms="LAST (ms)", doubt_ms="IN DOUBT (ms)", would_expire="WOULD EXPIRE"
)


@click.group()
def clock() -> None:
    """Show clock changes and decide how to treat a doubtful one."""


@clock.command()
@admin_output_options
def show(admin: AdminClient, output: str | None) -> None:
    """Show clock jumps and whether any of them requires a decision."""
    write_rows([admin.get("/clock")], COLUMNS, output, "")


@clock.command()
@click.argument("decision", type=click.Choice(["expire", "keep"]))
@option("--reason", "Reason to record in the audit log.", default="")
@yes_option
@admin_output_options
def decide(admin: AdminClient, decision: str, reason: str, yes: bool, output: str | None) -> None:
    """Decide how to treat a clock jump.

    expire: the time really passed, so messages expire. keep: the clock was changed, so they do not.
    """
    if decision == "expire":
        count = admin.get("/clock")["would_expire"] or 0
        confirm(f"Expire {count} messages?", is_yes=yes)
    write_rows(
        [admin.post("/clock", {"decision": decision, "reason": reason})], COLUMNS, output, ""
    )


OK, WARNING, CRITICAL, UNKNOWN = range(4)
WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_CLOCKS_DIFFER_S: Final = 60.0  # maximum difference between this machine's clock and the broker's

_ages: dict[str, Any] = {"type": duration, "show_default": True}
_counts: dict[str, Any] = _ages | {"type": click.IntRange(min=0), "metavar": "N"}
_percentages: dict[str, Any] = _ages | {"type": click.FloatRange(0, 100)}


def format_seconds(seconds: float) -> str:
    """Format a duration as users enter it: whole hours, or minutes."""
    return f"{seconds / 3_600:g}h" if seconds % 3_600 == 0 else f"{seconds / 60:g}m"


def threshold_options(
    row: Check, kind: dict[str, Any], format_bound: Callable[[float], object] = lambda bound: bound
) -> Callable[[Command], Command]:
    """Add the options ``-w`` and ``-c``; ``shown`` formats the bounds of the table of checks."""
    bounds = CHECKS[row].command
    where = "at or below this percentage" if bounds.is_floor else "at or above this value"

    def add(command: Command) -> Command:
        for short, name, bound in (("-c", "critical", bounds.bad), ("-w", "warning", bounds.warn)):
            names, default = (short, f"--{name}", name), format_bound(bound or 0)
            add_option = option(names, f"{name.capitalize()} {where}.", default=default, **kind)
            command = add_option(command)
        return command

    return add


@contextmanager
def _usage_errors_are_unknown() -> Iterator[None]:
    """Exit with UNKNOWN after a usage error, because click's exit code 2 would mean critical."""
    try:
        yield
    except click.UsageError as error:
        explain_usage(error).show()
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


def level_of(value: float, warning: float, critical: float, *, is_floor: bool = False) -> int:
    """Return the exit code for a value; with ``is_floor``, lower values are worse."""
    return Bounds(warning, critical, is_floor, is_inclusive=True).level(value).rank


@check.command()
@admin_client_options
def ready(admin: AdminClient) -> None:
    """Check whether the broker accepts messages. Critical if it does not answer."""
    try:
        stats = admin.get("/stats")
    except BrokerUnavailableError as error:
        report_check(CRITICAL, f"the broker does not accept messages: {error}")
    if (reason := rejection(stats)) is None:
        report_check(OK, "the broker accepts messages")
    report_check(CRITICAL, f"the broker does not accept messages: {reason}")


@check.command()
@click.argument("queue", required=False)
@threshold_options(Check.BACKLOG, _counts)
@admin_client_options
def backlog(admin: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """Check the number of ready messages.

    Without QUEUE, checks the queue with the most ready messages.
    """
    fullest = max(_queues(admin, queue), key=lambda row: row["ready"], default=None)
    if fullest is None:
        report_check(OK, "no queues")
    count, text = fullest["ready"], f"{fullest['ready']:,} ready in {escape(fullest['name'])}"
    report_check(level_of(count, warning, critical), text)


@check.command()
@click.argument("queue", required=False)
@threshold_options(Check.AGE, _ages, format_seconds)
@admin_client_options
def age(admin: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """Check the age of the oldest message in QUEUE or anywhere."""
    rows = [row for row in _queues(admin, queue) if row["oldest_age_s"] is not None]
    oldest = max(rows, key=lambda row: row["oldest_age_s"], default=None)
    if oldest is None:
        report_check(OK, "no ready messages")
    age_s = oldest["oldest_age_s"]
    report_check(level_of(age_s, warning, critical), f"{age_s:,.0f} s in {escape(oldest['name'])}")


@check.command()
@click.argument("queue")
@option(("--min", "minimum"), "Critical if there are fewer consumers.", click.IntRange(min=1), 1)
@admin_client_options
def consumers(admin: AdminClient, queue: str, minimum: int) -> None:
    """Check how many consumers QUEUE has."""
    count = _queues(admin, queue)[0]["consumers"]
    text = f"{count_of(count, 'consumer', 'consumers')} of {escape(queue)}"
    report_check(OK if count >= minimum else CRITICAL, text)


@check.command("dead-letters")
@click.argument("queue", required=False)
@threshold_options(Check.DEAD_LETTERS, _counts)
@admin_client_options
def dead_letters(admin: AdminClient, queue: str | None, warning: int, critical: int) -> None:
    """Check the number of dead letters, of QUEUE or of all."""
    counted = admin.get("/stats") if queue is None else _queues(admin, queue)[0]
    count = counted["dead"]  # this total counts messages in a shared dead-letter queue only once
    report_check(level_of(count, warning, critical), count_of(count, "dead letter", "dead letters"))


@check.command()
@threshold_options(Check.DISK, _percentages)
@admin_client_options
def disk(admin: AdminClient, warning: float, critical: float) -> None:
    """Check the percentage of free disk space."""
    stats = admin.get("/stats")
    share = 100 * stats["disk_free_bytes"] / max(1, stats["disk_bytes"])
    level = level_of(share, warning, critical, is_floor=True)
    report_check(level, f"{share:.1f} % of the disk is free")


@check.command()
@threshold_options(Check.BACKUP_AGE, _ages, format_seconds)
@admin_client_options
def backup(admin: AdminClient, warning: int, critical: int) -> None:
    """Check the age of the newest backup. Backups dated in the future also cause a warning."""
    backups = admin.get("/backups")
    level, text = check_newest_backup(backups["items"], time.time(), warning, critical)
    if backups["error"]:
        level = max(level, CHECKS[Check.BACKUP_FAILED].command.level(1).rank)
        text += f"; the latest attempt failed: {escape(backups['error'])}"
    report_check(level, text)


@check.command()
@click.argument("reader", required=False)
@option(
    ("--silent", "silent_s"),
    "Warning if a reader with unread messages has not reported for this long.",
    duration,
    format_seconds(CHECKS[Check.READER_STOPPED].command.warn or 0),
)
@threshold_options(Check.READER_LATE, _ages, format_seconds)
@admin_client_options
def pipeline(
    admin: AdminClient, reader: str | None, warning: int, critical: int, silent_s: int
) -> None:
    """Check when retention reaches what a reader has not read.

    READER names one; by default, all are checked. A reader is an archive of `phpmq-lite pipeline`,
    or a stream with the option `reader`.
    """
    readers = list(admin.list("/pipeline/history/readers"))
    rows = [row for row in readers if reader in (None, row["reader"])]
    if not rows:
        names = ", ".join(escape(row["reader"]) for row in readers)
        others = f"; these have: {names}" if names else ""
        name = "" if reader is None else f" {escape(reader)}"
        raise CommandError(f"no reader{name} has reported{others}", NOT_FOUND)
    results = [check_reader(row, time.time(), warning, critical, silent_s) for row in rows]
    report_check(*max(results, key=itemgetter(0)))  # the first of them is furthest behind


def check_reader(
    reader: dict[str, Any], now_s: float, warning: float, critical: float, silent_s: float
) -> tuple[int, str]:
    """Return the level of a history reader, and a text that explains it."""
    level, text = OK, reader_text(reader)
    if reader["reached_in_s"] is not None:
        level = level_of(reader["reached_in_s"], warning, critical, is_floor=True)
        report_age_s = now_s - reader["seen_at"] / 1_000
        if report_age_s >= silent_s:
            level = max(level, WARNING)
            age = formats.format_duration(round(report_age_s * 1_000), with_seconds=False)
            text += f"; it has not reported for {age}"
    return level, text


def reader_text(reader: dict[str, Any]) -> str:
    """Describe how far a history reader is behind, and when retention reaches it."""
    name = escape(reader["reader"])
    if reader["reached_in_s"] is None:
        return f"{name} has read everything"
    behind = count_of(reader["behind"], "row", "rows")
    text = f"{name} is {behind} ({formats.format_size(reader['behind_bytes'])}) behind"
    if reader["is_reached"]:
        return f"{text}; retention has removed rows that it has not read"
    left = formats.format_duration(round(reader["reached_in_s"] * 1_000), with_seconds=False)
    return f"{text}; retention reaches it in {left}"


def check_newest_backup(
    items: list[dict[str, Any]], now_s: float, warning: float, critical: float
) -> tuple[int, str]:
    """Return the level for the age of the newest backup, and a text that explains it."""
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


def rejection(stats: dict[str, Any]) -> str | None:
    """Return why a broker with these ``/stats`` rejects messages, or None if it accepts them."""
    reason: str | None = stats["storing_stopped"] or stats["publishing_stopped"]
    is_ready = stats["is_ready"] and not stats["is_draining"]
    return reason or (None if is_ready else stats["step"])


def _queues(admin: AdminClient, queue: str | None) -> list[dict[str, Any]]:
    if queue is not None:
        return [admin.get(f"/queues/{encode_name(queue)}")]
    return list(admin.list("/queues"))
