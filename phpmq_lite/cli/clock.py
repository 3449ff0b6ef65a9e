"""The group ``clock``: whether it was set, and the decision where it was far ahead at a start."""

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.output import Column, confirm, output_option, write_rows

COLUMNS = (
    Column("jumps", "JUMPS", is_number=True),
    Column("last_jump_ms", "LAST (ms)", is_number=True),
    Column("doubt_ms", "IN DOUBT (ms)", is_number=True),
    Column("would_expire", "WOULD EXPIRE", is_number=True),
)


@click.group()
def clock() -> None:
    """Show whether the clock was set; decide what counts then."""


@clock.command()
@admin_client_options
@output_option
def show(node: AdminClient, output: str | None) -> None:
    """Show how often the clock was set, and whether there is something to decide."""
    write_rows([node.get("/clock")], COLUMNS, output, "")


@clock.command()
@click.argument("decision", type=click.Choice(["expire", "keep"]))
@click.option("--reason", default="", help="For the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_client_options
@output_option
def decide(node: AdminClient, decision: str, reason: str, yes: bool, output: str | None) -> None:
    """Decide: expire (the clock is right, the time away counts) or keep (it was set)."""
    if decision == "expire":
        count = node.get("/clock")["would_expire"] or 0
        confirm(f"Expire {count} messages?", is_yes=yes)
    write_rows([node.post("/clock", {"decision": decision, "reason": reason})], COLUMNS, output, "")
