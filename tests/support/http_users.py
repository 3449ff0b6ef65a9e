"""Visitors of a real broker: a browser with its cookies, a program with a token."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, closing
from html import unescape
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
from yarl import URL

from phpmq_lite.testing import RunningBroker, running_service

PASSWORD = "correct horse battery"


class HttpReply(NamedTuple):
    """What came back."""

    status: int
    text: str
    headers: Any

    @property
    def location(self) -> str | None:
        return self.headers.get("Location")  # type: ignore[no-any-return]


class HttpUser:
    """A browser at a broker; ``secret`` makes a program of it, that has no cookies."""

    def __init__(
        self,
        base: str,
        secret: str | None = None,
        *,
        connector: aiohttp.BaseConnector | None = None,
        headers: dict[str, str] | None = None,
        **more: str,
    ) -> None:
        self.base = base.rstrip("/")
        self.headers = (headers or {}) | more
        self.secret = secret
        jar = aiohttp.DummyCookieJar() if secret else aiohttp.CookieJar(unsafe=True)
        self._session = aiohttp.ClientSession(cookie_jar=jar, connector=connector)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self._session.close()

    @property
    def origin(self) -> str:
        """What a browser sends as Origin."""
        return self.headers.get("Origin", self.base)

    async def request(self, method: str, path: str, headers: Any = None, **more: Any) -> HttpReply:
        """Send a request as it is; headers that are None are left out."""
        given = dict(self.headers) | (headers or {})
        if self.secret:
            given["Authorization"] = f"Bearer {self.secret}"
        given = {name: value for name, value in given.items() if value is not None}
        async with self._session.request(
            method, URL(self.base + path, encoded=True), headers=given, allow_redirects=False,
            **more,
        ) as response:  # fmt: skip
            return HttpReply(
                response.status, await response.text(errors="replace"), response.headers.copy()
            )

    async def get(self, path: str, **headers: str) -> HttpReply:
        """Look at a page."""
        return await self.request("GET", path, headers)

    async def csrf(self) -> str:
        """Give the token of the session, from a page that anybody may see."""
        for path in ("/account", "/login"):
            found = re.search(r'name="csrf" value="(\w+)"', (await self.get(path)).text)
            if found:
                return found[1]
        raise AssertionError("no form")

    async def post(self, path: str, **fields: str) -> HttpReply:
        """Send a form of ours."""
        data = {"csrf": await self.csrf()} | fields
        return await self.request("POST", path, {"Origin": self.origin}, data=data)

    async def call(self, method: str, path: str, body: Any = None) -> HttpReply:
        """Call the API as a script of our pages does, or as a program with its token."""
        headers: dict[str, str] = {}
        if not self.secret:
            headers = {"Origin": self.origin, "X-CSRF-Token": await self.csrf()}
        return await self.request(method, f"/api/v1{path}", headers, json=body or {})

    async def log_in(self, name: str, password: str = PASSWORD, **fields: str) -> HttpReply:
        """Log in."""
        return await self.post("/login", name=name, password=password, **fields)

    def cookies(self) -> dict[str, str]:
        """Give the cookies by name."""
        return {cookie.key: cookie.value for cookie in self._session.cookie_jar}


class BrokerFixture:
    """A broker with an admin ``anna``, and whoever is made."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.url = broker.admin_url.rstrip("/")
        self.data = broker.data

    async def control(self, method: str, path: str, body: Any = None) -> Any:
        """Ask over the control socket, as the command line does."""
        connector = aiohttp.UnixConnector(str(self.data / "control.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://broker/api/v1{path}", json=body or {}) as response,
        ):
            assert response.status < 300, await response.text()
            return await response.json()

    async def add_user(self, name: str, role: str = "admin", *queues: str) -> None:
        """Make a user."""
        user = {"name": name, "password": PASSWORD, "role": role, "queues": list(queues)}
        await self.control("POST", "/users", user)

    async def token(self, name: str, role: str, *queues: str, **more: Any) -> str:
        """Make a token; gives its secret."""
        asked = {"name": name, "role": role, "queues": list(queues)} | more
        return str((await self.control("POST", "/tokens", asked))["token"])

    def rows(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the database."""
        with closing(sqlite3.connect(self.data / "phpmq.db")) as connection:
            return connection.execute(text, values).fetchall()

    def tables(self, excluded: Collection[str] = ()) -> dict[str, list[tuple[Any, ...]]]:
        """Return all rows of all tables but those in ``excluded``."""
        names = self.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: self.rows(f"SELECT * FROM {name}") for (name,) in names if name not in excluded
        }

    def audit(self) -> list[tuple[Any, ...]]:
        """Give actor, source, action, target, count and result of all rows."""
        return self.rows("SELECT actor, source, action, target, count, result FROM audit")


@asynccontextmanager
async def broker_fixture(data: Path, **sections: Any) -> AsyncIterator[BrokerFixture]:
    """Run a broker."""
    async with running_service(data, **sections) as broker:
        yield BrokerFixture(broker)


async def wait_until(check: Callable[[], bool]) -> None:
    """Wait for what tells nobody when it happens; fails with the test's own limit."""
    while not check():  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)


def visible_text(text: str) -> str:
    """Give the text of a page as a person reads it."""
    return unescape(re.sub(r"<[^>]+>", "", text))
