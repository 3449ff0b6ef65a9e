"""Answers while the broker starts and while it drains, with a fake engine."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from phpmq_lite.admin.app import create_app
from phpmq_lite.admin.http.headers import HEADERS
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backend import StoreStatus
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from tests.unit.admin.cases import Database, FakeBroker, broker_status


class Admin:
    def __init__(self) -> None:
        self.client: TestClient[web.Request, web.Application]
        self.broker = FakeBroker()
        self.is_ready = True

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Request a page, which must have the security headers."""
        async with self.client.request(method, path, allow_redirects=False) as response:
            assert [name for name in HEADERS if name not in response.headers] == []
            return response.status, await response.text()


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    Database(tmp_path / "phpmq.db").connection.close()
    readers = SqliteReaders(tmp_path / "phpmq.db")
    admin = Admin()
    app = create_app(
        admin.broker, readers, Settings(data=tmp_path), version="0.1.0",
        is_ready=lambda: admin.is_ready,
    )  # fmt: skip
    async with TestClient(TestServer(app)) as admin.client:
        yield admin
    await readers.close()


async def test_only_health_answers_before_the_broker_is_ready(admin: Admin) -> None:
    admin.is_ready = False
    admin.broker.now = broker_status(is_ready=False, step="recovering")
    assert await admin.get("/livez") == (200, "alive\n")
    status, text = await admin.get("/readyz")
    assert (status, text.splitlines()[0]) == (503, "starting")
    assert await admin.get("/startupz") == (503, "starting: recovering, 60 %\n")
    status, text = await admin.get("/")
    assert (status, "recovering" in text) == (503, True)
    for route in ROUTES:
        if not route.is_early:
            path = re.sub(r"\{\w+\}", "1", route.path)
            assert (route.name, (await admin.get(path, route.method))[0]) == (route.name, 503)
    admin.is_ready = True
    admin.broker.now = broker_status()
    assert (await admin.get("/readyz"))[0] == 200
    assert await admin.get("/startupz") == (200, "started\n")


@pytest.mark.parametrize("is_ready", [True, False])
async def test_readiness_ends_while_draining_and_pages_stay(admin: Admin, is_ready: bool) -> None:
    admin.is_ready = is_ready
    admin.broker.now = broker_status(is_draining=True)
    status, text = await admin.get("/readyz")
    assert (status, text.splitlines()[0]) == (503, "draining")
    for path in ("/", "/queues", "/metrics", "/api/v1/queues"):
        assert (path, (await admin.get(path))[0]) == (path, 200)
    assert await admin.get("/livez") == (200, "alive\n")


async def test_standby_names_the_active_broker_to_those_that_it_does_not_relay(
    admin: Admin,
) -> None:
    """Such as commands, which use the control socket."""
    admin.is_ready = False
    store = StoreStatus(engine="PostgreSQL", is_active=False, active_broker="db2")
    step = "standby of db1/phpmq: another broker is active"
    admin.broker.now = broker_status(is_ready=False, step=step, store=store)
    status, text = await admin.get("/api/v1/queues")
    answer = json.loads(text)
    assert (status, answer["code"]) == (503, "standby")
    assert "This broker is a standby; the active one is on db2." in answer["detail"]
    assert "--url" in answer["detail"]
    admin.broker.now = broker_status(
        is_ready=False,
        step="waiting for db1/phpmq: no quorum",
        store=replace(store, active_broker=""),
    )
    _, text = await admin.get("/api/v1/queues")
    detail = json.loads(text)["detail"]
    assert "No broker is active, and this one is waiting to become active: waiting for" in detail
    assert "standby" not in detail
