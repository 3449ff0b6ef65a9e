"""One run of the benchmark: the machine's limits, then the workloads.

The disk and the machine differ from run to run; what counts are the ratios within one run, so
everything is measured in the same few seconds and in the same folder.
"""

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, Final

from phpmq_lite.bench import machine, traffic
from phpmq_lite.bench.backlog import measure_backlog
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.connections import measure_connections
from phpmq_lite.bench.machine import describe_machine
from phpmq_lite.bench.processes import BenchJob, signals_blocked
from phpmq_lite.bench.report import BenchReport, LatencyResult, MachineLimits, Throughput
from phpmq_lite.bench.workloads import (
    BACKLOG,
    CONNECTIONS,
    FLOW,
    LARGE,
    LARGE_SIZES,
    LATENCY,
    OWN_BROKER,
    PUBLISH,
    RATES,
    BenchObserver,
    BenchPlan,
    BenchRunner,
    MeasuredBroker,
    fresh_queue_name,
)

_WRITES: Final = "SQLite, sequential write"


def measure(plan: BenchPlan, watcher: BenchObserver) -> BenchReport:
    """Measure everything; neither a process nor a file is left, whatever happens.

    Raises:
        ClientError: the broker misbehaved or was too slow, or the system refuses what it takes.
        StartRefusedError: it did not start.
    """
    steps = BenchRunner(watcher)
    with temporary_folder(plan.folder) as folder:
        data = folder / "data"
        report = BenchReport(
            machine=describe_machine(plan.folder, is_own=plan.address is None),
            size=plan.size,
            content=plan.content,
            window=plan.window,
            seconds=plan.seconds,
            limits=_limits(plan, steps, folder),
        )
        if set(plan.workloads) - set(OWN_BROKER):
            with _target(plan, data) as target:
                _measure_workloads(plan, steps, target, report, folder)
        if BACKLOG in plan.workloads:
            report.backlog = measure_backlog(plan, steps, data)
            shutil.rmtree(data)
        if CONNECTIONS in plan.workloads:
            report.connections = measure_connections(plan, steps, data)
    return report


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder with a short name: the path of a Unix socket has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=parent))
    try:
        yield folder
    finally:
        with signals_blocked(SIGINT, SIGTERM):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _target(plan: BenchPlan, data: Path) -> Iterator[MeasuredBroker]:
    if plan.address is not None:
        yield MeasuredBroker(plan.address, None)
        return
    with BrokerProcess(data) as broker:
        yield MeasuredBroker(broker.address, broker.pid)
    shutil.rmtree(data)  # room for the next one


def _measure_workloads(
    plan: BenchPlan, steps: BenchRunner, target: MeasuredBroker, report: BenchReport, folder: Path
) -> None:
    """Fill in what one broker is measured for; ``folder`` is for the limits beside it."""
    report.rates = [
        steps.rate(name, plan, target, name) for name in RATES if name in plan.workloads
    ]
    if LATENCY in plan.workloads:
        report.latency = _latency(plan, steps, target)
    if LARGE in plan.workloads:
        report.large = [
            _large(plan, steps, target, size, name, folder)
            for size in LARGE_SIZES
            for name in (PUBLISH, FLOW)
        ]


def _latency(plan: BenchPlan, steps: BenchRunner, target: MeasuredBroker) -> LatencyResult:
    """Measure one message at a time."""
    arguments = (target.address, fresh_queue_name(LATENCY), plan.size, plan.seconds, plan.content)
    job = BenchJob(traffic.one_in_flight, arguments)
    outcome = steps.run(LATENCY, plan.seconds, {"client": job})["client"]
    return LatencyResult.of(*outcome.value)


def _large(
    plan: BenchPlan,
    steps: BenchRunner,
    target: MeasuredBroker,
    size: int,
    workload: str,
    folder: Path,
) -> Throughput:
    """Measure the disk, and at once what the broker makes of it."""
    disk_bytes = _limit(plan, steps, folder, _WRITES, machine.measure_writes)
    smaller = replace(plan, size=size, seconds=plan.large_seconds)
    rate = steps.rate(f"{workload}, {size:,} bytes", smaller, target, workload)
    return replace(rate, disk_bytes=disk_bytes)


# -- the machine


def _limits(plan: BenchPlan, steps: BenchRunner, folder: Path) -> MachineLimits:
    """Measure what disk, SQLite and loopback give."""
    limit = partial(_limit, plan, steps, folder)
    return MachineLimits(
        syncs=limit("syncs of the disk", machine.measure_syncs),
        rows_1=limit("SQLite, 1 row a commit", machine.measure_rows, 1),
        rows_1000=limit("SQLite, 1,000 rows a commit", machine.measure_rows, 1_000),
        written_bytes=limit(_WRITES, machine.measure_writes),
        round_trips=_round_trips(plan.limit_seconds, steps),
    )


def _limit(
    plan: BenchPlan,
    steps: BenchRunner,
    folder: Path,
    step: str,
    piece: Callable[..., Any],
    *more: int,
) -> float:
    job = BenchJob(piece, (folder, plan.limit_seconds, *more))
    rate: float = steps.run(step, plan.limit_seconds, {step: job})[step].value
    return rate


def _round_trips(seconds: float, steps: BenchRunner) -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        jobs = {
            "echo": BenchJob(machine.echo_server, (listener,)),
            "client": BenchJob(machine.measure_round_trips, (listener.getsockname(), seconds)),
        }
        rate: float = steps.run("round trips on the loopback", seconds, jobs)["client"].value
    return rate
