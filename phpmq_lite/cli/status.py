"""The commands ``status`` and ``clock``, which show key figures and clock changes."""

import time
from typing import Any

import click

from phpmq_lite.admin import formats
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.checks import rejection
from phpmq_lite.cli.errors import ERROR
from phpmq_lite.cli.output import (
    confirm,
    number_columns,
    output_format,
    output_option,
    write_record,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import option


@click.command()
@admin_client_options
@output_option
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
        up_ms = int(time.time() * 1_000) - stats["started_at"]
        write_record(
            {
                "broker": f"phpmq-lite {stats['version']} on {stats['broker']}",
                "state": reason or "ready",
                "running for": formats.format_duration(up_ms),
                "listeners": ", ".join(stats["listeners"]),
                "queues": f"{stats['queues']:,}",
                "messages": f"{stats['ready']:,} ready, {stats['dispatched']:,} dispatched, "
                f"{stats['dead']:,} dead letters",
                "clients": f"{stats['clients']:,} connected, {stats['consumers']:,} consumers",
                "rates": f"{stats['published_per_s']:,.1f} published/s, "
                f"{stats['acked_per_s']:,.1f} acknowledged/s",
                "database": _database(stats),
                "disk": f"{formats.format_size(free)} of {formats.format_size(disk)} free",
            },
            output,
        )
    if reason is not None:
        click.get_current_context().exit(ERROR)


def _database(stats: dict[str, Any]) -> str:
    size = formats.format_size(stats["database_bytes"] or 0)
    if stats["wal_bytes"] is not None:
        return f"{size}, log {formats.format_size(stats['wal_bytes'])}"
    store = stats["store"]
    return f"{size} in {store['engine']} at {store['place']}, epoch {store['epoch']}"


COLUMNS = number_columns(
    "jumps", last_jump_ms="LAST (ms)", doubt_ms="IN DOUBT (ms)", would_expire="WOULD EXPIRE"
)


@click.group()
def clock() -> None:
    """Show clock changes and decide how to treat a doubtful one."""


@clock.command()
@admin_client_options
@output_option
def show(admin: AdminClient, output: str | None) -> None:
    """Show clock jumps and whether any of them requires a decision."""
    write_rows([admin.get("/clock")], COLUMNS, output, "")


@clock.command()
@click.argument("decision", type=click.Choice(["expire", "keep"]))
@option("--reason", "Reason to record in the audit log.", default="")
@yes_option
@admin_client_options
@output_option
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
