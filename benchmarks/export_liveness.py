"""Measure how reading the history affects live messages: publish to dispatch at a steady rate.

::

    python benchmarks/export_liveness.py [--rows 1000000] [--rate 1000] [--seconds 15]

Spans with and without a reader alternate, so that other load affects both. The reader is a separate
program that reads all rows over HTTP repeatedly and checks their number. The program ends by itself
and removes its folder.
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

from phpmq_lite.bench.report import Quantiles
from phpmq_lite.broker_process import broker_process
from phpmq_lite.client import Client, connect

SPANS: Final = ("alone", "reading", "alone", "reading")
QUEUE: Final = "live"
LATE_S: Final = 20.0  # maximum delay of the last message
Reading = Callable[[], AbstractContextManager[list[int]]]
SENT: Final = struct.Struct(">Qd")  # number, scheduled time
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
    """Publish ``count`` messages on schedule; delays count from the scheduled time."""
    began = time.monotonic()
    for number in range(count):
        due = began + number / rate
        if due > time.monotonic():
            await asyncio.sleep(due - time.monotonic())
        await client.publish(QUEUE, SENT.pack(number, due) + bytes(200))


async def consume(client: Client, count: int) -> list[float]:
    """Receive and acknowledge ``count`` messages; return their latencies in seconds."""
    waits = []
    async with client.consume(QUEUE, credit=1_000) as deliveries:
        for expected in range(count):
            delivery = await anext(deliveries)
            number, due = SENT.unpack_from(delivery.body)
            waits.append(time.monotonic() - due)
            delivery.ack()
            assert number == expected, f"{number} came in the place of {expected}"
    return waits


async def span(host: str, port: int, rate: int, seconds: float) -> list[float]:
    """Measure for ``seconds``; every message must arrive, in order."""
    count = int(rate * seconds)
    async with connect(host, port) as producer, connect(host, port) as consumer:
        async with asyncio.timeout(seconds + LATE_S):
            _, waits = await asyncio.gather(
                publish(producer, rate, count), consume(consumer, count)
            )
    return waits


@contextmanager
def reading(url: str, rows: int) -> Iterator[list[int]]:
    """Read all rows repeatedly within the block; yield the row counts, filled in at the end."""
    counts: list[int] = []
    command = [sys.executable, "-c", READER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None
            reader.stdout.readline()  # libraries are loaded, the export process is running
            yield counts
            assert reader.poll() is None, "the reader failed"
        finally:
            reader.kill()
        counts += map(int, reader.stdout)
        assert set(counts) <= {rows}, counts


def alternate(port: int, rate: int, seconds: float, reading: Reading) -> None:
    """Alternate spans with and without a reader, and print the table.

    ``reading`` starts the reader of one span and yields the row counts of its reads.
    """
    waits: dict[str, list[float]] = {name: [] for name in SPANS}
    print(f"{rate:,} messages/s, spans of {seconds:g} s")
    print(f"{'':14}{'p50':>7}{'p95':>8}{'p99':>8}{'max':>8} ms{'messages':>11}{'times read':>12}")
    # The clients run in their own process, so they share no interpreter with the reader.
    with ProcessPoolExecutor(1, get_context("spawn")) as clients:
        for name in SPANS:
            with nullcontext([]) if name == "alone" else reading() as counts:
                found = clients.submit(run_span, port, rate, seconds).result()
            waits[name] += found
            show(name, found, str(len(counts)) if counts else "-")
    for name in waits:
        show(f"{name}, all", waits[name], "")
    alone, busy = (Quantiles.of(waits[name]).p99 for name in ("alone", "reading"))
    print(f"p99 while reading: {busy:.1f} ms, {busy / alone:.1f} times that alone")


def run_span(port: int, rate: int, seconds: float) -> list[float]:
    """Measure one span, in a separate process."""
    return asyncio.run(span("127.0.0.1", port, rate, seconds))


def main(rows: int, rate: int, seconds: float, folder: Path) -> None:
    """Create the history and run the spans."""
    data = folder / "data"
    make(data, 0, rows)
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    with broker_process(data, *flags) as broker:
        url = f"{broker.admin[0].rstrip('/')}/api/v1/pipeline/history/arrow?lo=0&hi={rows}"
        print(f"{rows:,} rows, ", end="")
        alternate(broker.port, rate, seconds, lambda: reading(url, rows))


def show(name: str, waits: list[float], passes: str) -> None:
    """Print one line."""
    q = Quantiles.of(waits)
    figures = f"{q.p50:8.1f}{q.p95:8.1f}{q.p99:8.1f}{max(waits) * 1_000:8.1f}"
    print(f"{name:13}{figures}   {len(waits):11,}{passes:>12}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phpmq-liveness-") as place:
        main(options.rows, options.rate, options.seconds, Path(place))
