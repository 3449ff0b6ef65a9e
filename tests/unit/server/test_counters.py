"""A rate from samples of a count."""

import pytest

from phpmq_lite.server.counters import SmoothedRate


def test_pace_comes_to_the_rate_and_falls_to_nothing() -> None:
    pace = SmoothedRate()
    for second in range(1, 61):
        pace.sample(second * 100, 1.0)
    assert pace.per_s == pytest.approx(100, rel=0.01)
    for _ in range(200):
        pace.sample(6_000, 1.0)
    assert pace.per_s == 0.0


def test_pace_of_what_never_happened_is_nothing() -> None:
    pace = SmoothedRate()
    pace.sample(0, 1.0)
    assert pace.per_s == 0.0
