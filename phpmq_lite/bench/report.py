"""Benchmark results, and their ratios to the limits of the machine."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from phpmq_lite.bench.machine import Machine

_FULL_CORE: Final = 0.85  # a process that uses this share of a core is saturated
_ALL_CORES_FULL: Final = 0.92  # a machine that uses this share of all its cores is saturated
_NOISE: Final = 0.25  # other processes that use a larger share of a core distort the results
_LARGE_BYTES: Final = 64 << 10  # for bodies of at least this size, disk bandwidth is the limit


@dataclass(slots=True, frozen=True)
class MachineLimits:
    """The rates per second that the machine reaches without a broker."""

    syncs: float  # 4 KiB blocks appended to a file, with a sync after each
    rows_1: float  # 256-byte rows inserted, one per commit, with synchronous=FULL
    rows_1000: float  # 256-byte rows inserted, 1,000 per commit, with synchronous=FULL
    written_bytes: float  # bytes inserted as 100 KB rows, 4 MiB per commit, including checkpoints
    round_trips: float  # round trips over loopback with 256 bytes each


@dataclass(slots=True, frozen=True)
class CpuLoad:
    """CPU usage, where 1.0 means one fully used core and None means unknown."""

    broker: float | None
    clients: dict[str, float]
    others: float | None  # usage by all other processes

    @property
    def limit(self) -> str:
        """The bottleneck, or "waiting" if the processes wait for the disk or for each other."""
        busiest = max(self.clients, key=lambda name: self.clients[name])
        is_client_full = self.clients[busiest] >= _FULL_CORE
        if self.broker is None:
            return busiest if is_client_full else "unknown"
        if self.broker >= _FULL_CORE:
            return f"broker+{busiest}" if is_client_full else "broker"
        if is_client_full:
            return busiest
        total = self.broker + sum(self.clients.values()) + (self.others or 0.0)
        return "all cores" if total >= _ALL_CORES_FULL * (os.cpu_count() or 1) else "waiting"

    @property
    def is_noisy(self) -> bool:
        """Return whether other processes used enough CPU time to lower the measured rates."""
        return self.others is not None and self.others > _NOISE


@dataclass(slots=True, frozen=True)
class Throughput:
    """The throughput measured for one workload."""

    workload: str
    size: int  # body size in bytes
    messages: int
    seconds: float
    load: CpuLoad

    @property
    def per_second(self) -> float:
        """Messages per second, measured until the last message is known to be stored."""
        return self.messages / self.seconds

    def share_of_sqlite(self, limits: MachineLimits) -> float:
        """Return the rate relative to that of SQLite alone, in bytes for bodies from 64 KiB."""
        if self.size >= _LARGE_BYTES:
            return self.per_second * self.size / limits.written_bytes
        return self.per_second / limits.rows_1000


@dataclass(slots=True, frozen=True)
class Quantiles:
    """Latency quantiles in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Return the quantiles of one or more durations, given in seconds and in any order."""
        ordered = sorted(seconds)
        last = len(ordered) - 1
        p50, p95, p99 = (ordered[round(last * share)] * 1_000 for share in (0.5, 0.95, 0.99))
        return cls(p50, p95, p99)


@dataclass(slots=True, frozen=True)
class LatencyResult:
    """Latencies measured from the time of publishing, with one message in flight."""

    rounds: int
    receive: Quantiles  # time from publishing a message until the consumer has received it
    receipt: Quantiles  # time from publishing a message until the publisher has its receipt

    @classmethod
    def of(cls, receive_s: Sequence[float], receipt_s: Sequence[float]) -> Self:
        """Summarize the measured latencies; ``receipt_s`` is empty after a single round."""
        rounds = len(receive_s) + len(receipt_s)
        return cls(rounds, Quantiles.of(receive_s), Quantiles.of(receipt_s or receive_s))


@dataclass(slots=True)
class BenchReport:
    """The results of a benchmark run; results of workloads that did not run are empty or None."""

    machine: Machine
    size: int
    content: str
    window: int
    seconds: float
    limits: MachineLimits
    rates: list[Throughput] = field(default_factory=list)
    latency: LatencyResult | None = None

    @property
    def is_noisy(self) -> bool:
        return any(rate.load.is_noisy for rate in self.rates)

    def latency_ratio(self, quantiles: Quantiles) -> float:
        """Return the ratio of the p50 to its lower bound: a one-row commit plus a round trip."""
        lower_bound_ms = 1_000 / self.limits.rows_1 + 1_000 / self.limits.round_trips
        return quantiles.p50 / lower_bound_ms

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document that includes the ratios."""
        latency: dict[str, Any] | None = None
        if self.latency is not None:
            latency = {
                "rounds": self.latency.rounds,
                "receive_ms": asdict(self.latency.receive),
                "receipt_ms": asdict(self.latency.receipt),
                "receive_ratio": self.latency_ratio(self.latency.receive),
                "receipt_ratio": self.latency_ratio(self.latency.receipt),
            }
        rates = [
            asdict(rate)
            | {
                "per_second": rate.per_second,
                "limited_by": rate.load.limit,
                "share_of_sqlite": rate.share_of_sqlite(self.limits),
            }
            for rate in self.rates
        ]
        return asdict(self) | {"rates": rates, "latency": latency}
