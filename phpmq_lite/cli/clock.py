"""The group ``clock``: changes of the clock, and the decision about a large jump."""

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.output import Column, confirm, output_option, write_rows, yes_option

COLUMNS = (
    Column("jumps", "JUMPS", is_number=True),
    Column("last_jump_ms", "LAST (ms)", is_number=True),
    Column("doubt_ms", "IN DOUBT (ms)", is_number=True),
    Column("would_expire", "WOULD EXPIRE", is_number=True),
)


@click.group()
def clock() -> None:
    """Show clock changes; decide what a doubtful one means."""


@clock.command()
@admin_client_options
@output_option
def show(admin: AdminClient, output: str | None) -> None:
    """Show jumps of the clock, and whether one needs a decision."""
    write_rows([admin.get("/clock")], COLUMNS, output, "")


@clock.command()
@click.argument("decision", type=click.Choice(["expire", "keep"]))
@click.option("--reason", default="", help="Reason, for the audit.")
@yes_option
@admin_client_options
@output_option
def decide(admin: AdminClient, decision: str, reason: str, yes: bool, output: str | None) -> None:
    """Decide what a jump of the clock means.

    expire: the time really passed, so messages expire. keep: the clock was set, so they do not.
    """
    if decision == "expire":
        count = admin.get("/clock")["would_expire"] or 0
        confirm(f"Expire {count} messages?", is_yes=yes)
    write_rows(
        [admin.post("/clock", {"decision": decision, "reason": reason})], COLUMNS, output, ""
    )
