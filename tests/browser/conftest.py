"""Chromium, and brokers whose pages it opens."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.sqlite.integrity.seal import seal
from tests.browser.filled import PASSWORD, Site, site_of
from tests.browser.tabs import (
    CHROMIUM,
    Browse,
    Tab,
    clear_tab,
    close_tabs,
    launched,
    open_tab,
    set_look,
)

AGED_MS: Final = 2 * 3_600_000


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


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def aged(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Restart a broker whose first five settled messages were settled two hours before the rest.

    The roll-ups still count the five in the minute of the first start; only the list has them two
    hours earlier.
    """
    data = tmp_path_factory.mktemp("aged") / "data"
    async with site_of(data):
        pass
    with closing(sqlite3.connect(data / "phpmq.db")) as database, database:
        database.execute(
            "UPDATE history SET settled_at = settled_at - ?"
            " WHERE seq IN (SELECT seq FROM history ORDER BY offset LIMIT 5)",
            (AGED_MS,),
        )
    with closing(DataFolder.open(data)) as folder:
        seal(folder)  # the seal of the stop no longer matches
    async with site_of(data, is_filled=False) as site:
        yield site


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


@pytest.fixture(scope="session")
def kept_tabs() -> dict[bool, Tab]:
    """Return the tabs that tests share, with and without scripts.

    Each context has its own process, which takes almost a second of processor time.
    """
    return {}


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(running_chromium: Any, kept_tabs: dict[bool, Tab]) -> AsyncIterator[Any]:
    """Return the browser; remove the tabs, cookies and storage of the test."""
    yield running_chromium
    kept = [page for page, _ in kept_tabs.values()]
    for page in kept:
        await clear_tab(page)
    await close_tabs(running_chromium, keep=[page.context for page in kept])


@pytest_asyncio.fixture(loop_scope="session")
async def browse(chromium: Any, kept_tabs: dict[bool, Tab]) -> AsyncIterator[Browse]:
    """Return a function that opens a page; ``is_fresh``: in a context that no other test uses.

    The test fails if one of its tabs had a console error, a CSP report or a dialog.
    """
    troubles: list[list[str]] = []
    used: set[bool] = set()

    async def open_page(
        url: str = "", *, scripts: bool = True, is_fresh: bool = False, **look: Any
    ) -> Any:
        if is_fresh or scripts in used:
            page, heard = await open_tab(chromium, scripts=scripts, **look)
        else:
            used.add(scripts)
            if scripts not in kept_tabs:
                kept_tabs[scripts] = await open_tab(chromium, scripts=scripts)
            page, heard = kept_tabs[scripts]
            heard.clear()
            await set_look(page, **look)
        troubles.append(heard)
        if url:
            await page.goto(url)
        return page

    yield open_page
    assert [each for heard in troubles for each in heard] == []
