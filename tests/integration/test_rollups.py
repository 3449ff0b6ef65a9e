"""Roll-ups of a real broker: they survive restarts and agree with the stored messages."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.histogram import unpack
from phpmq_lite.storage.read.activity import ALL, DEAD_LETTERS, MINUTE_S
from phpmq_lite.testing import RunningBroker
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture, wait_until
from tests.support.stored_rows import stored_rows


@asynccontextmanager
async def loaded_site(data: Path) -> AsyncIterator[HttpSite]:
    async with running_site(data) as site:
        await loaded(site.broker)
        yield site


async def loaded(broker: RunningBroker) -> None:
    """Wait until the broker has read its roll-ups; if it stops earlier, it stores none."""
    await wait_until(lambda: broker.service.active.sampler.is_loaded)


async def ack(site: HttpSite, queue: str, count: int) -> None:
    async with site.client() as client, client.consume(queue, credit=count) as deliveries:
        for _ in range(count):
            (await anext(deliveries)).ack()
        await wait_until(lambda: totals(site, queue).acked >= count)


def totals(site: HttpSite, queue: str) -> Any:
    engine = site.broker.service.handle.engine
    assert engine is not None
    return engine.core.queues[queue].counters


def rolled_up(data: Path, queue_id: int, span_s: int = MINUTE_S) -> tuple[int, ...]:
    """Return the numbers of published, acknowledged and deleted messages in the roll-ups."""
    [found] = stored_rows(
        data,
        "SELECT sum(published), sum(acked), sum(deleted) FROM rollup"
        " WHERE span_s = ? AND queue_id = ?",
        span_s, queue_id,
    )  # fmt: skip
    return found


async def test_rollups_agree_with_what_is_stored_over_restarts(tmp_path: Path) -> None:
    async with loaded_site(tmp_path) as site:
        await site.publish_many("orders", 30)
        await ack(site, "orders", 12)
    async with loaded_site(tmp_path) as site:
        await site.publish_many("orders", 5)
        await site.publish_many("mail", 4)
        await ack(site, "orders", 7)
        await site.ok("POST", "/queues/mail/purge")
    outcomes: dict[int, int] = dict(
        stored_rows(tmp_path, "SELECT outcome, count(*) FROM history GROUP BY outcome")
    )
    [(alive,)] = stored_rows(tmp_path, "SELECT count(*) FROM message")
    assert (alive, outcomes) == (16, {2: 19, 5: 4})
    assert rolled_up(tmp_path, ALL) == (39, 19, 4)
    assert rolled_up(tmp_path, 1) == (35, 19, 0)
    assert rolled_up(tmp_path, 2) == (4, 0, 4)


async def test_forward_and_dead_letter_count_as_no_expiry_anywhere(tmp_path: Path) -> None:
    """Each has a counter of its own; a queue for delays fired the alert PhpmqExpiredUnread."""
    kinds = {"plain": "history", "delayed": "forward:later", "strict": "dead_letter"}
    async with loaded_site(tmp_path) as site:
        for queue, on_expire in kinds.items():
            await site.create_queue(queue, on_expire=on_expire)
            await site.publish(queue, "x", ttl_s=1)
        await wait_until(
            lambda: (totals(site, "plain").expired, totals(site, "delayed").forwarded,
                     totals(site, "strict").dead) == (1, 1, 1)
        )  # fmt: skip
        metrics = await site.text("/metrics")
        for queue in kinds:
            expired, moved = int(queue == "plain"), int(queue == "delayed")
            label = f'dispatched="never",queue="{queue}"'
            assert f"phpmq_messages_expired_total{{{label}}} {expired}.0" in metrics
            label = f'dispatched="yes",queue="{queue}"'
            assert f"phpmq_messages_expired_total{{{label}}} 0.0" in metrics
            assert f'phpmq_messages_forwarded_total{{queue="{queue}"}} {moved}.0' in metrics
            listed = await site.ok("GET", f"/history?queue={queue}&outcome=expired")
            assert len(listed["items"]) == expired
        notices = (await site.get("/")).text
        assert notices.count("without ever being dispatched") == 1
    rows = stored_rows(
        tmp_path,
        "SELECT q.name, sum(r.expired), sum(r.dead) FROM rollup r JOIN queue q"
        " ON q.queue_id = r.queue_id WHERE span_s = ? GROUP BY q.name ORDER BY q.name",
        MINUTE_S,
    )
    assert {name: (expired, dead) for name, expired, dead in rows if name in kinds} == {
        "plain": (1, 0), "delayed": (0, 0), "strict": (0, 1),
    }  # fmt: skip


async def test_histograms_count_every_message_once_over_restarts(tmp_path: Path) -> None:
    for _ in range(2):
        async with loaded_site(tmp_path) as site:
            await site.publish_many("orders", 5)
            await ack(site, "orders", 5)
    packed = stored_rows(tmp_path, "SELECT wait, hold FROM rollup WHERE queue_id = 1")
    waits, holds = zip(*packed, strict=True)
    assert sum(sum(unpack(one)) for one in waits if one is not None) == 10
    assert sum(sum(unpack(one)) for one in holds if one is not None) == 10


async def test_restart_within_a_minute_does_not_count_it_twice(tmp_path: Path) -> None:
    """The row that the first stop wrote for the minute is replaced, not added to."""
    async with loaded_site(tmp_path) as site:
        await site.publish_many("orders", 3)
    before = rolled_up(tmp_path, 1)
    async with loaded_site(tmp_path):
        pass
    assert rolled_up(tmp_path, 1) == before == (3, 0, 0)


async def test_depth_at_the_end_is_that_of_the_queues(tmp_path: Path) -> None:
    async with loaded_site(tmp_path) as site:
        await site.publish_many("orders", 7)
        await site.publish_many("orders.dlq", 2)
    depths: dict[int, int] = dict(
        stored_rows(tmp_path, "SELECT queue_id, ready FROM rollup WHERE span_s = 60")
    )
    assert (depths[1], depths[2], depths[ALL], depths[DEAD_LETTERS]) == (7, 2, 7, 2)


async def test_history_of_the_api_survives_a_restart(tmp_path: Path) -> None:
    async with loaded_site(tmp_path) as site:
        await site.publish_many("orders", 60)
    async with loaded_site(tmp_path) as site:
        for span in ("1h", "24h", "7d", "30d"):
            data = await site.ok("GET", f"/stats/history?queue=orders&span={span}")
            assert data["points"], span
            assert max(point["ready"] for point in data["points"]) == 60
        whole = await site.ok("GET", "/stats/history")
        assert whole["queue"] is None
        assert max(point["published_per_s"] for point in whole["points"]) > 0
        assert (await site.api("GET", "/stats/history?queue=nope"))[0] == 404
        assert (await site.api("GET", "/stats/history?span=2h"))[0] == 422


async def test_stats_have_the_figures_of_the_broker(tmp_path: Path) -> None:
    async with loaded_site(tmp_path) as site:
        await site.publish_many("orders", 3)
        stats = await site.ok("GET", "/stats")
        assert (stats["ready"], stats["queues"], stats["is_ready"]) == (3, 1, True)
        while stats["database_bytes"] is None:  # PostgreSQL is asked every few seconds
            await asyncio.sleep(0.1)
            stats = await site.ok("GET", "/stats")
        assert stats["database_bytes"] > 0


# -- the chart of the history


async def settle(home: BrokerFixture, queue: str, count: int) -> None:
    messages = [{"content": "{}"} for _ in range(count)]
    await home.control("POST", f"/queues/{queue}/messages", messages)
    await home.control("POST", f"/queues/{queue}/purge")


@pytest.fixture
async def settled(tmp_path: Path) -> AsyncIterator[BrokerFixture]:
    """Restart a broker after three messages of ``orders`` and two of ``mail`` settled."""
    async with broker_fixture(tmp_path / "data") as first:
        await loaded(first.broker)
        await settle(first, "orders", 3)
        await settle(first, "mail", 2)
    async with broker_fixture(tmp_path / "data") as second:
        await loaded(second.broker)
        yield second


def deleted(text: str) -> int:
    """Return the sum of the titles of the slices."""
    return sum(int(count) for count in re.findall(r"<title>.*?: (\d+) deleted</title>", text))


async def test_slices_count_all_queues_or_one(settled: BrokerFixture) -> None:
    secret = await settled.token("all", "viewer")
    async with HttpUser(settled.url, secret) as me:
        for span in ("1h", "24h", "7d", "30d"):
            path = f"/history?outcome=deleted&span={span}"
            assert deleted((await me.get(path)).text) == 5, span
            assert deleted((await me.get(f"{path}&queue=mail")).text) == 2, span
            assert (await me.get(f"{path}&queue=nope")).status == 404
        assert (await me.get("/history?span=2h")).status == 422


async def test_limited_viewer_sees_the_chart_of_their_queues_only(settled: BrokerFixture) -> None:
    secret = await settled.token("some", "viewer", "orders*")
    async with HttpUser(settled.url, secret) as me:
        everything = await me.get("/history?since=2026-01-01")
        assert everything.status == 200
        assert 'id="brush"' not in everything.text
        assert 'class="removable"' not in everything.text  # their list is not narrowed
        path = "/history?outcome=deleted&queue="
        assert deleted((await me.get(path + "orders")).text) == 3
        assert (await me.get(path + "mail")).status == 404
