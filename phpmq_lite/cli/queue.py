"""The group ``queue`` and its short forms: what is in the queues, and whether it flows."""

from typing import Any, Final

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.main import REFUSED, CommandError
from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.options import confirm, message_count, talk
from phpmq_lite.cli.output import Column, output_option, write, write_one
from phpmq_lite.queue_settings import DEFINITIONS

COLUMNS: Final = (
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


def path_of(name: str, action: str = "") -> str:
    """Give the path of a queue in the API, and of an action on it."""
    return f"/queues/{encode_name(name)}" + (f"/{action}" if action else "")


@click.group()
def queue() -> None:
    """List, show, set, purge, pause and remove queues."""


@click.command()
@click.argument("pattern", default="", metavar="[GLOB]")
@node_options
@output_option
def queues(node: Node, pattern: str, output: str | None) -> None:
    """List the queues, or those that match GLOB."""
    empty = f"no queue matches {pattern!r}" if pattern else "no queues yet"
    write(node.list("/queues", q=pattern or None), COLUMNS, output, empty)


@click.command()
@_name
@node_options
@output_option
def show(node: Node, name: str, output: str | None) -> None:
    """Show one queue: its figures and its settings."""
    write_one(node.get(path_of(name)), output)


@queue.command()
@_name
@node_options
def create(node: Node, name: str) -> None:
    """Make a queue; publishing to it makes it too."""
    node.call("PUT", path_of(name), {})
    talk(f"{name} is there")


@queue.command(name="set")
@_name
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@node_options
def set_(node: Node, name: str, settings: tuple[str, ...]) -> None:
    """Change settings of a queue; NAME= alone goes back to the default."""
    changes: dict[str, Any] = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign:
            raise click.UsageError(f"{text!r} is no NAME=VALUE")
        changes[key] = _value(key, value)
    write_one(node.call("PATCH", path_of(name), changes), None)


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
@node_options
def purge(node: Node, name: str, dispatched: bool, limit: int | None, yes: bool) -> None:
    """Delete the messages of a queue.

    They stay in the history as deleted, for its retention time.
    """
    kind = "ready and dispatched" if dispatched else "ready"
    what = f"all {kind}" if limit is None else f"the {limit:,} oldest {kind}"
    confirm(f"Delete {what} messages of {name}?", is_yes=yes)
    asked = {"dispatched": dispatched} | ({"limit": limit} if limit else {})
    talk(f"{message_count(node.post(path_of(name, 'purge'), asked)['settled'])} deleted")


@queue.command()
@_name
@_yes
@node_options
def rm(node: Node, name: str, yes: bool) -> None:
    """Remove a queue that is empty, not pinned, and has no consumers."""
    confirm(f"Remove {name}?", is_yes=yes)
    node.call("DELETE", path_of(name))
    talk(f"{name} is removed")


@queue.command()
@_name
@_side
@node_options
def pause(node: Node, name: str, side: str) -> None:
    """Stop delivery or publishing of a queue; it stays so over a restart."""
    node.post(path_of(name, "pause"), {"side": side})
    talk(f"{side} of {name} is paused")


@queue.command()
@_name
@_side
@node_options
def resume(node: Node, name: str, side: str) -> None:
    """Let delivery or publishing of a queue go on."""
    node.post(path_of(name, "resume"), {"side": side})
    talk(f"{side} of {name} goes on")


@click.command()
@_name
@_yes
@node_options
def flush(node: Node, name: str, yes: bool) -> None:
    """Delete all messages of a queue, held ones too, and the queue unless it is pinned."""
    confirm(f"Delete all messages of {name}, and the queue?", is_yes=yes)
    _flush(node, name)


@click.command()
@_yes
@node_options
def flushall(node: Node, yes: bool) -> None:
    """Do as flush does, with every queue that is not pinned."""
    confirm("Delete all messages of all queues that are not pinned?", is_yes=yes)
    for row in list(node.list("/queues")):
        if not node.get(path_of(row["name"]))["settings"]["pinned"]:
            _flush(node, row["name"])


def _flush(node: Node, name: str) -> None:
    settled = node.post(path_of(name, "purge"), {"dispatched": True})["settled"]
    try:
        node.call("DELETE", path_of(name))
    except CommandError as error:
        if error.code != REFUSED:
            raise
        talk(f"{message_count(settled)} of {name} deleted; the queue stays: {error}")
        return
    talk(f"{message_count(settled)} of {name} deleted, and the queue")


queue.add_command(queues, "ls")
queue.add_command(show)
queue.add_command(purge)
