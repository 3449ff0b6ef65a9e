"""``scrub``: have a running broker look at every body and at the structure of its database."""

import time
from typing import Any, Final

import click

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.node import Node, node_options
from phpmq_lite.cli.output import Column, output_option, write
from phpmq_lite.cli.verify import DAMAGED

_ASK_EACH_S: Final = 0.5
_COLUMNS: Final = (
    Column("bodies", "BODIES", is_number=True),
    Column("bytes", "BYTES", is_number=True),
    Column("bad_alive", "BAD, ALIVE", is_number=True),
    Column("bad_settled", "BAD, SETTLED", is_number=True),
    Column("structure", "FAULTS OF THE STRUCTURE", is_number=True),
)


@click.command()
@click.option("--status", "is_status", is_flag=True, help="Only tell what the last one found.")
@click.option("--stop", "is_stop", is_flag=True, help="Give up the one under way.")
@node_options
@output_option
def scrub(node: Node, is_status: bool, is_stop: bool, output: str | None) -> None:
    """Have a running broker look at every body and at its database's structure.

    Waits for the end, and prints what was found. A damaged message that is ready is settled as
    dead, reason crc; nothing is deleted.
    Exit codes: 0 all is well, 65 something is damaged.
    """
    if is_stop:
        node.call("DELETE", "/scrub", {})
        return
    told = node.get("/scrub") if is_status else _done(node)
    last = told["last"] or {}
    row = {
        **{name: last.get(name, 0) for name in ("bodies", "bytes", "bad_alive", "bad_settled")},
        "structure": len(told["structure"]),
        "seqs": last.get("seqs", []),
        "faults": told["structure"],
    }
    write([row], _COLUMNS, output, "")
    if row["bad_alive"] or row["bad_settled"] or row["structure"]:
        raise CommandError("the database is damaged", DAMAGED)


def _done(node: Node) -> dict[str, Any]:
    """Begin one, and wait for its end."""
    told: dict[str, Any] = node.post("/scrub")
    before = told["last"]
    while told["is_running"] or told["last"] == before:
        time.sleep(_ASK_EACH_S)
        told = node.get("/scrub")
        if not told["is_running"] and told["now"] is None and told["last"] == before:
            raise CommandError("the scrub was given up; the log says why")
    return told
