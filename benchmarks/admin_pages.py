"""The pages beside traffic: their server time, and what browsing costs a publisher.

Starts the broker on a database with many messages alive and settled, lets 1,000 messages a second
flow through it (published with a receipt, consumed, acknowledged), and opens every page in turn::

    python benchmarks/admin_pages.py --live 1000000 --settled 1000000 --data .

A person opens a page a second; ``--pause 0 --rounds 20`` gives the pages' own times soonest.
Windows with and without browsing take turns, so that both see the same machine; the first one
is not counted, for what was just written is cold.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

sys.path.insert(0, str(Path(__file__).parent))
import admin_database

from phpmq_lite.bench.processes import BenchJob, run_together, unwind_on_signals
from phpmq_lite.bench.report import Quantiles
from phpmq_lite.bench.workloads import temporary_folder
from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.client.async_client import Client, connect

RATE: Final = 1_000  # messages a second
FLOW_QUEUE: Final = "flow"
WINDOW_S: Final = 8.0


@dataclass
class Visits:
    """Milliseconds of server time of each visit, by path."""

    taken: dict[str, list[float]] = field(default_factory=dict)

    def add(self, path: str, ms: float) -> None:
        """Note one visit."""
        self.taken.setdefault(path, []).append(ms)


def flow(address: tuple[str, int], windows: int) -> Iterable[list[tuple[float, float]]]:
    """Publish at the rate and consume; return (when, seconds to the receipt) of each publish."""
    yield  # type: ignore[misc]
    return asyncio.run(_flow(address, windows * WINDOW_S))


async def _flow(address: tuple[str, int], seconds: float) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    target = f"{address[0]}:{address[1]}"
    async with connect(target) as publisher, connect(target) as consumer:
        stop = asyncio.create_task(_consume(consumer))
        began_s = time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        count = 0
        while (now_s := time.monotonic()) - began_s < seconds:
            due = int((now_s - began_s) * RATE) - count
            for _ in range(max(0, due)):
                task = asyncio.create_task(_publish(publisher, found))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            count += max(0, due)
            await asyncio.sleep(0.001)
        await asyncio.gather(*under_way)
        stop.cancel()
    return found


async def _publish(client: Client, found: list[tuple[float, float]]) -> None:
    began_s = time.monotonic()
    await client.publish_confirmed(FLOW_QUEUE, b"x" * 256)
    found.append((began_s, time.monotonic() - began_s))


async def _consume(client: Client) -> None:
    async with client.consume(FLOW_QUEUE, 100) as messages:
        async for message in messages:
            message.ack()


def browse(
    url: str, paths: list[str], windows: int, pause_s: float
) -> Iterable[tuple[dict[str, list[float]], list[tuple[float, float]]]]:
    """Open the pages in turn in every other window; return the times and the windows."""
    yield  # type: ignore[misc]
    return asyncio.run(_browse(url, paths, windows, pause_s))


async def _browse(
    url: str, paths: list[str], windows: int, pause_s: float
) -> tuple[dict[str, list[float]], list[tuple[float, float]]]:
    visits, busy, at = Visits(), [], 0
    async with aiohttp.ClientSession() as session:
        for window in range(windows):
            ends_s = time.monotonic() + WINDOW_S
            if window % 2 == 0:
                await asyncio.sleep(WINDOW_S)
                continue
            began_s = time.monotonic()
            while time.monotonic() < ends_s:
                path = paths[at % len(paths)]
                at += 1
                visits.add(path, await _visit(session, url + path))
                await asyncio.sleep(pause_s)
            busy.append((began_s, time.monotonic()))
    return visits.taken, busy


async def _visit(session: aiohttp.ClientSession, url: str) -> float:
    """Return the server's own figure of one page, in ms (header Server-Timing)."""
    async with session.get(url) as response:
        await response.read()
        if response.status != 200:
            raise SystemExit(f"{url} answered {response.status}")
        return float(response.headers["Server-Timing"].partition("dur=")[2])


def report(taken: dict[str, list[float]]) -> None:
    """Print a line for each page."""
    print(f"{'page':58}{'median':>9}{'worst':>9}  ms of server time")
    for path, times in sorted(taken.items(), key=lambda item: -statistics.median(item[1])):
        median = statistics.median(times)
        print(f"{path[:57]:58}{median:9.1f}{max(times):9.1f}  {len(times)} visits")


def compare(latencies: list[tuple[float, float]], busy: list[tuple[float, float]]) -> None:
    """Print the publish latency with and without browsing."""
    with_pages, without = [], []
    counted_s = latencies[0][0] + WINDOW_S
    for at_s, took_s in latencies:
        if at_s < counted_s:
            continue
        is_busy = any(began_s <= at_s <= ended_s for began_s, ended_s in busy)
        (with_pages if is_busy else without).append(took_s)
    for name, seconds in (("without browsing", without), ("with browsing", with_pages)):
        quantiles = Quantiles.of(seconds)
        print(
            f"publish to receipt {name:18} p50 {quantiles.p50:6.2f} ms   "
            f"p99 {quantiles.p99:6.2f} ms   {len(seconds):,} messages"
        )
    ratio = Quantiles.of(with_pages).p99 / Quantiles.of(without).p99
    print(f"p99 with browsing / without: {ratio:.2f}")


def measure(broker: BrokerProcess, paths: list[str], rounds: int, pause_s: float) -> None:
    """Run traffic, browse in every other window, and print the results."""
    visits = rounds * len(paths)
    windows = 2 * max(2, round(visits * (pause_s + 0.02) / WINDOW_S + 0.5))
    url = broker.admin[0].rstrip("/")
    jobs = {
        "flow": BenchJob(flow, (("127.0.0.1", broker.port), windows)),  # type: ignore[arg-type]
        "browse": BenchJob(browse, (url, paths, windows, pause_s)),  # type: ignore[arg-type]
    }
    found = run_together(jobs, windows * WINDOW_S + 120)
    taken, busy = found["browse"].value
    report(taken)
    compare(found["flow"].value, busy)


def main() -> None:
    """Create the database, start the broker on it, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--live", type=int, default=1_000_000)
    parser.add_argument("--settled", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="visits of each page")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pages")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to use")
    options = parser.parse_args()
    with unwind_on_signals(), temporary_folder(options.data) as folder:
        data = folder / "data"
        print("filling the database …", file=sys.stderr)
        made = admin_database.make(data, options.live, options.settled)
        os.sync()  # else its write-back stands in the way of the first commits
        with broker_process(data, "--admin", "127.0.0.1:0") as broker:
            measure(broker, pages(made), options.rounds, options.pause)


def pages(made: "admin_database.Made") -> list[str]:
    """Name every page that reads much, with samples of what the database has."""
    queue, message, settled = made.queue, made.alive_id, made.settled_id
    return [
        "/", "/?span=24h", "/queues", "/queues?sort=-age", f"/queues/{queue}",
        f"/queues/{queue}?tab=dead", f"/queues/{queue}?tab=history",
        f"/queues/{queue}?tab=history&outcome=dead", f"/queues/{queue}?tab=consumers",
        f"/queues/{queue}?tab=charts&span=30d", f"/queues/{queue}?tab=settings",
        f"/queues/{made.rare_queue}?tab=history", "/messages", f"/messages?q=queue:{queue}",
        "/messages?q=state:dead", "/messages?q=state:ready%20queue:" + queue,
        f"/messages?q=id:{message}", f"/messages/{message}", f"/messages/{settled}", "/dead",
        "/clients", "/history", "/history?outcome=dead", "/history?outcome=expired", "/trash",
        "/publish", f"/queues/{queue}/tail", "/audit", "/system", "/api", "/metrics",
        "/api/v1/queues", f"/api/v1/queues/{queue}/messages", "/api/v1/history",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
