"""What somebody who is limited to some queues sees live: those, and nothing of the others."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from phpmq_lite.admin.base.identity import Identity, set_identity
from phpmq_lite.admin.base.route import Role
from phpmq_lite.admin.monitoring.feed_viewers import feed_key
from phpmq_lite.client import connect
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.live_pages import EventStream, LivePages, pages, poll_until, taps


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_service(tmp_path / "data") as broker:
        async with connect(broker.host, broker.port) as client:
            await client.publish_confirmed("mail", b"for everybody")
            await client.publish_confirmed("secret", b"for few")
        yield broker


@asynccontextmanager
async def control(broker: RunningBroker) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(broker.data / "control.sock"))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
        yield session


@asynccontextmanager
async def limited(
    broker: RunningBroker, role: str = "viewer", name: str = "limited"
) -> AsyncIterator[LivePages]:
    """A program whose token is for the queues ``mail*`` only."""
    async with control(broker) as session:
        asked = {"name": f"{name}-{role}", "role": role, "queues": ["mail*"]}
        async with session.post("/api/v1/tokens", json=asked) as answer:
            assert answer.status == 201, await answer.text()
            token = (await answer.json())["token"]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        yield LivePages(broker, session)


async def test_topics_of_other_queues_are_not_there(broker: RunningBroker) -> None:
    async with limited(broker) as program:
        for topic in ("queue:secret", "tail:secret"):
            assert (await program.get(f"/api/v1/live?topic={topic}"))[0] == 404
        assert (await program.get("/api/v1/live?topic=queue:mail"))[0] == 200
        async with program.events("tail:secret") as stream:
            name, _, data = await stream.next()
        assert (name, data) == ("bye", {"reason": "gone"})


async def test_who_sees_less_shares_no_feed_with_who_sees_all(broker: RunningBroker) -> None:
    async with limited(broker) as program, pages(broker) as browser:
        everything = await browser.json("/live?topic=queues&ids=1,2")
        less = await program.json("/live?topic=queues&ids=1,2")
    assert "2.ready" in everything["shown"]
    assert "2.ready" not in less["shown"]


async def test_wait_finds_nothing_of_other_queues(broker: RunningBroker) -> None:
    async with limited(broker) as program:
        async with program.session.get(program.url("/api/v1/wait")) as answer:
            cursor = answer.headers["X-Cursor"]
        url = program.url(f"/api/v1/wait?after={cursor}&timeout=30")

        async def wait() -> Any:
            async with program.session.get(url) as answer:
                return await answer.json()

        waiting = asyncio.create_task(wait())
        await poll_until(lambda: taps(broker), bool)
        async with connect(broker.host, broker.port) as client:
            await client.publish_confirmed("secret", b"for few again")
            await client.publish_confirmed("mail2", b"a new queue of ours")
        assert (await waiting)["preview"] == "a new queue of ours"


async def frames_of(program: LivePages, number: int) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = (await program.json(f"/clients/{number}/frames"))["frames"]
    return frames


async def test_frames_and_messages_of_other_queues_are_hidden(broker: RunningBroker) -> None:
    async with (
        limited(broker) as program,
        connect(broker.host, broker.port) as client,
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


async def test_viewer_asks_neither_for_the_process_nor_to_disconnect(broker: RunningBroker) -> None:
    async with limited(broker) as program, connect(broker.host, broker.port) as client:
        await client.publish_confirmed("mail", b"x")
        number = (await program.clients())[0]["client"]
        _, text = await program.get(f"/clients/{number}?process=1")
        assert "<dt>Process</dt>" not in text
        url = program.url(f"/api/v1/clients/{number}")
        async with program.session.delete(url, json={}) as answer:
            assert answer.status == 403


async def test_stream_ends_when_its_token_is_revoked(broker: RunningBroker) -> None:
    async with limited(broker) as program, program.events("queue:mail") as stream:
        await stream.next()
        async with (
            control(broker) as session,
            session.delete("/api/v1/tokens/limited-viewer", json={}) as answer,
        ):
            assert answer.status in (200, 204), await answer.text()
        assert await last_of(stream) == {"reason": "gone"}


async def last_of(stream: EventStream) -> dict[str, Any]:
    while True:
        name, _, data = await stream.next()
        if name == "bye":
            return data


async def test_bulk_work_is_shown_to_who_does_it(broker: RunningBroker) -> None:
    async with limited(broker, "operator") as one, limited(broker, "operator", "b") as other:
        asked = {"q": "queue:mail"}
        async with one.session.post(one.url("/api/v1/selections"), json=asked) as answer:
            made = (await answer.json())["token"]
        work = {"token": made, "action": "requeue"}
        async with one.session.post(one.url("/api/v1/bulk"), json=work) as answer:
            topic = f"/live?topic=bulk:{(await answer.json())['job']}"
        assert (await one.json(topic))["shown"]["bulk.done"] == "1"
        assert "shown" not in await other.json(topic)


def test_viewers_of_the_same_queues_share_what_is_not_about_them() -> None:
    def key(name: str, *queues: str) -> Hashable:
        request = make_mocked_request("GET", "/api/v1/live")
        set_identity(request, Identity(name, Role.OPERATOR, "token", queues))
        return feed_key(request, "queues")

    assert key("a") == key("b")
    assert key("a", "mail") != key("b", "mail")
