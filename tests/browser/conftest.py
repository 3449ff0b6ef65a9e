"""Chromium, and brokers whose pages it opens."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.browser.filled import PASSWORD, Site, site_of
from tests.browser.tabs import CHROMIUM, Browse, close_tabs, launched, open_tab


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
    """Run a broker with queues, clients and messages in every state."""
    async with site_of(tmp_path / "data") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def still_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Run one broker like that of ``site`` for all tests of a file that do not change it."""
    async with site_of(tmp_path_factory.mktemp("still") / "data") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def empty_site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_of(tmp_path / "data", is_filled=False) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker that requires a login; the password of its admin is ``PASSWORD``."""
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
    """Return the browser; close the tabs of the test with their cookies and storage."""
    yield running_chromium
    await close_tabs(running_chromium)


@pytest_asyncio.fixture(loop_scope="session")
async def browse(chromium: Any) -> AsyncIterator[Browse]:
    """Return a function that opens a page in a new tab.

    The test fails if one of its tabs had a console error, a CSP report or a dialog.
    """
    troubles: list[list[str]] = []

    async def open_page(url: str = "", **options: Any) -> Any:
        page, heard = await open_tab(chromium, **options)
        troubles.append(heard)
        if url:
            await page.goto(url)
        return page

    yield open_page
    assert [each for heard in troubles for each in heard] == []
