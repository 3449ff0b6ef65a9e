"""Commits as the engine counts them: how many, how long they took, how much was in them."""

from bisect import bisect_left
from typing import Final

from phpmq_lite.model import Batch

# Upper bounds of the histograms; each has one more bucket, for what lies above.
COMMIT_BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


class Commits:
    """Since the start.  A batch that only loads is counted, but is in no histogram."""

    __slots__ = ("batch_counts", "batch_sum", "count", "last_ms", "last_rows", "seconds_counts",
                 "seconds_sum")  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0.0
        self.last_rows = 0  # messages born or settled in the last one
        self.seconds_counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.seconds_sum = 0.0
        self.batch_counts = [0] * (len(BATCH_BOUNDS) + 1)
        self.batch_sum = 0  # messages born, dispatched or settled

    def note(self, batch: Batch, seconds: float) -> None:
        """Count one that was stored."""
        self.last_ms = seconds * 1_000
        self.last_rows = len(batch.born) + sum(map(len, batch.settled.values()))
        self.count += 1
        if batch.stores:
            self.seconds_counts[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
            self.seconds_sum += seconds
            messages = self.last_rows + len(batch.dispatched)
            self.batch_counts[bisect_left(BATCH_BOUNDS, messages)] += 1
            self.batch_sum += messages
