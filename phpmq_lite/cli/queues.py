"""The ``queue`` command group, including the live table of ``queue top``."""

import json
import re
import sys
import time
from collections import Counter
from contextlib import suppress
from difflib import get_close_matches
from textwrap import fill
from typing import Any, Final

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.admin_client import (
    AdminClient,
    BrokerUnavailableError,
    ConnectionEndedError,
    admin_client_options,
    admin_output_options,
)
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.cli.live_events import tail
from phpmq_lite.cli.output import (
    SPARE,
    Column,
    confirm,
    format_message_count,
    is_terminal,
    make_table,
    number_columns,
    print_message,
    write_record,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import at_option, choice, delay_option, flag, number_option, option
from phpmq_lite.queue_settings import DEFINITIONS

QUEUE_COLUMNS: Final = (
    Column("name", "QUEUE"),
    *number_columns("ready", "dispatched", "dead"),
    *number_columns("scheduled", "bytes", oldest_age_s="OLDEST (s)", fit=SPARE),
    *number_columns(published_per_s="IN/s", acked_per_s="OUT/s", fit=SPARE),
    *number_columns("consumers"),
)

_RATE: Final = r"-?[0-9]{1,9}(\.[0-9]{1,9})?"
_DIGITS: Final = 20  # maximum number of digits in a number; SQLite integers have at most 19

_name = click.argument("name", metavar="QUEUE")
_side = choice(
    "--side",
    "What to pause or resume: delivery to consumers, or publishing.",
    "delivery",
    "publishing",
)


def queue_path(name: str, action: str = "") -> str:
    return f"/queues/{encode_name(name)}" + (f"/{action}" if action else "")


@click.group()
def queue() -> None:
    """List, create, configure, pause, purge and delete queues."""


@queue.command(name="list")
@click.argument("pattern", default="", metavar="[GLOB]")
@admin_output_options
def list_(admin: AdminClient, pattern: str, output: str | None) -> None:
    """List all queues, or those that match GLOB."""
    empty = f"no queue matches {pattern!r}" if pattern else "no queues yet"
    write_rows(admin.list("/queues", q=pattern or None), QUEUE_COLUMNS, output, empty)


@queue.command()
@_name
@admin_output_options
def show(admin: AdminClient, name: str, output: str | None) -> None:
    """Show a queue's figures and settings."""
    write_record(admin.get(queue_path(name)), output)


@queue.command()
@_name
@admin_client_options
def create(admin: AdminClient, name: str) -> None:
    """Create a queue. Publishing to a missing queue also creates it."""
    is_new = admin.call("PUT", queue_path(name), {})["is_new"]
    print_message(f"created the queue {name}" if is_new else f"the queue {name} exists already")


def _list_settings() -> str:
    lines = ["\b\nSettings (queues.* in the configuration changes some of these defaults):"]
    for name, setting in DEFINITIONS.items():
        values = f" One of: {', '.join(setting.choices)}." if setting.choices else ""
        text = f"{name}: {setting.help}{values} [default: {json.dumps(setting.default)}]"
        lines.append(fill(text, 76, initial_indent="  ", subsequent_indent="      "))
    return "\n".join(lines)


@queue.command(name="set", epilog=_list_settings())
@_name
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@admin_client_options
def set_(admin: AdminClient, name: str, settings: tuple[str, ...]) -> None:
    """Change a queue's settings; NAME= restores the default."""
    changes: dict[str, Any] = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign:
            raise click.UsageError(f"{text!r} is not a valid setting; use NAME=VALUE")
        if key not in DEFINITIONS and (near := get_close_matches(key, DEFINITIONS, n=1)):
            raise click.UsageError(f"{key!r} is not a queue setting. Did you mean {near[0]!r}?")
        changes[key] = _parse_value(key, value)
    write_record(admin.call("PATCH", queue_path(name), changes), None)


def _parse_value(name: str, text: str) -> Any:
    """Convert text to the setting's type, or empty text to None, which means the default."""
    if text == "":
        return None
    definition = DEFINITIONS.get(name)
    if definition is not None and definition.type is bool and text in ("true", "false"):
        return text == "true"
    if definition is not None and definition.type is int and text.removeprefix("-").isdecimal():
        if len(text) > _DIGITS:  # Python refuses to parse more than 4,300 digits
            raise click.UsageError(f"{name}: the number exceeds the limit of {_DIGITS} digits")
        return int(text)
    if definition is not None and definition.type is float and re.fullmatch(_RATE, text):
        return float(text)
    return text


_key = click.argument("key", metavar="KEY")


def _act_on_key(admin: AdminClient, name: str, action: str, **fields: Any) -> None:
    body = {key: value for key, value in fields.items() if value is not None}
    result = admin.post(queue_path(name, action), body)
    write_record(result, None)
    print_message(f"to undo it: phpmq-lite message undo {result['undo']}")


@queue.command()
@_name
@_key
@admin_client_options
def cancel(admin: AdminClient, name: str, key: str) -> None:
    """Delete the message with a unique key, if no consumer holds it."""
    _act_on_key(admin, name, "cancel", unique_key=key)


@queue.command()
@_name
@_key
@delay_option
@at_option
@admin_client_options
def reschedule(admin: AdminClient, name: str, key: str, **time: Any) -> None:
    """Set when the message with a unique key becomes ready."""
    _act_on_key(admin, name, "reschedule", unique_key=key, **time)


@queue.command()
@_name
@flag("--dispatched", "Also delete messages that consumers hold.")
@number_option(("-n", "--limit"), "Only the N oldest.")
@yes_option
@admin_client_options
def purge(admin: AdminClient, name: str, dispatched: bool, limit: int | None, yes: bool) -> None:
    """Delete the messages in a queue.

    The messages remain in the history, marked as deleted, until their retention time ends.
    """
    kind = "live" if dispatched else "ready and scheduled"
    row = Counter(admin.get(queue_path(name)) if is_terminal() and not yes else {})
    count = row["ready"] + row["scheduled"] + (row["dispatched"] if dispatched else 0)
    count = min(count, limit or count)
    confirm(f"Delete {format_message_count(count)} ({kind}) in {name}?", is_yes=yes)
    body = {"dispatched": dispatched} | ({"limit": limit} if limit else {})
    settled = admin.post(queue_path(name, "purge"), body)["settled"]
    print_message(f"{format_message_count(settled)} deleted")


@queue.command()
@click.argument("name", metavar="QUEUE", required=False)
@flag("--with-messages", "First delete all messages in the queue.")
@flag(("--all", "is_all"), "Delete all queues that are not pinned.")
@yes_option
@admin_client_options
def delete(
    admin: AdminClient, name: str | None, with_messages: bool, is_all: bool, yes: bool
) -> None:
    """Delete a queue that is empty, not pinned, and has no consumers.

    With --with-messages, its messages are deleted first, including those that consumers hold. They
    are deleted even if the queue must stay because it is pinned or has consumers.
    """
    if is_all != (name is None):
        raise click.UsageError("specify either a queue name or --all")
    subject = "all queues that are not pinned" if name is None else f"the queue {name}"
    confirm(f"Delete {subject}{' and all messages' if with_messages else ''}?", is_yes=yes)
    if name is not None:
        _delete(admin, name, with_messages=with_messages)
        return
    for row in list(admin.list("/queues")):
        if not admin.get(queue_path(row["name"]))["settings"]["pinned"]:
            _delete(admin, row["name"], with_messages=with_messages, may_stay=True)


def _delete(admin: AdminClient, name: str, *, with_messages: bool, may_stay: bool = False) -> None:
    """Delete a queue, or raise CommandError; if it may stay, print why it was kept."""
    deleted = ""
    if with_messages:
        settled = admin.post(queue_path(name, "purge"), {"dispatched": True})["settled"]
        deleted = f"{format_message_count(settled)} in {name} deleted; "
    try:
        admin.call("DELETE", queue_path(name))
    except CommandError as error:
        if error.code != REFUSED or not (with_messages or may_stay):
            raise
        print_message(f"{deleted}kept the queue {name}: {error}")
    else:
        print_message(f"{deleted}deleted the queue {name}")


@queue.command()
@_name
@_side
@admin_client_options
def pause(admin: AdminClient, name: str, side: str) -> None:
    """Pause delivery or publishing until you resume it.

    A restart of the broker does not end the pause.
    """
    admin.post(queue_path(name, "pause"), {"side": side})
    print_message(f"{side} is paused for {name}")


@queue.command()
@_name
@_side
@admin_client_options
def resume(admin: AdminClient, name: str, side: str) -> None:
    """Resume delivery or publishing."""
    admin.post(queue_path(name, "resume"), {"side": side})
    print_message(f"{side} is resumed for {name}")


queue.add_command(tail)

_BUSIEST: Final = 30  # number of queues that ``queue top`` shows


@queue.command()
@flag("--once", "Print the table once and exit.")
@option(
    ("--every", "every_s"), "Time between updates.", click.FloatRange(0.2), 1.0, metavar="SECONDS"
)
@admin_client_options
def top(admin: AdminClient, once: bool, every_s: float) -> None:
    """Show the busiest queues, with live updates until Ctrl-C."""
    from rich.console import Console

    if once or not sys.stdout.isatty():
        Console(width=None if sys.stdout.isatty() else 120).print(_top_table(admin))
        return
    with suppress(KeyboardInterrupt):
        _show_live(admin, every_s)


def _show_live(admin: AdminClient, every_s: float) -> None:
    """Update the table until Ctrl-C; while no broker answers, say so below the last table."""
    from rich.live import Live

    table = _top_table(admin)
    with Live(table, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            try:
                table = _top_table(admin)
            except (BrokerUnavailableError, ConnectionEndedError) as error:
                table.caption = f"{error}; trying again"
            live.update(table, refresh=True)


def _top_table(admin: AdminClient) -> Any:
    stats = admin.get("/stats")
    rows = list(admin.list("/queues", _BUSIEST, sort="-in"))
    title = (
        f"{stats['ready']:,} ready · {stats.get('scheduled', 0):,} scheduled · "
        f"{stats['dispatched']:,} dispatched · {stats['dead']:,} dead · "
        f"in {stats['published_per_s']:,.0f}/s · out {stats['acked_per_s']:,.0f}/s"
    )
    return make_table(rows, QUEUE_COLUMNS, title)
