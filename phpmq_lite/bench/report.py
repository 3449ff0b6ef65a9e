"""What a run of the benchmark found, and the ratios that make it comparable."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from phpmq_lite.bench.machine import Machine

_FULL: Final = 0.85  # of a core: a process that uses more has nothing left
_ALL_FULL: Final = 0.92  # of all cores
_NOISE: Final = 0.25  # of a core: so much of others disturbs


@dataclass(slots=True, frozen=True)
class MachineLimits:
    """What the machine gives without a broker, per second."""

    syncs: float  # 4 KiB appended and on the disk
    rows_1: float  # of 256 bytes into SQLite, synchronous=FULL, one per commit
    rows_1000: float  # the same, 1,000 per commit
    written_bytes: float  # rows of 100 KB into SQLite, 4 MiB a commit, with checkpoints
    round_trips: float  # of 256 bytes on the loopback


@dataclass(slots=True, frozen=True)
class CpuLoad:
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
class Throughput:
    """Throughput of one workload."""

    workload: str
    size: int  # bytes of a body
    messages: int
    seconds: float
    load: CpuLoad
    disk_bytes: float | None = (
        None  # ``MachineLimits.written_bytes`` right before it; of large bodies
    )

    @property
    def per_second(self) -> float:
        """Messages per second, until the last was proved to be stored."""
        return self.messages / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """Bytes of bodies per second."""
        return self.per_second * self.size

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        more = {"per_second": self.per_second, "limited_by": self.load.limit}
        return asdict(self) | more


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
class LatencyResult:
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
class BacklogMemory:
    """Resident bytes of a broker along a backlog; None where it is not known."""

    empty: int | None
    with_few: int | None
    with_all: int | None
    peak_after_restart: int | None


@dataclass(slots=True, frozen=True)
class BacklogResult:
    """Messages stored with nobody consuming, a ``kill -9``, a start, and all of them taken out."""

    messages: int
    few: int  # of them, when the memory was read the first time
    published_per_second: float
    database_bytes: int  # with the write-ahead log
    started_s: float  # from the start on what the kill left until clients may connect
    first_message_s: float  # the same, until a message came
    drained_per_second: float
    memory: BacklogMemory


@dataclass(slots=True, frozen=True)
class ConnectionsResult:
    """Many idle connections, each with a consumer and a queue of its own."""

    number: int
    before_bytes: int | None  # resident memory without them
    with_bytes: int | None
    alone: Throughput
    beside: Throughput

    @property
    def each_bytes(self) -> float | None:
        """Memory of one connection; None where it is not known."""
        if self.before_bytes is None or self.with_bytes is None:
            return None
        return (self.with_bytes - self.before_bytes) / self.number

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rates = {"alone": self.alone.document(), "beside": self.beside.document()}
        return asdict(self) | rates | {"each_bytes": self.each_bytes}


@dataclass(slots=True)
class BenchReport:
    """Everything that one run found; what was not asked for is empty or None."""

    machine: Machine
    size: int
    content: str
    window: int
    seconds: float
    limits: MachineLimits
    rates: list[Throughput] = field(default_factory=list)
    latency: LatencyResult | None = None
    large: list[Throughput] = field(default_factory=list)
    backlog: BacklogResult | None = None
    connections: ConnectionsResult | None = None

    @property
    def is_noisy(self) -> bool:
        """Tell whether other processes disturbed any of the rates."""
        found = [*self.rates, *self.large]
        if self.connections is not None:
            found += [self.connections.alone, self.connections.beside]
        return any(rate.load.is_noisy for rate in found)

    def share_of_rows(self, rate: Throughput) -> float:
        """Compare with what SQLite alone takes, 1,000 rows a commit; 1.0 is as much."""
        return rate.per_second / self.limits.rows_1000

    def share_of_disk(self, rate: Throughput) -> float:
        """Compare with what SQLite alone wrote in sequence right before; 1.0 is as much."""
        return rate.bytes_per_second / (rate.disk_bytes or self.limits.written_bytes)

    def latency_ratio(self, quantiles: Quantiles) -> float:
        """Compare p50 with one durable commit of one row and one round trip, its least cost."""
        least_ms = 1_000 / self.limits.rows_1 + 1_000 / self.limits.round_trips
        return quantiles.p50 / least_ms

    def document(self) -> dict[str, Any]:
        """Return everything as JSON has it, ratios too."""
        latency: dict[str, Any] | None = None
        if self.latency is not None:
            latency = {
                "rounds": self.latency.rounds,
                "receive_ms": asdict(self.latency.receive),
                "receipt_ms": asdict(self.latency.receipt),
                "receive_ratio": self.latency_ratio(self.latency.receive),
                "receipt_ratio": self.latency_ratio(self.latency.receipt),
            }
        crowd = self.connections
        return asdict(self) | {
            "rates": [
                rate.document() | {"share_of_rows_1000": self.share_of_rows(rate)}
                for rate in self.rates
            ],
            "latency": latency,
            "large": [
                rate.document()
                | {
                    "bytes_per_second": rate.bytes_per_second,
                    "share_of_written_bytes": self.share_of_disk(rate),
                }
                for rate in self.large
            ],
            "connections": crowd.document() if crowd is not None else None,
        }
