"""The tail of a queue: what happens to its messages, as it happens, each thing once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.client import connect
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.live_pages import (
    SOON_S,
    EventStream,
    LivePages,
    pages,
    poll_until,
    publish_staged,
    taps,
)

HOSTILE = "<script>alert(1)</script>\u202e"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data", queues={"max_deliveries": 20}) as broker:
        yield broker


@pytest.fixture
async def browser(broker: RunningBroker) -> AsyncIterator[LivePages]:
    async with pages(broker) as browser:
        yield browser


async def rows_until(stream: EventStream, *kinds: str) -> list[dict[str, Any]]:
    """Read rows until each of these kinds was there."""
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(SOON_S):
        while not set(kinds) <= {row["kind"] for row in rows}:
            _, _, data = await stream.next()
            rows += data.get("rows", [])
    return rows


async def test_tail_shows_each_kind_once(broker: RunningBroker, browser: LivePages) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
        async with browser.events("tail:orders") as stream:
            await stream.next()
            await client.publish_confirmed("orders", HOSTILE.encode())
            async with client.consume("orders", credit=1) as deliveries:
                (await anext(deliveries)).ack()
                (await anext(deliveries)).requeue(ttl_s=600)
                (await anext(deliveries)).dead_letter()
                rows = await rows_until(stream, "publish", "ack", "requeue", "dead")
    kinds = [row["kind"] for row in rows]
    assert sorted(kinds) == [
        "ack",
        "dead",
        "dispatch",
        "dispatch",
        "dispatch",
        "publish",
        "requeue",
    ]
    assert kinds.index("publish") < kinds.index("requeue") < kinds.index("dead")
    published = next(row for row in rows if row["kind"] == "publish")
    assert published["preview"] == "<script>alert(1)</script>\\u202e"
    assert published["text"].startswith("by client")
    assert published["link"] == f"/messages/{published['message']}"


async def test_tail_shows_what_comes_back_and_what_is_deleted(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
        async with browser.events("tail:orders") as stream:
            await stream.next()
            async with connect(broker.host, broker.port) as other, other.consume("orders") as got:
                await anext(got)
            rows = await rows_until(stream, "dispatch", "return")
            url = browser.url("/api/v1/queues/orders/purge")
            async with browser.session.post(url, json={}) as answer:
                assert answer.status == 200, await answer.text()
            rows += await rows_until(stream, "delete")
    assert [row["kind"] for row in rows] == ["dispatch", "return", "delete"]


async def test_tail_shows_what_expires(broker: RunningBroker, browser: LivePages) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"kept")
        async with browser.events("tail:orders") as stream:
            await stream.next()
            await client.publish_confirmed("orders", b"short", ttl_s=1)
            rows = await rows_until(stream, "expire")
    assert [row["kind"] for row in rows] == ["publish", "expire"]


async def test_tail_takes_a_filter_of_kinds_and_text(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
        async with browser.events("tail:orders", "&kind=publish&kind=ack&q=needle") as stream:
            await stream.next()
            await client.publish_confirmed("orders", b"hay")
            await client.publish_confirmed("orders", b"a needle here")
            rows = await rows_until(stream, "publish")
    assert [row["preview"] for row in rows] == ["a needle here"]


async def test_tail_of_a_busy_queue_says_how_much_it_left_out(
    broker: RunningBroker, browser: LivePages
) -> None:
    count = 3_000
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
        async with browser.events("tail:orders") as stream:
            await stream.next()
            await client.publish_many("orders", [b"%d" % number for number in range(count)])
            seen = 0
            async with asyncio.timeout(SOON_S):
                while seen < count:
                    _, _, data = await stream.next()
                    assert len(data.get("rows", [])) <= 200
                    seen += len(data.get("rows", [])) + data.get("missed", 0)
    assert seen == count


async def test_tail_shows_the_last_of_what_spark_publishes_and_counts_the_rest(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
    rows = [("orders" if n % 3 else "mail", b"%d" % n) for n in range(2_402)]
    count = sum(queue == "orders" for queue, _ in rows)
    async with browser.events("tail:orders") as stream:
        await stream.next()
        await publish_staged(broker, *rows)
        seen: list[dict[str, Any]] = []
        missed = 0
        async with asyncio.timeout(SOON_S):
            while len(seen) + missed < count:
                _, _, data = await stream.next()
                seen += data.get("rows", [])
                missed += data.get("missed", 0)
    assert {row["kind"] for row in seen} == {"publish"}
    assert [row["preview"] for row in seen] == [
        str(n) for n in range(2_302, 2_402) if n % 3
    ]  # the last hundred numbers, without those of other queues
    assert len(seen) + missed == count


async def test_tail_costs_nothing_when_nobody_looks(
    broker: RunningBroker, browser: LivePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpmq_lite.admin.resources.tail.IDLE_S", 2.0)
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
    assert await taps(broker) == 0
    assert (await browser.get("/queues/orders/tail"))[0] == 200
    assert await taps(broker) == 1
    await poll_until(lambda: taps(broker), lambda count: count == 0)


async def test_page_shows_the_past_without_a_script(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"gone <b>")
        await client.publish_confirmed("orders", b"waiting")
        async with client.consume("orders", credit=1) as deliveries:
            (await anext(deliveries)).ack()
            (await anext(deliveries)).requeue()
            await anext(deliveries)
    status, text = await browser.get("/queues/orders/tail")
    assert status == 200
    assert "gone &lt;b&gt;" in text
    for kind in ("publish", "dispatch", "ack", "requeue"):
        assert f'<li class="{kind}"' in text
    assert 'data-live="tail:orders"' in text
    _, filtered = await browser.get("/queues/orders/tail?kind=ack")
    assert '<li class="ack"' in filtered
    assert '<li class="publish"' not in filtered


async def test_page_and_stream_give_a_row_the_same_id(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
        async with browser.events("tail:orders") as stream:
            await stream.next()
            await client.publish_confirmed("orders", b"second")
            async with client.consume("orders", credit=2) as deliveries:
                (await anext(deliveries)).ack()
                (await anext(deliveries)).ack()
                rows = await rows_until(stream, "publish", "dispatch", "ack")
        _, text = await browser.get("/queues/orders/tail")
    for row in rows:
        assert f'data-row="{row["id"]}"' in text


@pytest.mark.parametrize("path", ["/queues/nothing/tail", "/api/v1/live?topic=tail:nothing"])
async def test_tail_of_no_queue_is_not_there(browser: LivePages, path: str) -> None:
    assert (await browser.get(path))[0] == 404


async def test_tail_refuses_a_kind_that_there_is_not(
    broker: RunningBroker, browser: LivePages
) -> None:
    async with connect(broker.host, broker.port) as client:
        await client.publish_confirmed("orders", b"first")
    assert (await browser.get("/queues/orders/tail?kind=odd"))[0] == 422
