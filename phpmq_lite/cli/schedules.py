"""The ``schedule`` command group."""

from typing import Any, Final

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, admin_output_options
from phpmq_lite.cli.output import (
    SPARE,
    Command,
    add_options,
    columns,
    confirm,
    format_utc,
    output_format,
    print_message,
    write_record,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import FILE_OR_STDIN, duration, option

COLUMNS: Final = (
    *columns("name", "cron", "timezone", "queue"),
    *columns(next_at="NEXT (UTC)"),
    *columns(last_run_at="LAST (UTC)", last_outcome="OUTCOME", fit=SPARE),
)
_FIELDS: Final = (
    *("cron", "timezone", "queue", "content", "encoding"),
    *("ttl_s", "priority", "group", "missed", "missed_max"),
)
_name = click.argument("name", metavar="SCHEDULE")


def _path(name: str, action: str = "") -> str:
    return f"/schedules/{encode_name(name)}" + (f"/{action}" if action else "")


def _fields(command: Command) -> Command:
    """Add an option for each field of a schedule but its name and its cron expression."""
    return add_options(
        command,
        option("--missed-max", "How many of them with --missed all.", click.IntRange(1, 100)),
        option(
            "--missed",
            "Which ticks run if they are more than a minute late.  [default: skip]",
            click.Choice(("skip", "once", "all")),
        ),
        option("--group", "Group of the messages."),
        option("--priority", "0 is first.  [default: 128]", click.IntRange(0, 255)),
        option(("--ttl", "ttl_s"), "Time to live, such as 15m; 0 means no expiry.", duration),
        option("--file", "File with the content, or - for standard input.", FILE_OR_STDIN),
        option("--body", "Content of the messages, with placeholders such as {{tick}}."),
        option("--timezone", "Time zone of CRON, such as Europe/Berlin.  [default: UTC]"),
        option("--queue", "Queue that gets the messages; a new schedule needs one."),
    )


def _fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a request that options name."""
    from base64 import b64encode

    members = {name: value for name, value in options.items() if value is not None}
    file, body = members.pop("file", None), members.pop("body", None)
    if file is not None and body is not None:
        raise click.UsageError("--body and --file cannot be combined")
    if file is not None:
        with click.open_file(str(file), "rb") as stream:
            content: bytes = stream.read()
        try:
            body = content.decode()
        except UnicodeDecodeError:
            return members | {"content": b64encode(content).decode(), "encoding": "base64"}
    if body is not None:
        members |= {"content": body, "encoding": "utf-8"}
    return members


@click.group()
def schedule() -> None:
    """Publish messages at the times of cron expressions."""


@schedule.command(name="list")
@admin_output_options
def list_(admin: AdminClient, output: str | None) -> None:
    """List schedules with their next and last runs."""
    rows = list(admin.list("/schedules"))
    if output_format(output) == "table":
        for row in rows:
            row["next_at"] = format_utc(row["next_at"]) if row["is_enabled"] else "paused"
            row["last_run_at"] = format_utc(row["last_run_at"])
    write_rows(rows, COLUMNS, output, "no schedules")


@schedule.command()
@_name
@admin_output_options
def show(admin: AdminClient, name: str, output: str | None) -> None:
    """Show a schedule and its next five runs."""
    row = admin.get(_path(name))
    if output_format(output) == "table":
        row["next_runs"] = ", ".join(run["local"] for run in row["next_runs"]) or None
    write_record(row, output)


@schedule.command()
@_name
@click.argument("cron")
@_fields
@admin_client_options
def create(admin: AdminClient, name: str, cron: str, **options: Any) -> None:
    """Create a schedule. CRON is one argument, such as "30 8 * * MON-FRI"."""
    if options["queue"] is None:
        raise click.UsageError("--queue is required")
    reply = admin.post("/schedules", {"name": name, "cron": cron} | _fields_of(options))
    print_message(f"created the schedule {name}; {_next_run(reply)}")


@schedule.command(name="set")
@_name
@option("--cron", "Cron expression.")
@_fields
@admin_client_options
def set_(admin: AdminClient, name: str, **options: Any) -> None:
    """Change what a schedule says; what no option names stays."""
    changes = _fields_of(options)
    if not changes:
        raise click.UsageError("name at least one option")
    old = admin.get(_path(name))
    fields = {key: old[key] for key in _FIELDS}
    reply = admin.call("PUT", _path(name), fields | changes)
    print_message(f"changed the schedule {name}; {_next_run(reply)}")


def _next_run(schedule: dict[str, Any]) -> str:
    if not schedule["is_enabled"]:
        return "it is paused"
    runs = schedule["next_runs"]
    return f"it runs next at {runs[0]['local']}" if runs else "its expression has no more ticks"


@schedule.command()
@_name
@yes_option
@admin_client_options
def delete(admin: AdminClient, name: str, yes: bool) -> None:
    """Delete a schedule and the history of its runs."""
    confirm(f"Delete the schedule {name}?", is_yes=yes)
    admin.call("DELETE", _path(name))
    print_message(f"deleted the schedule {name}")


@schedule.command()
@_name
@admin_client_options
def pause(admin: AdminClient, name: str) -> None:
    """Pause a schedule: its ticks pass without a run."""
    admin.post(_path(name, "pause"), {})
    print_message(f"paused the schedule {name}")


@schedule.command()
@_name
@admin_client_options
def resume(admin: AdminClient, name: str) -> None:
    """Resume a schedule, which continues with the next tick."""
    reply = admin.post(_path(name, "resume"), {})
    print_message(f"resumed the schedule {name}; {_next_run(reply)}")


@schedule.command()
@_name
@admin_client_options
def run(admin: AdminClient, name: str) -> None:
    """Publish the message of a schedule now, even if it is paused."""
    print_message(f"published the message {admin.post(_path(name, 'run'), {})['id']}")
