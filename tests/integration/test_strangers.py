"""Refusals of callers without an identity: few rows, which push out no others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.accounts import services
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.broker.publish_keys import STORED_FACTOR
from phpmq_lite.client import connect
from phpmq_lite.errors import PublishRefusedError
from phpmq_lite.protocol.connection import ClientSide
from tests.support.engine_stores import engine_store as engine_store
from tests.support.engine_stores import query
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


async def fill_queues_keys_and_clients(port: int) -> None:
    """Publish to many queues with many keys, on many connections."""
    refused = 0
    for number in range(50):
        async with connect("127.0.0.1", port) as stranger:
            try:
                await stranger.publish_confirmed(f"stranger{number}", b"x")
            except PublishRefusedError:
                refused += 1
    assert refused > 20
    async with connect("127.0.0.1", port) as stranger, asyncio.TaskGroup() as tasks:
        for number in range(500):
            tasks.create_task(stranger.publish_confirmed("stranger0", b"%d" % number))


async def repeat_credit(port: int) -> None:
    """Take the same message again and again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    side = ClientSide()
    for _ in range(50):
        writer.write(side.consume("stranger1", 1))
        while not side.receive(await reader.read(65_536)):
            pass
    writer.close()
    await writer.wait_closed()


async def test_stranger_fills_all_tables_that_it_can(
    tmp_path: Path, engine_store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of others stay, and they go on publishing."""
    monkeypatch.setattr(services, "MINUTE_MS", 1)
    sections: dict[str, Any] = {
        "audit": BOUNDS, "history": {"clients": 20}, "limits": {"max_queues": 16},
        "receipts": {"limit": 60}, "store": engine_store,
    }  # fmt: skip
    async with (
        asyncio.timeout(60),
        broker_fixture(tmp_path / "data", **sections) as home,
        connect("127.0.0.1", home.broker.port) as shop,
    ):

        def count(table: str, what: str = "count(*)") -> int:
            text = f"SELECT {what} FROM {table}"
            ((found,),) = query(engine_store, text) if engine_store else home.rows(text)
            return int(found)

        await home.add_user("anna")
        await home.control("PUT", "/queues/orders")
        for number in range(CHANGES):
            verb = ("resume", "pause")[number % 2]
            await home.control("POST", f"/queues/orders/{verb}", {"side": "delivery"})
        for number in range(20):
            await shop.publish_confirmed("orders", b"order %d" % number, key=b"key %d" % number)

        await fill_queues_keys_and_clients(home.broker.port)
        await repeat_credit(home.broker.port)
        async with HttpUser(home.url) as stranger:
            for number in range(100):
                path = f"/api/v1/queues/stranger{number}"
                assert (await stranger.request("PUT", path, json={})).status == 401
                await stranger.get(f"/queues/stranger{number}")

        while len(await rows_of(home, actor="nobody")) != BOUNDS["refusals"]:
            pass
        while count("client WHERE closed_at IS NOT NULL") > 20:
            await home.control("GET", "/clients")
        assert len(await rows_of(home, actor="control")) == CHANGES + 2
        assert count("queue") <= 2 * 16 * 5 // 4
        assert count("receipt", "sum(length(keys) / key_bytes)") <= STORED_FACTOR * 60
        assert 0 < count("event") <= 16  # all of the message that is taken again and again
        assert [count(table) for table in ("session", "reader", "stage", "saved")] == [0] * 4

        for number in range(21):  # 20 are known
            await shop.publish_confirmed("orders", b"order %d" % number, key=b"key %d" % number)
        await home.control("POST", "/queues/orders/resume", {"side": "delivery"})
        number = 0
        async for delivery in shop.consume("orders"):
            assert delivery.body == b"order %d" % number
            delivery.ack()
            number += 1
            if number == 21:
                break
