"""Login, logout, the menu, and the pages that a visitor without a login sees."""

import re
from typing import Any

import pytest

from tests.browser.filled import Site, log_in
from tests.browser.tabs import Browse, barriers_in_both_themes

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect


async def test_login_returns_to_the_page_until_logout(guarded: Site, browse: Browse) -> None:
    page = await browse()
    await log_in(page, guarded, "/queues?has=dead")
    await page.wait_for_url("**/queues?has=dead")
    await expect(page.get_by_text("No login")).to_have_count(0)
    await page.locator("details.menu summary").click()
    await expect(page.locator(".who-is")).to_contain_text("admin")
    await page.get_by_role("button", name="Log out").click()
    await page.goto(guarded.url("/queues"))
    await expect(page.get_by_role("heading", name=re.compile("Log in"))).to_be_visible()


async def test_visitor_sees_neither_rail_nor_listeners(guarded: Site, browse: Browse) -> None:
    page = await browse(width=360)
    for path in ("/", "/queues/orders", "/nowhere"):
        await page.goto(guarded.url(path))
        assert await page.locator(".rail, .search, details.menu").count() == 0
        assert "127.0.0.1:" not in await page.locator("body").inner_text()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_pages_about_people_have_no_serious_barrier(guarded: Site, browse: Browse) -> None:
    page = await browse()
    await log_in(page, guarded, "/users")
    await page.wait_for_url("**/users")
    found = []
    for path in ("/users", "/users/admin", "/tokens", "/sessions", "/account"):
        await page.goto(guarded.url(path))
        found += [(path, *each) for each in await barriers_in_both_themes(page)]
    assert found == []
