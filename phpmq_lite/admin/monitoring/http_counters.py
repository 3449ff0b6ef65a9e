"""Counts and durations of HTTP requests by route."""

from bisect import bisect_left
from collections import Counter
from typing import Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


class DurationHistogram:
    """A histogram of durations: a count per bound, and one above the last."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class HttpCounters:
    """Counters of HTTP requests since the broker started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # route, method, status
        self.seconds: dict[str, DurationHistogram] = {}  # by route

    def add(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """Count a response; ``seconds`` is None for a stream."""
        self.requests[route, method if method in _METHODS else "other", status] += 1
        if seconds is not None:
            if route not in self.seconds:
                self.seconds[route] = DurationHistogram()
            self.seconds[route].add(seconds)
