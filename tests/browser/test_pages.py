"""Every page in Chromium: no errors, no injected script, no overflow, no accessibility barrier."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from phpmq_lite.admin.urls import encode_name
from tests.browser.filled import Site, site_of
from tests.browser.tabs import (
    Browse,
    Scheme,
    barriers_in_both_themes,
    leave_one_of_a_kind,
    set_look,
)
from tests.browser.tour import EMPTY, paths
from tests.unit.admin.cases import HOSTILE

WIDE = "document.documentElement.scrollWidth"
# A list may scroll inside its panel, but must not be clipped.
CUT = """[...document.querySelectorAll('.panel')]
  .filter((panel) => getComputedStyle(panel).overflowX === 'clip'
    && panel.scrollWidth > panel.clientWidth + 1)
  .map((panel) => panel.className + ' ' + panel.scrollWidth + ' > ' + panel.clientWidth)"""
# Ids that rows share: axe does not see them, because it gets one row of each kind.
REPEATED = """[...document.querySelectorAll('[id]')].map((each) => each.id)
  .filter((id, at, all) => all.indexOf(id) !== at)"""
FOREIGN = """document.querySelectorAll(
  'main :is(script, style, img:not(.doc img), iframe, object)').length"""


LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1280), ("light", 360), ("dark", 1000))
Toured = tuple[Site, dict[str, str]]  # paths by name
PARTS = 8  # of the tour, one test each


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def toured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toured]:
    """Run one broker for all tests that do not change it; return it with the paths of its pages."""
    async with site_of(tmp_path_factory.mktemp("toured") / "data") as made:
        yield made, await paths(made)


async def layout_faults(page: Any, width: int) -> dict[str, Any]:
    """Return the elements that do not fit the width, repeat an id or were injected."""
    found: dict[str, Any] = await page.evaluate(
        f"({{wide: {WIDE} > {width}, cut: {CUT}, foreign: {FOREIGN}, repeated: {REPEATED}}})"
    )
    return {key: value for key, value in found.items() if value}


@pytest.mark.sample("0")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", range(PARTS))
async def test_pages_render_and_fit_and_have_no_serious_barrier(
    toured: Toured, browse: Browse, part: int
) -> None:
    site, tour = toured
    page = await browse()
    wrong: dict[str, Any] = {}
    found = []
    for name, path in [*tour.items()][part::PARTS]:
        answer = await page.goto(site.url(path))
        if answer.status >= 500:
            wrong[name] = answer.status
        for scheme, width in LOOKS:
            await set_look(page, width=width, scheme=scheme)
            if bad := await layout_faults(page, width):
                wrong[f"{name}, {scheme}, {width}"] = bad
        await leave_one_of_a_kind(page)
        await set_look(page, scheme="dark")
        found += [(name, *each) for each in await barriers_in_both_themes(page)]
    assert (wrong, found) == ({}, [])


async def test_empty_broker_renders_and_fits(empty_site: Site, browse: Browse) -> None:
    page = await browse()
    too_wide = []
    for path in EMPTY:
        await page.goto(empty_site.url(path))
        for width in (360, 1280):
            await set_look(page, width=width)
            if await page.evaluate(WIDE) > width:
                too_wide.append((path, width))
    assert too_wide == []


async def test_hostile_queue_names_show_as_text_and_lead_to_their_pages(
    toured: Toured, browse: Browse
) -> None:
    site, _ = toured
    page = await browse()
    seen = {}
    for name in HOSTILE:
        await page.goto(site.url("/queues"))
        await page.locator(f'.lead a[href="/queues/{encode_name(name)}"]').click()
        await page.wait_for_url(re.compile("/queues/"))
        seen[name] = await page.locator("h1").text_content()
    expected = {name: name.replace("\u202e", r"\u202e").replace("\u200b", r"\u200b")
                for name in HOSTILE}  # fmt: skip
    assert seen == expected
    assert await page.evaluate(FOREIGN) == 0


async def test_hostile_body_shows_as_text(toured: Toured, browse: Browse) -> None:
    site, _ = toured
    page = await browse()
    for view in ("tree", "pretty", "raw", "hex"):
        await page.goto(site.url(f"/messages/{site.ids['held in zoo']}?view={view}"))
        assert await page.locator("h1").count() == 1
        assert "onerror" in await page.locator("main").inner_text() or view == "hex"
        assert await page.evaluate(FOREIGN) == 0


async def test_pages_work_under_a_sub_path(tmp_path: Path, browse: Browse) -> None:
    async with site_of(tmp_path / "data", admin={"base_path": "/mq"}) as site:
        page = await browse()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(site.url("/mq/queues"))
        await page.get_by_role("link", name="orders", exact=True).first.click()
        await page.locator("#live-text").filter(has_text="Live").wait_for()
        outside = [url for url in asked if "/mq/" not in url]
        assert outside == []
        await page.goto("about:blank")  # before the broker stops
