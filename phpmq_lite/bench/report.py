"""What a run of the benchmark found, and the ratios that make it comparable."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from phpmq_lite.bench.machine import Machine

_FULL: Final = 0.85  # of a core: a process that uses more has nothing left
_ALL_FULL: Final = 0.92  # of all cores
_NOISE: Final = 0.25  # of a core: so much of others disturbs


@dataclass(slots=True, frozen=True)
class Limits:
    """What the machine gives without a broker, per second."""

    syncs: float  # 4 KiB appended and on the disk
    rows_1: float  # of 256 bytes into SQLite, synchronous=FULL, one per commit
    rows_1000: float  # the same, 1,000 per commit
    round_trips: float  # of 256 bytes on the loopback


@dataclass(slots=True, frozen=True)
class Load:
    """CPU use in cores (1.0 is one core, busy all the time); None where it is not known."""

    broker: float | None
    clients: dict[str, float]
    others: float | None  # everything else on the machine: noise

    @property
    def limit(self) -> str:
        """Who limited the rate; ``waiting`` is for the disk, or for each other."""
        busiest = max(self.clients, key=lambda name: self.clients[name])
        is_client_full = self.clients[busiest] >= _FULL
        if self.broker is None:
            return busiest if is_client_full else "unknown"
        if self.broker >= _FULL:
            return f"broker+{busiest}" if is_client_full else "broker"
        if is_client_full:
            return busiest
        total = self.broker + sum(self.clients.values()) + (self.others or 0.0)
        return "all cores" if total >= _ALL_FULL * (os.cpu_count() or 1) else "waiting"

    @property
    def is_noisy(self) -> bool:
        """Tell whether other processes took so much that the figures are too low."""
        return self.others is not None and self.others > _NOISE


@dataclass(slots=True, frozen=True)
class Rate:
    """Throughput of one workload."""

    workload: str
    messages: int
    seconds: float
    load: Load

    @property
    def per_second(self) -> float:
        """Messages per second, until the last was proved to be stored."""
        return self.messages / self.seconds


@dataclass(slots=True, frozen=True)
class Quantiles:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Pick them from values in any order, at least one."""
        ordered = sorted(seconds)
        last = len(ordered) - 1
        p50, p95, p99 = (ordered[round(last * share)] * 1_000 for share in (0.5, 0.95, 0.99))
        return cls(p50, p95, p99)


@dataclass(slots=True, frozen=True)
class Latency:
    """One message in flight, from its publish on."""

    rounds: int
    receive: Quantiles  # until the consumer has it
    receipt: Quantiles  # until the publisher knows that it is stored

    @classmethod
    def of(cls, receive_s: Sequence[float], receipt_s: Sequence[float]) -> Self:
        """Summarize; the slower of few rounds may be missing."""
        rounds = len(receive_s) + len(receipt_s)
        return cls(rounds, Quantiles.of(receive_s), Quantiles.of(receipt_s or receive_s))


@dataclass(slots=True, frozen=True)
class Report:
    """Everything that one run found."""

    machine: Machine
    size: int
    window: int
    seconds: float
    limits: Limits
    rates: list[Rate]
    latency: Latency | None

    def share_of_rows(self, rate: Rate) -> float:
        """Compare with what SQLite alone takes, 1,000 rows a commit; 1.0 is as much."""
        return rate.per_second / self.limits.rows_1000

    def latency_ratio(self, quantiles: Quantiles) -> float:
        """Compare p50 with one durable commit of one row and one round trip, its least cost."""
        least_ms = 1_000 / self.limits.rows_1 + 1_000 / self.limits.round_trips
        return quantiles.p50 / least_ms

    def document(self) -> dict[str, Any]:
        """Return everything as JSON has it, ratios too."""
        rates = [
            asdict(rate)
            | {
                "per_second": rate.per_second,
                "share_of_rows_1000": self.share_of_rows(rate),
                "limited_by": rate.load.limit,
            }
            for rate in self.rates
        ]
        latency: dict[str, Any] | None = None
        if self.latency is not None:
            latency = {
                "rounds": self.latency.rounds,
                "receive_ms": asdict(self.latency.receive),
                "receipt_ms": asdict(self.latency.receipt),
                "receive_ratio": self.latency_ratio(self.latency.receive),
                "receipt_ratio": self.latency_ratio(self.latency.receipt),
            }
        return asdict(self) | {"rates": rates, "latency": latency}
