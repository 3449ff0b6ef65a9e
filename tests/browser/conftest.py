"""Chromium, and brokers to look at with it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.browser.filled import PASSWORD, Site, site_of
from tests.browser.tabs import CHROMIUM, close_tabs, launched


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder; without Chromium they are skipped.

    They share one event loop: the browser's connection belongs to it.
    """
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker with something of everything in it."""
    async with site_of(tmp_path / "data") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def still_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Run one broker like that of ``site`` for all tests of a file that change nothing in it."""
    async with site_of(tmp_path_factory.mktemp("still") / "data") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def empty_site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker that nobody has used yet."""
    async with site_of(tmp_path / "data", is_filled=False) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker that asks for a login; its admin has ``PASSWORD``."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    admin = {"initial_password_file": file, "login": "always"}
    async with site_of(tmp_path / "data", is_filled=False, admin=admin) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def running_chromium() -> AsyncIterator[Any]:
    """Run one browser for all tests: a start costs more than most of them."""
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(running_chromium: Any) -> AsyncIterator[Any]:
    """Give the browser; what a test opens in it is closed, and its cookies and storage are gone."""
    yield running_chromium
    await close_tabs(running_chromium)
