"""The group ``queue``, its short forms, and ``top``."""

import sys
import time
from typing import Any, Final

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.cli.output import (
    Column,
    confirm,
    format_message_count,
    output_option,
    print_message,
    write_record,
    write_rows,
)
from phpmq_lite.logs import escape
from phpmq_lite.queue_settings import DEFINITIONS

QUEUE_COLUMNS: Final = (
    Column("name", "QUEUE"),
    Column("ready", "READY", is_number=True),
    Column("dispatched", "DISPATCHED", is_number=True),
    Column("dead", "DEAD", is_number=True),
    Column("bytes", "BYTES", is_number=True),
    Column("oldest_age_s", "OLDEST (s)", is_number=True),
    Column("published_per_s", "IN/s", is_number=True),
    Column("acked_per_s", "OUT/s", is_number=True),
    Column("consumers", "CONSUMERS", is_number=True),
)

_DIGITS: Final = 20  # of a number; what SQLite stores has 19

_name = click.argument("name", metavar="QUEUE")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_side = click.option(
    "--side",
    type=click.Choice(["delivery", "publishing"]),
    default="delivery",
    show_default=True,
    help="What is paused: delivery to consumers, or publishing.",
)


def queue_path(name: str, action: str = "") -> str:
    """Give the path of a queue in the API, and of an action on it."""
    return f"/queues/{encode_name(name)}" + (f"/{action}" if action else "")


@click.group()
def queue() -> None:
    """List, show, set, purge, pause and remove queues."""


@click.command()
@click.argument("pattern", default="", metavar="[GLOB]")
@admin_client_options
@output_option
def queues(node: AdminClient, pattern: str, output: str | None) -> None:
    """List the queues, or those that match GLOB."""
    empty = f"no queue matches {pattern!r}" if pattern else "no queues yet"
    write_rows(node.list("/queues", q=pattern or None), QUEUE_COLUMNS, output, empty)


@click.command()
@_name
@admin_client_options
@output_option
def show(node: AdminClient, name: str, output: str | None) -> None:
    """Show one queue: its figures and its settings."""
    write_record(node.get(queue_path(name)), output)


@queue.command()
@_name
@admin_client_options
def create(node: AdminClient, name: str) -> None:
    """Make a queue; publishing to it makes it too."""
    node.call("PUT", queue_path(name), {})
    print_message(f"{name} is there")


@queue.command(name="set")
@_name
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@admin_client_options
def set_(node: AdminClient, name: str, settings: tuple[str, ...]) -> None:
    """Change settings of a queue; NAME= alone goes back to the default."""
    changes: dict[str, Any] = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign:
            raise click.UsageError(f"{text!r} is no NAME=VALUE")
        changes[key] = _value(key, value)
    write_record(node.call("PATCH", queue_path(name), changes), None)


def _value(name: str, text: str) -> Any:
    """Read what was typed as the kind that the setting has; nothing is the default.

    What does not fit is sent as it is: the broker says what the setting takes.
    """
    if text == "":
        return None
    known = DEFINITIONS.get(name)
    if known is not None and known.type is bool and text in ("true", "false"):
        return text == "true"
    if known is not None and known.type is int and text.removeprefix("-").isdecimal():
        if len(text) > _DIGITS:  # Python converts no more than some thousand
            raise click.UsageError(f"{name}: a number has at most {_DIGITS} digits")
        return int(text)
    return text


@click.command()
@_name
@click.option("--dispatched", is_flag=True, help="Also what consumers hold.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Only the n oldest.")
@_yes
@admin_client_options
def purge(node: AdminClient, name: str, dispatched: bool, limit: int | None, yes: bool) -> None:
    """Delete the messages of a queue.

    They stay in the history as deleted, for its retention time.
    """
    kind = "ready and dispatched" if dispatched else "ready"
    what = f"all {kind}" if limit is None else f"the {limit:,} oldest {kind}"
    confirm(f"Delete {what} messages of {name}?", is_yes=yes)
    asked = {"dispatched": dispatched} | ({"limit": limit} if limit else {})
    print_message(
        f"{format_message_count(node.post(queue_path(name, 'purge'), asked)['settled'])} deleted"
    )


@queue.command()
@_name
@_yes
@admin_client_options
def rm(node: AdminClient, name: str, yes: bool) -> None:
    """Remove a queue that is empty, not pinned, and has no consumers."""
    confirm(f"Remove {name}?", is_yes=yes)
    node.call("DELETE", queue_path(name))
    print_message(f"{name} is removed")


@queue.command()
@_name
@_side
@admin_client_options
def pause(node: AdminClient, name: str, side: str) -> None:
    """Stop delivery or publishing of a queue; it stays so over a restart."""
    node.post(queue_path(name, "pause"), {"side": side})
    print_message(f"{side} of {name} is paused")


@queue.command()
@_name
@_side
@admin_client_options
def resume(node: AdminClient, name: str, side: str) -> None:
    """Let delivery or publishing of a queue go on."""
    node.post(queue_path(name, "resume"), {"side": side})
    print_message(f"{side} of {name} goes on")


@click.command()
@_name
@_yes
@admin_client_options
def flush(node: AdminClient, name: str, yes: bool) -> None:
    """Delete all messages of a queue, held ones too, and the queue unless it is pinned."""
    confirm(f"Delete all messages of {name}, and the queue?", is_yes=yes)
    _flush(node, name)


@click.command()
@_yes
@admin_client_options
def flushall(node: AdminClient, yes: bool) -> None:
    """Do as flush does, with every queue that is not pinned."""
    confirm("Delete all messages of all queues that are not pinned?", is_yes=yes)
    for row in list(node.list("/queues")):
        if not node.get(queue_path(row["name"]))["settings"]["pinned"]:
            _flush(node, row["name"])


def _flush(node: AdminClient, name: str) -> None:
    settled = node.post(queue_path(name, "purge"), {"dispatched": True})["settled"]
    try:
        node.call("DELETE", queue_path(name))
    except CommandError as error:
        if error.code != REFUSED:
            raise
        print_message(
            f"{format_message_count(settled)} of {name} deleted; the queue stays: {error}"
        )
        return
    print_message(f"{format_message_count(settled)} of {name} deleted, and the queue")


queue.add_command(queues, "ls")
queue.add_command(show)
queue.add_command(purge)


_BUSIEST: Final = 30  # queues that top shows
_LOOK_S: Final = 1.0  # between two looks without a stream
_LOOKS: Final = 30  # before a stream is asked for again


@click.command()
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option(
    "--every", "every_s", type=click.FloatRange(0.2), default=1.0, show_default=True,
    help="Seconds between two looks.",
)  # fmt: skip
@admin_client_options
def top(node: AdminClient, once: bool, every_s: float) -> None:
    """Show the busiest queues, again and again; Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    if once or not sys.stdout.isatty():
        Console(width=None if sys.stdout.isatty() else 120).print(_table(node))
        return
    with Live(_table(node), screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(_table(node), refresh=True)
        except KeyboardInterrupt:
            return


def _table(node: AdminClient) -> Any:
    from rich.table import Table
    from rich.text import Text

    from phpmq_lite.cli.output import format_cell

    pass

    stats = node.get("/stats")
    rows = list(node.list("/queues", _BUSIEST, sort="-in"))
    title = (
        f"{stats['ready']:,} ready · {stats['dispatched']:,} dispatched · {stats['dead']:,} dead"
        f" · in {stats['published_per_s']:,.0f}/s · out {stats['acked_per_s']:,.0f}/s"
    )
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in QUEUE_COLUMNS:
        table.add_column(column.title, justify="right" if column.is_number else "left")
    for row in rows:
        table.add_row(*(Text(escape(format_cell(row.get(column.key)))) for column in QUEUE_COLUMNS))
    return table
