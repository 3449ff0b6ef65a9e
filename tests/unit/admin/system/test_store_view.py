"""What pages say about a PostgreSQL database."""

from dataclasses import replace
from typing import Any

import pytest

from phpmq_lite.admin.system.attention import (
    AttentionFacts,
    find_notices,
    measure_replication,
    measure_store,
)
from phpmq_lite.admin.system.facts import server_facts
from phpmq_lite.checks import problems
from phpmq_lite.storage.backend import Replica, StoreStatus
from tests.unit.admin.cases import NOW_MS, broker_status, postgres_store

READY = Replica("n2", "10.0.0.2", "streaming", True, 0, 0.0)


ONE_LEFT = (
    "1 replica must confirm each commit, and only 1 can: if one more fails, nothing can be stored"
)


def server_with(**changes: Any) -> StoreStatus:
    store = postgres_store()
    assert store.server is not None
    return replace(store, server=replace(store.server, **changes))


def test_nothing_is_wrong_with_one_replica_more_than_required() -> None:
    assert list(problems(measure_store(postgres_store()))) == []
    assert list(problems(measure_store(postgres_store(READY, Replica("n3"))))) == []


@pytest.mark.parametrize(
    ("store", "level", "text"),
    [
        (postgres_store(READY), "warn", ONE_LEFT),
        (postgres_store(READY, replace(READY, is_counted=False)), "warn", ONE_LEFT),
        (
            postgres_store(replace(READY, state="catchup")),
            "bad",
            "No quorum: 1 replica must confirm each commit, and none can",
        ),
        (
            postgres_store(READY, READY, Replica("n4", "", "streaming", True, 5, 12.5)),
            "warn",
            "Replica n4 is 12.5 s behind",
        ),
        (
            postgres_store(asynchronous="no quorum", asynchronous_commits=1_200),
            "bad",
            "Messages are confirmed without a quorum: no quorum. A failover of the database can "
            "lose them (store.allow_asynchronous)",
        ),
        (
            postgres_store(problem="cannot connect"),
            "warn",
            "Its state cannot be read: cannot connect",
        ),
        (
            server_with(oldest_transaction="pg_dump, pid 7", oldest_transaction_s=720.0),
            "warn",
            "pg_dump, pid 7: open for 12 min; until it ends, VACUUM cannot remove old rows",
        ),
        (
            server_with(connections=95),
            "warn",
            "95 of 100 connections are in use; a broker may be unable to connect",
        ),
        (
            server_with(disk_free=1 << 30, disk_bytes=20 << 30),
            "bad",
            "1 GiB free on the server's disk; when it is full, nothing can be stored",
        ),
    ],
)
def test_problem_is_shown(store: StoreStatus, level: str, text: str) -> None:
    assert [row[1:] for row in problems(measure_store(store))] == [(level, text)]
    [notice] = find_notices(broker_status(store=store), AttentionFacts(NOW_MS))
    assert (notice.level, notice.text) == (level, text)


def test_state_that_was_not_read_yet_is_no_problem() -> None:
    store = postgres_store(server=None)
    assert list(measure_replication(store)) == []
    assert "active" in [fact.text for fact in server_facts(store)]


def test_facts_name_each_replica_and_say_what_the_role_may_not_see() -> None:
    store = postgres_store(READY, Replica("n3"))
    facts = {fact.name: (fact.text, fact.note) for fact in server_facts(store)}
    assert facts["Database"] == ("db1:5432,db2:5432/phpmq", "")
    assert facts["Role"] == ("active", "epoch 7")
    assert facts["Confirmed by"] == ("the primary and 1 replica", "ANY 1 (n2,n3)")
    assert facts["Replica n2"] == ("streaming", "0 B, 0.0 s behind")
    hidden = "lag unknown: grant pg_monitor to the broker's role"
    assert facts["Replica n3"] == ("connected", hidden)
