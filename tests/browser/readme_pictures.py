"""Take the pictures of the README: ``python -m tests.browser.readme_pictures docs/images``.

A broker with the charts of a synthetic day and some seconds of real work: the overview in the light
theme, a queue's charts in the dark one.
"""

import asyncio
import math
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from phpmq_lite.client.async_client import Client
from phpmq_lite.histogram import BUCKETS, bucket, pack
from phpmq_lite.storage.read.activity import ALL, MINUTE_S, Point
from phpmq_lite.storage.statements import load
from tests.browser.filled import Site, envelope, site_of
from tests.browser.tabs import Scheme, launched, open_tab

DAY: Final = 24 * 60  # minutes
SHARES: Final = {"orders": 0.3, "mail.outgoing": 0.4, "invoices": 0.2, "webhooks": 0.1}
IDLE: Final = {"mail.bounces": 53, "reports": 37}  # messages of queues without consumers
RUSH: Final = range(DAY - 380, DAY - 330)  # more messages arrive than are consumed
WORK_S: Final = 25.0  # of real work before the pictures: the last samples are seconds old
PICTURES: Final[dict[str, tuple[str, Scheme, int]]] = {  # path, theme, height
    "overview.png": ("/?span=24h", "light", 650),
    "queue.png": ("/queues/orders?tab=charts&span=24h", "dark", 860),
}


def histogram(median_ms: float, count: int) -> bytes:
    counts = [0] * BUCKETS
    for share, factor in ((0.3, 0.6), (0.4, 1.0), (0.28, 1.5), (0.02, 3.0)):
        counts[bucket(round(median_ms * factor))] += max(1, round(count * share))
    return pack(counts)


def day(share: float, since_s: int) -> Iterator[Point]:
    """Yield the minutes of a day: a quiet night, a rush in the morning, and its backlog."""
    chance, ready = random.Random(f"{share}"), 0
    for minute in range(DAY):
        wave = 17 + 30 * max(0.0, math.sin((minute - DAY / 2) / DAY * 2 * math.pi)) ** 1.5
        rate = wave * chance.gauss(1, 0.02) * share * 60
        published = round(rate * (1.9 if minute in RUSH else 1.0))
        acked = min(published + ready, round(rate * (1.2 if ready else 1.0)))
        ready += published - acked
        wait_ms = 4 + 1_000 * ready / max(1, acked) * 60
        yield Point(
            since_s + minute * MINUTE_S, MINUTE_S, published=published, dispatched=acked,
            acked=acked, ready=ready, oldest_age_ms=round(wait_ms) if ready else 0,
            wait=histogram(wait_ms, acked), hold=histogram(chance.gauss(90, 4), acked),
        )  # fmt: skip


def write_day(database: Path) -> None:
    """Store the day in the roll-ups of a running broker, which seals its database at a stop."""
    put = load("writes", "sqlite")["put_rollup"]
    since_s = int(time.time()) // MINUTE_S * MINUTE_S - DAY * MINUTE_S
    with closing(sqlite3.connect(database)) as connection, connection:
        ids = dict(connection.execute("SELECT name, queue_id FROM queue"))
        for queue_id, share in [(ALL, 1.0), *((ids[name], part) for name, part in SHARES.items())]:
            connection.executemany(put, [(*point, queue_id) for point in day(share, since_s)])


async def prepare(data: Path) -> None:
    """Create queues, their backlogs, delays, three dead letters, and a day of roll-ups."""
    async with site_of(data, is_filled=False) as site:
        client = await site.connect()
        for name, count in IDLE.items():
            await client.publish_many(name, [envelope(number) for number in range(count)])
        for name in SHARES:
            await client.publish_many(name, [envelope(number) for number in range(40)])
        await client.publish_many(
            "orders", [envelope(number) for number in range(12)], delay_s=86_400
        )
        async with client.consume("webhooks", 3) as deliveries:
            count = 0
            async for delivery in deliveries:
                delivery.dead_letter()
                count += 1
                if count == 3:
                    break
        write_day(data / "phpmq.db")


async def produce(client: Client) -> None:
    number = 100
    while True:
        for name, share in SHARES.items():
            await client.publish_many(name, [envelope(number)] * round(20 * share))
            number += 1
        await asyncio.sleep(0.2)


async def consume(client: Client, queue: str) -> None:
    """Consume messages endlessly, with a short delay for each."""
    async with client.consume(queue, 20) as deliveries:
        async for delivery in deliveries:
            await asyncio.sleep(0.02)
            delivery.ack()


async def work(site: Site) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(produce(await site.connect()))]
    for name in SHARES:
        client = await site.connect()
        tasks.append(asyncio.create_task(consume(client, name)))
    return tasks


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        await prepare(data)
        shop = {"environment": "shop", "colour": "green"}
        async with site_of(data, is_filled=False, ui=shop) as site, launched() as chromium:
            tasks = await work(site)
            await asyncio.sleep(WORK_S)
            for name, (path, scheme, height) in PICTURES.items():
                page, _ = await open_tab(chromium, scheme=scheme)
                await page.set_viewport_size({"width": 1280, "height": height})
                await page.goto(site.url(path))
                if await (report := page.get_by_role("button", name="Dismiss")).count():
                    await report.click()
                    await page.goto(site.url(path))
                await page.wait_for_timeout(2_500)
                await page.screenshot(path=folder / name)
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
