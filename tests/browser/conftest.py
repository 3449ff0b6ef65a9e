"""Chromium, and brokers to look at with it."""

from collections.abc import AsyncIterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.browser.filled import PASSWORD, Site, site_of

CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder; without Chromium they are skipped."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker with something of everything in it."""
    async with site_of(tmp_path / "data") as made:
        yield made


@pytest.fixture
async def empty_site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker that nobody has used yet."""
    async with site_of(tmp_path / "data", is_filled=False) as made:
        yield made


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker that asks for a login; its admin has ``PASSWORD``."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    admin = {"initial_password_file": file, "login": "always"}
    async with site_of(tmp_path / "data", is_filled=False, admin=admin) as made:
        yield made


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    """Run a browser."""
    playwright = pytest.importorskip("playwright.async_api")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        await browser.close()
