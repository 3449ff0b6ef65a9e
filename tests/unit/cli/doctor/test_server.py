"""Doctor checks of a PostgreSQL server."""

from dataclasses import replace
from typing import Any

import pytest

from phpmq_lite.cli.doctor import server
from phpmq_lite.cli.doctor.findings import BAD, OK, WARN
from phpmq_lite.storage.postgres.leadership import EpochRow
from phpmq_lite.storage.postgres.probe import ServerProbe
from phpmq_lite.storage.store_status import Replica
from tests.unit.admin.cases import postgres_store

READY = Replica("n2", "", "streaming", True, 0, 0.0)
SETTINGS = {
    "synchronous_standby_names": "ANY 1 (n2,n3)",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
}
GOOD = ServerProbe(
    "db1:5432/phpmq", 150_018, "", 3, can_create=True, can_write=True, defaults=SETTINGS,
    is_synchronous=True, replicas_required=1, server=postgres_store().server,
    replicas=[READY, READY], schema=1, active_broker="db2",
    epoch=EpochRow(4, 9, "", 0.1, False, "{}"),
)  # fmt: skip


def findings(allows_asynchronous: bool = False, **changes: Any) -> dict[str, tuple[str, str]]:
    probe = replace(GOOD, **changes)
    found = [
        *server.server_findings(probe),
        *server.replication_findings(probe, allows_asynchronous=allows_asynchronous),
        server.schema_finding(probe),
        server.active_finding(probe),
    ]
    return {one.check: (one.state, one.found) for one in found}


def test_good_server_has_no_problem() -> None:
    assert findings() == {
        "database server": (OK, "PostgreSQL 15.18 at db1:5432/phpmq, writable"),
        "connections": (OK, "12 of 100 in use"),
        "server clock": (OK, "+3 ms from this machine's"),
        "replication": (OK, "1 must confirm (ANY 1 (n2,n3)), 2 can"),
        "durability": (OK, "fsync, full_page_writes and synchronous_commit are on"),
        "schema": (OK, "version 1, 9 MiB"),
        "active broker": (OK, "on db2, epoch 4, wrote 0.1 s ago"),
    }


NO_QUORUM = {"defaults": SETTINGS | {"synchronous_standby_names": ""}, "replicas_required": 0}


@pytest.mark.parametrize(
    ("changes", "check", "state", "words"),
    [
        ({"version": 120_004}, "database server", BAD, "older than 13"),
        ({"can_create": False}, "database server", BAD, "the role may not create tables"),
        ({"can_write": False}, "database server", BAD, "the role may not write the tables"),
        ({"pooler": "transaction"}, "pooler", BAD, "shares server processes"),
        ({"pooler": "session"}, "pooler", WARN, "a connection pooler is in between"),
        ({"clock_ms": -65_000}, "server clock", WARN, "1 min 5 s behind this machine's"),
        ({"replicas": []}, "replication", BAD, "1 must confirm (ANY 1 (n2,n3)), 0 can"),
        ({"replicas": [READY]}, "replication", WARN, "and only 1 can"),
        (NO_QUORUM, "replication", BAD, "names no quorum"),
        (NO_QUORUM | {"allows_asynchronous": True}, "replication", WARN, "can lose confirmed"),
        ({"allows_asynchronous": True}, "replication", WARN, "store.allow_asynchronous is set"),
        ({"defaults": SETTINGS | {"fsync": "off"}}, "durability", BAD, "fsync is off"),
        ({"is_synchronous": False}, "durability", BAD, "cannot be switched on"),
        ({"defaults": SETTINGS | {"synchronous_commit": "local"}}, "durability", OK,
         "synchronous_commit is local by default; the broker's sessions use on"),
        ({"refusal": "schema version 9"}, "schema", BAD, "schema version 9"),
        ({"pending": 2}, "schema", OK, "2 migrations are pending"),
        ({"schema": 0, "epoch": None}, "schema", OK, "the database is empty"),
        ({"epoch": EpochRow(4, 9, "", 60.0, False, "{}")}, "active broker", WARN, "60.0 s ago"),
        ({"epoch": EpochRow(4, 9, "", 60.0, True, "{}")}, "active broker", OK, "has stopped"),
    ],
)  # fmt: skip
def test_problem_is_found(changes: dict[str, Any], check: str, state: str, words: str) -> None:
    found_state, text = findings(**changes)[check]
    assert (found_state, words in text) == (state, True), text
