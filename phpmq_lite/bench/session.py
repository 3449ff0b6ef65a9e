"""One run of the benchmark: the machine's limits, then the workloads, on one broker.

The disk and the machine differ from run to run; what counts are the ratios within one run, so
everything is measured in the same few seconds and in the same folder.
"""

import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, Final

from phpmq_lite.bench import clients, limits
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.clients import Address
from phpmq_lite.bench.counters import busy_seconds, cpu_seconds
from phpmq_lite.bench.machine import describe_machine
from phpmq_lite.bench.processes import Job, Outcome, run, without
from phpmq_lite.bench.report import Latency, Limits, Load, Rate, Report
from phpmq_lite.bench.streams import PLAIN
from phpmq_lite.errors import ClientError

PUBLISH: Final = "publish"
FLOW: Final = "flow"
FLOW_PLAIN: Final = "flow-plain"
LATENCY: Final = "latency"
WORKLOADS: Final = (PUBLISH, FLOW, FLOW_PLAIN, LATENCY)

_PATIENCE: Final = 10.0  # what was published may take so many times as long until it is consumed
_SPARE_S: Final = 60.0


@dataclass(slots=True, frozen=True)
class Plan:
    """What to measure; ``address`` of a broker that runs already, None: one is started."""

    seconds: float = 5.0  # of each workload, besides the time until all is consumed
    size: int = 256  # bytes of a body
    window: int = 100  # unacknowledged messages of the consumer
    workloads: tuple[str, ...] = (PUBLISH, FLOW, LATENCY)
    folder: Path = field(default_factory=Path.cwd)  # on the disk that is measured
    address: Address | None = None
    content: str = PLAIN

    @property
    def limit_seconds(self) -> float:
        """How long each limit of the machine is measured."""
        return min(1.0, self.seconds / 5)

    @property
    def planned_seconds(self) -> float:
        """About how long all takes."""
        return 4 * self.limit_seconds + len(self.workloads) * self.seconds


class Watcher:
    """Is told how far the run has come; this one does nothing."""

    def begin(self, step: str, seconds: float) -> None:
        """A step begins that takes about ``seconds``."""

    def tick(self) -> None:
        """Some time has passed; called a few times a second."""

    def end(self) -> None:
        """The step has ended."""


def measure(plan: Plan, watcher: Watcher) -> Report:
    """Measure everything; neither a process nor a file is left, whatever happens.

    Raises:
        ClientError: the broker misbehaved or was too slow.
        StartRefusedError: it did not start.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder(plan.folder))
        session = _Session(plan, watcher, folder)
        found = session.limits()
        broker = None
        address = plan.address
        if address is None:
            broker = stack.enter_context(BrokerProcess(folder / "data"))
            address = broker.address
        session.reach(address, broker.pid if broker is not None else None)
        return Report(
            machine=describe_machine(plan.folder),
            size=plan.size,
            window=plan.window,
            seconds=plan.seconds,
            limits=found,
            rates=[session.rate(name) for name in plan.workloads if name != LATENCY],
            latency=session.latency() if LATENCY in plan.workloads else None,
        )


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder with a short name: the path of a Unix socket has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=parent))
    try:
        yield folder
    finally:
        with without(SIGINT, SIGTERM):
            shutil.rmtree(folder, ignore_errors=True)


class _Session:
    """One step after the other; ``reach`` comes before the workloads."""

    def __init__(self, plan: Plan, watcher: Watcher, folder: Path) -> None:
        self._plan = plan
        self._watcher = watcher
        self._folder = folder
        self._address: Address = ("", 0)
        self._pid: int | None = None  # of the broker, where it is ours

    def reach(self, address: Address, pid: int | None) -> None:
        """Measure this broker from now on."""
        self._address, self._pid = address, pid

    # -- the machine

    def limits(self) -> Limits:
        """Measure what disk, SQLite and loopback give."""
        seconds = self._plan.limit_seconds
        return Limits(
            syncs=self._limit("syncs of the disk", limits.syncs),
            rows_1=self._limit("SQLite, 1 row a commit", limits.rows, 1),
            rows_1000=self._limit("SQLite, 1,000 rows a commit", limits.rows, 1_000),
            round_trips=self._round_trips(seconds),
        )

    def _limit(self, step: str, piece: Callable[..., Any], *more: int) -> float:
        job = Job(piece, (self._folder, self._plan.limit_seconds, *more))
        rate: float = self._run(step, self._plan.limit_seconds, {step: job})[step].value
        return rate

    def _round_trips(self, seconds: float) -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            jobs = {
                "echo": Job(limits.echo, (listener,)),
                "client": Job(limits.round_trips, (listener.getsockname(), seconds)),
            }
            rate: float = self._run("round trips on the loopback", seconds, jobs)["client"].value
        return rate

    # -- the broker

    def rate(self, workload: str) -> Rate:
        """Measure messages per second, from the first publish to the proof of the last."""
        plan = self._plan
        queue = _queue(workload)
        is_confirmed = workload != FLOW_PLAIN
        publisher = (
            self._address, queue, plan.size, plan.seconds, is_confirmed, plan.content
        )  # fmt: skip
        jobs = {"producer": Job(clients.publish, publisher)}
        if workload != PUBLISH:
            arguments = (self._address, queue, plan.size, plan.window, plan.content)
            jobs["consumer"] = Job(clients.consume, arguments)
        load = _LoadMeter(self._pid)
        outcomes = self._run(workload, plan.seconds, jobs, load.start)
        seconds = _span(outcomes)
        used = load.stop(seconds, outcomes)
        counts = {name: outcome.value for name, outcome in outcomes.items()}
        if len(set(counts.values())) > 1:
            raise ClientError(f"{counts['producer']} published, {counts['consumer']} received")
        if workload == PUBLISH and plan.address is not None:
            self._take_out(queue, counts["producer"])
        return Rate(workload, counts["producer"], seconds, used)

    def latency(self) -> Latency:
        """Measure one message at a time."""
        plan = self._plan
        arguments = (self._address, _queue(LATENCY), plan.size, plan.seconds, plan.content)
        job = Job(clients.one_in_flight, arguments)
        outcome = self._run(LATENCY, plan.seconds, {"client": job})["client"]
        return Latency.of(*outcome.value)

    def _take_out(self, queue: str, messages: int) -> None:
        """Leave no messages in a broker that is not ours."""
        plan = self._plan
        arguments = (self._address, queue, plan.size, messages, clients.UNCONFIRMED, plan.content)
        job = Job(clients.drain, arguments)
        self._run("taking the messages out again", self._plan.seconds, {"consumer": job})

    def _run(
        self,
        step: str,
        seconds: float,
        jobs: dict[str, Job],
        on_start: Callable[[], None] = lambda: None,
    ) -> dict[str, Outcome]:
        self._watcher.begin(step, seconds)
        outcomes = run(jobs, seconds * _PATIENCE + _SPARE_S, on_start, self._watcher.tick)
        self._watcher.end()
        return outcomes


class _LoadMeter:
    """CPU use of the broker, its clients and everything else, between start and stop."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._broker_s: float | None = None
        self._busy_s: float | None = None

    def start(self) -> None:
        """Read the counters, right before the clients are released."""
        self._broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        self._busy_s = busy_seconds()

    def stop(self, seconds: float, outcomes: dict[str, Outcome]) -> Load:
        """Read them again; shares are of one core, over ``seconds``."""
        busy_s = busy_seconds()
        broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        broker = _share(self._broker_s, broker_s, seconds)
        busy = _share(self._busy_s, busy_s, seconds)
        shares = {name: outcome.cpu_s / seconds for name, outcome in outcomes.items()}
        others = None
        if busy is not None and broker is not None:
            others = max(0.0, busy - broker - sum(shares.values()))
        return Load(broker, shares, others)


def _share(before_s: float | None, after_s: float | None, seconds: float) -> float | None:
    return None if before_s is None or after_s is None else (after_s - before_s) / seconds


def _span(outcomes: dict[str, Outcome]) -> float:
    return max(outcome.ended_s for outcome in outcomes.values()) - min(
        outcome.began_s for outcome in outcomes.values()
    )


def _queue(workload: str) -> str:
    """Name a queue that nobody has used: what is in it is ours."""
    return f"bench.{workload}.{secrets.token_hex(4)}"
