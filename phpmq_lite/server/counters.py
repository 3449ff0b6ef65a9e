"""Counts of what happens around the core, kept by sessions and listeners, read by the admin."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.model import Batch
from phpmq_lite.server.inspector import Inspector


@dataclass(slots=True)
class ConnectionCounters:
    """Since the broker started; they never fall."""

    clients_opened: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    protocol_errors: Counter[str] = field(default_factory=Counter)  # by code of the grammar
    closed: Counter[str] = field(default_factory=Counter)  # by reason
    paused: Counter[str] = field(default_factory=Counter)  # times a peer was not read, by reason
    late: int = 0  # dispatches not sent, because their deadline passed while they were stored
    inspector: Inspector = field(default_factory=Inspector)


# Upper bounds of the histograms; each has one more bucket, for what lies above.
COMMIT_BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


class CommitCounters:
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
        self.last_rows = len(batch.created) + sum(map(len, batch.settled.values()))
        self.count += 1
        if batch.stores:
            self.seconds_counts[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
            self.seconds_sum += seconds
            messages = self.last_rows + len(batch.dispatched)
            self.batch_counts[bisect_left(BATCH_BOUNDS, messages)] += 1
            self.batch_sum += messages


OVER_S: Final = 10.0  # the last of them count most
_SILENCE: Final = 0.01  # below it nothing happens any more


class SmoothedRate:
    """A smoothed rate.  A sample costs nothing while nothing happens."""

    __slots__ = ("_count", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0  # at the last sample

    def sample(self, count: int, elapsed_s: float) -> None:
        """Say what the count is now, and how long ago the last sample was."""
        if not self.per_s and count == self._count:
            return
        now = (count - self._count) / elapsed_s
        self.per_s += min(1.0, elapsed_s / OVER_S) * (now - self.per_s)
        self._count = count
        if self.per_s < _SILENCE:
            self.per_s = 0.0
