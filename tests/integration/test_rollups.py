"""The roll-ups of a real broker: they survive a stop, and agree with what is stored."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phpmq_lite.histogram import unpack
from phpmq_lite.storage.read.rollups import ALL, DEAD_LETTERS, MINUTE_S
from tests.support.http_site import HttpSite, running_site


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for the broker to come to something by itself."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - nothing tells that a task has loaded
            await asyncio.sleep(0.01)


async def loaded(site: HttpSite) -> None:
    """Wait until the broker goes on from what is stored."""
    await until(lambda: site.broker.service.sampler.is_loaded)


async def ack(site: HttpSite, queue: str, count: int) -> None:
    """Consume and acknowledge so many messages."""
    async with site.client() as client, client.consume(queue, credit=count) as deliveries:
        for _ in range(count):
            (await anext(deliveries)).ack()
        await until(lambda: totals(site, queue).acked >= count)


def totals(site: HttpSite, queue: str) -> Any:
    engine = site.broker.service.handle.engine
    assert engine is not None
    return engine.core.state.queues[queue].counters


def read(data: Path, text: str, *values: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(data / "phpmq.db")
    found = connection.execute(text, values).fetchall()
    connection.close()
    return found


def rolled_up(data: Path, queue_id: int, span_s: int = MINUTE_S) -> tuple[int, ...]:
    """Add up what the table says that was published, acked and deleted."""
    [found] = read(
        data,
        "SELECT sum(published), sum(acked), sum(deleted) FROM rollup"
        " WHERE span_s = ? AND queue_id = ?",
        span_s, queue_id,
    )  # fmt: skip
    return found


async def test_rollups_agree_with_what_is_stored_over_restarts(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await loaded(site)
        await site.publish_many("orders", 30)
        await ack(site, "orders", 12)
    async with running_site(tmp_path) as site:
        await loaded(site)
        await site.publish_many("orders", 5)
        await site.publish_many("mail", 4)
        await ack(site, "orders", 7)
        await site.ok("POST", "/queues/mail/purge")
    outcomes = dict(read(tmp_path, "SELECT outcome, count(*) FROM history GROUP BY outcome"))
    [(alive,)] = read(tmp_path, "SELECT count(*) FROM message")
    assert (alive, outcomes) == (16, {2: 19, 5: 4})
    assert rolled_up(tmp_path, ALL) == (39, 19, 4)
    assert rolled_up(tmp_path, 1) == (35, 19, 0)
    assert rolled_up(tmp_path, 2) == (4, 0, 4)


async def test_histograms_count_every_message_once_over_restarts(tmp_path: Path) -> None:
    for _ in range(3):
        async with running_site(tmp_path) as site:
            await loaded(site)
            await site.publish_many("orders", 5)
            await ack(site, "orders", 5)
    packed = read(tmp_path, "SELECT wait, hold FROM rollup WHERE queue_id = 1")
    waits, holds = zip(*packed, strict=True)
    assert sum(sum(unpack(one)) for one in waits if one is not None) == 15
    assert sum(sum(unpack(one)) for one in holds if one is not None) == 15


async def test_end_of_a_minute_needs_no_database_but_its_own_batch(tmp_path: Path) -> None:
    """What the first stop wrote for its minute is replaced by the whole, not added to it."""
    async with running_site(tmp_path) as site:
        await loaded(site)
        await site.publish_many("orders", 3)
    before = rolled_up(tmp_path, 1)
    async with running_site(tmp_path) as site:
        await loaded(site)
    assert rolled_up(tmp_path, 1) == before == (3, 0, 0)


async def test_depth_at_the_end_is_that_of_the_queues(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await loaded(site)
        await site.publish_many("orders", 7)
        await site.publish_many("orders.dlq", 2)
    depths = dict(read(tmp_path, "SELECT queue_id, ready FROM rollup WHERE span_s = 60"))
    assert (depths[1], depths[2], depths[ALL], depths[DEAD_LETTERS]) == (7, 2, 7, 2)


async def test_history_of_the_api_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await loaded(site)
        await site.publish_many("orders", 60)
    async with running_site(tmp_path) as site:
        await loaded(site)
        for span in ("1h", "24h", "7d", "30d"):
            data = await site.ok("GET", f"/stats/history?queue=orders&span={span}")
            assert data["points"], span
            assert max(point["ready"] for point in data["points"]) == 60
        whole = await site.ok("GET", "/stats/history")
        assert whole["queue"] is None
        assert max(point["published_per_s"] for point in whole["points"]) > 0
        assert (await site.api("GET", "/stats/history?queue=nope"))[0] == 404
        assert (await site.api("GET", "/stats/history?span=2h"))[0] == 422


async def test_stats_tell_the_broker_in_numbers(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await loaded(site)
        await site.publish_many("orders", 3)
        stats = await site.ok("GET", "/stats")
        assert (stats["ready"], stats["queues"], stats["is_ready"]) == (3, 1, True)
        assert stats["database_bytes"] > 0
