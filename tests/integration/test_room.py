"""A full disk as clients and operators see it, and settings that free space."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from phpmq_lite import logs
from phpmq_lite.settings import EffectiveSettings, all_values
from phpmq_lite.testing import RunningBroker, running_service, settings_for
from tests.support.socket_client import SocketClient

MUCH = 1 << 50  # more than any disk has free
MESSAGE = {"content": "x"}


@pytest.fixture
async def running(tmp_path: Path, log_stream: io.StringIO) -> AsyncIterator[RunningBroker]:
    logs.configure("info", "json", log_stream)
    async with running_service(tmp_path / "data", storage={"free_bytes": MUCH}) as made:
        yield made


@pytest.fixture
async def http(running: RunningBroker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(running.admin_url) as session:
        yield session


async def post(http: aiohttp.ClientSession) -> tuple[int, Any]:
    async with http.post("/api/v1/queues/orders/messages", json=MESSAGE) as answer:
        return answer.status, await answer.json()


async def test_start_with_too_little_space_names_the_setting(
    running: RunningBroker, http: aiohttp.ClientSession, log_stream: io.StringIO
) -> None:
    status, problem = await post(http)
    assert (status, problem["code"]) == (507, "disk_full")
    assert "storage.free_bytes (1,048,576 GiB)" in problem["detail"]
    assert "publishing_stopped" in log_stream.getvalue()
    async with http.get("/readyz") as answer:
        text = await answer.text()
        assert (answer.status, text.splitlines()[0]) == (200, "degraded")
    assert "BAD disk: the disk has less free space than storage.free_bytes" in text
    async with http.get("/api/v1/stats") as answer:
        stats = await answer.json()
    assert "storage.free_bytes" in stats["publishing_stopped"]
    assert stats["storing_stopped"] is None
    for page in ("/", "/system"):
        async with http.get(page) as answer:
            assert "storage.free_bytes" in await answer.text()


async def test_reloaded_setting_frees_space_at_once(
    running: RunningBroker, http: aiohttp.ClientSession, log_stream: io.StringIO
) -> None:
    def publish() -> str | None:
        with SocketClient(running.port) as peer:
            return peer.confirm("orders", b"x")

    assert await asyncio.to_thread(publish) == "disk full: storage.free_bytes"
    settings = settings_for(running.data, storage={"free_bytes": 0})
    sources = dict.fromkeys(all_values(settings), "file")
    running.service.reload(EffectiveSettings(settings, sources, []))
    with SocketClient(running.port) as silent:
        silent.publish("orders", b"waits")  # it has no key, so it is not read
        await asyncio.to_thread(silent.consume, "orders", 1)
        assert await asyncio.to_thread(silent.bodies, 1) == [b"waits"]
    assert (await post(http))[0] == 201
    assert "publishing_resumed" in log_stream.getvalue()
    async with http.get("/readyz") as answer:
        assert (await answer.text()).startswith("ready\n")


async def test_database_above_its_bound_takes_no_messages(tmp_path: Path) -> None:
    async with (
        running_service(tmp_path / "data", storage={"max_bytes": 4_096}) as running,
        aiohttp.ClientSession(running.admin_url) as http,
    ):
        status, problem = await post(http)
    assert (status, problem["code"]) == (507, "database_full")
    assert "storage.max_bytes" in problem["detail"]


async def test_nothing_is_changed_while_nothing_can_be_stored(
    running: RunningBroker, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = running.service.handle.space
    assert space is not None
    monkeypatch.setattr(space, "note_stored", lambda: None)  # maintenance runs meanwhile
    space.write_problem = "the file system is read-only"  # as the writer's thread says
    status, problem = await post(http)
    assert (status, problem.get("code")) == (503, "not_writable"), problem
    async with http.get("/readyz") as answer:
        assert answer.status == 503
        assert "BAD writable: the file system is read-only" in await answer.text()
    async with http.get("/queues") as answer:
        text = await answer.text()
    assert '<li class="chip bad" id="broker"' in text
    assert "Nothing can be stored: the file system is read-only." in text
    monkeypatch.undo()
    space.note_stored()
