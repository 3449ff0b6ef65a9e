"""Live streams, polls and waits over real HTTP, with a real broker and real clients."""

import asyncio
import re
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.identity import Identity
from phpmq_lite.admin.http.live_feeds import WAITS
from phpmq_lite.admin.messages.wait import WaitPosition
from phpmq_lite.client.async_client import Client, connect
from phpmq_lite.roles import Role
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.live_pages import (
    SOON_S,
    EventStream,
    LivePages,
    pages,
    poll_until,
    publish_staged,
    streams,
    taps,
)

ORDERS = "orders"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data", queues={"max_deliveries": 20}) as broker:
        yield broker


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[Client]:
    async with connect(broker.host, broker.port) as client:
        yield client


async def publish(broker: RunningBroker, *bodies: bytes, queue: str = ORDERS) -> None:
    async with connect(broker.host, broker.port) as client:
        for body in bodies:
            await client.publish_confirmed(queue, body)


async def last_of(stream: EventStream) -> dict[str, Any]:
    """Read up to the event that ends a stream; return its data."""
    while True:
        name, _, data = await stream.next()
        if name == "bye":
            return data


# -- streams


async def test_stream_sends_everything_first_and_then_only_changes(
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


async def test_stream_resumes_after_the_last_event_of_the_browser(
    broker: RunningBroker, browser: LivePages
) -> None:
    await publish(broker, b"one")
    async with browser.events("queue:orders") as kept:
        _, id_, _ = await kept.next()
        headers = {"Last-Event-ID": id_}
        async with browser.events("queue:orders", **headers) as stream:
            _, _, first = await stream.next()
            assert "1.dispatched" not in first.get("shown", {})


async def test_every_topic_has_a_stream(broker: RunningBroker, browser: LivePages) -> None:
    await publish(broker, b"one")
    for topic in ("overview", "queues", "clients"):
        async with browser.events(topic) as stream:
            _, _, data = await stream.next()
            assert data["says"]


async def test_unknown_topic_is_refused_with_the_valid_ones(browser: LivePages) -> None:
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


async def test_fifth_stream_of_a_session_is_refused_and_polls(
    broker: RunningBroker, browser: LivePages
) -> None:
    await publish(broker, b"one")
    await browser.get("/publish")  # a page with a form starts a session
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stream = await stack.enter_async_context(browser.events("queues"))
            await stream.next()
        async with browser.events("queues") as fifth:
            assert fifth.status == 204
        first = await browser.json("/live?topic=queue:orders")
        assert first["shown"]["1.ready"] == "1"
        await publish(broker, b"two")
        changed = await poll_until(
            lambda: browser.json(f"/live?topic=queue:orders&after={first['id']}"),
            lambda data: "1.ready" in data.get("shown", {}),
        )
        assert changed["shown"]["1.ready"] == "2"
        assert "1.dispatched" not in changed["shown"]
    await wait_for_streams(broker, 0)
    async with browser.events("queues") as stream:
        assert stream.status == 200


async def wait_for_streams(broker: RunningBroker, count: int) -> None:
    async with pages(broker) as other:
        await poll_until(
            lambda: other.get("/metrics"),
            lambda answer: f"phpmq_sse_streams {count}.0" in answer[1],
        )


async def test_streams_of_the_control_socket_have_no_limit_per_session(
    broker: RunningBroker,
) -> None:
    async with control(broker) as session, AsyncExitStack() as stack:
        for _ in range(6):
            url = "/api/v1/events?topic=queues"
            response = await stack.enter_async_context(session.get(url))
            assert response.status == 200
            await EventStream(response).next()


async def test_stop_ends_twenty_open_streams(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = running_service(tmp_path / "data")
        broker = await running.__aenter__()
        await publish(broker, b"one")
        streams = []
        for _ in range(20):  # one browser each
            browser = await stack.enter_async_context(pages(broker))
            await browser.get("/publish")
            streams.append(await stack.enter_async_context(browser.events("queues")))
        for stream in streams:
            await stream.next()
        stopping = asyncio.create_task(running.__aexit__(None, None, None))
        for stream in streams:
            assert await last_of(stream) == {"reason": "stopping"}
        await stopping


async def test_stop_answers_waits(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = running_service(tmp_path / "data")
        broker = await running.__aenter__()
        browser = await stack.enter_async_context(pages(broker))
        waiting = asyncio.create_task(waited(browser, "timeout=60"))
        await wait_for_waits(broker, 1)
        await running.__aexit__(None, None, None)
        assert (await waiting)[0] == 204


# -- wait


async def waited(browser: LivePages, query: str) -> tuple[int, str, dict[str, Any]]:
    """Wait for a message; return the status, the cursor and the message."""
    async with browser.session.get(browser.url(f"/api/v1/wait?{query}")) as response:
        found = await response.json() if response.status == 200 else {}
        return response.status, response.headers.get("X-Cursor", ""), found


async def wait_for_waits(broker: RunningBroker, count: int) -> None:
    await poll_until(lambda: taps(broker), lambda found: found >= count)


async def test_wait_answers_when_the_message_is_published(
    broker: RunningBroker, browser: LivePages
) -> None:
    _, cursor, _ = await waited(browser, "")
    query = f"q=queue:orders&after={cursor}&timeout=30"
    waiting = asyncio.create_task(waited(browser, query))
    await wait_for_waits(broker, 1)
    await publish(broker, b"other", queue="mail")
    await publish(broker, b"mine")
    status, cursor, found = await waiting
    assert (status, found["queue"], found["preview"]) == (200, ORDERS, "mine")
    assert WaitPosition.read(cursor) is not None


async def test_wait_answers_when_spark_publishes(broker: RunningBroker, browser: LivePages) -> None:
    _, cursor, _ = await waited(browser, "")
    waiting = asyncio.create_task(waited(browser, f"q=queue:orders&after={cursor}&timeout=30"))
    await wait_for_waits(broker, 1)
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


async def test_wait_finds_each_of_many_messages_once_while_they_arrive(
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
    context = await broker.service.pages.open()
    before = await WaitPosition.now(context.readers)
    await publish(broker, b"job")
    waiting = asyncio.create_task(
        waited(browser, f"q=queue:orders&until=settled&after={before.text}&timeout=30")
    )
    await wait_for_waits(broker, 1)
    async with connect(broker.host, broker.port) as client, client.consume(ORDERS) as deliveries:
        (await anext(deliveries)).ack()
        status, _, found = await waiting
    assert (status, found["state"], found["preview"]) == (200, "acked", "job")


async def test_wait_ends_empty_after_its_timeout(browser: LivePages) -> None:
    assert (await waited(browser, "q=nothing&timeout=0.2"))[0] == 204


async def test_wait_refuses_an_invalid_query(browser: LivePages) -> None:
    for query in ("timeout=61", "until=never", "after=x", "q=state:odd", "nix=1"):
        assert (query, (await browser.get(f"/api/v1/wait?{query}"))[0]) == (query, 422)


async def test_waits_have_a_limit(broker: RunningBroker) -> None:
    async with AsyncExitStack() as stack:
        browsers = [await stack.enter_async_context(pages(broker)) for _ in range(4)]
        _, cursor, _ = await waited(browsers[0], "")
        waiting = [
            asyncio.create_task(waited(browsers[number % 3], f"after={cursor}&timeout=60"))
            for number in range(WAITS)
        ]
        await wait_for_waits(broker, WAITS)
        async with browsers[3].session.get(browsers[3].url("/api/v1/wait")) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) > 0
        await publish(broker, b"all")
        assert {status for status, _, _ in await asyncio.gather(*waiting)} == {200}


# -- the tail of a queue


HOSTILE = "<script>alert(1)</script>\u202e"


async def rows_until(stream: EventStream, *kinds: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(SOON_S):
        while not set(kinds) <= {row["kind"] for row in rows}:
            _, _, data = await stream.next()
            rows += data.get("rows", [])
    return rows


@pytest.fixture
async def tail(broker: RunningBroker, browser: LivePages) -> AsyncIterator[EventStream]:
    """Open the tail of a queue with one message."""
    await publish(broker, b"first")
    async with browser.events("tail:orders") as stream:
        await stream.next()
        yield stream


async def test_tail_shows_each_kind_once(client: Client, tail: EventStream) -> None:
    await client.publish_confirmed("orders", HOSTILE.encode())
    async with client.consume("orders", credit=1) as deliveries:
        (await anext(deliveries)).ack()
        (await anext(deliveries)).requeue(ttl_s=600)
        (await anext(deliveries)).dead_letter()
        rows = await rows_until(tail, "publish", "ack", "requeue", "dead")
    kinds = [row["kind"] for row in rows]
    assert sorted(kinds) == ["ack", "dead", *["dispatch"] * 3, "publish", "requeue"]
    assert kinds.index("publish") < kinds.index("requeue") < kinds.index("dead")
    published = next(row for row in rows if row["kind"] == "publish")
    assert published["preview"] == "<script>alert(1)</script>\\u202e"
    assert published["text"].startswith("by client")
    assert published["link"] == f"/messages/{published['message']}"


async def test_tail_shows_returned_and_deleted_messages(
    broker: RunningBroker, browser: LivePages, tail: EventStream
) -> None:
    async with connect(broker.host, broker.port) as client, client.consume("orders") as deliveries:
        await anext(deliveries)
        await client.close()  # a consumer that only stops adds no event
    rows = await rows_until(tail, "dispatch", "return")
    url = browser.url("/api/v1/queues/orders/purge")
    async with browser.session.post(url, json={}) as answer:
        assert answer.status == 200, await answer.text()
    rows += await rows_until(tail, "delete")
    assert [row["kind"] for row in rows] == ["dispatch", "return", "delete"]


async def test_tail_shows_expired_messages(client: Client, tail: EventStream) -> None:
    await client.publish_confirmed("orders", b"short", ttl_s=1)
    rows = await rows_until(tail, "expire")
    assert [row["kind"] for row in rows] == ["publish", "expire"]


async def test_tail_filters_by_kind_and_text(broker: RunningBroker, browser: LivePages) -> None:
    await publish(broker, b"first")
    async with browser.events("tail:orders", "&kind=publish&kind=ack&q=needle") as stream:
        await stream.next()
        await publish(broker, b"hay", b"a needle here")
        rows = await rows_until(stream, "publish")
    assert [row["preview"] for row in rows] == ["a needle here"]


async def test_tail_of_a_busy_queue_counts_omitted_rows(client: Client, tail: EventStream) -> None:
    count = 3_000
    await client.publish_many("orders", [b"%d" % number for number in range(count)])
    seen = 0
    async with asyncio.timeout(SOON_S):
        while seen < count:
            _, _, data = await tail.next()
            assert len(data.get("rows", [])) <= 200
            seen += len(data.get("rows", [])) + data.get("missed", 0)
    assert seen == count


async def test_tail_shows_the_last_messages_published_by_spark_and_counts_the_rest(
    broker: RunningBroker, tail: EventStream
) -> None:
    rows = [("orders" if n % 3 else "mail", b"%d" % n) for n in range(2_402)]
    count = sum(queue == "orders" for queue, _ in rows)
    await publish_staged(broker, *rows)
    seen: list[dict[str, Any]] = []
    missed = 0
    async with asyncio.timeout(SOON_S):
        while len(seen) + missed < count:
            _, _, data = await tail.next()
            seen += data.get("rows", [])
            missed += data.get("missed", 0)
    assert {row["kind"] for row in seen} == {"publish"}
    assert [row["preview"] for row in seen] == [
        str(n) for n in range(2_302, 2_402) if n % 3
    ]  # the last hundred numbers, without those of other queues
    assert len(seen) + missed == count


async def test_tail_stops_listening_without_viewers(
    broker: RunningBroker, browser: LivePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpmq_lite.admin.messages.tail.IDLE_S", 2.0)
    await publish(broker, b"first")
    assert await taps(broker) == 0
    assert (await browser.get("/queues/orders/tail"))[0] == 200
    assert await taps(broker) == 1
    await poll_until(lambda: taps(broker), lambda count: count == 0)


async def test_page_shows_past_events_without_scripts(browser: LivePages, client: Client) -> None:
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


async def test_page_shows_messages_of_one_millisecond_newest_first(
    browser: LivePages, client: Client
) -> None:
    await client.publish_many("orders", [b"{}"] * 50)
    _, text = await browser.get("/queues/orders/tail")
    numbers = [int(each) for each in re.findall(r'data-row="publish\.(\d+)\.', text)]
    assert len(numbers) == 50
    assert numbers == sorted(numbers, reverse=True)


async def test_rows_have_the_same_id_on_page_and_stream(
    browser: LivePages, client: Client, tail: EventStream
) -> None:
    await client.publish_confirmed("orders", b"second")
    async with client.consume("orders", credit=2) as deliveries:
        (await anext(deliveries)).ack()
        (await anext(deliveries)).ack()
        rows = await rows_until(tail, "publish", "dispatch", "ack")
    _, text = await browser.get("/queues/orders/tail")
    for row in rows:
        assert f'data-row="{row["id"]}"' in text


async def test_tail_does_not_replay_an_earlier_visit(
    broker: RunningBroker, browser: LivePages
) -> None:
    """The page has the rows of the database; the stream adds only what came after it."""
    await publish(broker, b"first")
    for _ in range(2):
        assert (await browser.get("/queues/orders/tail"))[0] == 200
        async with browser.events("tail:orders") as stream:
            _, position, data = await stream.next()
            assert data.get("rows", []) == []
            await publish(broker, b"live")
            assert len(await rows_until(stream, "publish")) == 1
        await poll_until(lambda: streams(broker), lambda count: count == 0)
        await publish(broker, b"between the visits")
    async with browser.events("tail:orders", **{"Last-Event-ID": position}) as stream:
        assert (await stream.next())[2].get("gap") is None
    await poll_until(lambda: streams(broker), lambda count: count == 0)
    assert (await browser.get("/queues/orders/tail"))[0] == 200
    async with browser.events("tail:orders", **{"Last-Event-ID": position}) as stream:
        assert (await stream.next())[2]["gap"] is True


async def test_tail_or_topic_of_a_missing_queue_is_not_found(browser: LivePages) -> None:
    for path in (
        "/queues/nothing/tail",
        "/api/v1/live?topic=tail:nothing",
        "/api/v1/live?topic=queue:nothing",
    ):
        assert (path, (await browser.get(path))[0]) == (path, 404)


async def test_tail_refuses_an_unknown_kind(broker: RunningBroker, browser: LivePages) -> None:
    await publish(broker, b"first")
    assert (await browser.get("/queues/orders/tail?kind=odd"))[0] == 422


# -- a user with access to some queues


@pytest.fixture
async def two_queues(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data") as two_queues:
        await publish(two_queues, b"for everybody", queue="mail")
        await publish(two_queues, b"for few", queue="secret")
        yield two_queues


@asynccontextmanager
async def control(two_queues: RunningBroker) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(two_queues.data / "control.sock"))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
        yield session


@asynccontextmanager
async def limited(
    two_queues: RunningBroker, role: str = "viewer", name: str = "limited"
) -> AsyncIterator[LivePages]:
    """Run a program whose token is limited to the queues ``mail*``."""
    async with control(two_queues) as session:
        asked = {"name": f"{name}-{role}", "role": role, "queues": ["mail*"]}
        async with session.post("/api/v1/tokens", json=asked) as answer:
            assert answer.status == 201, await answer.text()
            token = (await answer.json())["token"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        yield LivePages(two_queues, session)


async def test_topics_of_other_queues_are_not_found(two_queues: RunningBroker) -> None:
    async with limited(two_queues) as program:
        for topic in ("queue:secret", "tail:secret"):
            assert (await program.get(f"/api/v1/live?topic={topic}"))[0] == 404
        assert (await program.get("/api/v1/live?topic=queue:mail"))[0] == 200
        async with program.events("tail:secret") as stream:
            assert (await stream.next())[::2] == ("bye", {"reason": "gone"})


async def test_limited_user_does_not_share_a_feed_with_an_unlimited_one(
    two_queues: RunningBroker,
) -> None:
    async with limited(two_queues) as program, pages(two_queues) as browser:
        everything = await browser.json("/live?topic=queues&ids=1,2")
        less = await program.json("/live?topic=queues&ids=1,2")
    assert "2.ready" in everything["shown"]
    assert "2.ready" not in less["shown"]


async def test_wait_finds_nothing_of_other_queues(two_queues: RunningBroker) -> None:
    async with limited(two_queues) as program:
        _, cursor, _ = await waited(program, "")
        waiting = asyncio.create_task(waited(program, f"after={cursor}&timeout=30"))
        await wait_for_waits(two_queues, 1)
        await publish(two_queues, b"for few again", queue="secret")
        await publish(two_queues, b"a new queue of ours", queue="mail2")
        assert (await waiting)[2]["preview"] == "a new queue of ours"


async def frames_of(program: LivePages, number: int) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = (await program.json(f"/clients/{number}/frames"))["frames"]
    return frames


async def test_frames_and_messages_of_other_queues_are_hidden(two_queues: RunningBroker) -> None:
    async with (
        limited(two_queues) as program,
        connect(two_queues.host, two_queues.port) as client,
        client.consume("secret", credit=1) as deliveries,
    ):
        await anext(deliveries)
        number = (await program.clients())[0]["client"]
        assert (await program.json(f"/clients/{number}"))["held_total"] == 0
        assert await frames_of(program, number) == []
        await client.publish_confirmed("secret", b"hush")
        await client.publish_confirmed("mail", b"hello")
        seen = await poll_until(lambda: frames_of(program, number), lambda found: len(found) >= 4)
    assert [bool(frame["pieces"]) for frame in seen] == [False, False, True, True]
    assert [frame["queue"] for frame in seen] == [None, None, "mail", "mail"]
    assert b"hush".hex() not in str(seen)


async def test_viewer_can_neither_look_up_the_process_nor_disconnect_it(
    two_queues: RunningBroker,
) -> None:
    async with limited(two_queues) as program, connect(two_queues.host, two_queues.port) as client:
        await client.publish_confirmed("mail", b"x")
        number = (await program.clients())[0]["client"]
        _, text = await program.get(f"/clients/{number}?process=1")
        assert "<dt>Process</dt>" not in text
        url = program.url(f"/api/v1/clients/{number}")
        async with program.session.delete(url, json={}) as answer:
            assert answer.status == 403


async def test_stream_ends_when_its_token_is_revoked(two_queues: RunningBroker) -> None:
    async with limited(two_queues) as program, program.events("queue:mail") as stream:
        await stream.next()
        async with (
            control(two_queues) as session,
            session.delete("/api/v1/tokens/limited-viewer", json={}) as answer,
        ):
            assert answer.status in (200, 204), await answer.text()
        assert await last_of(stream) == {"reason": "gone"}


async def test_bulk_job_is_shown_only_to_its_user(two_queues: RunningBroker) -> None:
    async with (
        limited(two_queues, "operator") as one,
        limited(two_queues, "operator", "b") as other,
    ):
        asked = {"q": "queue:mail"}
        async with one.session.post(one.url("/api/v1/selections"), json=asked) as answer:
            made = (await answer.json())["token"]
        work = {"token": made, "action": "requeue"}
        async with one.session.post(one.url("/api/v1/bulk"), json=work) as answer:
            topic = f"/live?topic=bulk:{(await answer.json())['job']}"
        assert (await one.json(topic))["shown"]["bulk.done"] == "1"
        assert "shown" not in await other.json(topic)


def test_viewers_of_the_same_queues_share_a_feed() -> None:
    def key(name: str, *queues: str) -> Hashable:
        request = make_mocked_request("GET", "/api/v1/live")
        identity = Identity(name, Role.OPERATOR, "token", queues)
        return Call.feed_key(
            cast(Any, SimpleNamespace(request=request, identity=identity)), "queues"
        )

    assert key("a") == key("b")
    assert key("a", "mail") != key("b", "mail")
