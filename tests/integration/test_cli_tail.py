"""``tail`` against a broker whose streams end soon, or that has no place for one."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from phpmq_lite.admin.monitoring import live_feeds
from tests.support.http_site import HttpSite, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as made:
        await made.ok("PUT", "/queues/orders")
        yield made


@asynccontextmanager
async def tail(tmp_path: Path, queue: str) -> AsyncIterator[Process]:
    """Run the command in a process of its own."""
    given = ["-m", "phpmq_lite", "queue", "tail", queue, "--kind", "publish"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *given, "--data", str(tmp_path / "data"), stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def publish_until_shown(site: HttpSite, process: Process) -> list[str]:
    """Publish until the first row is shown: it looks now.  Gives the ids from that one on."""
    assert process.stdout is not None
    first = asyncio.create_task(process.stdout.readline())
    ids = []
    while not first.done():
        ids += await site.publish("orders", "x")
        await asyncio.sleep(0.1)
    return ids[ids.index(json.loads(await first)["message"]) :]


async def check_all_shown(site: HttpSite, tmp_path: Path, count: int) -> str:
    """Publish so many, a few at a time; each must be shown once.  Gives what else was said."""
    async with tail(tmp_path, "orders") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ids = await publish_until_shown(site, process)
        for at in range(count):
            ids += await site.publish("orders", f"{at}")
            await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            shown = [json.loads(await process.stdout.readline()) for _ in ids[1:]]
        assert [row["message"] for row in shown] == ids[1:]
        process.kill()
        return (await process.stderr.read()).decode()


async def ended(process: Process) -> tuple[int | None, str]:
    """Give how it ended, and what it said."""
    async with asyncio.timeout(20):
        _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_tail_goes_on_in_the_next_stream_without_a_gap(
    site: HttpSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feeds, "STREAM_S", 0.5)
    assert await check_all_shown(site, tmp_path, 40) == ""


async def test_tail_without_a_place_for_its_stream_looks_once_a_second(
    site: HttpSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feeds, "STREAMS_OF_CONTROL", 0)
    said = await check_all_shown(site, tmp_path, 40)
    assert said == "the broker has too many open streams; polling once a second\n"


@pytest.mark.usefixtures("site")
async def test_tail_of_no_queue_is_not_found(tmp_path: Path) -> None:
    async with tail(tmp_path, "nowhere") as process:
        assert await ended(process) == (3, "Error: There is no queue 'nowhere'.\n")


async def test_tail_ends_with_an_error_when_the_queue_is_removed(
    site: HttpSite, tmp_path: Path
) -> None:
    async with tail(tmp_path, "orders") as process:
        await publish_until_shown(site, process)
        await site.ok("POST", "/queues/orders/purge")
        await site.ok("DELETE", "/queues/orders")
        assert await ended(process) == (3, "Error: There is no queue 'orders'.\n")


async def test_tail_is_ended_with_ctrl_c(site: HttpSite, tmp_path: Path) -> None:
    async with tail(tmp_path, "orders") as process:
        await publish_until_shown(site, process)
        process.send_signal(signal.SIGINT)
        assert await ended(process) == (0, "")


async def test_tail_ends_with_an_error_when_the_broker_stops(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data") as site:
        await site.ok("PUT", "/queues/orders")
        async with tail(tmp_path, "orders") as process:
            await publish_until_shown(site, process)
            site.broker.service.stop()
            assert await ended(process) == (1, "Error: the broker is stopping\n")
