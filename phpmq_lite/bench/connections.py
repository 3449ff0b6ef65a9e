"""Many open connections: what does one cost, and do the others notice?"""

import resource
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from phpmq_lite.bench import traffic
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.processes import BenchJob, resident_bytes
from phpmq_lite.bench.report import ConnectionsResult
from phpmq_lite.bench.traffic import Address, DispatchStream, PublishStream
from phpmq_lite.bench.workloads import FLOW, BenchPlan, BenchRunner, MeasuredBroker
from phpmq_lite.errors import ClientError

_SIZE: Final = 256
_WINDOW: Final = 100
_FEW: Final = 20  # connections that make the broker load what every connection needs
_SPARE_FILES: Final = 200


def measure_connections(plan: BenchPlan, steps: BenchRunner, data: Path) -> ConnectionsResult:
    """Open connections that each consume a queue of their own; then a flow alone and beside them.

    Raises:
        ClientError: the system does not allow so many open files.
    """
    number = plan.connections
    allow_files(number)
    with BrokerProcess(data, *connection_limit_options(number)) as broker:
        target = MeasuredBroker(broker.address, broker.pid)
        # Memory first, as long as nothing lies free in the broker's heap.
        steps.run(
            "a few connections",
            1.0,
            {"few": BenchJob(hold_connections, (broker.address, _FEW, 0.0))},
        )
        time.sleep(plan.settle_seconds)
        before = resident_bytes(broker.pid)
        found: list[int | None] = []
        idle = BenchJob(hold_connections, (broker.address, number, 0.0))
        steps.run(
            f"{number:,} connections", plan.settle_seconds, {"idle": idle},
            lambda: found.append(resident_bytes(broker.pid)),
        )  # fmt: skip
        alone = steps.rate("flow alone", plan, target, FLOW)
        idle = BenchJob(hold_connections, (broker.address, number, plan.seconds))
        beside = steps.rate(f"flow beside {number:,} connections", plan, target, FLOW,
                            {"idle": idle})  # fmt: skip
    return ConnectionsResult(number, before, found[0], alone, beside)


def connection_limit_options(number: int) -> tuple[str, ...]:
    """Return options of ``serve`` that let so many connections of one peer be twice at a time.

    Where places are short, the connection that was silent the longest must go.
    """
    limit = 2 * number + _SPARE_FILES
    return (
        *("--set", f"limits.connections={limit}"),
        *("--set", f"limits.connections_per_loopback_address={limit}"),
    )


def allow_files(number: int) -> None:
    """Let this process and those that it starts have so many connections open.

    Raises:
        ClientError: the system does not allow it.
    """
    needed = number + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ClientError(
                f"{number:,} connections need {needed:,} open files, the limit is {hard:,}: "
                "raise it (ulimit -Hn), or measure fewer"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def hold_connections(address: Address, number: int, seconds: float) -> Generator[None, None, int]:
    """Keep connections open for a while, each with a consumer and a queue of its own.

    At the end each of them still gets a message; returns how many came.
    """
    with ExitStack() as stack:
        consumers = []
        for index in range(number):
            stream = DispatchStream(f"idle.{index}", _SIZE, _WINDOW)
            barrier = PublishStream(traffic.BARRIER_QUEUE, 1)
            link = stack.enter_context(traffic.connect(address))
            link.sendall(stream.consume + barrier.encode(1))
            consumers.append((link, stream, barrier))
        for link, _, barrier in consumers:
            while not barrier.feed(traffic.receive(link)):
                pass
        yield
        time.sleep(seconds)
        publisher = stack.enter_context(traffic.connect(address))
        for index, (link, stream, _) in enumerate(consumers):
            publisher.sendall(PublishStream(f"idle.{index}", _SIZE, is_confirmed=False).encode(1))
            while not stream.received:
                link.sendall(stream.feed(traffic.receive(link)))
        return sum(stream.received for _, stream, _ in consumers)
