"""``tail`` against a broker whose streams end after a short time or are all in use."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from phpmq_lite.admin.http import live_feeds
from tests.support.fork_server import ForkedProcess
from tests.support.http_site import HttpSite, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as made:
        await made.ok("PUT", "/queues/orders")
        yield made


class Tail:
    def __init__(self, process: ForkedProcess, stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    async def next_id(self) -> str:
        assert self.process.stdout is not None
        return str(json.loads(await asyncio.to_thread(self.process.stdout.readline))["message"])

    async def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the messages on stderr."""
        code = await asyncio.to_thread(self.process.wait, 20)
        return code, self._stderr.read_text()


@contextmanager
def tail(tmp_path: Path, queue: str) -> Iterator[Tail]:
    given = ["phpmq_lite", "queue", "tail", queue, "--kind", "publish"]
    path = tmp_path / "stderr"
    with path.open("w") as stderr:
        process = ForkedProcess(
            [*given, "--data", str(tmp_path / "data")], stdout=PIPE, stderr=stderr
        )
    try:
        yield Tail(process, path)
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


async def publish_until_shown(site: HttpSite, command: Tail) -> list[str]:
    """Publish until the command shows a row; return the ids from this one on."""
    first = asyncio.create_task(command.next_id())
    ids: list[str] = []
    while not first.done() or first.result() not in ids:
        if first.done():  # the row is of an earlier broker
            first = asyncio.create_task(command.next_id())
        ids += await site.publish("orders", "x")
        await asyncio.sleep(0.1)
    return ids[ids.index(await first) :]


async def check_all_shown(site: HttpSite, tmp_path: Path, count: int) -> str:
    """Publish ``count`` messages; check that each is shown once, and return the stderr."""
    with tail(tmp_path, "orders") as command:
        ids = await publish_until_shown(site, command)
        for at in range(count):
            ids += await site.publish("orders", f"{at}")
            await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            assert [await command.next_id() for _ in ids[1:]] == ids[1:]
        command.process.kill()
        return (await command.ended())[1]


async def test_tail_continues_in_the_next_stream_without_a_gap(
    site: HttpSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feeds, "STREAM_S", 0.5)
    assert await check_all_shown(site, tmp_path, 40) == ""


async def test_tail_without_a_free_stream_polls_once_a_second(
    site: HttpSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feeds, "STREAMS_OF_CONTROL", 0)
    said = await check_all_shown(site, tmp_path, 40)
    assert said == "the broker has too many open streams; polling once a second\n"


@pytest.mark.usefixtures("site")
async def test_tail_of_an_unknown_queue_is_an_error(tmp_path: Path) -> None:
    with tail(tmp_path, "nowhere") as command:
        assert await command.ended() == (3, "Error: There is no queue 'nowhere'.\n")


async def test_tail_ends_with_an_error_when_the_queue_is_removed(
    site: HttpSite, tmp_path: Path
) -> None:
    with tail(tmp_path, "orders") as command:
        await publish_until_shown(site, command)
        await site.ok("POST", "/queues/orders/purge")
        await site.ok("DELETE", "/queues/orders")
        assert await command.ended() == (3, "Error: There is no queue 'orders'.\n")


async def test_ctrl_c_ends_tail(site: HttpSite, tmp_path: Path) -> None:
    with tail(tmp_path, "orders") as command:
        await publish_until_shown(site, command)
        os.kill(command.process.pid, signal.SIGINT)
        assert await command.ended() == (0, "")


async def test_tail_continues_when_the_broker_is_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with running_site(tmp_path / "data") as site:
            await site.ok("PUT", "/queues/orders")
            command = stack.enter_context(tail(tmp_path, "orders"))
            await publish_until_shown(site, command)
        async with running_site(tmp_path / "data") as site:
            await publish_until_shown(site, command)
            command.process.kill()
            lost, _, again = (await command.ended())[1].partition("; trying again\n")
            assert lost == "the broker is stopping"
            assert again.startswith("connected to the broker again\n")
