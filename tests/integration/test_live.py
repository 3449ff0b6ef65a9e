"""Live streams, polls and waits over real HTTP, with a real broker and real clients."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from phpmq_lite.admin.monitoring.live_feeds import WAITS
from phpmq_lite.admin.resources.wait import WaitPosition
from phpmq_lite.client import connect
from phpmq_lite.storage.read.read_connections import Readers
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

ORDERS = "orders"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
async def browser(broker: RunningBroker) -> AsyncIterator[LivePages]:
    async with pages(broker) as browser:
        yield browser


async def publish(broker: RunningBroker, *bodies: bytes, queue: str = ORDERS) -> None:
    async with connect(broker.host, broker.port) as client:
        for body in bodies:
            await client.publish_confirmed(queue, body)


# -- streams


async def test_stream_shows_all_at_first_and_then_only_what_changed(
    broker: RunningBroker, browser: LivePages
) -> None:
    await publish(broker, b"one")
    async with browser.events("queue:orders") as stream:
        assert stream.response.content_type == "text/event-stream"
        assert stream.response.headers["Cache-Control"] == "no-store"
        _, id_, whole = await stream.next()
        assert whole["shown"]["1.ready"] == "1"
        assert "1.dispatched" in whole["shown"]
        await publish(broker, b"two", b"three")
        while True:
            _, later, changed = await stream.next()
            assert id_ != later
            assert "1.dispatched" not in changed.get("shown", {})
            if changed.get("shown", {}).get("1.ready") == "3":
                break


async def test_stream_goes_on_where_the_browser_was(
    broker: RunningBroker, browser: LivePages
) -> None:
    await publish(broker, b"one")
    async with browser.events("queue:orders") as kept:
        _, id_, _ = await kept.next()
        headers = {"Last-Event-ID": id_}
        async with browser.events("queue:orders", **headers) as stream:
            _, _, first = await stream.next()
            assert "1.dispatched" not in first.get("shown", {})


async def test_streams_of_all_topics_answer(broker: RunningBroker, browser: LivePages) -> None:
    await publish(broker, b"one")
    for topic in ("overview", "queues", "clients"):
        async with browser.events(topic) as stream:
            _, _, data = await stream.next()
            assert data["says"]


async def test_unknown_topic_is_refused_with_the_list(browser: LivePages) -> None:
    for topic in ("nothing", "queue", "overview:x", "queue:"):
        status, text = await browser.get(f"/api/v1/events?topic={topic}")
        assert status == 422
        assert "tail:" in text


async def test_new_rows_are_counted_not_shown(broker: RunningBroker, browser: LivePages) -> None:
    await publish(broker, b"one")
    async with browser.events("queues", "&ids=1") as stream:
        _, _, whole = await stream.next()
        assert whole["new"] == 0
        await publish(broker, b"x", queue="mail")
        assert (await stream.data_with("new"))["new"] == 1


async def test_fifth_stream_of_a_session_gets_no_place_and_polls(
    broker: RunningBroker, browser: LivePages
) -> None:
    await publish(broker, b"one")
    await browser.get("/publish")  # a page with a form: now there is a session
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stream = await stack.enter_async_context(browser.events("queues"))
            await stream.next()
        async with browser.events("queues") as fifth:
            assert fifth.status == 204
        first = await browser.json("/live?topic=queue:orders")
        assert first["shown"]["1.ready"] == "1"
        await publish(broker, b"two")
        changed = await polled(browser, first["id"], "1.ready")
        assert changed["shown"]["1.ready"] == "2"
        assert "1.dispatched" not in changed["shown"]
    await has_streams(broker, 0)
    async with browser.events("queues") as stream:
        assert stream.status == 200


async def polled(browser: LivePages, id_: str, field: str) -> dict[str, Any]:
    """Poll until a field has changed; a feed is evaluated once a second."""

    async def ask() -> dict[str, Any]:
        data: dict[str, Any] = await browser.json(f"/live?topic=queue:orders&after={id_}")
        return data

    return await poll_until(ask, lambda data: field in data.get("shown", {}))


async def has_streams(broker: RunningBroker, count: int) -> None:
    """Wait until the broker has noticed who has left."""
    async with pages(broker) as other:
        await poll_until(
            lambda: other.get("/metrics"),
            lambda answer: f"phpmq_sse_streams {count}.0" in answer[1],
        )


async def test_control_socket_has_streams_of_its_own(broker: RunningBroker) -> None:
    connector = aiohttp.UnixConnector(str(broker.data / "control.sock"))
    async with aiohttp.ClientSession(connector=connector) as session, AsyncExitStack() as stack:
        for _ in range(6):
            url = "http://localhost/api/v1/events?topic=queues"
            response = await stack.enter_async_context(session.get(url))
            assert response.status == 200
            await EventStream(response).next()


async def test_poll_of_a_queue_that_is_not_there_says_so(browser: LivePages) -> None:
    assert (await browser.get("/api/v1/live?topic=queue:nothing"))[0] == 404


async def test_stop_with_twenty_open_streams_is_quick(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = running_service(tmp_path / "data")
        broker = await running.__aenter__()
        await publish(broker, b"one")
        streams = []
        for _ in range(20):  # each a browser of its own
            browser = await stack.enter_async_context(pages(broker))
            await browser.get("/publish")
            streams.append(await stack.enter_async_context(browser.events("queues")))
        for stream in streams:
            await stream.next()
        began_s = time.monotonic()
        stopping = asyncio.create_task(running.__aexit__(None, None, None))
        for stream in streams:
            name, _, data = await stream.next()
            while name != "bye":
                name, _, data = await stream.next()
            assert data == {"reason": "stopping"}
        await stopping
        assert time.monotonic() - began_s < 2


async def test_stop_ends_waits(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = running_service(tmp_path / "data")
        broker = await running.__aenter__()
        browser = await stack.enter_async_context(pages(broker))
        waiting = asyncio.create_task(waited(browser, "timeout=60"))
        await has_waits(broker, 1)
        began_s = time.monotonic()
        await running.__aexit__(None, None, None)
        assert (await waiting)[0] == 204
        assert time.monotonic() - began_s < 2


# -- wait


async def waited(browser: LivePages, query: str) -> tuple[int, str, dict[str, Any]]:
    """Wait; gives status, cursor and the message."""
    async with browser.session.get(browser.url(f"/api/v1/wait?{query}")) as response:
        found = await response.json() if response.status == 200 else {}
        return response.status, response.headers.get("X-Cursor", ""), found


async def has_waits(broker: RunningBroker, count: int) -> None:
    """Wait until so many wait."""
    await poll_until(lambda: taps(broker), lambda found: found >= count)


async def test_wait_answers_when_the_message_is_published(
    broker: RunningBroker, browser: LivePages
) -> None:
    _, cursor, _ = await waited(browser, "")
    query = f"q=queue:orders&after={cursor}&timeout=30"
    waiting = asyncio.create_task(waited(browser, query))
    await has_waits(broker, 1)
    await publish(broker, b"other", queue="mail")
    await publish(broker, b"mine")
    status, cursor, found = await waiting
    assert (status, found["queue"], found["preview"]) == (200, ORDERS, "mine")
    assert WaitPosition.read(cursor) is not None


async def test_wait_answers_when_spark_publishes(broker: RunningBroker, browser: LivePages) -> None:
    _, cursor, _ = await waited(browser, "")
    waiting = asyncio.create_task(waited(browser, f"q=queue:orders&after={cursor}&timeout=30"))
    await has_waits(broker, 1)
    await publish_staged(broker, ("mail", b"other"), (ORDERS, b"mine"))
    async with asyncio.timeout(SOON_S):
        status, _, found = await waiting
    assert (status, found["preview"]) == (200, "mine")


async def test_wait_misses_nothing_between_cursor_and_wait(
    broker: RunningBroker, browser: LivePages
) -> None:
    _, cursor, _ = await waited(browser, "")
    await publish(broker, b"early")
    status, cursor, found = await waited(browser, f"after={cursor}&timeout=10")
    assert (status, found["preview"]) == (200, "early")
    status, _, _ = await waited(browser, f"after={cursor}&timeout=0")
    assert status == 204


async def test_wait_finds_each_of_many_messages_once_while_they_come(
    broker: RunningBroker, browser: LivePages
) -> None:
    _, cursor, _ = await waited(browser, "")
    bodies = [b"%d" % number for number in range(60)]
    publishing = asyncio.create_task(publish(broker, *bodies))
    seen = []
    for _ in bodies:
        status, cursor, found = await waited(browser, f"q=queue:orders&after={cursor}&timeout=10")
        assert status == 200
        seen.append(found["preview"].encode())
    await publishing
    assert seen == bodies


async def test_wait_answers_when_the_message_is_settled(
    broker: RunningBroker, browser: LivePages
) -> None:
    readers = Readers(broker.data / "phpmq.db")
    before = await WaitPosition.now(readers)
    await readers.close()
    await publish(broker, b"job")
    waiting = asyncio.create_task(
        waited(browser, f"q=queue:orders&until=settled&after={before.text}&timeout=30")
    )
    await has_waits(broker, 1)
    async with connect(broker.host, broker.port) as client, client.consume(ORDERS) as deliveries:
        (await anext(deliveries)).ack()
        status, _, found = await waiting
    assert (status, found["state"], found["preview"]) == (200, "acked", "job")


async def test_wait_ends_empty_after_its_time(browser: LivePages) -> None:
    assert (await waited(browser, "q=nothing&timeout=0.2"))[0] == 204


@pytest.mark.parametrize("query", ["timeout=61", "until=never", "after=x", "q=state:odd", "nix=1"])
async def test_wait_refuses_what_it_cannot_read(browser: LivePages, query: str) -> None:
    assert (await browser.get(f"/api/v1/wait?{query}"))[0] == 422


async def test_waits_have_a_limit(broker: RunningBroker) -> None:
    async with AsyncExitStack() as stack:
        browsers = [await stack.enter_async_context(pages(broker)) for _ in range(4)]
        _, cursor, _ = await waited(browsers[0], "")
        waiting = [
            asyncio.create_task(waited(browsers[number % 3], f"after={cursor}&timeout=60"))
            for number in range(WAITS)
        ]
        await has_waits(broker, WAITS)
        async with browsers[3].session.get(browsers[3].url("/api/v1/wait")) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) > 0
        await publish(broker, b"all")
        assert {status for status, _, _ in await asyncio.gather(*waiting)} == {200}
