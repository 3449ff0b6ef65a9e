"""One step of a benchmark after the other: jobs with a time limit, and who used the processor."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from phpmq_lite.bench import clients
from phpmq_lite.bench.clients import Address
from phpmq_lite.bench.counters import busy_seconds, cpu_seconds
from phpmq_lite.bench.plan import FLOW_PLAIN, PUBLISH, Plan, Watcher
from phpmq_lite.bench.processes import Job, Outcome, run
from phpmq_lite.bench.report import Load, Rate
from phpmq_lite.errors import ClientError

_PATIENCE: Final = 10.0  # what was published may take so many times as long until it is consumed
_SPARE_S: Final = 60.0
_MOST_BYTES: Final = 1 << 30  # of one step on the disk


@dataclass(slots=True, frozen=True)
class Target:
    """The broker that is measured."""

    address: Address
    pid: int | None  # None: it is not ours


class Steps:
    """Runs jobs, and tells the watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def run(
        self,
        step: str,
        seconds: float,
        jobs: Mapping[str, Job],
        on_start: Callable[[], None] = lambda: None,
    ) -> dict[str, Outcome]:
        """Run all jobs at once; ``seconds`` is about what they take.

        Raises:
            ClientError: one failed, or took far too long.
        """
        self._watcher.begin(step, seconds)
        outcomes = run(dict(jobs), seconds * _PATIENCE + _SPARE_S, on_start, self._watcher.tick)
        self._watcher.end()
        return outcomes

    def rate(
        self,
        step: str,
        plan: Plan,
        target: Target,
        workload: str,
        beside: Mapping[str, Job] | None = None,
    ) -> Rate:
        """Measure messages per second, from the first publish to the proof of the last.

        ``beside`` are jobs that run meanwhile and are not counted.  Of bodies above 1 KB it ends
        before its seconds have passed once 1 GiB was published.
        """
        queue = queue_for(workload)
        most = max(1_000, _MOST_BYTES // plan.size) if plan.size > 1_000 else None
        published = (
            target.address, queue, plan.size, plan.seconds, workload != FLOW_PLAIN, plan.content,
            most,
        )  # fmt: skip
        jobs = {"producer": Job(clients.publish, published)}
        if workload != PUBLISH:
            window = min(plan.window, clients.unconfirmed(plan.size))
            consumed = (target.address, queue, plan.size, window, plan.content)
            jobs["consumer"] = Job(clients.consume, consumed)
        load = LoadMeter(target.pid)
        outcomes = self.run(step, plan.seconds, jobs | dict(beside or {}), load.start)
        pair = {name: outcomes[name] for name in jobs}
        seconds = span(pair)
        used = load.stop(seconds, outcomes)
        counts = [outcome.value for outcome in pair.values()]
        if len(set(counts)) > 1:
            raise ClientError(f"{counts[0]} published, {counts[1]} received")
        if workload == PUBLISH and plan.address is not None:
            self._take_out(plan, target, queue, counts[0])
        return Rate(workload, plan.size, counts[0], seconds, used)

    def _take_out(self, plan: Plan, target: Target, queue: str, messages: int) -> None:
        """Leave no messages in a broker that is not ours."""
        window = clients.unconfirmed(plan.size)
        arguments = (target.address, queue, plan.size, messages, window, plan.content)
        job = Job(clients.drain, arguments)
        self.run("taking the messages out again", plan.seconds, {"consumer": job})


class LoadMeter:
    """CPU use of the broker, its clients and everything else, between start and stop."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._broker_s: float | None = None
        self._busy_s: float | None = None

    def start(self) -> None:
        """Read the counters, right before the clients are released."""
        self._broker_s = cpu_seconds(self._pid) if self._pid is not None else None
        self._busy_s = busy_seconds()

    def stop(self, seconds: float, outcomes: Mapping[str, Outcome]) -> Load:
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


def span(outcomes: Mapping[str, Outcome]) -> float:
    """Return the seconds from the first beginning to the last end."""
    return max(outcome.ended_s for outcome in outcomes.values()) - min(
        outcome.began_s for outcome in outcomes.values()
    )


def queue_for(workload: str) -> str:
    """Name a queue that nobody has used: what is in it is ours."""
    return f"bench.{workload}.{secrets.token_hex(4)}"


def _share(before_s: float | None, after_s: float | None, seconds: float) -> float | None:
    return None if before_s is None or after_s is None else (after_s - before_s) / seconds
