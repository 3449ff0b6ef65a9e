"""``token``: API tokens for programs.  A new one is printed on standard output, this once."""

import time
from math import ceil
from typing import Final

import click

from phpmq_lite.admin.base.urls import encode_name
from phpmq_lite.cli.accounts import write_accounts
from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.options import confirm, duration, talk
from phpmq_lite.cli.output import Column, output_option
from phpmq_lite.cli.user import ROLES

COLUMNS: Final = (
    Column("name", "NAME"),
    Column("role", "ROLE"),
    Column("queues", "QUEUES"),
    Column("created_by", "MADE BY"),
    Column("expires_at", "EXPIRES (UTC)"),
    Column("last_used_at", "LAST USED (UTC)"),
)


@click.group()
def token() -> None:
    """List, add and revoke API tokens."""


@token.command()
@node_options
@output_option
def ls(node: Node, output: str | None) -> None:
    """List the tokens, without their secrets."""
    write_accounts(node.list("/tokens"), COLUMNS, output, "no tokens")


@token.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(("metrics", *ROLES)),
    default="viewer",
    show_default=True,
    help="What it may; metrics: read /metrics only.",
)
@click.option("--queues", multiple=True, metavar="GLOB", help="Only these queues. Repeatable.")
@click.option("--expires", type=duration, metavar="DURATION", help="As 90d; without: never.")
@node_options
def add(node: Node, name: str, role: str, queues: tuple[str, ...], expires: int | None) -> None:
    """Make a token and print it; only its hash is stored."""
    expires_at = None if expires is None else ceil((time.time() + expires) * 1_000)
    asked = {"name": name, "role": role, "queues": list(queues), "expires_at": expires_at}
    made = node.post("/tokens", asked)
    talk(f"{name} is {role}; send it as: Authorization: Bearer TOKEN")
    click.echo(made["token"])


@token.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@node_options
def rm(node: Node, name: str, yes: bool) -> None:
    """Revoke a token; the next call with it is refused."""
    confirm(f"Revoke the token {name}?", is_yes=yes)
    node.call("DELETE", f"/tokens/{encode_name(name)}", {})
    talk(f"{name} is revoked")
