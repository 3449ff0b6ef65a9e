"""Metrics of the whole broker: they follow what happens, and they never fall."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from phpmq_lite.client import connect
from phpmq_lite.testing import RunningBroker, running_service

Session = aiohttp.ClientSession
Samples = dict[tuple[str, ...], float]


@asynccontextmanager
async def broker(data: Path, **sections: Any) -> AsyncIterator[tuple[RunningBroker, Session]]:
    async with (
        running_service(data, **sections) as running,
        aiohttp.ClientSession(running.admin_url) as session,
    ):
        yield running, session


async def scrape(session: Session) -> Samples:
    async with session.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


async def act(session: Session, method: str, path: str, body: Any = None) -> None:
    async with session.request(method, path, json={} if body is None else body) as response:
        assert response.status < 300, await response.text()


async def test_counts_follow_what_happens(tmp_path: Path) -> None:
    async with broker(tmp_path / "data") as (running, session):
        await act(session, "POST", "/api/v1/queues/orders/messages", [{"content": "a"}] * 3)
        async with connect("127.0.0.1", running.port) as client:
            for key in (b"one", b"two", b"two"):
                await client.publish_confirmed("orders", b"x", key=key)
            async with client.consume("orders", 1) as deliveries:
                (await anext(deliveries)).ack()
                (await anext(deliveries)).dead_letter()
        await act(session, "POST", "/api/v1/queues/orders/purge")
        found = await scrape(session)
    expected = {
        ("phpmq_messages_published_total", "orders", "http"): 3,
        ("phpmq_messages_published_total", "orders", "tcp"): 2,
        ("phpmq_publishes_deduplicated_total", "orders"): 1,
        ("phpmq_messages_acked_total", "orders"): 1,
        ("phpmq_messages_dead_total", "orders", "client"): 1,
        ("phpmq_messages_deleted_total", "orders"): 3,
        ("phpmq_queue_dead_letters", "orders"): 1,
        ("phpmq_queue_messages", "orders", "ready"): 0,
        ("phpmq_clients_opened_total",): 1,
        ("phpmq_audit_rows_total", "queue.purge"): 1,
        ("phpmq_audit_rows_total", "message.publish"): 1,
        ("phpmq_wait_seconds_count", "orders"): found["phpmq_messages_dispatched_total", "orders"],
        ("phpmq_hold_seconds_count", "orders"): 2,
        ("phpmq_http_requests_total", "POST", "api-purge", "200"): 1,
        ("phpmq_ready",): 1,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["phpmq_commit_seconds_count",] >= 5
    assert found["phpmq_commit_seconds_sum",] > 0
    assert found["phpmq_db_bytes", "database"] > 0
    assert found["phpmq_disk_free_bytes",] > 0
    assert found["phpmq_history_rows",] == 5


async def test_counters_do_not_fall_when_queue_and_client_leave(tmp_path: Path) -> None:
    async with broker(tmp_path / "data", metrics={"max_queues": 2}) as (running, session):
        async with connect("127.0.0.1", running.port) as client:
            for queue in ("a", "b", "c", "d"):
                await client.publish_confirmed(queue, b"x")
        before = await scrape(session)
        assert ("phpmq_messages_published_total", "~other", "tcp") in before
        for queue in ("a", "c"):
            await act(session, "POST", f"/api/v1/queues/{queue}/purge")
            await act(session, "DELETE", f"/api/v1/queues/{queue}")
        after = await scrape(session)
    fallen = {
        key: (count, after.get(key))
        for key, count in before.items()
        if key[0].endswith(("_total", "_bucket", "_count")) and after.get(key, -1) < count
    }
    assert fallen == {}


async def test_label_is_dropped_when_new_queues_need_the_place(tmp_path: Path) -> None:
    async with broker(tmp_path / "data", metrics={"max_queues": 1}) as (_, session):
        await act(session, "POST", "/api/v1/queues/a/messages", {"content": "x"})
        await scrape(session)
        await act(session, "POST", "/api/v1/queues/a/purge")
        await act(session, "DELETE", "/api/v1/queues/a")
        await scrape(session)
        await act(session, "POST", "/api/v1/queues/b/messages", {"content": "x"})
        found = await scrape(session)
    labels = {key[1] for key in found if key[0] == "phpmq_messages_acked_total"}
    assert labels == {"b"}


async def test_two_scrapes_at_once_give_the_same(tmp_path: Path) -> None:
    async with broker(tmp_path / "data") as (_, session):
        for queue in "abc":
            await act(session, "POST", f"/api/v1/queues/{queue}/messages", {"content": "x"})
        first, second = await asyncio.gather(scrape(session), scrape(session))
    name = "phpmq_messages_published_total"
    assert {key: value for key, value in first.items() if key[0] == name} == {
        key: value for key, value in second.items() if key[0] == name
    }


@pytest.mark.parametrize("format_", ["application/openmetrics-text", "text/plain", "*/*"])
async def test_format_is_the_same_whatever_is_accepted(tmp_path: Path, format_: str) -> None:
    async with (
        broker(tmp_path / "data") as (_, session),
        session.get("/metrics", headers={"Accept": format_}) as response,
    ):
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
