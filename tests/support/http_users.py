"""Users of a real broker over HTTP: a browser with its cookies, a program with a token."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
from yarl import URL

from phpmq_lite.admin.http.context import Context
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.stored_rows import stored_rows, stored_tables
from tests.support.stores import ON_POSTGRES, empty_database

PASSWORD = "correct horse battery"


class HttpReply(NamedTuple):
    status: int
    text: str
    headers: Any

    @property
    def location(self) -> str | None:
        return self.headers.get("Location")  # type: ignore[no-any-return]

    def fields(self, action: str) -> dict[str, str]:
        """Return the hidden fields of the form that posts to ``action``."""
        for form in re.findall(r"<form\b.*?</form>", self.text, flags=re.S):
            if f'action="{action}"' in unescape(form):
                found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
                return {name: unescape(value) for name, value in found}
        raise AssertionError(f"no form posts to {action}")

    def undo(self) -> str:
        found = re.search(r'action="(/undo/[\w-]+)"', self.text)
        assert found is not None, "no Undo on this page"
        return found[1]


class HttpUser:
    """A browser, or a program without cookies if ``secret`` (of a token) is set."""

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
        return self.headers.get("Origin", self.base)

    async def request(self, method: str, path: str, headers: Any = None, **more: Any) -> HttpReply:
        """Send a request without following redirects; headers that are None are omitted."""
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
        """Request a page."""
        return await self.request("GET", path, headers)

    async def csrf(self) -> str:
        """Return the CSRF token of the session, from a page that any user may see."""
        for path in ("/account", "/login"):
            found = re.search(r'name="csrf" value="(\w+)"', (await self.get(path)).text)
            if found:
                return found[1]
        raise AssertionError("no form")

    async def post(self, path: str, **fields: str) -> HttpReply:
        """Submit a form with its CSRF token."""
        data = {"csrf": await self.csrf()} | fields
        return await self.request("POST", path, {"Origin": self.origin}, data=data)

    async def call(self, method: str, path: str, body: Any = None) -> HttpReply:
        """Call the API like a script of the admin pages, or like a program with its token."""
        headers: dict[str, str] = {}
        if not self.secret:
            headers = {"Origin": self.origin, "X-CSRF-Token": await self.csrf()}
        return await self.request(method, f"/api/v1{path}", headers, json=body or {})

    async def log_in(self, name: str, password: str = PASSWORD, **fields: str) -> HttpReply:
        """Submit the login form."""
        return await self.post("/login", name=name, password=password, **fields)

    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self._session.cookie_jar}


class BrokerFixture:
    """A broker whose users and tokens are created over its control socket."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.url = broker.admin_url.rstrip("/")
        self.data = broker.data

    @property
    def context(self) -> Context:
        """The shared objects of the admin application."""
        context = self.broker.service.pages.context
        assert context is not None
        return context

    async def control(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API over the control socket, like the command line."""
        connector = aiohttp.UnixConnector(str(self.data / "control.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://broker/api/v1{path}", json=body or {}) as response,
        ):
            assert response.status < 300, await response.text()
            return await response.json()

    async def add_user(self, name: str, role: str = "admin", *queues: str) -> None:
        user = {"name": name, "password": PASSWORD, "role": role, "queues": list(queues)}
        await self.control("POST", "/users", user)

    async def token(self, name: str, role: str, *queues: str, **more: Any) -> str:
        asked = {"name": name, "role": role, "queues": list(queues)} | more
        return str((await self.control("POST", "/tokens", asked))["token"])

    def rows(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a query on the database."""
        return stored_rows(self.data, text, *values)

    def tables(self, excluded: Collection[str] = ()) -> dict[str, list[tuple[Any, ...]]]:
        return stored_tables(self.data, excluded)

    def audit(self) -> list[tuple[Any, ...]]:
        """Return actor, source, action, target, count and result of all audit rows."""
        return self.rows("SELECT actor, source, action, target, count, result FROM audit")


@asynccontextmanager
async def broker_fixture(data: Path, **sections: Any) -> AsyncIterator[BrokerFixture]:
    async with prepared_service(data, **sections) as broker:
        yield BrokerFixture(broker)


@asynccontextmanager
async def prepared_service(data: Path, **sections: Any) -> AsyncIterator[RunningBroker]:
    """Run a broker on ``data``; a new folder receives a migrated database first."""
    _prepare_database(data)
    async with running_service(data, **sections) as broker:
        yield broker


def _prepare_database(data: Path) -> None:
    """Spare the broker its migrations: a fifth of its start, and most of its disk syncs."""
    if not data.exists() and not ON_POSTGRES:
        data.mkdir(0o700, parents=True)
        (data / DATABASE).write_bytes(empty_database())


async def wait_until(check: Callable[[], bool]) -> None:
    """Poll ``check`` until it is true; the timeout of the test limits it."""
    while not check():  # noqa: ASYNC110 - no event announces it
        await asyncio.sleep(0.01)


def visible_text(text: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", text))
