"""A browser that reads pages and live event streams over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import aiohttp
from yarl import URL

from phpmq_lite.broker.pipeline import staging
from phpmq_lite.broker.pipeline.staging import STAGE_SLICE
from phpmq_lite.model import AuditEntry
from phpmq_lite.testing import RunningBroker

T = TypeVar("T")

SOON_S: Final = 20.0  # only a defect takes that long


async def poll_until(ask: Callable[[], Awaitable[T]], is_good: Callable[[T], object] = bool) -> T:
    async with asyncio.timeout(SOON_S):
        while True:
            answer = await ask()
            if is_good(answer):
                return answer
            await asyncio.sleep(0.02)


class EventStream:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    @property
    def status(self) -> int:
        """The HTTP status; 204 if too many streams are open."""
        return self.response.status

    async def next(self) -> tuple[str, str, dict[str, Any]]:
        """Return name, id and data of the next event; comments are skipped."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(SOON_S):
            while True:
                raw = await self.response.content.readline()
                if not raw:
                    raise EOFError("the stream has ended")
                line = raw.decode().rstrip("\r\n")
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif "data" in fields:
                    data = json.loads(fields["data"])
                    return fields.get("event", "message"), fields.get("id", ""), data

    async def data_with(self, member: str) -> dict[str, Any]:
        """Return the data of the next event that has ``member``."""
        while True:
            _, _, data = await self.next()
            if member in data:
                return data


class LivePages:
    """A browser with one cookie jar."""

    def __init__(self, broker: RunningBroker, session: aiohttp.ClientSession) -> None:
        self.base = broker.admin_url.rstrip("/")
        self.session = session

    def url(self, path: str) -> URL:
        return URL(self.base + path, encoded=True)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url(path)) as response:
            return response.status, await response.text()

    async def json(self, path: str) -> Any:
        """Return a document of the API."""
        async with self.session.get(self.url("/api/v1" + path)) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def clients(self, query: str = "") -> list[dict[str, Any]]:
        """Return the open connections, or those that match the query."""
        items: list[dict[str, Any]] = (await self.json("/clients" + query))["items"]
        return items

    @asynccontextmanager
    async def events(
        self, topic: str, query: str = "", **headers: str
    ) -> AsyncIterator[EventStream]:
        url = self.url(f"/api/v1/events?topic={topic}{query}")
        none = aiohttp.ClientTimeout(total=None)
        async with self.session.get(url, headers=headers, timeout=none) as response:
            yield EventStream(response)


@asynccontextmanager
async def pages(broker: RunningBroker) -> AsyncIterator[LivePages]:
    """Open a browser."""
    jar = aiohttp.CookieJar(unsafe=True)  # cookies for an address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield LivePages(broker, session)


async def taps(broker: RunningBroker) -> int:
    engine = broker.service.handle.engine
    assert engine is not None
    return len(engine.taps)


async def streams(broker: RunningBroker) -> int:
    context = broker.service.pages.context
    assert context is not None
    return context.live.streams


async def publish_staged(broker: RunningBroker, *rows: tuple[str, bytes]) -> None:
    """Publish rows of queue and body at once, with a token per task, like Spark's sink."""
    engine = broker.service.handle.engine
    assert engine is not None
    entry = AuditEntry("local", "http", "127.0.0.1", "pipeline.publish")
    tokens = {f"t{at}": rows[at : at + STAGE_SLICE] for at in range(0, len(rows), STAGE_SLICE)}
    for token, some in tokens.items():
        staged = [(queue, body, None) for queue, body in some]
        await engine.call(staging.stage, entry, token, staged, after=0, is_whole=True)
    done = await engine.call(staging.publish_staged, entry, "night", 1, list(tokens))
    assert done.published == len(rows)
