"""Every page in Chromium: nothing fails, nothing hostile runs, it fits, it bars nobody."""

import re
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.urls import encode_name
from tests.browser.filled import Site, site_of
from tests.browser.tabs import Scheme, barriers, open_tab
from tests.browser.tour import paths
from tests.unit.admin.cases import HOSTILE

CONTRAST = {"runOnly": ["color-contrast"]}
EMPTY = ("/", "/queues", "/messages", "/dead", "/clients", "/history", "/publish", "/trash")
WIDE = "document.documentElement.scrollWidth"
# A list may scroll inside its panel, but nothing of it may be cut off.
CUT = """[...document.querySelectorAll('.panel')]
  .filter((panel) => getComputedStyle(panel).overflowX === 'clip'
    && panel.scrollWidth > panel.clientWidth + 1)
  .map((panel) => panel.className + ' ' + panel.scrollWidth + ' > ' + panel.clientWidth)"""
FOREIGN = "document.querySelectorAll('main :is(script, style, img, iframe, object)').length"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1000), ("light", 360)])
async def test_pages_render_and_fit(site: Site, chromium: Any, scheme: Scheme, width: int) -> None:
    page, troubles = await open_tab(chromium, width=width, scheme=scheme)
    wrong: dict[str, Any] = {}
    for name, path in (await paths(site)).items():
        answer = await page.goto(site.url(path))
        found = {
            "status": answer.status if answer.status >= 500 else 0,
            "wide": await page.evaluate(WIDE) > width,
            "cut": await page.evaluate(CUT),
            "foreign": await page.evaluate(FOREIGN),
        }
        if any(found.values()):
            wrong[name] = {key: value for key, value in found.items() if value}
    assert (wrong, troubles) == ({}, [])


@pytest.mark.parametrize("width", [1280, 360])
async def test_empty_broker_renders_and_fits(empty_site: Site, chromium: Any, width: int) -> None:
    page, troubles = await open_tab(chromium, width=width)
    too_wide = []
    for path in EMPTY:
        await page.goto(empty_site.url(path))
        if await page.evaluate(WIDE) > width:
            too_wide.append(path)
    await page.goto(empty_site.url("/"))
    assert await page.locator(".snippet").count() == 4
    assert (too_wide, troubles) == ([], [])


@pytest.mark.timeout(300)
async def test_pages_have_no_serious_barrier(site: Site, chromium: Any) -> None:
    """All rules in the light theme; in the dark one what depends on it, the contrast."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    page, _ = await open_tab(chromium)
    found = []
    for name, path in (await paths(site)).items():
        await page.goto(site.url(path))
        found += [(name, *each) for each in barriers(await axe.run(page))]
        await page.emulate_media(color_scheme="dark")
        in_dark = await axe.run(page, options=CONTRAST)
        found += [(f"{name}, dark", *each) for each in barriers(in_dark)]
        await page.emulate_media(color_scheme="light")
    assert found == []


async def test_hostile_queue_names_show_as_text_and_lead_to_their_pages(
    site: Site, chromium: Any
) -> None:
    page, troubles = await open_tab(chromium)
    seen = {}
    for name in HOSTILE:
        await page.goto(site.url("/queues"))
        await page.locator(f'.lead a[href="/queues/{encode_name(name)}"]').click()
        await page.wait_for_url(re.compile("/queues/"))
        seen[name] = await page.locator("h1").text_content()
    expected = {name: name.replace("\u202e", r"\u202e").replace("\u200b", r"\u200b")
                for name in HOSTILE}  # fmt: skip
    assert (seen, troubles) == (expected, [])
    assert await page.evaluate(FOREIGN) == 0


async def test_hostile_body_shows_as_text(site: Site, chromium: Any) -> None:
    page, troubles = await open_tab(chromium)
    for view in ("tree", "pretty", "raw", "hex"):
        await page.goto(site.url(f"/messages/{site.ids['held in zoo']}?view={view}"))
        assert await page.locator("h1").count() == 1
        assert "onerror" in await page.locator("main").inner_text() or view == "hex"
        assert await page.evaluate(FOREIGN) == 0
    assert troubles == []


async def test_pages_work_under_a_sub_path(tmp_path: Path, chromium: Any) -> None:
    async with site_of(tmp_path / "data", admin={"base_path": "/mq"}) as site:
        page, troubles = await open_tab(chromium)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(site.url("/mq/queues"))
        await page.get_by_role("link", name="orders", exact=True).first.click()
        await page.locator("#live-text").filter(has_text="Live").wait_for()
        outside = [url for url in asked if "/mq/" not in url]
        assert (outside, troubles) == ([], [])
