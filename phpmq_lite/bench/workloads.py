"""Workloads of a benchmark: what a run measures, and its steps."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phpmq_lite.bench import traffic
from phpmq_lite.bench.processes import (
    BenchJob,
    BenchTiming,
    busy_seconds,
    cpu_seconds,
    run_together,
)
from phpmq_lite.bench.report import CpuLoad, Throughput
from phpmq_lite.bench.traffic import PLAIN, Address
from phpmq_lite.errors import ClientError

PUBLISH: Final = "publish"
FLOW: Final = "flow"
FLOW_PLAIN: Final = "flow-plain"
LATENCY: Final = "latency"
LARGE: Final = "large"
BACKLOG: Final = "backlog"
CONNECTIONS: Final = "connections"
WORKLOADS: Final = (PUBLISH, FLOW, FLOW_PLAIN, LATENCY, LARGE, BACKLOG, CONNECTIONS)
RATES: Final = (PUBLISH, FLOW, FLOW_PLAIN)
OWN_BROKER: Final = (BACKLOG, CONNECTIONS)  # needs its memory, its settings, its end

LARGE_SIZES: Final = (100_000, 1_000_000)
_SETTLE_S: Final = 2.0
SLOW: Final = 20_000  # messages a second, for a guess at the time


@dataclass(slots=True, frozen=True)
class BenchPlan:
    """What to measure; ``address`` of a broker that runs already, None: one is started."""

    seconds: float = 5.0  # of each workload, besides the time until all is consumed
    size: int = 256  # bytes of a body
    window: int = 100  # unacknowledged messages of the consumer
    workloads: tuple[str, ...] = (PUBLISH, FLOW, LATENCY)
    folder: Path = field(default_factory=Path.cwd)  # on the disk that is measured
    address: Address | None = None
    content: str = PLAIN
    backlog: int = 100_000  # messages of that workload
    connections: int = 1_000  # of that workload

    @property
    def limit_seconds(self) -> float:
        """How long each limit of the machine is measured."""
        return min(1.0, self.seconds / 5)

    @property
    def large_seconds(self) -> float:
        """How long each of the steps with large bodies publishes: they fill a disk soon."""
        return self.seconds / 4

    @property
    def settle_seconds(self) -> float:
        """How long a broker rests before its memory is read: for checkpoints, and what it frees."""
        return min(_SETTLE_S, self.seconds)

    @property
    def planned_seconds(self) -> float:
        """About how long all takes."""
        own = {
            LARGE: 2 * len(LARGE_SIZES) * (self.large_seconds + self.limit_seconds),
            BACKLOG: 2 * self.backlog / SLOW + 3 * self.settle_seconds,
            CONNECTIONS: 2 * self.seconds + 2 * self.settle_seconds,
        }
        steps = sum(own.get(workload, self.seconds) for workload in self.workloads)
        return 5 * self.limit_seconds + steps


class BenchObserver:
    """Is told how far the run has come; this one does nothing."""

    def begin(self, step: str, seconds: float) -> None:
        """A step begins that takes about ``seconds``."""

    def tick(self) -> None:
        """Some time has passed; called a few times a second."""

    def end(self) -> None:
        """The step has ended."""


_PATIENCE: Final = 10.0  # what was published may take so many times as long until it is consumed
_SPARE_S: Final = 60.0
_MOST_BYTES: Final = 1 << 30  # of one step on the disk


@dataclass(slots=True, frozen=True)
class MeasuredBroker:
    """The broker that is measured."""

    address: Address
    pid: int | None  # None: it is not ours


class BenchRunner:
    """Runs jobs, and tells the watcher."""

    def __init__(self, watcher: BenchObserver) -> None:
        self._watcher = watcher

    def run(
        self,
        step: str,
        seconds: float,
        jobs: Mapping[str, BenchJob],
        on_start: Callable[[], None] = lambda: None,
    ) -> dict[str, BenchTiming]:
        """Run all jobs at once; ``seconds`` is about what they take.

        Raises:
            ClientError: one failed, or took far too long.
        """
        self._watcher.begin(step, seconds)
        outcomes = run_together(
            dict(jobs), seconds * _PATIENCE + _SPARE_S, on_start, self._watcher.tick
        )
        self._watcher.end()
        return outcomes

    def rate(
        self,
        step: str,
        plan: BenchPlan,
        target: MeasuredBroker,
        workload: str,
        beside: Mapping[str, BenchJob] | None = None,
    ) -> Throughput:
        """Measure messages per second, from the first publish to the proof of the last.

        ``beside`` are jobs that run meanwhile and are not counted.  Of bodies above 1 KB it ends
        before its seconds have passed once 1 GiB was published.
        """
        queue = fresh_queue_name(workload)
        most = max(1_000, _MOST_BYTES // plan.size) if plan.size > 1_000 else None
        published = (
            target.address, queue, plan.size, plan.seconds, workload != FLOW_PLAIN, plan.content,
            most,
        )  # fmt: skip
        jobs = {"producer": BenchJob(traffic.publish, published)}
        if workload != PUBLISH:
            window = min(plan.window, traffic.unconfirmed_limit(plan.size))
            consumed = (target.address, queue, plan.size, window, plan.content)
            jobs["consumer"] = BenchJob(traffic.consume, consumed)
        load = CpuMeter(target.pid)
        outcomes = self.run(step, plan.seconds, jobs | dict(beside or {}), load.start)
        pair = {name: outcomes[name] for name in jobs}
        seconds = elapsed_span(pair)
        used = load.stop(seconds, outcomes)
        counts = [outcome.value for outcome in pair.values()]
        if len(set(counts)) > 1:
            raise ClientError(f"{counts[0]} published, {counts[1]} received")
        if workload == PUBLISH and plan.address is not None:
            self._take_out(plan, target, queue, counts[0])
        return Throughput(workload, plan.size, counts[0], seconds, used)

    def _take_out(self, plan: BenchPlan, target: MeasuredBroker, queue: str, messages: int) -> None:
        """Leave no messages in a broker that is not ours."""
        window = traffic.unconfirmed_limit(plan.size)
        arguments = (target.address, queue, plan.size, messages, window, plan.content)
        job = BenchJob(traffic.drain, arguments)
        self.run("taking the messages out again", plan.seconds, {"consumer": job})


class CpuMeter:
    """CPU use of the broker, its clients and everything else, between start and stop."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._broker_s: float | None = None
        self._busy_s: float | None = None

    def start(self) -> None:
        """Read the counters, right before the clients are released."""
        self._broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        self._busy_s = busy_seconds()

    def stop(self, seconds: float, outcomes: Mapping[str, BenchTiming]) -> CpuLoad:
        """Read them again; shares are of one core, over ``seconds``."""
        busy_s = busy_seconds()
        broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        broker = _share(self._broker_s, broker_s, seconds)
        busy = _share(self._busy_s, busy_s, seconds)
        shares = {name: outcome.cpu_s / seconds for name, outcome in outcomes.items()}
        others = None
        if busy is not None and broker is not None:
            others = max(0.0, busy - broker - sum(shares.values()))
        return CpuLoad(broker, shares, others)


def elapsed_span(outcomes: Mapping[str, BenchTiming]) -> float:
    """Return the seconds from the first beginning to the last end."""
    return max(outcome.ended_s for outcome in outcomes.values()) - min(
        outcome.began_s for outcome in outcomes.values()
    )


def fresh_queue_name(workload: str) -> str:
    """Name a queue that nobody has used: what is in it is ours."""
    return f"bench.{workload}.{secrets.token_hex(4)}"


def _share(before_s: float | None, after_s: float | None, seconds: float) -> float | None:
    return None if before_s is None or after_s is None else (after_s - before_s) / seconds
