"""Idempotency claims, in memory, with a clock set by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from babelqueue.idempotency import wrap

from phpmq_lite.envelopes.idempotency import (
    IdempotencyDecision,
    IdempotencyStore,
    SqliteIdempotencyStore,
    idempotency_key,
)

RUN, IN_FLIGHT = IdempotencyDecision.RUN, IdempotencyDecision.IN_FLIGHT
DONE = IdempotencyDecision.DONE


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claims(clock: Clock) -> Iterator[SqliteIdempotencyStore]:
    made = SqliteIdempotencyStore(":memory:", lease_s=300, keep_s=3_600, now_ms=clock)
    yield made
    made.close()


def other_of(claims: SqliteIdempotencyStore, clock: Clock) -> SqliteIdempotencyStore:
    """Return the store of another process that uses the same file."""
    other = SqliteIdempotencyStore(":memory:", lease_s=300, keep_s=3_600, now_ms=clock)
    claims.seen("")  # opens the file
    other._connection = claims._connection
    return other


def test_first_claim_runs_and_the_next_is_in_flight(claims: SqliteIdempotencyStore) -> None:
    assert [claims.claim("a"), claims.claim("a"), claims.claim("b")] == [RUN, IN_FLIGHT, RUN]


def test_remembered_key_expires(claims: SqliteIdempotencyStore, clock: Clock) -> None:
    claims.claim("a")
    claims.remember("a")
    clock.ms += 3_600_000 - 1
    assert claims.claim("a") is DONE
    clock.ms += 1
    assert claims.claim("a") is RUN


def test_failure_lets_the_next_delivery_run(claims: SqliteIdempotencyStore) -> None:
    claims.claim("a")
    claims.forget("a")
    assert claims.claim("a") is RUN


@pytest.mark.parametrize(("later_ms", "answer"), [(299_999, IN_FLIGHT), (300_000, RUN)])
def test_claim_of_a_dead_process_ends_with_its_lease(
    claims: SqliteIdempotencyStore, clock: Clock, later_ms: int, answer: IdempotencyDecision
) -> None:
    claims.claim("a")
    clock.ms += later_ms
    assert other_of(claims, clock).claim("a") is answer


def test_late_failure_does_not_end_the_claim_of_another_but_a_late_success_counts(
    claims: SqliteIdempotencyStore, clock: Clock
) -> None:
    claims.claim("a")
    clock.ms += 300_000
    other = other_of(claims, clock)
    assert other.claim("a") is RUN
    claims.forget("a")
    assert claims.claim("a") is IN_FLIGHT
    claims.remember("a")
    other.forget("a")
    assert claims.claim("a") is DONE


def test_forgetting_a_done_key_changes_nothing(claims: SqliteIdempotencyStore) -> None:
    claims.claim("a")
    claims.remember("a")
    claims.forget("a")
    assert claims.claim("a") is DONE


def test_purge_removes_expired_claims(claims: SqliteIdempotencyStore, clock: Clock) -> None:
    for number in range(1_100):
        claims.claim(str(number))
    clock.ms += 300_000
    claims.claim("kept")
    assert (claims.purge(), claims.purge()) == (1_100, 0)
    assert claims.claim("kept") is IN_FLIGHT


def test_store_purges_itself_now_and_then(claims: SqliteIdempotencyStore, clock: Clock) -> None:
    for number in range(999):
        claims.claim(str(number))
    clock.ms += 300_000
    claims.claim("the thousandth")
    assert claims.purge() == 0


def test_store_is_the_sdks_and_ours(claims: SqliteIdempotencyStore) -> None:
    assert isinstance(claims, IdempotencyStore)
    runs: list[Any] = []
    handler = wrap(claims, lambda data, meta: runs.append(data))
    for _ in range(3):
        handler({"n": 1}, {"id": "a"})
    assert runs == [{"n": 1}]
    assert (claims.seen("a"), claims.seen("b")) == (True, False)


@pytest.mark.parametrize(
    ("envelope", "by_id", "by_trace"),
    [
        ({"meta": {"id": "m"}, "trace_id": "t"}, "m", "t"),
        ({"meta": {}}, None, None),
        ({"meta": {"id": ""}, "trace_id": ""}, None, None),
        ({"meta": None, "trace_id": 1}, None, None),
        ({"meta": {"id": 7}}, None, None),
    ],
)
def test_idempotency_key(envelope: dict[str, Any], by_id: str | None, by_trace: str | None) -> None:
    assert idempotency_key(envelope) == by_id
    assert idempotency_key(envelope, "trace_id") == by_trace
