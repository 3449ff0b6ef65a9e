"""``queues``, ``purge`` and the group ``queue``: what is in the queues, and whether it flows."""

from typing import Final

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.options import confirm, talk
from phpmq_lite.cli.output import Column, output_option, write

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

_side = click.option(
    "--side",
    type=click.Choice(["delivery", "publishing"]),
    default="delivery",
    show_default=True,
    help="What is paused: delivery to consumers, or publishing.",
)


@click.command()
@node_options
@output_option
def queues(node: Node, output: str | None) -> None:
    """List the queues."""
    write(node.list("/api/v1/queues"), COLUMNS, output, "no queues yet")


@click.command()
@click.argument("queue")
@click.option("--dispatched", is_flag=True, help="Also what consumers hold.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@node_options
def purge(node: Node, queue: str, dispatched: bool, yes: bool) -> None:
    """Delete the messages of a queue.

    They stay in the history as deleted, for its retention time.
    """
    kind = "ready and dispatched" if dispatched else "ready"
    confirm(f"Delete all {kind} messages of {queue}?", is_yes=yes)
    answer = node.post(f"/api/v1/queues/{encode_name(queue)}/purge", {"dispatched": dispatched})
    talk(f"{answer['settled']:,} messages deleted")


@click.group()
def queue() -> None:
    """List, purge, pause and resume queues."""


@queue.command()
@click.argument("name", metavar="QUEUE")
@_side
@node_options
def pause(node: Node, name: str, side: str) -> None:
    """Stop delivery or publishing of a queue; it stays so over a restart."""
    node.post(f"/api/v1/queues/{encode_name(name)}/pause", {"side": side})
    talk(f"{side} of {name} is paused")


@queue.command()
@click.argument("name", metavar="QUEUE")
@_side
@node_options
def resume(node: Node, name: str, side: str) -> None:
    """Let delivery or publishing of a queue go on."""
    node.post(f"/api/v1/queues/{encode_name(name)}/resume", {"side": side})
    talk(f"{side} of {name} goes on")


queue.add_command(queues, "ls")
queue.add_command(purge, "purge")
