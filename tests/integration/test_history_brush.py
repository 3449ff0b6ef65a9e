"""The chart of the history on a real broker: what it counts over a restart, and for whom."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture, wait_until


async def settle(home: BrokerFixture, queue: str, count: int) -> None:
    """Publish messages and delete them."""
    messages = [{"content": "{}"} for _ in range(count)]
    await home.control("POST", f"/queues/{queue}/messages", messages)
    await home.control("POST", f"/queues/{queue}/purge")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[BrokerFixture]:
    """Run a broker again that three of ``orders`` and two of ``mail`` settled in before."""
    async with broker_fixture(tmp_path / "data") as first:
        await loaded(first)
        await settle(first, "orders", 3)
        await settle(first, "mail", 2)
    async with broker_fixture(tmp_path / "data") as second:
        await loaded(second)
        yield second


async def loaded(home: BrokerFixture) -> None:
    """Wait until the broker has read its roll-ups: stopped before, it stores none."""
    await wait_until(lambda: home.broker.service.sampler.is_loaded)


def deleted(text: str) -> int:
    """Add up what the titles of the slices say."""
    return sum(int(count) for count in re.findall(r"<title>[^<]*: (\d+) deleted</title>", text))


@pytest.mark.parametrize("span", ["1h", "24h", "7d", "30d"])
async def test_slices_count_all_queues_or_one(home: BrokerFixture, span: str) -> None:
    secret = await home.token("all", "viewer")
    async with HttpUser(home.url, secret) as me:
        path = f"/history?outcome=deleted&span={span}"
        assert deleted((await me.get(path)).text) == 5
        assert deleted((await me.get(f"{path}&queue=mail")).text) == 2
        assert (await me.get(f"{path}&queue=nope")).status == 404
        assert (await me.get("/history?span=2h")).status == 422


async def test_limited_viewer_sees_the_chart_of_their_queues_only(home: BrokerFixture) -> None:
    secret = await home.token("some", "viewer", "orders*")
    async with HttpUser(home.url, secret) as me:
        everything = await me.get("/history?since=2026-01-01")
        assert everything.status == 200
        assert 'id="brush"' not in everything.text
        assert 'class="removable"' not in everything.text  # their list is not narrowed
        path = "/history?outcome=deleted&queue="
        assert deleted((await me.get(path + "orders")).text) == 3
        assert (await me.get(path + "mail")).status == 404
