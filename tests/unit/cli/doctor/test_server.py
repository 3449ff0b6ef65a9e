"""Doctor checks of a PostgreSQL server."""

from dataclasses import replace
from typing import Any

import pytest

from phpmq_lite.cli.doctor import database
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.storage.backend import Replica
from phpmq_lite.storage.postgres.inspection import ServerFacts, ServerProbe
from phpmq_lite.storage.postgres.leadership import EpochRow

READY = Replica("n2", "", "streaming", True, 0, 0.0)
FACTS = ServerFacts(
    150_018, True, True, 0, 7, "ANY 1 (n2,n3)", "on", "on", "on", connections=12,
    max_connections=100,
)  # fmt: skip
GOOD = ServerProbe(
    "db1:5432/phpmq", FACTS, 3, "", 1, [READY, READY], schema=1,
    epoch=EpochRow(4, 9, "", 0.1, False, '{"host": "db2"}'),
)  # fmt: skip


def findings(is_allowed: bool = False, **changes: Any) -> dict[str, tuple[str, str]]:
    facts = {name: changes.pop(name) for name in FACTS._fields if name in changes}
    probe = replace(GOOD, facts=FACTS._replace(**facts), **changes)
    found = [
        *database.server_findings(probe),
        *database.replication_findings(probe, is_allowed=is_allowed),
        *database.database_findings(probe),
    ]
    return {one.check: (one.state, one.text) for one in found}


def test_good_server_has_no_problem() -> None:
    assert findings() == {
        "database server": (OK, "PostgreSQL 15.18 at db1:5432/phpmq, writable"),
        "connections": (OK, "12 of 100 in use"),
        "server clock": (OK, "+3 ms from this machine's"),
        "replication": (OK, "1 must confirm (ANY 1 (n2,n3)), 2 can"),
        "durability": (OK, "on: fsync, full_page_writes, synchronous_commit"),
        "schema": (OK, "version 1"),
        "active broker": (OK, "on db2, epoch 4, wrote 100 ms ago"),
    }


NO_QUORUM = {"quorum": "", "replicas_required": 0}


@pytest.mark.parametrize(
    ("changes", "check", "state", "words"),
    [
        ({"version": 120_004}, "database server", BAD, "older than 13"),
        ({"can_create": False}, "database server", BAD, "the role may not create tables"),
        ({"can_write": False}, "database server", BAD, "the role may not write the tables"),
        ({"pooler": "transaction"}, "pooler", BAD, "shares server processes"),
        ({"pooler": "session"}, "pooler", WARN, "a connection pooler is in between"),
        ({"clock_ms": -65_000}, "server clock", WARN, "-65,000 ms from this machine's"),
        ({"replicas": []}, "replication", BAD, "1 must confirm (ANY 1 (n2,n3)), 0 can"),
        ({"replicas": [READY]}, "replication", WARN, "1 can"),
        (NO_QUORUM, "replication", BAD, "names no quorum"),
        (NO_QUORUM | {"is_allowed": True}, "replication", WARN, "can lose confirmed"),
        ({"is_allowed": True}, "replication", WARN, "store.allow_asynchronous is set"),
        ({"fsync": "off"}, "durability", BAD, "not on: fsync;"),
        ({"synchronous_commit": "local"}, "durability", BAD, "not on: synchronous_commit;"),
        ({"max_connections": 21}, "connections", WARN, "12 of 21 in use"),
        ({"refusal": "schema version 9"}, "schema", BAD, "schema version 9"),
        ({"pending": 2}, "schema", OK, "pending migrations: 2"),
        ({"schema": 0, "epoch": None}, "schema", OK, "the database is empty"),
        ({"epoch": EpochRow(4, 9, "", 60.0, False, "{}")}, "active broker", WARN, "1 min ago"),
        ({"epoch": EpochRow(4, 9, "", 60.0, True, "{}")}, "active broker", OK, "none"),
    ],
)  # fmt: skip
def test_problem_is_found(changes: dict[str, Any], check: str, state: str, words: str) -> None:
    found_state, text = findings(**changes)[check]
    assert (found_state, words in text) == (state, True), text
