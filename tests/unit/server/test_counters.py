"""A smoothed rate from samples of a counter."""

import pytest

from phpmq_lite.server.counters import SmoothedRate


def test_rate_follows_the_samples_and_falls_to_zero() -> None:
    rate = SmoothedRate()
    rate.sample(0, 1.0)
    assert rate.per_s == 0.0
    for second in range(1, 61):
        rate.sample(second * 100, 1.0)
    assert rate.per_s == pytest.approx(100, rel=0.01)
    for _ in range(200):
        rate.sample(6_000, 1.0)
    assert rate.per_s == 0.0
