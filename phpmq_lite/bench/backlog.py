"""A large backlog: memory, disk, ``kill -9``, the time to the next message, and the drain."""

import shutil
import time
from pathlib import Path
from typing import Final

from phpmq_lite.bench import traffic
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.processes import BenchJob, peak_resident_bytes, resident_bytes
from phpmq_lite.bench.report import BacklogMemory, BacklogResult
from phpmq_lite.bench.workloads import (
    BACKLOG,
    SLOW,
    BenchPlan,
    BenchRunner,
    elapsed_span,
    fresh_queue_name,
)
from phpmq_lite.errors import ClientError
from phpmq_lite.protocol.connection import ClientSide

_FEW: Final = 10_000  # to compare the memory with
_ROW_BYTES: Final = 250  # of a message on disk besides its body


def measure_backlog(plan: BenchPlan, steps: BenchRunner, data: Path) -> BacklogResult:
    """Store messages that nobody consumes, kill the broker, start it again, take them all out.

    The messages are stored in two steps, so that the memory of a few compares with that of all.

    Raises:
        ClientError: the disk has no room for them.
    """
    check_room(plan, shutil.disk_usage(data.parent).free)
    queue = fresh_queue_name(BACKLOG)
    broker = BrokerProcess(data)
    with broker:
        time.sleep(plan.settle_seconds)  # clients may connect before the admin is imported
        empty = resident_bytes(broker.pid)
        few, _ = _fill(plan, steps, broker, queue, min(_FEW, plan.backlog // 2))
        with_few = resident_bytes(broker.pid)
        rest, published = _fill(plan, steps, broker, queue, plan.backlog - few)
        with_all = resident_bytes(broker.pid)
        on_disk = broker.database_bytes()
        broker.kill()
    began_s = time.monotonic()
    with broker:
        started_s = time.monotonic() - began_s
        _first_message(broker, queue)
        first_s = time.monotonic() - began_s
        drained = _drain(plan, steps, broker, queue, few + rest)
        peak = peak_resident_bytes(broker.pid)
    return BacklogResult(
        messages=few + rest,
        few=few,
        published_per_second=published,
        database_bytes=on_disk,
        started_s=started_s,
        first_message_s=first_s,
        drained_per_second=drained,
        memory=BacklogMemory(empty, with_few, with_all, peak),
    )


def check_room(plan: BenchPlan, free: int) -> None:
    """Tell whether the messages, and their history, will fit.

    Raises:
        ClientError: they will not.
    """
    needed = 2 * plan.backlog * (plan.size + _ROW_BYTES)
    if needed > free:
        raise ClientError(
            f"a backlog of {plan.backlog:,} messages takes about {needed / 1e9:,.1f} GB, "
            f"{free / 1e9:,.1f} GB are free"
        )


def _fill(
    plan: BenchPlan, steps: BenchRunner, broker: BrokerProcess, queue: str, number: int
) -> tuple[int, float]:
    """Return how many messages it were, and how many per second."""
    job = BenchJob(traffic.publish_number, (broker.address, queue, plan.size, number, plan.content))
    done = steps.run(f"storing {number:,} messages", number / SLOW, {"producer": job})
    time.sleep(plan.settle_seconds)
    stored: int = done["producer"].value
    return stored, stored / elapsed_span(done)


def _first_message(broker: BrokerProcess, queue: str) -> None:
    """Return when one message has come; it goes back when the connection ends."""
    client = ClientSide()
    with traffic.connect(broker.address) as link:
        link.sendall(client.consume(queue, 1))
        while not client.receive(traffic.receive(link)):
            pass


def _drain(
    plan: BenchPlan, steps: BenchRunner, broker: BrokerProcess, queue: str, number: int
) -> float:
    window = min(plan.window, traffic.unconfirmed_limit(plan.size))
    job = BenchJob(traffic.drain, (broker.address, queue, plan.size, number, window, plan.content))
    done = steps.run(f"taking {number:,} messages out", number / SLOW, {"consumer": job})
    return number / elapsed_span(done)
