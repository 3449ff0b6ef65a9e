"""Texts of requests that become rows: whatever their length, the broker goes on on both engines."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from phpmq_lite.writes import AUDIT_BYTES
from tests.support.engine_stores import engine_store as engine_store
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture

LETTERS = {1: ("A", "Z"), 3: ("ࠀ", "䶿"), 4: ("𐀀", "𯨟")}  # ranges, by bytes in UTF-8


def random_text(number: int, size: int, seed: int = 1) -> str:
    """Return letters of ``size`` bytes each that no index can compress."""
    random, (first, last) = Random(seed), map(ord, LETTERS[size])
    return "".join(chr(random.randint(first, last)) for _ in range(number))


@pytest.fixture
async def home(tmp_path: Path, engine_store: dict[str, Any]) -> AsyncIterator[BrokerFixture]:
    async with broker_fixture(tmp_path / "data", store=engine_store) as home:
        yield home


async def newest_target(home: BrokerFixture) -> str:
    """Return the target of the newest audit row."""
    found = await home.control("GET", "/audit?limit=1")
    return str(found["items"][0]["target"])


@pytest.mark.parametrize("size", LETTERS)
async def test_stranger_with_a_long_path_leaves_a_short_audit_row(
    home: BrokerFixture, size: int
) -> None:
    await home.add_user("anna")
    text = random_text(3_500 if size == 1 else 860, size)
    async with HttpUser(home.url) as stranger:
        for pattern in ("/messages/{}/delete", "/queues/{}/pause"):
            path = pattern.replace("{}", quote(text)[:8_100])
            answer = await stranger.request("POST", f"/api/v1{path}", json={})
            assert answer.status == 401
    target = await newest_target(home)
    assert text.startswith(target.removesuffix("…"))
    assert 0 < len(target.encode()) <= AUDIT_BYTES["target"]
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})


@pytest.mark.parametrize("size", LETTERS)
async def test_operator_with_a_long_search_leaves_a_short_audit_row(
    home: BrokerFixture, size: int
) -> None:
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})
    await home.control("POST", "/selections", {"q": random_text(1_000, size)})
    assert len((await newest_target(home)).encode()) <= AUDIT_BYTES["target"]
    await home.control("POST", "/queues/orders/messages", {"content": "{}"})
