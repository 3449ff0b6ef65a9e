"""The chart of the history as a brush: without the script, for pointer and keyboard."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.filled import Site
from tests.browser.tabs import Browse, barriers_in_both_themes, leave_one_of_a_kind

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect

HOURS_MS = 2 * 3_600_000
PATH = "/history?span=24h"
SLICES = "#brush svg a"
SETTLED = SLICES + ":has(title:text-matches('[1-9][0-9]* (settled|acked)$'))"
ROWS = "main table.messages tbody tr"


def query_of(page: Any) -> dict[str, str]:
    return {key: value for key, [value] in parse_qs(urlsplit(page.url).query).items()}


async def test_slice_filters_the_list_until_its_chip_is_removed(aged: Site, browse: Browse) -> None:
    page = await browse(aged.url(f"{PATH}&queue=orders"), scripts=False)
    await expect(page.locator("#brush rect.chosen")).to_have_count(0)
    before = await page.locator(ROWS).count()
    # The roll-ups count the five here, the list does not.
    title = await page.locator(SETTLED).locator("title").text_content()
    await page.locator(SETTLED).click()
    assert set(query_of(page)) == {"queue", "span", "since", "until"}
    await expect(page.locator(ROWS)).to_have_count(before - 5)
    await expect(page.locator("#brush rect.chosen")).to_have_count(1)
    chip = page.locator(".removable .chip")
    assert title.startswith((await chip.inner_text()).split(" UTC")[0])
    await chip.click()
    assert query_of(page) == {"queue": "orders", "span": "24h"}
    await expect(page.locator(ROWS)).to_have_count(before)
    await expect(page.locator(".removable")).to_have_count(0)


async def test_outcome_and_span_keep_the_other_filters(aged: Site, browse: Browse) -> None:
    page = await browse(aged.url(PATH), scripts=False)
    await page.locator(SETTLED).click()
    chosen = query_of(page)
    await page.get_by_role("link", name="Acked", exact=True).click()
    assert query_of(page) == chosen | {"outcome": "acked"}
    await page.get_by_role("link", name="7 d", exact=True).click()
    assert query_of(page) == chosen | {"outcome": "acked", "span": "7d"}
    await page.get_by_role("link", name="Show all times").click()
    assert query_of(page) == {"outcome": "acked", "span": "7d"}


async def test_slice_is_seen_under_the_pointer(aged: Site, browse: Browse) -> None:
    page = await browse(aged.url(PATH), scripts=False)
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


async def test_keyboard_skips_the_chart_for_its_table(aged: Site, browse: Browse) -> None:
    page = await browse(aged.url(PATH))
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


async def test_chart_is_accessible_and_fits(aged: Site, browse: Browse) -> None:
    page = await browse(aged.url(PATH), width=360)
    await page.locator(SETTLED).click()
    await page.locator("#brush-numbers summary").click()
    assert await page.locator("#brush-numbers tbody a").count() > 0
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await leave_one_of_a_kind(page)
    assert await barriers_in_both_themes(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_chart_without_data_is_a_sentence(empty_site: Site, browse: Browse) -> None:
    page = await browse(empty_site.url("/history"))
    assert await page.locator("#brush").count() == 0  # there is no queue at all
    client = await empty_site.connect()
    await client.publish_confirmed("orders", b"{}")
    await page.goto(empty_site.url("/history"))
    # The second text appears as soon as the first figures are sampled.
    text = re.compile("No data for this period|No settled messages in this period")
    await expect(page.locator("#brush p")).to_have_text(text)
