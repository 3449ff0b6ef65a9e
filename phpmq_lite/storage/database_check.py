"""Checks of the contents of a database, which both engines share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Execute = Callable[[str], Any]  # returns a cursor

NAMED: Final = 10  # maximum number of examples listed per problem
_RULES: Final = {  # statement that counts violations -> what the problem says
    "inconsistent_queues": "queues have wrong message counts",
    "inconsistent_scheduled": "queues have wrong counts of scheduled messages",
    "duplicate_keys": "messages have the unique key of another one",
    "duplicate_heads": "groups have more than one message in flight",
    "missing_queues": "messages belong to queues that do not exist",
    "duplicate_messages": "messages exist twice",
    "unassigned_numbers": "rows have a number that has not been assigned yet",
    "missing_offsets": "history offsets are missing",
    "inconsistent_index": "settled messages do not match their index",  # an index of SQLite only
    "inconsistent_totals": "history totals differ from the history rows",
    "invalid_claims": "claims refer to messages that are not dispatched",
}
_SINCE: Final = dict.fromkeys(  # version of the schema that has the columns of a rule
    ("inconsistent_scheduled", "duplicate_keys", "duplicate_heads"), 2
)


@dataclass(slots=True)
class DatabaseCheck:
    """One check and its result."""

    name: str
    result: str = ""  # description of the result
    problems: list[str] = field(default_factory=list)


Look = Callable[[Execute, Mapping[str, str], DatabaseCheck], None]


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


def check_tables(
    execute: Execute, sql: Mapping[str, str], check: DatabaseCheck, version: int
) -> None:
    rules = {
        name: _RULES[name] for name in _RULES if name in sql and _SINCE.get(name, 0) <= version
    }
    check.result = f"{len(rules)} rules"
    for name, text in rules.items():
        count = execute(sql[name]).fetchone()[0]
        if count:
            check.problems.append(f"{abs(count):,} {text}")
