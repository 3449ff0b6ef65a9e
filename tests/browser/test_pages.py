"""Every page in Chromium: nothing fails, nothing hostile runs, it fits, it bars nobody."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from phpmq_lite.admin.base.urls import encode_name
from tests.browser.filled import Site, site_of
from tests.browser.tabs import Scheme, barriers, leave_one_of_a_kind, open_tab
from tests.browser.tour import paths
from tests.unit.admin.cases import HOSTILE

EMPTY = ("/", "/queues", "/messages", "/dead", "/clients", "/history", "/publish", "/trash",
         "/insights")  # fmt: skip
WIDE = "document.documentElement.scrollWidth"
# A list may scroll inside its panel, but nothing of it may be cut off.
CUT = """[...document.querySelectorAll('.panel')]
  .filter((panel) => getComputedStyle(panel).overflowX === 'clip'
    && panel.scrollWidth > panel.clientWidth + 1)
  .map((panel) => panel.className + ' ' + panel.scrollWidth + ' > ' + panel.clientWidth)"""
# Ids that rows share: axe would not see them, once it is given one row of each kind.
REPEATED = """[...document.querySelectorAll('[id]')].map((each) => each.id)
  .filter((id, at, all) => all.indexOf(id) !== at)"""
FOREIGN = """document.querySelectorAll(
  'main :is(script, style, img:not(.doc img), iframe, object)').length"""


LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1280), ("light", 360), ("dark", 1000))
PARTS = 4  # of the tour, for as many tests


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def toured(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Site, dict[str, str]]]:
    """Run one broker for all who only look, and give the paths of its pages."""
    async with site_of(tmp_path_factory.mktemp("toured") / "data") as made:
        yield made, await paths(made)


async def looks_wrong(page: Any, width: int) -> dict[str, Any]:
    """Give what does not fit at a width, or does not belong there."""
    found: dict[str, Any] = await page.evaluate(
        f"({{wide: {WIDE} > {width}, cut: {CUT}, foreign: {FOREIGN}, repeated: {REPEATED}}})"
    )
    return {key: value for key, value in found.items() if value}


async def look(page: Any, scheme: Scheme, width: int) -> None:
    """Change how the reader sees the page; neither the server nor the script knows of it."""
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size({"width": width, "height": 800})


@pytest.mark.sample("0")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", range(PARTS))
async def test_pages_render_and_fit_and_have_no_serious_barrier(
    toured: tuple[Site, dict[str, str]], chromium: Any, part: int
) -> None:
    """All rules of axe in the light theme; in the dark one what depends on it, the contrast."""
    site, tour = toured
    page, troubles = await open_tab(chromium)
    wrong: dict[str, Any] = {}
    found = []
    for name, path in [*tour.items()][part::PARTS]:
        answer = await page.goto(site.url(path))
        if answer.status >= 500:
            wrong[name] = answer.status
        for scheme, width in LOOKS:
            await look(page, scheme, width)
            if bad := await looks_wrong(page, width):
                wrong[f"{name}, {scheme}, {width}"] = bad
        await leave_one_of_a_kind(page)
        await look(page, "dark", 1280)
        in_dark = await barriers(page, rules=("color-contrast",))
        found += [(f"{name}, dark", *each) for each in in_dark]
        await page.emulate_media(color_scheme="light")  # as the next page is to be loaded
        found += [(name, *each) for each in await barriers(page)]
    assert (wrong, found, troubles) == ({}, [], [])


async def test_empty_broker_renders_and_fits(empty_site: Site, chromium: Any) -> None:
    page, troubles = await open_tab(chromium)
    too_wide = []
    for path in EMPTY:
        await page.goto(empty_site.url(path))
        for width in (360, 1280):
            await look(page, "light", width)
            if await page.evaluate(WIDE) > width:
                too_wide.append((path, width))
    await page.goto(empty_site.url("/"))
    assert await page.locator(".snippet").count() == 4
    assert (too_wide, troubles) == ([], [])


async def test_hostile_queue_names_show_as_text_and_lead_to_their_pages(
    toured: tuple[Site, dict[str, str]], chromium: Any
) -> None:
    site, _ = toured
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


async def test_hostile_body_shows_as_text(
    toured: tuple[Site, dict[str, str]], chromium: Any
) -> None:
    site, _ = toured
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
