"""Detect whether a measurement of a process grows.

Memory follows the load, so only the minimum of each interval counts.  A single step, as when a
feature is used for the first time, is not a slope: most pairs of intervals must show growth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, quantiles
from typing import Final

WARM_UP_S: Final = 600.0  # publish keys are kept for this time, and caches fill
LEAST_S: Final = 600.0  # measured after the warm-up; less proves nothing
_INTERVALS: Final = 12

Sample = tuple[float, float]  # seconds, value


@dataclass(slots=True, frozen=True)
class Slope:
    """Growth in units per hour."""

    median: float  # of all pairs of intervals
    least: float  # the lower quartile
    hours: float  # measured


@dataclass(slots=True, frozen=True)
class Filling:
    """An intended growth: linear from the start until full."""

    name: str
    amount: float
    seconds: float

    def at(self, seconds: float) -> float:
        return self.amount * min(seconds / self.seconds, 1.0)


def slope_of(
    samples: Sequence[Sample], fillings: Sequence[Filling] = (), warm_up_s: float = WARM_UP_S
) -> Slope | None:
    """Return the slope of one run without the fillings, or None if it was too short."""
    if not samples or samples[-1][0] - samples[0][0] < warm_up_s + LEAST_S:
        return None
    began, ended = samples[0][0] + warm_up_s, samples[-1][0]
    width = (ended - began) / _INTERVALS
    lows: dict[int, float] = {}
    for at, value in samples:
        if at >= began:
            interval = min(int((at - began) / width), _INTERVALS - 1)
            rest = value - sum(one.at(at) for one in fillings)
            lows[interval] = min(rest, lows.get(interval, rest))
    if len(lows) < _INTERVALS // 2:
        return None
    slopes = [
        (second - first) / ((later - earlier) * width) * 3_600
        for (earlier, first), (later, second) in combinations(sorted(lows.items()), 2)
    ]
    return Slope(median(slopes), quantiles(slopes, n=4)[0], (ended - began) / 3_600)
