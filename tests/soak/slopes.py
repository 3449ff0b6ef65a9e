"""Whether something grows: what is measured of a process, for as long as it lives.  Pure.

Memory goes up and down with the load, so the lowest of each stretch counts; and one step, as when
something is done for the first time, is no slope.  It grows where most pairs of stretches say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, quantiles
from typing import Final

WARM_UP_S: Final = 600.0  # keys of publishes are kept for as long, caches fill
LEAST_S: Final = 600.0  # behind it; with less nothing can be said
_STRETCHES: Final = 12

Sample = tuple[float, float]  # seconds, value


@dataclass(slots=True, frozen=True)
class Slope:
    """How fast something grows, each in its unit per hour."""

    usual: float  # the median of all pairs of stretches
    least: float  # three quarters of the pairs say that it is more
    hours: float  # that were looked at


@dataclass(slots=True, frozen=True)
class Filling:
    """What grows evenly from the start on until it is full, because it is meant to."""

    name: str
    amount: float
    seconds: float

    def at(self, seconds: float) -> float:
        """Give how much of it is there."""
        return self.amount * min(seconds / self.seconds, 1.0)


def slope_of(
    samples: Sequence[Sample], fillings: Sequence[Filling] = (), warm_up_s: float = WARM_UP_S
) -> Slope | None:
    """Give the slope of one life of a process, beside what fills; None: it was too short."""
    if not samples or samples[-1][0] - samples[0][0] < warm_up_s + LEAST_S:
        return None
    began, ended = samples[0][0] + warm_up_s, samples[-1][0]
    width = (ended - began) / _STRETCHES
    lows: dict[int, float] = {}
    for at, value in samples:
        if at >= began:
            stretch = min(int((at - began) / width), _STRETCHES - 1)
            rest = value - sum(one.at(at) for one in fillings)
            lows[stretch] = min(rest, lows.get(stretch, rest))
    if len(lows) < _STRETCHES // 2:
        return None
    slopes = [
        (second - first) / ((later - earlier) * width) * 3_600
        for (earlier, first), (later, second) in combinations(sorted(lows.items()), 2)
    ]
    return Slope(median(slopes), quantiles(slopes, n=4)[0], (ended - began) / 3_600)
