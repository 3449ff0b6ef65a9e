"""Refusals of callers without an identity: few rows, which push out no others."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.auth import services
from phpmq_lite.admin.routes import ROUTES
from tests.support.engine_stores import engine_store as engine_store
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture

CHANGES = 30  # by an operator
BOUNDS = {"rows": 50, "refusals": 20}


@pytest.fixture
async def home(tmp_path: Path, engine_store: dict[str, Any]) -> AsyncIterator[BrokerFixture]:
    async with broker_fixture(tmp_path / "data", store=engine_store, audit=BOUNDS) as home:
        yield home


async def rows_of(home: BrokerFixture, **query: str) -> list[dict[str, Any]]:
    """Return all audit rows that match a filter, newest first."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        parameters = "&".join(f"{name}={value}" for name, value in query.items())
        page = await home.control("GET", f"/audit?limit=200&{parameters}{cursor}")
        found += page["items"]
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


async def test_stranger_cannot_push_out_what_others_did(
    home: BrokerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.add_user("anna")
    for number in range(CHANGES):
        await home.control("PUT", f"/queues/q{number}")
    monkeypatch.setattr(services, "MINUTE_MS", 1)
    async with HttpUser(home.url) as stranger:
        for _ in range(100):  # each in another minute, so that each has a row
            answer = await stranger.request("POST", "/api/v1/queues/orders/pause", json={})
            assert answer.status == 401

    while len(await rows_of(home, actor="nobody")) != BOUNDS["refusals"]:
        pass
    assert len(await rows_of(home, actor="control")) == CHANGES + 1


async def test_refusals_of_a_stranger_share_a_row_by_address_and_action(
    home: BrokerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.add_user("anna")
    monkeypatch.setattr(services, "MINUTE_MS", 10**15)
    writing = [route for route in ROUTES if route.audit is not None and "{" not in route.path]
    async with HttpUser(home.url) as stranger:
        for _ in range(3):
            for route in writing:
                await stranger.request(route.method, route.path, json={})
    found = await rows_of(home, actor="nobody")
    actions = [row["action"] for row in found]
    assert len(actions) >= BOUNDS["refusals"]  # retention may have removed others
    assert sorted(actions) == sorted({*actions})
