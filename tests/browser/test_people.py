"""Coming in and going: login, the menu, what a stranger sees."""

import re
from typing import Any

import pytest

from tests.browser.filled import PASSWORD, Site
from tests.browser.tabs import barriers, open_tab

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect


async def log_in(page: Any, site: Site, path: str) -> None:
    await page.goto(site.url(path))
    await page.get_by_label("Name").fill("admin")
    await page.get_by_label("Password", exact=True).fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()


async def test_user_logs_in_where_they_wanted_to_go_and_signs_out(
    guarded: Site, chromium: Any
) -> None:
    page, troubles = await open_tab(chromium)
    await log_in(page, guarded, "/queues?has=dead")
    await page.wait_for_url("**/queues?has=dead")
    await expect(page.get_by_text("No login")).to_have_count(0)
    await page.locator("details.menu summary").click()
    await expect(page.locator(".who-is")).to_contain_text("admin")
    await page.get_by_role("button", name="Log out").click()
    await page.goto(guarded.url("/queues"))
    await expect(page.get_by_role("heading", name=re.compile("Log in"))).to_be_visible()
    assert troubles == []


async def test_stranger_sees_neither_rail_nor_listeners(guarded: Site, chromium: Any) -> None:
    page, _ = await open_tab(chromium, width=360)
    for path in ("/", "/queues/orders", "/nowhere"):
        await page.goto(guarded.url(path))
        assert await page.locator(".rail, .search, details.menu").count() == 0
        assert "127.0.0.1:" not in await page.locator("body").inner_text()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_pages_about_people_have_no_serious_barrier(guarded: Site, chromium: Any) -> None:
    page, troubles = await open_tab(chromium)
    await log_in(page, guarded, "/users")
    await page.wait_for_url("**/users")
    found = []
    for path in ("/users", "/users/admin", "/tokens", "/sessions", "/account"):
        await page.goto(guarded.url(path))
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            found += [(path, scheme, *each) for each in await barriers(page)]
    assert (found, troubles) == ([], [])
