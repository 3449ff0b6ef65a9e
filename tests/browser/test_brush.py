"""The chart of the history as a brush: without the script, for pointer and keyboard."""

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from phpmq_lite.storage.data_folder import DataFolder
from phpmq_lite.storage.integrity.seal import seal
from tests.browser.filled import Site, site_of
from tests.browser.tabs import barriers, leave_one_of_a_kind, open_tab

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect

HOURS_MS = 2 * 3_600_000
PATH = "/history?span=24h"
SLICES = "#brush svg a"
SETTLED = SLICES + ":has(title:text-matches('[1-9][0-9]* (settled|acked)$'))"
ROWS = "main table.messages tbody tr"


@pytest_asyncio.fixture(loop_scope="session")
async def aged(tmp_path: Path) -> AsyncIterator[Site]:
    """Run a broker again whose first five settled messages settled two hours before the rest.

    Its second start has the minute of the first in its roll-ups; the five are in the list alone.
    """
    async with site_of(tmp_path / "data"):
        pass
    with closing(sqlite3.connect(tmp_path / "data" / "phpmq.db")) as database, database:
        database.execute(
            "UPDATE history SET settled_at = settled_at - ?"
            " WHERE seq IN (SELECT seq FROM history ORDER BY offset LIMIT 5)",
            (HOURS_MS,),
        )
    with closing(DataFolder.open(tmp_path / "data")) as folder:
        seal(folder)  # another one than the stop's
    async with site_of(tmp_path / "data", is_filled=False) as site:
        yield site


def asked(page: Any) -> dict[str, str]:
    return {key: value for key, [value] in parse_qs(urlsplit(page.url).query).items()}


async def test_slice_narrows_the_list_and_the_chip_takes_it_back(aged: Site, chromium: Any) -> None:
    page, troubles = await open_tab(chromium, scripts=False)
    await page.goto(aged.url(f"{PATH}&queue=orders"))
    await expect(page.locator("#brush rect.chosen")).to_have_count(0)
    before = await page.locator(ROWS).count()
    # The roll-ups know all, the five too; so the list has five less.
    title = await page.locator(SETTLED).locator("title").text_content()
    await page.locator(SETTLED).click()
    assert set(asked(page)) == {"queue", "span", "since", "until"}
    await expect(page.locator(ROWS)).to_have_count(before - 5)
    await expect(page.locator("#brush rect.chosen")).to_have_count(1)
    chip = page.locator(".removable .chip")
    assert title.startswith((await chip.inner_text()).split(" UTC")[0])
    await chip.click()
    assert asked(page) == {"queue": "orders", "span": "24h"}
    await expect(page.locator(ROWS)).to_have_count(before)
    await expect(page.locator(".removable")).to_have_count(0)
    assert troubles == []


async def test_all_time_outcome_and_span_keep_what_else_is_chosen(
    aged: Site, chromium: Any
) -> None:
    page, _ = await open_tab(chromium, scripts=False)
    await page.goto(aged.url(PATH))
    await page.locator(SETTLED).click()
    chosen = asked(page)
    await page.get_by_role("link", name="Acked", exact=True).click()
    assert asked(page) == chosen | {"outcome": "acked"}
    await page.get_by_role("link", name="7 d", exact=True).click()
    assert asked(page) == chosen | {"outcome": "acked", "span": "7d"}
    await page.get_by_role("link", name="Show all times").click()
    assert asked(page) == {"outcome": "acked", "span": "7d"}


async def test_slice_is_seen_under_the_pointer(aged: Site, chromium: Any) -> None:
    page, _ = await open_tab(chromium, scripts=False)
    await page.goto(aged.url(PATH))
    cover = page.locator(SLICES).nth(5).locator("rect")
    seen = "rect => getComputedStyle(rect).fillOpacity"
    assert await cover.evaluate(seen) == "0"
    await cover.hover()
    await page.wait_for_function("document.querySelectorAll('#brush a rect:hover').length")
    assert float(await cover.evaluate(seen)) > 0
    await page.locator("h1").hover()
    assert await cover.evaluate(seen) == "0"
    await page.locator(SLICES).nth(5).evaluate("link => link.focus()")
    assert float(await cover.evaluate(seen)) > 0


async def test_keyboard_passes_the_drawing_and_has_the_links_in_the_table(
    aged: Site, chromium: Any
) -> None:
    page, troubles = await open_tab(chromium)
    await page.goto(aged.url(PATH))
    summary = page.locator("#brush-numbers summary")
    await page.get_by_role("link", name="30 d", exact=True).focus()
    await page.keyboard.press("Tab")
    await expect(summary).to_be_focused()
    await page.keyboard.press("j")  # walks the list, not the numbers
    assert await page.evaluate("document.activeElement.closest('table.messages') !== null")
    await summary.focus()
    await page.keyboard.press("Enter")
    await page.locator("#brush-numbers tbody a").first.focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**since=**")
    assert await page.locator("#brush-numbers a[aria-current]").count() == 1
    assert troubles == []


async def test_chart_bars_nobody_and_fits(aged: Site, chromium: Any) -> None:
    page, troubles = await open_tab(chromium, width=360)
    await page.goto(aged.url(PATH))
    await page.locator(SETTLED).click()
    await page.locator("#brush-numbers summary").click()
    assert await page.locator("#brush-numbers tbody a").count() > 0
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await leave_one_of_a_kind(page)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        assert (scheme, await barriers(page)) == (scheme, [])
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert troubles == []


async def test_chart_without_data_is_a_sentence(empty_site: Site, chromium: Any) -> None:
    page, troubles = await open_tab(chromium)
    await page.goto(empty_site.url("/history"))
    assert await page.locator("#brush").count() == 0  # there is no queue at all
    client = await empty_site.connect()
    await client.publish_confirmed("orders", b"{}")
    await page.goto(empty_site.url("/history"))
    # The second once the first figures are sampled, which nobody waits for.
    text = re.compile("No data for this period|No settled messages in this period")
    await expect(page.locator("#brush p")).to_have_text(text)
    assert troubles == []
