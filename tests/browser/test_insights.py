"""The Insights page in Chromium: charts with their numbers, the command to copy, a release."""

from typing import Any

import pytest

from tests.browser.filled import Site
from tests.browser.tabs import Browse

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect


async def test_keys_open_the_page_and_charts_are_drawn(still_site: Site, browse: Browse) -> None:
    page = await browse(still_site.url("/"))
    await page.keyboard.press("g")
    await page.keyboard.press("i")
    await expect(page.get_by_role("heading", name="Insights")).to_be_visible()
    assert await page.locator("svg.plot").count() == 4
    assert await page.locator("svg.plot polyline").count() > 8
    await page.get_by_text("Chart data").click()
    await expect(page.locator(".numbers tbody tr").first).to_be_visible()
    assert await page.locator(".numbers tbody tr").count() == 96


@pytest.mark.parametrize("scripts", [True, False])
async def test_filter_and_span_are_in_url(still_site: Site, browse: Browse, scripts: bool) -> None:
    page = await browse(still_site.url("/insights"), scripts=scripts)
    await page.get_by_label("Queue", exact=True).select_option("orders")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page).to_have_url(still_site.url("/insights?queue=orders"))
    await page.get_by_role("link", name="30 d").click()
    await expect(page).to_have_url(still_site.url("/insights?span=30d&queue=orders"))
    await expect(page.locator("#charts-title")).to_have_text("orders")


@pytest.mark.parametrize("scripts", [True, False])
async def test_claims_are_released_if_confirmed(site: Site, browse: Browse, scripts: bool) -> None:
    page = await browse(site.url("/insights?tab=claims"), scripts=scripts)
    await page.get_by_role("link", name="Release").click()
    await page.get_by_role("button", name="Release 4 claims").click()
    await expect(page.locator(".note")).to_contain_text("4 messages returned to the queue")
    assert await page.get_by_role("link", name="Release").count() == 0


async def test_hostile_names_show_as_text(still_site: Site, browse: Browse) -> None:
    page = await browse()
    for tab in ("dead", "readers", "jobs"):
        await page.goto(still_site.url(f"/insights?tab={tab}&span=30d"))
        assert await page.locator("main :is(script, img, part)").count() == 0
    await page.goto(still_site.url("/insights?tab=dead&span=30d"))
    await expect(page.locator("main")).to_contain_text("<script>alert(1)</script>")
    await expect(page.locator("main")).to_contain_text(r"urn:\u202eevil")
