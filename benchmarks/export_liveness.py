"""What reading the history does to messages that pass: publish to dispatch at a steady rate.

    python benchmarks/export_liveness.py [--rows 1000000] [--rate 1000] [--seconds 15]

Spans with and without reading take turns in one run, so that a busy machine counts for both.  While
one reads, a program of its own reads all rows over HTTP again and again, counts them, and compares
with the announced count.  Ends by itself; the folder is removed.
"""

import argparse
import asyncio
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from admin_database import make

from phpmq_lite.broker_process import broker_process
from phpmq_lite.client import Client, connect

SPANS: Final = ("alone", "reading", "alone", "reading")
QUEUE: Final = "live"
LATE_S: Final = 20.0  # the last message may come so much later
Reading = Callable[[], AbstractContextManager[list[int]]]
SENT: Final = struct.Struct(">Qd")  # number, when it was due
READER: Final = """
import sys, urllib.request
import pyarrow as pa
while True:
    with urllib.request.urlopen(sys.argv[1], timeout=60) as answer:
        announced = int(answer.headers["X-Row-Count"])
        rows = sum(batch.num_rows for batch in pa.ipc.open_stream(answer))
    assert rows == announced, (rows, announced)
    print(rows, flush=True)
"""


async def publish(client: Client, rate: int, count: int) -> None:
    """Publish that many, each when it is due; what is late is counted from when it was due."""
    began = time.monotonic()
    for number in range(count):
        due = began + number / rate
        if due > time.monotonic():
            await asyncio.sleep(due - time.monotonic())
        await client.publish(QUEUE, SENT.pack(number, due) + bytes(200))


async def consume(client: Client, count: int) -> list[float]:
    """Take that many and acknowledge them; gives how long each was on its way, in ms."""
    waits = []
    async with client.consume(QUEUE, credit=1_000) as deliveries:
        for expected in range(count):
            delivery = await anext(deliveries)
            number, due = SENT.unpack_from(delivery.body)
            waits.append((time.monotonic() - due) * 1_000)
            delivery.ack()
            assert number == expected, f"{number} came in the place of {expected}"
    return waits


async def span(host: str, port: int, rate: int, seconds: float) -> list[float]:
    """Measure for a while; every message has to come, in order."""
    count = int(rate * seconds)
    async with connect(host, port) as producer, connect(host, port) as consumer:
        async with asyncio.timeout(seconds + LATE_S):
            _, waits = await asyncio.gather(
                publish(producer, rate, count), consume(consumer, count)
            )
    return waits


@contextmanager
def reading(url: str, rows: int) -> Iterator[list[int]]:
    """Read all rows again and again; ends with the block, and gives the rows of each time."""
    counts: list[int] = []
    command = [sys.executable, "-c", READER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None
            reader.stdout.readline()  # libraries are loaded, the export process runs
            yield counts
            assert reader.poll() is None, "the reader failed"
        finally:
            reader.kill()
        counts += map(int, reader.stdout)
        assert set(counts) <= {rows}, counts


def percentile(values: list[float], share: float) -> float:
    """Give a percentile."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def take_turns(port: int, rate: int, seconds: float, reading: Reading) -> None:
    """Let spans alone and spans while one reads take turns; print the table.

    ``reading`` opens the reading of one span and gives how many rows were read each time.
    """
    waits: dict[str, list[float]] = {name: [] for name in SPANS}
    print(f"{rate:,} messages/s, spans of {seconds:g} s")
    print(f"{'':14}{'p50':>7}{'p95':>8}{'p99':>8}{'max':>8} ms{'messages':>11}{'times read':>12}")
    # The clients are a process of their own: they share no interpreter with who reads.
    with ProcessPoolExecutor(1, get_context("spawn")) as clients:
        for name in SPANS:
            with nullcontext([]) if name == "alone" else reading() as counts:
                found = clients.submit(run_span, port, rate, seconds).result()
            waits[name] += found
            show(name, found, str(len(counts)) if counts else "-")
    for name in waits:
        show(f"{name}, all", waits[name], "")
    alone, busy = (percentile(waits[name], 0.99) for name in ("alone", "reading"))
    print(f"p99 while reading: {busy:.1f} ms, {busy / alone:.1f} times that alone")


def run_span(port: int, rate: int, seconds: float) -> list[float]:
    """Measure one span; for a process of its own."""
    return asyncio.run(span("127.0.0.1", port, rate, seconds))


def main(rows: int, rate: int, seconds: float, folder: Path) -> None:
    """Make the history and run the spans."""
    data = folder / "data"
    make(data, 0, rows)
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    with broker_process(data, *flags) as broker:
        url = f"{broker.admin[0].rstrip('/')}/api/v1/pipeline/history/arrow?lo=0&hi={rows}"
        print(f"{rows:,} rows, ", end="")
        take_turns(broker.port, rate, seconds, lambda: reading(url, rows))


def show(name: str, waits: list[float], passes: str) -> None:
    """Print a line."""
    shares = "".join(f"{percentile(waits, share):8.1f}" for share in (0.5, 0.95, 0.99))
    print(f"{name:13}{shares}{max(waits):8.1f}   {len(waits):11,}{passes:>12}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phpmq-liveness-") as place:
        main(options.rows, options.rate, options.seconds, Path(place))
