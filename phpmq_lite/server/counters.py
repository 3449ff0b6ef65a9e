"""Connection counters, commit counters and smoothed rates for the admin interface."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.model import Batch
from phpmq_lite.server.frame_recorder import Inspector


@dataclass(slots=True)
class RelayCounters:
    """Connections relayed to or from another broker; all but ``open`` never decrease."""

    open: int = 0
    opened: int = 0
    bytes_in: int = 0  # from clients; like bytes_out, counted by the standby only
    bytes_out: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # number of connections by reason


@dataclass(slots=True)
class ConnectionCounters:
    """Connection counters since broker startup; they never decrease."""

    clients_opened: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    protocol_errors: Counter[str] = field(default_factory=Counter)  # number of errors by code
    closed: Counter[str] = field(default_factory=Counter)  # number of closed connections by reason
    paused: Counter[str] = field(default_factory=Counter)  # number of read pauses by reason
    late: int = 0  # number of messages not sent because they expired during the commit
    inspector: Inspector = field(default_factory=Inspector)
    relay: RelayCounters = field(default_factory=RelayCounters)


# Upper bounds of the histogram buckets; one more bucket counts larger values.
COMMIT_BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


class CommitCounters:
    """Commit counters since startup.  Batches that only load rows are not in the histograms."""

    __slots__ = ("batch_counts", "batch_sum", "count", "last_ms", "seconds_counts", "seconds_sum")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0.0
        self.seconds_counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.seconds_sum = 0.0
        self.batch_counts = [0] * (len(BATCH_BOUNDS) + 1)
        self.batch_sum = 0  # total number of messages created, dispatched or settled

    def record(self, batch: Batch, seconds: float) -> None:
        self.last_ms = seconds * 1_000
        self.count += 1
        if batch.stores:
            self.seconds_counts[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
            self.seconds_sum += seconds
            messages = len(batch.created) + len(batch.dispatched) + batch.settled_count
            self.batch_counts[bisect_left(BATCH_BOUNDS, messages)] += 1
            self.batch_sum += messages


SMOOTHING_S: Final = 10.0  # smoothing time constant
_MIN_RATE: Final = 0.01  # smaller rates are rounded to 0


class SmoothedRate:
    """A smoothed rate per second.  At rate 0, sampling an unchanged count is free."""

    __slots__ = ("_count", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0  # count at the last sample

    def sample(self, count: int, elapsed_s: float) -> None:
        """Update the rate with the current count and the time since the last sample."""
        if not self.per_s and count == self._count:
            return
        now = (count - self._count) / elapsed_s
        self.per_s += min(1.0, elapsed_s / SMOOTHING_S) * (now - self.per_s)
        self._count = count
        if self.per_s < _MIN_RATE:
            self.per_s = 0.0
