"""A tenant beside an adversary gets the same results, with bounded latency.

``python -m tests.faults.neighbours --seconds 60`` runs the workload of a tenant alone and beside
each adversary, prints the factor of its p99 latency, and ends with 1 if a result differs or a
factor is above 3.  ``--only NAME`` selects adversaries.  Nothing else should use the machine.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote

from phpmq_lite.cli.admin_client import AdminClient
from tests.faults.adversaries import ADVERSARIES, APP_ID, Target, arrow_of
from tests.faults.ledger import read_only
from tests.support.fork_server import BrokerProcess, ForkedProcess, broker_process

WORST: Final = 3.0  # times the p99 latency alone
RATE: Final = 50  # messages a second
STAGE_S: Final = 1.0  # from one staged publish to the next
PREPARED: Final = 120  # messages that are only searched
DRAIN_S: Final = 60.0
QUEUE: Final = "tenant"
_KEY: Final = b"of the tenant"
# All tenants share the limits of history and database; retention must not remove this one's rows.
_FLAGS: Final = (
    "--admin", "127.0.0.1:0", "--set", "history.bytes=1TiB", "--set", "storage.max_bytes=1TiB",
)  # fmt: skip
_OUTCOMES: Final = (
    "SELECT name, outcome, reason, count(*) FROM history JOIN queue USING (queue_id)"
    " WHERE name LIKE 'tenant%' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
)
_ALIVE: Final = (
    "SELECT name, live_count FROM queue WHERE name LIKE 'tenant%' AND live_count > 0 ORDER BY 1"
)


@dataclass
class Results:
    """Results of a workload without its latencies; the same workload has the same results."""

    receipts: Counter[str] = field(default_factory=Counter)  # reasons; empty: stored
    dispatched: Counter[int] = field(default_factory=Counter)  # times, by number of the message
    order: list[int] = field(default_factory=list)  # of first dispatches
    found: Counter[str] = field(default_factory=Counter)  # answers of searches
    published: Counter[str] = field(default_factory=Counter)  # answers of staged publishes
    outcomes: list[Any] = field(default_factory=list)  # of the history
    alive: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Tenant:
    """Publishes, consumes, acknowledges, requeues, dead-letters, searches and stages, at a pace."""

    def __init__(self, target: Target, count: int) -> None:
        self.results = Results()
        self.latencies_s: list[float] = []  # publish to receipt, and publish to dispatch
        self._target = target
        self._count = count
        self._sent_s: dict[int, float] = {}
        self._is_over = threading.Event()

    def prepare(self) -> None:
        """Store messages to search, and publish the first version under its app_id."""
        with self._target.peer() as peer:
            peer.store(f"{QUEUE}-prepared", *(b'{"data":{"n":%d}}' % n for n in range(PREPARED)))
            peer.confirm(f"{QUEUE}-once", b"x", key=_KEY)
        self._publish_staged(0)

    def run(self) -> None:
        works = (self._publish, self._consume, self._search, self._stage)
        threads = [threading.Thread(target=self._record_errors, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self._target.peer() as peer:
            reason = peer.confirm(f"{QUEUE}-once", b"x", key=_KEY)  # is stored once: see ``alive``
            self.results.receipts[reason or "repeated"] += 1

    def _record_errors(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # a result, too
            self.results.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")
        finally:
            if work == self._consume:
                self._is_over.set()

    def _publish(self) -> None:
        began_s = time.monotonic()
        with self._target.peer() as peer:
            for number in range(self._count):
                time.sleep(max(0.0, began_s + number / RATE - time.monotonic()))
                self._sent_s[number] = sent_s = time.monotonic()
                reason = peer.confirm(QUEUE, b'{"data":{"n":%d}}' % number, 3_600)
                self.latencies_s.append(time.monotonic() - sent_s)
                self.results.receipts[reason or ""] += 1

    def _consume(self) -> None:
        left = self._count
        with self._target.peer() as peer:
            peer.socket.settimeout(DRAIN_S)
            peer.consume(QUEUE, 100)
            while left:
                (dispatch,) = peer.dispatches(1)
                number = json.loads(dispatch.content)["data"]["n"]
                self.results.dispatched[number] += 1
                if self.results.dispatched[number] == 1:
                    self.latencies_s.append(time.monotonic() - self._sent_s[number])
                    self.results.order.append(number)
                    if number % 20 == 3:
                        peer.requeue(dispatch)
                        continue
                if number % 50 == 7:
                    peer.dead_letter(dispatch)
                else:
                    peer.ack(dispatch)
                left -= 1
            peer.barrier()

    def _search(self) -> None:
        path = "/api/v1/messages?q=" + quote(f"queue:{QUEUE}-prepared data.n:>=20 data.n:*1")
        while not self._is_over.wait(0.5):
            status, body = self._target.ask("GET", path)
            found = json.loads(body) if status == 200 else {}
            shown = f"{status}: {len(found.get('items', ()))}, {found.get('complete')}"
            self.results.found[shown] += 1

    def _stage(self) -> None:
        began_s = time.monotonic()
        for version in range(1, 1 + max(1, round(self._count / RATE / STAGE_S))):
            time.sleep(max(0.0, began_s + version * STAGE_S - time.monotonic()))
            self.results.published[self._publish_staged(version)] += 1

    def _publish_staged(self, version: int) -> str:
        rows = arrow_of([(f"{QUEUE}-staged", b"%d" % version)] * 3)
        token, status, answer = self._target.stage(rows)
        if status != 200:
            return f"stage {status}: {answer[:200]!r}"
        asked = {"app_id": APP_ID, "version": version, "tokens": [token]}
        status, answer = self._target.ask(
            "POST", "/api/v1/pipeline/publish", json.dumps(asked).encode()
        )
        return f"publish {status}: {answer[:200]!r}"


@dataclass(slots=True, frozen=True)
class Run:
    results: Results
    latencies_s: list[float]

    @property
    def p99_s(self) -> float:
        """99th percentile of the latencies."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def differences(alone: Results, beside: Results) -> list[str]:
    """Return the results that differ; the number of searches may, because it depends on time."""
    found = []
    for name in ("receipts", "dispatched", "order", "published", "outcomes", "alive", "errors"):
        one, other = getattr(alone, name), getattr(beside, name)
        if one != other:
            found.append(f"{name}: {str(one)[:300]} alone, {str(other)[:300]} beside")
    if alone.found.keys() != beside.found.keys():
        found.append(f"found: {alone.found} alone, {beside.found} beside")
    return found


def run(adversary: str | None, count: int, *, is_idle: bool = False) -> Run:
    """Run the workload of ``count`` messages on a new broker, beside an adversary."""
    with TemporaryDirectory(prefix="neighbours-") as folder:
        with broker_process(Path(folder) / "data", *_FLAGS) as broker:
            tenant = Tenant(_target(broker, "tenant", "tenant*"), count)
            tenant.prepare()
            with attacked(broker, adversary, is_idle=is_idle) as attack:
                tenant.run()
                if attack is not None and attack.poll() is not None:
                    tenant.results.errors.append(f"the adversary ended: {attack.returncode}")
            results = tenant.results
        with read_only(broker.data) as database:
            results.outcomes = database.execute(_OUTCOMES).fetchall()
            results.alive = database.execute(_ALIVE).fetchall()
    return Run(results, tenant.latencies_s)


def _target(broker: BrokerProcess, name: str, queues: str) -> Target:
    """Return the broker for a tenant with a new token."""
    asked = {"name": name, "role": "operator", "queues": [queues]}
    made = AdminClient(broker.data / "control.sock").post("/tokens", asked)
    return Target(broker.port, broker.admin[0].rstrip("/"), made["token"])


@contextmanager
def attacked(
    broker: BrokerProcess, name: str | None, *, is_idle: bool = False
) -> Iterator[ForkedProcess | None]:
    """Run an adversary in its own process; enter once its attack has begun."""
    if name is None:
        yield None
        return
    target = _target(broker, "adversary", "b-*")
    policy = ["idle"] if is_idle else []
    arguments = [name, str(target.port), target.url, target.token, *policy]
    process = ForkedProcess(
        ["tests.faults.adversaries", *arguments],
        stdout=subprocess.PIPE, stderr=2,
    )  # fmt: skip
    try:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the adversary {name} did not begin: {process.wait()}")
        yield process
    finally:
        process.kill()
        process.communicate()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all adversaries; return 1 if a result differs or a factor is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each run")
    parser.add_argument("--only", nargs="*", choices=ADVERSARIES, help="these adversaries")
    asked = parser.parse_args(arguments)
    count = max(1, round(asked.seconds * RATE))
    failed, worst = [], 0.0
    for name in asked.only or ADVERSARIES:
        # Alone each time: the speed of a disk may change by a factor of ten within minutes.
        before = run(None, count)
        # This measures the broker, not the scheduler: up to 95 threads of the adversary would keep
        # the tenant from running on two cores, even at nice 19.  They get idle time only.
        beside = run(name, count, is_idle=True)
        factor = beside.p99_s / before.p99_s
        worst = max(worst, factor)
        different = differences(before.results, beside.results)
        verdict = "; ".join(different) or "results identical"
        print(
            f"{name}: p99 {beside.p99_s * 1_000:.1f} ms, alone {before.p99_s * 1_000:.1f} ms,"
            f" factor {factor:.2f}, {verdict}",
            flush=True,
        )
        if different or factor > WORST:
            failed.append(name)
    count = len(asked.only or ADVERSARIES)
    print(f"{count} adversaries, worst factor {worst:.2f}, failed: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
