"""Checks of the contents of a database, which both engines share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Execute = Callable[[str], Any]  # returns a cursor

NAMED: Final = 10  # maximum number of examples listed per problem
_RULES: Final = {  # statement that counts violations -> what the problem says
    "inconsistent_queues": "queues have wrong message counts",
    "missing_queues": "messages belong to queues that do not exist",
    "duplicate_messages": "messages exist twice",
    "unassigned_numbers": "rows have a number that has not been assigned yet",
    "missing_offsets": "history offsets are missing",
    "inconsistent_index": "settled messages do not match their index",  # an index of SQLite only
    "inconsistent_totals": "history totals differ from the history rows",
    "invalid_claims": "claims refer to messages that are not dispatched",
}


@dataclass(slots=True)
class DatabaseCheck:
    """One check and its result."""

    name: str
    result: str = ""  # description of the result
    problems: list[str] = field(default_factory=list)


def check_bodies(execute: Execute, sql: Mapping[str, str], check: DatabaseCheck) -> None:
    """Compare the length and the checksum of every body."""
    queues, alive, settled, bodies = execute(sql["counts"]).fetchone()
    check.result = (
        f"{bodies:,} bodies of {alive:,} live messages in {queues:,} queues "
        f"and {settled:,} settled messages"
    )
    bad = [seq for (seq,) in execute(sql["alive_bodies"])]
    rows = execute(sql["settled_bodies"]).fetchall()
    old = [seq for seq, is_known in rows if not is_known]
    for kind, seqs in (("live", bad), ("settled", old)):
        if seqs:
            named = ", ".join(map(str, seqs[:NAMED])) + ", …" * (len(seqs) > NAMED)
            text = f"{len(seqs):,} {kind} messages have a damaged body: seq {named}"
            check.problems.append(text)
    if len(rows) > len(old):
        check.result += f"; {len(rows) - len(old):,} more were dead-lettered as damaged (crc)"


def check_tables(execute: Execute, sql: Mapping[str, str], check: DatabaseCheck) -> None:
    rules = {name: text for name, text in _RULES.items() if name in sql}
    check.result = f"{len(rules)} rules"
    for name, text in rules.items():
        count = execute(sql[name]).fetchone()[0]
        if count:
            check.problems.append(f"{abs(count):,} {text}")
