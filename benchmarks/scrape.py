"""Measure the longest blocking part of a scrape with many queues, in CPU time of the loop.

::

    python benchmarks/scrape.py [queues]

All other clients wait for that part. CPU time is independent of other load.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from phpmq_lite import process
from phpmq_lite.client import connect
from phpmq_lite.testing import running_service


class Meter:
    """Measures each iteration of the loop."""

    def __init__(self) -> None:
        self.turns: list[float] = []

    async def run(self) -> None:
        """Record the CPU time of each iteration."""
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.turns.append(now - last)
            last = now


async def main(queues: int) -> None:
    """Fill the queues and scrape four times."""
    process.reduce_garbage_collection()  # like a broker
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running_service(Path(folder) / "data", limits={"max_queues": queues}) as running,
            aiohttp.ClientSession(running.admin_url) as session,
        ):
            async with connect(running.host, running.port) as client:
                for number in range(queues):
                    await client.publish(f"queue.{number:05}", b"x")
                await client.publish_confirmed("queue.00000", b"x")
            for number in range(1, 5):
                meter = Meter()
                task = asyncio.create_task(meter.run())
                async with session.get("/metrics") as response:
                    size = len(await response.read())
                task.cancel()
                print(
                    f"scrape {number}: longest piece {max(meter.turns) * 1_000:.1f} ms, "
                    f"{size:,} bytes"
                )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
