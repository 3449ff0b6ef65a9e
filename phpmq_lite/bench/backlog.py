"""A large backlog: memory, disk, ``kill -9``, the time to the next message, and the drain."""

import shutil
import time
from pathlib import Path
from typing import Final

from phpmq_lite.bench import clients
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.counters import peak_resident_bytes, resident_bytes
from phpmq_lite.bench.plan import BACKLOG, SLOW, Plan
from phpmq_lite.bench.processes import Job
from phpmq_lite.bench.report import Backlog, Memory
from phpmq_lite.bench.steps import Steps, queue_for, span
from phpmq_lite.errors import ClientError
from phpmq_lite.protocol.connection import ClientSide

_FEW: Final = 10_000  # to compare the memory with
_ROW_BYTES: Final = 250  # of a message on disk besides its body


def measure_backlog(plan: Plan, steps: Steps, data: Path) -> Backlog:
    """Store messages that nobody consumes, kill the broker, start it again, take them all out.

    The messages are stored in two steps, so that the memory of a few compares with that of all.

    Raises:
        ClientError: the disk has no room for them.
    """
    check_room(plan, shutil.disk_usage(data.parent).free)
    queue = queue_for(BACKLOG)
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
    return Backlog(
        messages=few + rest,
        few=few,
        published_per_second=published,
        database_bytes=on_disk,
        started_s=started_s,
        first_message_s=first_s,
        drained_per_second=drained,
        memory=Memory(empty, with_few, with_all, peak),
    )


def check_room(plan: Plan, free: int) -> None:
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
    plan: Plan, steps: Steps, broker: BrokerProcess, queue: str, number: int
) -> tuple[int, float]:
    """Return how many messages it were, and how many per second."""
    job = Job(clients.fill, (broker.address, queue, plan.size, number, plan.content))
    done = steps.run(f"storing {number:,} messages", number / SLOW, {"producer": job})
    time.sleep(plan.settle_seconds)
    stored: int = done["producer"].value
    return stored, stored / span(done)


def _first_message(broker: BrokerProcess, queue: str) -> None:
    """Return when one message has come; it goes back when the connection ends."""
    client = ClientSide()
    with clients.connect(broker.address) as link:
        link.sendall(client.consume(queue, 1))
        while not client.receive(clients.receive(link)):
            pass


def _drain(plan: Plan, steps: Steps, broker: BrokerProcess, queue: str, number: int) -> float:
    window = min(plan.window, clients.unconfirmed(plan.size))
    job = Job(clients.drain, (broker.address, queue, plan.size, number, window, plan.content))
    done = steps.run(f"taking {number:,} messages out", number / SLOW, {"consumer": job})
    return number / span(done)
