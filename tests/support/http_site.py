"""A real broker with a browser without scripts, a program, and clients of its protocol."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.client.async_client import Client, connect
from phpmq_lite.testing import RunningBroker
from tests.support.http_users import HttpReply, prepared_service

Fields = Mapping[str, str | Sequence[str]]


class Download(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes


class HttpSite:
    """A broker, a browser with cookies, and a program without."""

    def __init__(
        self, broker: RunningBroker, browser: aiohttp.ClientSession, program: aiohttp.ClientSession
    ) -> None:
        self.broker = broker
        self.url = broker.admin_url if "://" in broker.admin_url else f"http://{broker.admin_url}"
        self.url = self.url.rstrip("/")
        self._browser = browser
        self._program = program

    # -- as a browser

    async def get(self, path: str) -> HttpReply:
        """Request a page."""
        async with self._browser.get(URL(self.url + path, encoded=True)) as response:
            return HttpReply(response.status, await response.text(), response.headers)

    async def text(self, path: str, status: int = 200) -> str:
        """Return the text of a page, which must have this status."""
        page = await self.get(path)
        assert page.status == status, page.text[:2_000]
        return page.text

    async def download(self, path: str) -> Download:
        """Return a response as bytes; a redirect is not followed."""
        url = URL(self.url + path, encoded=True)
        async with self._browser.get(url, allow_redirects=False) as response:
            return Download(response.status, response.headers, await response.read())

    async def post(self, path: str, fields: Fields | None = None, **more: str) -> HttpReply:
        """Submit a form with the CSRF token of this session; a redirect is not followed."""
        data = aiohttp.FormData()
        given: dict[str, str | Sequence[str]] = {"csrf": await self.csrf()} | dict(fields or {})
        for name, value in (given | more).items():
            for one in [value] if isinstance(value, str) else value:
                data.add_field(name, one)
        return await self._send(path, data)

    async def upload(self, path: str, content: bytes, **fields: str) -> HttpReply:
        """Submit a form with a file."""
        data = aiohttp.FormData(default_to_multipart=True)
        for name, value in ({"csrf": await self.csrf()} | fields).items():
            data.add_field(name, value)
        data.add_field("file", content, filename="body.bin")
        return await self._send(path, data)

    async def _send(self, path: str, data: aiohttp.FormData) -> HttpReply:
        async with self._browser.post(
            URL(self.url + path, encoded=True), data=data, headers={"Origin": self.url},
            allow_redirects=False,
        ) as response:  # fmt: skip
            return HttpReply(response.status, await response.text(), response.headers)

    async def submit(self, path: str, fields: Fields | None = None, **more: str) -> HttpReply:
        """Submit a form and return the page that it redirects to."""
        done = await self.post(path, fields, **more)
        assert done.status == 303, f"{done.status}: {error_of(done.text)}"
        assert done.location is not None
        return await self.get(done.location)

    async def csrf(self) -> str:
        page = await self.get("/publish")
        found = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert found is not None, page.text[:2_000]
        return found[1]

    # -- as a program

    async def api(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Call the API and return the status and the document."""
        sent: dict[str, Any] = {"headers": headers}
        if method != "GET":
            sent["json"] = {} if body is None else body
        url = URL(f"{self.url}/api/v1{path}", encoded=True)
        async with self._program.request(method, url, **sent) as response:
            text = await response.text()
            self.headers = response.headers
            return response.status, json.loads(text) if text else None

    async def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Call the API and return the document; it must succeed."""
        status, data = await self.api(method, path, body, **headers)
        assert status < 300, (status, data)
        return data

    async def refusal(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, str]:
        """Call the API and return the status and the code of the problem."""
        status, problem = await self.api(method, path, body, **headers)
        return status, problem["code"]

    async def create_queue(self, name: str, **settings: Any) -> None:
        path = f"/queues/{encode_name(name)}"
        await self.ok("PUT", path)
        await self.ok("PATCH", path, settings)

    async def publish(
        self, queue: str, *contents: str | bytes, ttl_s: int | None = None
    ) -> list[str]:
        """Store messages and return their ids."""
        messages = [_message(content) | {"ttl_s": ttl_s} for content in contents]
        ids: list[str] = []
        for at in range(0, len(messages), 1_000):
            path = f"/queues/{encode_name(queue)}/messages"
            ids += (await self.ok("POST", path, messages[at : at + 1_000]))["ids"]
        return ids

    async def publish_many(self, queue: str, count: int, start: int = 0) -> list[str]:
        """Store ``count`` numbered messages and return their ids."""
        return await self.publish(queue, *(f"m{at}" for at in range(start, start + count)))

    async def dead_letter(self, queue: str, *contents: str) -> list[str]:
        """Publish messages, dead-letter them as a consumer, and return the ids of their records."""
        await self.publish(queue, *contents)
        async with self.client() as client, client.consume(queue, credit=10) as consumer:
            for _ in contents:
                (await anext(consumer)).dead_letter()
        async with asyncio.timeout(10):
            while await self.ready(f"{queue}.dlq") < len(contents):
                pass  # each request waits for its response, so this does not spin
        page = await self.ok("GET", f"/queues/{queue}.dlq/messages")
        return [item["id"] for item in page["items"]]

    async def contents(self, queue: str) -> list[str]:
        """Return the bodies of a queue in order, without consuming them."""
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            path = f"/queues/{encode_name(queue)}/messages?limit=200&cursor={cursor}"
            page = await self.ok("GET", path)
            found += [item["preview"] for item in page["items"]]
            cursor = page["next"]
        return found

    async def ready(self, queue: str) -> int:
        status, data = await self.api("GET", f"/queues/{encode_name(queue)}")
        return int(data["ready"]) if status == 200 else 0

    async def select(self, text: str) -> dict[str, Any]:
        """Create a selection of the matching messages."""
        made: dict[str, Any] = await self.ok("POST", "/selections", {"q": text})
        return made

    async def bulk(self, text: str, action: str, **options: Any) -> dict[str, Any]:
        """Select messages, apply an action, and return the finished job."""
        made = await self.select(text)
        if made["to_confirm"]:
            options.setdefault("confirm", made["to_confirm"][0])
        job = await self.ok("POST", "/bulk", {"token": made["token"], "action": action} | options)
        return await self.finished(job["job"])

    async def finished(self, number: int) -> dict[str, Any]:
        """Wait until a bulk job has finished and return it."""
        async with asyncio.timeout(60):
            while True:  # each request waits for its response, so this does not spin
                job: dict[str, Any] = await self.ok("GET", f"/bulk/{number}")
                if job["state"] != "running":
                    return job

    async def audit(self, action: str = "") -> list[dict[str, Any]]:
        """Return the rows of the audit log, newest first."""
        page = await self.ok("GET", f"/audit?action={action}")
        rows: list[dict[str, Any]] = page["items"]
        return rows

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with connect(self.broker.host, self.broker.port) as made:
            yield made


def _message(content: str | bytes) -> dict[str, Any]:
    if isinstance(content, str):
        return {"content": content}
    return {"content": b64encode(content).decode(), "encoding": "base64"}


def error_of(text: str) -> str:
    found = re.findall(r'<p class="(?:field-error|inset bad)[^>]*>(.*?)</p>', text, flags=re.S)
    trouble = re.search(r"<h1 id=\"trouble-title\">.*?</section>", text, flags=re.S)
    return " / ".join(found) or (trouble[0] if trouble else text[:1_000])


@asynccontextmanager
async def running_site(data: Path, **sections: Any) -> AsyncIterator[HttpSite]:
    """Run a broker with its admin interface."""
    async with (
        prepared_service(data, **sections) as broker,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as program,
    ):
        yield HttpSite(broker, browser, program)


def note_of(text: str) -> str:
    found = re.search(r'<div class="note".*?<p>(.*?)</p>', text, flags=re.S)
    return unescape(found[1]) if found else ""
