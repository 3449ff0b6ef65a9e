"""``dead``: the records of dead letters, by queue and reason, and the way back."""

from typing import Final

import click

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.options import duration, talk
from phpmq_lite.cli.output import Column, output_option, write

SUFFIX: Final = ".dlq"

COLUMNS: Final = (
    Column("queue", "QUEUE"),
    Column("origin", "FROM"),
    Column("reason", "REASON"),
    Column("count", "COUNT", is_number=True),
)


@click.group()
def dead() -> None:
    """List dead letters, send them back to their queue."""


@dead.command()
@node_options
@output_option
def ls(node: Node, output: str | None) -> None:
    """List the dead letters by queue, origin and reason."""
    write(node.list("/api/v1/dead"), COLUMNS, output, "no dead letters")


@dead.command()
@click.argument("queue")
@click.option("--to", "target", metavar="QUEUE", help="Another queue than the one they died in.")
@click.option(
    "--ttl",
    "ttl_s",
    type=duration,
    metavar="DURATION",
    help="Their new time to live; without: none.",
)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many, oldest first.")
@node_options
def redrive(
    node: Node, queue: str, target: str | None, ttl_s: int | None, limit: int | None
) -> None:
    """Publish the dead letters of QUEUE again; QUEUE may be given with or without its .dlq."""
    path = f"/api/v1/dead/{encode_name(queue.removesuffix(SUFFIX) + SUFFIX)}/redrive"
    answer = node.post(path, {"target": target, "ttl_s": ttl_s, "limit": limit})
    talk(f"{answer['redriven']:,} messages published again")
