"""``status``: the main figures of a broker."""

import time

import click

from phpmq_lite.admin.base import formats
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import ERROR
from phpmq_lite.cli.output import output_format, output_option, write_record


@click.command()
@admin_client_options
@output_option
def status(admin: AdminClient, output: str | None) -> None:
    """Show whether the broker accepts messages, and its main figures.

    Exits with 1 if it accepts no messages; use `phpmq-lite check ready` for monitoring.
    """
    stats = admin.get("/stats")
    stats["broker"] = str(admin.socket or admin.url)
    stats["listeners"] = [one["address"] for one in admin.get("/listeners")["items"]]
    stopped = stats["storing_stopped"] or stats["publishing_stopped"]
    accepts_messages = stats["is_ready"] and not stats["is_draining"] and stopped is None
    if output_format(output) != "table":
        write_record(stats, output)
    else:
        free, disk = stats["disk_free_bytes"], stats["disk_bytes"]
        up_ms = int(time.time() * 1_000) - stats["started_at"]
        write_record(
            {
                "broker": f"phpmq-lite {stats['version']} on {stats['broker']}",
                "state": "ready" if accepts_messages else stopped or stats["step"],
                "running for": formats.format_duration(up_ms),
                "listeners": ", ".join(stats["listeners"]),
                "queues": f"{stats['queues']:,}",
                "messages": f"{stats['ready']:,} ready, {stats['dispatched']:,} dispatched, "
                f"{stats['dead']:,} dead letters",
                "clients": f"{stats['clients']:,} connected, {stats['consumers']:,} consumers",
                "rates": f"{stats['published_per_s']:,.1f} published/s, "
                f"{stats['acked_per_s']:,.1f} acknowledged/s",
                "database": f"{formats.format_size(stats['database_bytes'])}, "
                f"log {formats.format_size(stats['wal_bytes'])}",
                "disk": f"{formats.format_size(free)} of {formats.format_size(disk)} free",
            },
            output,
        )
    if not accepts_messages:
        click.get_current_context().exit(ERROR)
