"""Brokers that several files of tests use."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.core_and_store import MakeDriver, drivers_in
from tests.support.full_broker import FullBroker, full_broker
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import BrokerFixture, broker_fixture


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeDriver]:
    """Return a function that makes drivers on one database, one after the other."""
    with drivers_in(tmp_path) as make:
        yield make


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    """Run a broker with its pages, without users."""
    async with running_site(tmp_path / "data") as site:
        yield site


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[BrokerFixture]:
    """Run a broker with the admin ``anna``."""
    async with broker_fixture(tmp_path / "data") as home:
        await home.add_user("anna")
        yield home


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[FullBroker]:
    """Run a broker with something on each page."""
    async with full_broker(tmp_path / "data") as filled:
        yield filled


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder that does not exist yet."""
    return tmp_path / "data"
