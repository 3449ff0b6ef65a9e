"""``pipeline app-ids`` and ``transfer``: to whom the keys of exactly-once writes belong."""

from typing import Final

import click

from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.options import talk
from phpmq_lite.cli.output import Column, output_option, write
from phpmq_lite.cli.pipeline.status import text_of

COLUMNS: Final = (
    Column("app_id", "APP ID"),
    Column("owner", "OWNER"),
    Column("version", "VERSION", is_number=True),
    Column("at", "PUBLISHED (UTC)"),
    Column("rows", "ROWS", is_number=True),
)


@click.command(name="app-ids")
@node_options
@output_option
def app_ids(node: Node, output: str | None) -> None:
    """List the keys of exactly-once writes (a stream's query id, or txnAppId) and their owners.

    One without an owner belongs to the next user who publishes under it.
    """
    rows = [{**row, "at": text_of(row["at_ms"])} for row in node.list("/pipeline/app-ids")]
    write(rows, COLUMNS, output, "nothing was published with a key")


@click.command()
@click.argument("app_id")
@click.option(
    "--to",
    "owner",
    metavar="USER",
    help="A user, or 'token NAME' for who made that token; without: the next who publishes.",
)
@node_options
def transfer(node: Node, app_id: str, owner: str | None) -> None:
    """Transfer APP_ID, the key of exactly-once writes, to another user.

    Only its owner can publish under it; needs an admin.
    """
    done = node.post("/pipeline/app-ids/transfer", {"app_id": app_id, "owner": owner})
    talk(f"{app_id} belongs to {done['owner'] or 'the next who publishes under it'}")
