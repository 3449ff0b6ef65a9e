"""A benchmark run, which first measures the machine's limits and then runs the workloads.

Disks and machines vary from run to run. Only ratios within one run are comparable, so everything
is measured within seconds and in the same folder.
"""

import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, Final

from phpmq_lite.bench import machine, traffic
from phpmq_lite.bench.machine import describe_machine
from phpmq_lite.bench.processes import (
    BenchJob,
    BenchTiming,
    busy_seconds,
    cpu_seconds,
    run_together,
)
from phpmq_lite.bench.report import BenchReport, CpuLoad, LatencyResult, MachineLimits, Throughput
from phpmq_lite.bench.traffic import PLAIN, Address
from phpmq_lite.broker_process import isolated_broker, signals_blocked
from phpmq_lite.errors import ClientError

PUBLISH: Final = "publish"
FLOW: Final = "flow"
FLOW_PLAIN: Final = "flow-plain"
LATENCY: Final = "latency"
WORKLOADS: Final = (PUBLISH, FLOW, FLOW_PLAIN, LATENCY)
_RATES: Final = (PUBLISH, FLOW, FLOW_PLAIN)

_TIMEOUT_FACTOR: Final = 10.0  # maximum ratio of the time for consuming to the time for publishing
_EXTRA_TIMEOUT_S: Final = 60.0
_MAX_BYTES: Final = 1 << 30  # maximum number of bytes that each step writes to disk


@dataclass(slots=True, frozen=True)
class BenchPlan:
    """The options of a benchmark run."""

    seconds: float = 5.0  # seconds of publishing per workload; consuming may take longer
    size: int = 256  # body size in bytes
    window: int = 100  # maximum number of messages that the consumer holds unacknowledged
    workloads: tuple[str, ...] = (PUBLISH, FLOW, LATENCY)
    folder: Path = field(default_factory=Path.cwd)  # folder on the disk that is to be measured
    address: Address | None = None  # address of a running broker, or None to start one
    content: str = PLAIN

    @property
    def limit_seconds(self) -> float:
        """The number of seconds spent on measuring each limit of the machine."""
        return min(1.0, self.seconds / 5)

    @property
    def planned_seconds(self) -> float:
        return 5 * self.limit_seconds + len(self.workloads) * self.seconds


class BenchObserver:
    """Observes the progress of a benchmark run; this base class does nothing."""

    def begin(self, step: str, seconds: float) -> None:
        """Called at the start of a step that is expected to take ``seconds``."""

    def tick(self) -> None:
        """Called a few times per second, to update a progress display."""


def measure(plan: BenchPlan, observer: BenchObserver) -> BenchReport:
    """Run the benchmark; leave no processes or files behind, even after an error."""
    with temporary_folder(plan.folder) as folder:
        runner = BenchRunner(plan, observer)
        report = BenchReport(
            machine=describe_machine(plan.folder, is_own=plan.address is None),
            size=plan.size,
            content=plan.content,
            window=plan.window,
            seconds=plan.seconds,
            limits=runner.measure_limits(folder),
        )
        with _measured_broker(plan, folder / "data") as (address, pid):
            report.rates = [
                runner.measure_rate(address, pid, name) for name in _RATES if name in plan.workloads
            ]
            if LATENCY in plan.workloads:
                report.latency = runner.measure_latency(address)
    return report


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a folder with a short name, because Unix socket paths are limited to 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=parent))
    try:
        yield folder
    finally:
        with signals_blocked(SIGINT, SIGTERM):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _measured_broker(plan: BenchPlan, data: Path) -> Iterator[tuple[Address, int | None]]:
    if plan.address is not None:
        yield plan.address, None
        return
    with isolated_broker(data) as broker:
        yield broker.address, broker.pid


class BenchRunner:
    """Measures the steps of a plan and reports each step to the observer."""

    def __init__(self, plan: BenchPlan, observer: BenchObserver) -> None:
        self._plan = plan
        self._observer = observer

    def run(
        self,
        step: str,
        seconds: float,
        jobs: Mapping[str, BenchJob],
        on_start: Callable[[], None] = lambda: None,
    ) -> dict[str, BenchTiming]:
        """Run all jobs at the same time; ``seconds`` is their approximate duration."""
        self._observer.begin(step, seconds)
        timeout_s = seconds * _TIMEOUT_FACTOR + _EXTRA_TIMEOUT_S
        return run_together(dict(jobs), timeout_s, on_start, self._observer.tick)

    def measure_limits(self, folder: Path) -> MachineLimits:
        """Measure the disk, SQLite and loopback without a broker."""
        seconds = self._plan.limit_seconds

        def limit(step: str, function: Callable[..., Any], *arguments: int) -> float:
            job = BenchJob(function, (folder, seconds, *arguments))
            rate: float = self.run(step, seconds, {step: job})[step].value
            return rate

        with socket.create_server(("127.0.0.1", 0)) as listener:
            jobs = {
                "echo": BenchJob(machine.echo_server, (listener,)),
                "client": BenchJob(machine.measure_round_trips, (listener.getsockname(), seconds)),
            }
            round_trips: float = self.run("loopback round trips", seconds, jobs)["client"].value
        return MachineLimits(
            syncs=limit("disk syncs", machine.measure_syncs),
            rows_1=limit("SQLite, 1 row per commit", machine.measure_rows, 1),
            rows_1000=limit("SQLite, 1,000 rows per commit", machine.measure_rows, 1_000),
            written_bytes=limit("SQLite, sequential writes", machine.measure_writes),
            round_trips=round_trips,
        )

    def measure_rate(self, address: Address, pid: int | None, workload: str) -> Throughput:
        """Measure the number of messages per second until the last one is known to be stored."""
        plan = self._plan
        queue = fresh_queue_name(workload)
        limit = max(1_000, _MAX_BYTES // plan.size) if plan.size > 1_000 else None
        target = (address, queue, plan.size)
        published = (*target, plan.seconds, workload != FLOW_PLAIN, plan.content, limit)
        jobs = {"producer": BenchJob(traffic.publish, published)}
        if workload != PUBLISH:
            window = min(plan.window, traffic.unconfirmed_limit(plan.size))
            jobs["consumer"] = BenchJob(traffic.consume, (*target, window, plan.content))
        meter = CpuMeter(pid)
        timings = self.run(workload, plan.seconds, jobs, meter.start)
        seconds = elapsed_span(timings)
        load = meter.stop(seconds, timings)
        counts = [timing.value for timing in timings.values()]
        if len(set(counts)) > 1:
            raise ClientError(f"{counts[0]} messages were published, but {counts[1]} were received")
        if workload == PUBLISH and plan.address is not None:
            window = traffic.unconfirmed_limit(plan.size)
            job = BenchJob(traffic.drain, (*target, counts[0], window, plan.content))
            self.run("consuming the published messages", plan.seconds, {"consumer": job})
        return Throughput(workload, plan.size, counts[0], seconds, load)

    def measure_latency(self, address: Address) -> LatencyResult:
        """Measure latency with one message in flight."""
        plan = self._plan
        queue = fresh_queue_name(LATENCY)
        arguments = (address, queue, plan.size, plan.seconds, plan.content)
        job = BenchJob(traffic.one_in_flight, arguments)
        return LatencyResult.of(*self.run(LATENCY, plan.seconds, {"client": job})["client"].value)


class CpuMeter:
    """Measures the CPU usage of the broker, the clients and other processes."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._broker_s: float | None = None
        self._busy_s: float | None = None

    def start(self) -> None:
        """Read the CPU times; call this right before the clients start."""
        self._broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        self._busy_s = busy_seconds()

    def stop(self, seconds: float, timings: Mapping[str, BenchTiming]) -> CpuLoad:
        """Return the CPU usage since ``start`` in cores, averaged over ``seconds``."""
        busy_s = busy_seconds()
        broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        broker = _share(self._broker_s, broker_s, seconds)
        busy = _share(self._busy_s, busy_s, seconds)
        shares = {name: timing.cpu_s / seconds for name, timing in timings.items()}
        others = None
        if busy is not None and broker is not None:
            others = max(0.0, busy - broker - sum(shares.values()))
        return CpuLoad(broker, shares, others)


def elapsed_span(timings: Mapping[str, BenchTiming]) -> float:
    """Return the number of seconds from the earliest start to the latest end."""
    return max(timing.ended_s for timing in timings.values()) - min(
        timing.began_s for timing in timings.values()
    )


def fresh_queue_name(workload: str) -> str:
    return f"bench.{workload}.{secrets.token_hex(4)}"


def _share(before_s: float | None, after_s: float | None, seconds: float) -> float | None:
    return None if before_s is None or after_s is None else (after_s - before_s) / seconds
