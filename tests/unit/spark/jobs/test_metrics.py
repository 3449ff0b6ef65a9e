"""Retries of a message compared with their definition; ``tests/spark`` uses Spark."""

import random
import sys
from typing import Any

import pytest

from phpmq_lite.spark.jobs.metrics import RetryEvent, retried_offsets


def by_definition(events: list[RetryEvent]) -> set[int]:
    again = [event for event in events if event.offset is None]
    return {
        row.offset
        for row in events
        if row.offset is not None
        and any(
            one.seq > row.seq
            and one.attempts > row.attempts
            and row.since <= one.since <= row.until
            for one in again
        )
    }


@pytest.mark.parametrize("seed", range(200))
def test_retries_equal_the_definition_with_any_timestamps(seed: int) -> None:
    dice = random.Random(seed)
    events = []
    for seq in range(dice.randint(0, 40)):
        published = dice.randint(0, 30)
        attempts = dice.randint(0, 5)
        if attempts:
            events.append(RetryEvent("m", seq, attempts, None, published, published))
        if dice.random() < 0.8:
            first = dice.randint(0, 30)
            events.append(RetryEvent("m", seq, attempts, seq, first, first + dice.randint(-2, 12)))
    dice.shuffle(events)
    events.sort(key=lambda event: -event.seq)
    found = retried_offsets(events)
    assert len(found) == len(set(found))
    assert set(found) == by_definition(events)


def test_work_is_linear_in_the_attempts_of_a_message() -> None:
    def steps(attempts: int) -> int:
        events = []
        for n in reversed(range(attempts)):
            events.append(RetryEvent("m", n, n, n, 10 * n + 1, 10 * n + 11))
            if n:
                events.append(RetryEvent("m", n, n, None, 10 * n, 10 * n))
        lines = 0

        def count(*_: Any) -> Any:
            nonlocal lines
            lines += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            found = retried_offsets(events)
        finally:
            sys.settrace(before)
        assert len(found) == attempts - 1
        return lines

    assert steps(1_000) < 2.5 * steps(500)
