"""Checks of the contents of a database, which both engines share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Execute = Callable[[str], Any]  # returns a cursor

NAMED: Final = 10  # maximum number of examples listed per problem
# Each consistency rule: a statement, SQLite's first schema version it applies to, and a message.
_RULES: Final[tuple[tuple[str, int, str], ...]] = (
    ("inconsistent_queues", 1, "queues have wrong message counts"),
    ("missing_queues", 1, "messages belong to queues that do not exist"),
    ("duplicate_messages", 1, "messages exist twice"),
    ("unassigned_numbers", 2, "rows have a number that has not been assigned yet"),
    ("missing_offsets", 2, "history offsets are missing"),
    ("inconsistent_index", 9, "settled messages do not match their index"),
    ("inconsistent_totals", 2, "history totals differ from the history rows"),
    ("invalid_claims", 4, "claims refer to messages that are not dispatched"),
)


@dataclass(slots=True)
class DatabaseCheck:
    """One check and its result."""

    name: str
    found: str = ""  # description of the result
    problems: list[str] = field(default_factory=list)


def check_bodies(execute: Execute, sql: Mapping[str, str], check: DatabaseCheck) -> None:
    """Compare the length and the checksum of every body."""
    queues, alive, settled, bodies = execute(sql["counts"]).fetchone()
    check.found = (
        f"{bodies:,} bodies of {alive:,} live messages in {queues:,} queues "
        f"and {settled:,} settled messages"
    )
    bad = [seq for (seq,) in execute(sql["alive_bodies"])]
    rows = execute(sql["settled_bodies"]).fetchall()
    old = [seq for seq, is_known in rows if not is_known]
    for kind, seqs in (("live", bad), ("settled", old)):
        if seqs:
            text = f"{len(seqs):,} {kind} messages have a damaged body: {_list_seqs(seqs)}"
            check.problems.append(text)
    if len(rows) > len(old):
        check.found += f"; {len(rows) - len(old):,} more were dead-lettered as damaged (crc)"


def check_tables(
    execute: Execute, sql: Mapping[str, str], check: DatabaseCheck, version: int | None = None
) -> None:
    """Check that the tables agree; ``version`` is the schema version of an SQLite database."""
    rules = [rule for rule in _RULES if rule[0] in sql and (version is None or rule[1] <= version)]
    check.found = f"{len(rules)} rules"
    for name, _, text in rules:
        count = execute(sql[name]).fetchone()[0]
        if count:
            check.problems.append(f"{abs(count):,} {text}")


def _list_seqs(seqs: list[int]) -> str:
    more = ", …" if len(seqs) > NAMED else ""
    return "seq " + ", ".join(map(str, seqs[:NAMED])) + more
