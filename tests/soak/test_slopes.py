"""Slopes of synthetic series, with and without a leak."""

import random
from collections.abc import Callable, Sequence

import pytest

from tests.soak.slopes import LEAST_S, WARM_UP_S, Filling, Slope, slope_of

HOUR_S = 3_600
BOUND = 1.0  # per hour
CHARTS = Filling("charts", 8.0, HOUR_S)


def slope(
    value_at: Callable[[float], float], seconds: int = HOUR_S, fillings: Sequence[Filling] = ()
) -> Slope:
    found = slope_of([(float(at), value_at(at)) for at in range(0, seconds, 5)], fillings)
    assert found is not None
    return found


def noise(dice: random.Random) -> float:
    """Return the momentary addition by load: mostly nothing, never negative."""
    return dice.choice((0.0, 0.0, 0.2, 1.5))


@pytest.mark.parametrize("per_hour", [2.0, 8.0, 100.0])
def test_leak_is_above_the_bound(per_hour: float) -> None:
    dice = random.Random(1)
    found = slope(lambda at: 90 + per_hour * at / HOUR_S + noise(dice))
    assert found.least > BOUND
    assert found.median == pytest.approx(per_hour, abs=0.5)


def test_one_descriptor_in_five_minutes_is_above_the_bound() -> None:
    assert slope(lambda at: 40 + at // 300).least > BOUND


@pytest.mark.parametrize(
    "value_at",
    [
        pytest.param(lambda _at: 90.0, id="constant"),
        pytest.param(lambda at: 90.0 + random.Random(at).random() * 5, id="varying load"),
        pytest.param(lambda at: 90.0 + 20 * (at > 2_000), id="one step"),
        pytest.param(lambda at: 60.0 + 40 * min(at / WARM_UP_S, 1), id="fills while warming up"),
        pytest.param(lambda at: 90.0 - at / 100, id="shrinks"),
    ],
)
def test_series_without_growth_is_not_above_the_bound(value_at: Callable[[float], float]) -> None:
    assert slope(value_at).least <= 0


@pytest.mark.parametrize(
    ("more_an_hour", "is_found"),
    [pytest.param(0.0, False, id="filling"), pytest.param(3.0, True, id="filling and leak")],
)
@pytest.mark.parametrize("hours", [1, 2, 4])
def test_intended_filling_is_not_a_leak(hours: int, more_an_hour: float, is_found: bool) -> None:
    dice = random.Random(1)

    def value_at(at: float) -> float:
        return 90 + 8.0 * min(at / HOUR_S, 1) + more_an_hour * at / HOUR_S + noise(dice)

    assert (slope(value_at, hours * HOUR_S, [CHARTS]).least > BOUND) == is_found
    if hours == 1:
        assert slope(value_at).least > BOUND


def test_short_run_has_no_slope() -> None:
    seconds = int(WARM_UP_S + LEAST_S)
    samples = [(float(at), float(at)) for at in range(0, seconds, 5)]
    assert slope_of(samples) is None
    assert slope_of([*samples, (float(seconds), 0.0)]) is not None
    assert slope_of([]) is None
