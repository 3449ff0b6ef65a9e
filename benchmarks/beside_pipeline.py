"""Measure confirmed publishes alone, and while the pipeline works beside the broker.

::

    python benchmarks/beside_pipeline.py [--rows 300000] [--rate 200] [--seconds 20] [--short]

Spans alone and beside the pipeline alternate, so that other load affects both. Beside it, three
programs run at the same time and begin again when they end: ``pipeline archive --bodies`` into a
new folder, ``pipeline verify`` of an archive, and a reader of the page Insights, once a second.
The program ends by itself and removes its folder.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from admin_database import make

from phpmq_lite.bench.report import Quantiles
from phpmq_lite.broker_process import broker_process
from phpmq_lite.client import connect

SPANS: Final = ("alone", "beside", "alone", "beside")
QUEUE: Final = "live"
COMMAND: Final = (sys.executable, "-m", "phpmq_lite", "pipeline")


async def publish(port: int, rate: int, seconds: float) -> list[float]:
    """Publish at a steady rate, one after another; return the seconds until each receipt.

    Delays count from the scheduled time, so a publish that is late because of the one before it
    counts as late.
    """
    waits = []
    async with connect("127.0.0.1", port) as client:
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0, due - time.monotonic()))
            await client.publish_confirmed(QUEUE, bytes(200))
            waits.append(time.monotonic() - due)
    return waits


def run_span(port: int, rate: int, seconds: float) -> list[float]:
    """Measure one span, in a separate process."""
    return asyncio.run(publish(port, rate, seconds))


class Pipeline:
    """Programs that work beside the broker until ``stop``; ``runs`` counts those that ended."""

    def __init__(self, admin: str, folder: Path) -> None:
        self.admin, self._folder = admin, folder
        self._stopped = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.runs: Counter[str] = Counter()

    def run(self, *arguments: str, out: Path) -> int:
        """Run a command of the pipeline until it ends, and return its exit code."""
        flags = ("--url", self.admin, "--out", str(out), "--master", "local[2]")
        command, nothing = [*COMMAND, *arguments, *flags], subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=nothing, stderr=nothing)
        self._processes.append(process)
        return process.wait()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work during the block; the first requests have arrived when it begins."""
        self._stopped.clear()
        works = (self._archive, self._verify, self._refresh)
        threads = [threading.Thread(target=self._repeat, args=[work]) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for process in self._processes:
                process.terminate()
            for thread in threads:
                thread.join()

    def _repeat(self, work: Callable[[], int]) -> None:
        while not self._stopped.is_set():
            if work() == 0:
                self.runs[work.__name__.removeprefix("_")] += 1

    def _archive(self) -> int:
        out = Path(tempfile.mkdtemp(prefix="archive-", dir=self._folder))
        return self.run("archive", "--bodies", out=out)

    def _verify(self) -> int:
        return self.run("verify", out=self._folder / "archived")

    def _refresh(self) -> int:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"{self.admin}/insights", timeout=60) as page,
        ):
            page.read()
            self._stopped.wait(1)
            return 0
        return 1


def main(rows: int, rate: int, seconds: float, folder: Path) -> None:
    """Create the history, archive it once, and run the spans."""
    data = folder / "data"
    make(data, 0, rows)
    os.sync()  # else the kernel writes the new database during a span
    waits: dict[str, list[float]] = {name: [] for name in SPANS}
    with broker_process(data, "--admin", "127.0.0.1:0", "--set", "history.days=36500") as broker:
        pipeline = Pipeline(broker.admin[0].rstrip("/"), folder)
        assert pipeline.run("archive", "--bodies", out=folder / "archived") == 0
        urllib.request.urlopen(f"{pipeline.admin}/insights").read()  # compiles its templates
        print(f"{rows:,} rows, {rate:,} confirmed publishes/s, spans of {seconds:g} s")
        with ProcessPoolExecutor(1, get_context("spawn")) as clients:
            for name in SPANS:
                if name == "alone":
                    found = clients.submit(run_span, broker.port, rate, seconds).result()
                else:
                    with pipeline.working():
                        found = clients.submit(run_span, broker.port, rate, seconds).result()
                waits[name] += found
                show(name, found)
    p99 = {name: Quantiles.of(found).p99 for name, found in waits.items()}
    print(f"p99 {p99['beside']:.1f} ms beside the pipeline, {p99['beside'] / p99['alone']:.2f} x")
    print("runs that ended:", ", ".join(f"{n} {count}" for n, count in pipeline.runs.items()))


def show(name: str, waits: list[float]) -> None:
    """Print one line."""
    q = Quantiles.of(waits)
    figures = f"p50 {q.p50:.1f}, p95 {q.p95:.1f}, p99 {q.p99:.1f}, max {max(waits) * 1_000:.1f} ms"
    print(f"{name:8}{figures}, {len(waits):,} publishes", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--short", action="store_true", help="20,000 rows, spans of 15 s")
    options = parser.parse_args()
    if options.short:
        options.rows, options.seconds = 20_000, 15
    with tempfile.TemporaryDirectory(prefix="phpmq-beside-") as place:
        main(options.rows, options.rate, options.seconds, Path(place))
