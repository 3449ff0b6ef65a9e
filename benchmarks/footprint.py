"""Measure the memory and disk that an idle broker, a backlog and connections need, and a restart.

Starts brokers on new folders until each has confirmed a message, and requests a page.  Stores
messages without a consumer, kills the broker with SIGKILL, starts it again, waits for the first
message and drains the queue; then opens idle consumers, each with its own queue::

    python benchmarks/footprint.py --data .                  # 100,000 messages, 1,000 connections
    python benchmarks/footprint.py --messages 1000000 --connections 0
"""

import argparse
import resource
import shutil
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from phpmq_lite.bench import traffic
from phpmq_lite.bench.processes import BenchJob, BenchTiming, run_together, unwind_on_signals
from phpmq_lite.bench.traffic import Address, DispatchStream, PublishStream
from phpmq_lite.bench.workloads import elapsed_span, temporary_folder
from phpmq_lite.broker_process import isolated_broker
from phpmq_lite.errors import ClientError
from phpmq_lite.os_process import peak_resident_bytes, resident_bytes
from phpmq_lite.protocol.connection import ClientSide

SIZE: Final = 256
ROW_BYTES: Final = 250  # of a message on disk in addition to its body
WINDOW: Final = 100
QUEUE: Final = "backlog"
TIMEOUT_S: Final = 3_600.0
SETTLE_S: Final = 2.0  # for checkpoints and freed memory, before memory is read
EXTRA_FILES: Final = 200
STARTS: Final = 7  # of new brokers; the first one may read modules from the disk
WARM_UP: Final = 20  # connections that make the broker load what every connection needs


def check_free_space(messages: int, free_bytes: int) -> None:
    """Check that the messages and their history fit on the disk.

    Raises:
        ClientError: they do not.
    """
    needed = 2 * messages * (SIZE + ROW_BYTES)
    if needed > free_bytes:
        raise ClientError(
            f"a backlog of {messages:,} messages needs about {needed / 1e9:,.1f} GB, "
            f"{free_bytes / 1e9:,.1f} GB are free; reduce --messages"
        )


def allow_files(connections: int) -> None:
    """Raise the limit of open files for this process and its children.

    Raises:
        ClientError: the hard limit is too low.
    """
    needed = connections + EXTRA_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ClientError(
                f"{connections:,} connections need {needed:,} open files, the limit is {hard:,}: "
                "raise it (ulimit -Hn) or reduce --connections"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connection_limit_options(connections: int) -> tuple[str, ...]:
    """Return options of ``serve`` that allow twice as many connections from one address.

    Close to the limit, the broker closes the connection that has been idle longest.
    """
    limit = 2 * connections + EXTRA_FILES
    return (
        *("--set", f"limits.connections={limit}"),
        *("--set", f"limits.connections_per_loopback_address={limit}"),
    )


def hold_connections(address: Address, number: int, seconds: float) -> Generator[None, None, int]:
    """Hold idle connections for ``seconds``, each with a consumer and its own queue.

    At the end each of them receives one message; returns the number of messages received.
    """
    with ExitStack() as stack:
        consumers = []
        for index in range(number):
            stream = DispatchStream(f"idle.{index}", SIZE, WINDOW)
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
            publisher.sendall(PublishStream(f"idle.{index}", SIZE, is_confirmed=False).encode(1))
            while not stream.received:
                link.sendall(stream.feed(traffic.receive(link)))
        return sum(stream.received for _, stream, _ in consumers)


def measure_start(folder: Path, settle_s: float) -> Iterator[tuple[str, str]]:
    """Yield the time until a new broker confirms its first message, and its memory, by name."""
    started: list[float] = []
    for number in range(STARTS):
        began_s = time.monotonic()
        with isolated_broker(folder / f"start-{number}", "--admin", "127.0.0.1:0") as broker:
            with traffic.connect(broker.address) as link:
                stream = PublishStream(QUEUE, SIZE)
                link.sendall(stream.encode(1))
                while not stream.feed(traffic.receive(link)):
                    pass
            started.append(time.monotonic() - began_s)
            time.sleep(settle_s)
            idle = proportional_bytes(broker.pid)
            with urllib.request.urlopen(broker.admin[0]) as answer:
                answer.read()
            time.sleep(settle_s)
            with_pages = proportional_bytes(broker.pid)
    yield (
        f"start until the first message is confirmed, median of {STARTS}",
        f"{median(started):.3f} s",
    )
    yield "memory of an idle broker (PSS)", format_mb(idle)
    yield "memory after the first page (PSS)", format_mb(with_pages)


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, in which it has a share of each page that others use (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def measure_backlog(data: Path, messages: int, settle_s: float) -> Iterator[tuple[str, str]]:
    """Yield the figures of a backlog, a SIGKILL, a restart and a drain, by name."""
    broker = isolated_broker(data)
    with broker:
        time.sleep(settle_s)  # clients can connect before the admin has been imported
        yield "resident memory without messages", format_mb(resident_bytes(broker.pid))
        arguments = (broker.address, QUEUE, SIZE, messages)
        timing = run(BenchJob(traffic.publish_number, arguments))
        stored: int = timing.value
        yield f"{stored:,} messages published (confirmed)", format_rate(stored, timing)
        time.sleep(settle_s)
        yield "resident memory with the backlog", format_mb(resident_bytes(broker.pid))
        yield (
            "database and write-ahead log",
            format_mb(sum(file.stat().st_size for file in data.glob("phpmq.db*"))),
        )
        broker.kill()
    began_s = time.monotonic()
    with broker:
        yield "restart after SIGKILL until clients can connect", format_seconds(began_s)
        receive_one(broker.address)
        yield "until the first message is received", format_seconds(began_s)
        arguments = (broker.address, QUEUE, SIZE, stored)
        timing = run(BenchJob(traffic.drain, (*arguments, WINDOW)))
        yield f"drained with acknowledgements, window {WINDOW}", format_rate(stored, timing)
        yield "peak resident memory since the start", format_mb(peak_resident_bytes(broker.pid))


def measure_connections(data: Path, number: int, settle_s: float) -> Iterator[tuple[str, str]]:
    """Yield the memory of idle connections, by name."""
    allow_files(number)
    with isolated_broker(data, *connection_limit_options(number)) as broker:
        run(BenchJob(hold_connections, (broker.address, WARM_UP, 0.0)))
        time.sleep(settle_s)
        before = resident_bytes(broker.pid)
        found: list[int] = []
        idle = BenchJob(hold_connections, (broker.address, number, 0.0))
        run_together({"idle": idle}, TIMEOUT_S, lambda: found.append(resident_bytes(broker.pid)))
    yield f"resident memory with {number:,} idle consumers", format_mb(found[0])
    yield "of each, with connection and queue", f"{(found[0] - before) / number / 1e3:.1f} KB"


def run(job: BenchJob) -> BenchTiming:
    """Run one job in a separate process."""
    return run_together({"client": job}, TIMEOUT_S)["client"]


def receive_one(address: Address) -> None:
    """Receive one message and return it to the queue by closing the connection."""
    client = ClientSide()
    with traffic.connect(address) as link:
        link.sendall(client.consume(QUEUE, 1))
        while not client.receive(traffic.receive(link)):
            pass


def format_mb(size: int) -> str:
    """Format a size in units of 10^6 bytes."""
    return f"{size / 1e6:,.1f} MB"


def format_seconds(began_s: float) -> str:
    """Format the seconds since ``began_s``."""
    return f"{time.monotonic() - began_s:.3f} s"


def format_rate(messages: int, timing: BenchTiming) -> str:
    """Format messages per second."""
    return f"{messages / elapsed_span({'client': timing}):,.0f}/s"


def main() -> None:
    """Measure and print each figure as soon as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000, help="of the backlog")
    parser.add_argument("--connections", type=int, default=1_000, help="idle; 0 skips this part")
    parser.add_argument("--settle-seconds", type=float, default=SETTLE_S, help="before reading")
    parser.add_argument("--data", type=Path, default=Path(), help="folder on the disk to measure")
    options = parser.parse_args()
    check_free_space(options.messages, shutil.disk_usage(options.data).free)
    with unwind_on_signals(), temporary_folder(options.data) as folder:
        measured = [
            measure_start(folder, options.settle_seconds),
            measure_backlog(folder / "backlog", options.messages, options.settle_seconds),
        ]
        if options.connections:
            connections = options.connections
            measured.append(
                measure_connections(folder / "idle", connections, options.settle_seconds)
            )
        for figures in measured:
            for name, value in figures:
                print(f"{name}: {value}", flush=True)


if __name__ == "__main__":
    main()
