"""One clock per browser: rows, axes, captions, tooltips and form fields are in the same zone."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from tests.browser.filled import Site
from tests.browser.tabs import Browse
from tests.browser.tour import LOST, paths

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect

SOON_MS: Final = 5_000
KOLKATA, ST_JOHNS = "Asia/Kolkata", "America/St_Johns"
ROWS: Final = "main table.messages tbody tr"
# Quoted: what people, programs and other zones wrote, such as bodies, names, log fields and docs.
QUOTED: Final = (
    "pre, code, bdi, q, kbd, textarea, samp, .preview, .log-rest, .tree, .tree-row,"
    " .prose, .docs, .envelope, [data-field=text], [data-field=preview],"
    " .name, .choice, script, template, style"
)
# All texts, tooltips and field values with the instants that their element states, in document
# order: [instants, style, text], or [[], "", text] for a text outside of such an element.
TEXTS: Final = """(quoted) => {
  const times = (node) => {
    const {at, since, until} = node.dataset;
    return [at ?? node.dateTime, since, until].filter(Boolean);
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.data.trim(), node = walk.currentNode.parentElement;
    if (!text || node.closest(quoted)) continue;
    const time = node.closest("[data-as], [data-when]");
    if (time) found.push([times(time), time.dataset.as ?? "when", time.textContent]);
    else found.push([[], "", text]);
  }
  for (const node of document.querySelectorAll("[title], [aria-label]")) {
    if (node.closest(quoted)) continue;
    const isTime = node.matches("time[datetime]");
    for (const text of [node.title, node.ariaLabel].filter(Boolean))
      found.push([isTime ? times(node) : [], isTime ? "title" : "", text]);
  }
  return found;
}"""
CLOCK: Final = re.compile(r"(?<![-+\d:])\d{1,2}:\d\d(?::\d\d)?(?:\.\d{3})?\b")
MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
DATE: Final = re.compile(rf"\b\d{{4}}-\d\d-\d\d\b|\b(?:{MONTHS}) \d{{1,2}}\b(?!:)")
PROSE: Final = ("docs", "docs-section", "docs-page", "reference")


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def clocks_of(at: datetime) -> set[str]:
    ms = f"{at.microsecond // 1_000:03}"
    return {f"{at:%H:%M}", f"{at:%H:%M:%S}", f"{at:%H:%M:%S}.{ms}"}


def dates_of(at: datetime) -> set[str]:
    return {f"{at:%Y-%m-%d}", f"{at:%b} {at.day}"}


def wrong_times(texts: list[tuple[list[str], str, str]], zone: str) -> list[tuple[str, str]]:
    """Return the texts with a clock or a date that is not one of their instants in the zone."""
    wrong = []
    for instants, style, text in texts:
        times = [instant(each).astimezone(ZoneInfo(zone)) for each in instants]
        clocks = {clock for at in times for clock in clocks_of(at)}
        dates = {date for at in times for date in dates_of(at)}
        if style == "period":
            clocks.add("24:00")
        said = set(CLOCK.findall(text)), set(DATE.findall(text))
        has_other_zone = bool(re.search(r"\bUTC\b", text)) and zone != "UTC"
        if not said[0] <= clocks or not said[1] <= dates or has_other_zone:
            wrong.append((style, text))
    return wrong


async def page_texts(page: Any, site: Site, *only: str) -> AsyncIterator[tuple[str, Any]]:
    """Yield each page, or those with the names in ``only``, with its texts."""
    for name, path in (await paths(site)).items():
        route = name.split()[0]
        if route not in PROSE and path not in LOST and (not only or route in only):
            await page.goto(site.url(path))
            yield name, await page.evaluate(TEXTS, QUOTED)


async def test_every_page_is_in_the_zone_of_the_browser(still_site: Site, browse: Browse) -> None:
    page = await browse(is_fresh=True, zone=KOLKATA)
    for path, style in (("/", "second"), ("/history", "period")):
        await page.goto(still_site.url(path))
        while not await page.locator(f"[data-as={style}]").count():  # until the first sample
            await page.wait_for_timeout(200)
            await page.reload()
    wrong, styles = {}, set()
    async for name, texts in page_texts(page, still_site):
        styles |= {style for _, style, _ in texts}
        if found := wrong_times(texts, KOLKATA):
            wrong[name] = found
    assert wrong == {}, wrong
    assert styles >= {"when", "title", "clock", "second", "ms", "minute", "period"}


@pytest.mark.parametrize("choice", ["relative", "local", "utc"])
async def test_pages_are_in_the_zone_that_the_reader_chose(
    still_site: Site, browse: Browse, choice: str
) -> None:
    page = await browse(still_site.url("/"), is_fresh=True, zone=ST_JOHNS)
    await page.evaluate("choice => { localStorage['phpmq-times'] = choice; }", choice)
    pages = "overview", "queue", "history", "tail", "insights", "client", "audit", "backups"
    async for name, texts in page_texts(page, still_site, *pages):
        assert wrong_times(texts, "UTC" if choice == "utc" else ST_JOHNS) == [], name


async def test_every_page_is_in_utc_and_says_so_without_the_script(
    still_site: Site, browse: Browse
) -> None:
    page = await browse(scripts=False, is_fresh=True, zone=KOLKATA)
    wrong = {}
    async for name, texts in page_texts(page, still_site):
        found = wrong_times(texts, "UTC")
        said = [text for instants, style, text in texts if instants and style != "title"]
        says_utc = "UTC" in await page.locator("main").inner_text()
        if found or (any(map(CLOCK.search, said)) and not says_utc):
            wrong[name] = found, says_utc
    assert wrong == {}, wrong


async def test_script_writes_times_as_the_server_does(aged: Site, browse: Browse) -> None:
    since = f"{datetime.now(UTC) - timedelta(days=3):%Y-%m-%dT12:34}"
    until = f"{datetime.now(UTC):%Y-%m-%dT%H:%M}"
    page = await browse(is_fresh=True, zone="UTC")
    served = """async () => {
      const text = await (await fetch(location)).text();
      const page = new DOMParser().parseFromString(text, "text/html");
      const all = (within) => [...within.querySelectorAll("[data-as]:not([data-as=minute])")]
        .map((node) => node.textContent);
      return [all(page), all(document)];
    }"""
    for path in (
        "/history?span=1h", "/history?span=24h", "/history?span=7d", "/history?span=30d", "/",
        f"/history?since={since}", f"/history?until={until}",
        f"/history?since={since}&until={until}", "/history?since=2026-01-31&until=2026-02-01",
        "/queues/orders/tail", "/?span=7d", f"/audit?since={since}:07",
    ):  # fmt: skip
        await page.goto(aged.url(path))
        server, script = await page.evaluate(served)
        assert server == script
        assert server


async def test_field_filters_by_the_times_that_the_rows_show(aged: Site, browse: Browse) -> None:
    page = await browse(aged.url("/history"), is_fresh=True, zone=ST_JOHNS)
    await page.evaluate("localStorage['phpmq-times'] = 'local'")
    await page.reload()
    rows = page.locator(ROWS)
    settled = page.locator(f"{ROWS} td[data-label=Settled] time")
    shown = await settled.all_inner_texts()
    typed = f"{datetime.fromisoformat(shown[0]) - timedelta(hours=1):%Y-%m-%dT%H:%M}"
    older = [text for text in shown if text.replace(" ", "T") < typed]
    assert len(older) == 5
    await page.get_by_label("From").fill(typed)
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(rows).to_have_count(len(shown) - 5)
    assert await settled.all_inner_texts() == [text for text in shown if text not in older]
    await expect(page.get_by_label("From")).to_have_value(typed)
    since = re.compile(rf"Since (?:\S+ \d+, )?{typed[11:]} GMT")  # after midnight, with the day
    await expect(page.locator(".removable time")).to_contain_text(since)
    await page.get_by_role("button", name="Show", exact=True).click()  # nothing was changed
    await expect(rows).to_have_count(len(shown) - 5)
    await page.get_by_label("From").fill("")
    await page.get_by_label("Until").fill(typed)
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(rows).to_have_count(5)
    await page.reload()
    await expect(page.get_by_label("Until")).to_have_value(typed)
    await expect(rows).to_have_count(5)


async def test_field_keeps_its_instant_when_the_reader_changes_the_zone(
    aged: Site, browse: Browse
) -> None:
    page = await browse(
        aged.url("/history?since=2026-03-01T10:00"), is_fresh=True, zone=KOLKATA
    )  # fmt: skip
    field = page.get_by_label("From")
    await expect(field).to_have_value("2026-03-01T15:30")
    await field.fill("2026-03-01T16:00")
    await page.locator("details.menu summary").click()
    await page.get_by_role("button", name="UTC", exact=True).click()
    await expect(field).to_have_value("2026-03-01T10:30")
    await expect(page.locator("form.filters [data-zone]")).to_have_text("UTC")
    await page.get_by_role("button", name="Show", exact=True).click()
    await page.wait_for_url("**since=2026-03-01T10%3A30**")
    await expect(field).to_have_value("2026-03-01T10:30")


async def test_tail_has_one_clock_for_stored_and_for_new_rows(
    still_site: Site, browse: Browse
) -> None:
    page = await browse(still_site.url("/queues/invoices/tail"), is_fresh=True, zone=KOLKATA)
    await expect(page.locator("#live-text")).to_have_text("Live", timeout=SOON_MS)
    stored = await page.locator("[data-tail] li").count()
    assert stored
    await still_site.client.publish_confirmed("invoices", b"one more")
    await expect(page.locator("[data-tail] li")).to_have_count(stored + 1, timeout=SOON_MS)
    texts = await page.evaluate(TEXTS, QUOTED)
    assert sum(style == "ms" for _, style, _ in texts) == stored + 1
    assert wrong_times(texts, KOLKATA) == []


async def test_dialog_shows_times_as_the_page_does(still_site: Site, browse: Browse) -> None:
    page = await browse(still_site.url("/queues/invoices"), is_fresh=True, zone=KOLKATA)
    await page.evaluate("localStorage['phpmq-times'] = 'local'")
    await page.reload()
    dialogs = await page.locator("a[data-dialog]").evaluate_all("all => all.map((a) => a.href)")
    for href in dict.fromkeys(dialogs):
        await page.locator(
            f'a[data-dialog][href="{href.removeprefix(still_site.url(""))}"]'
        ).first.click()
        await page.locator("dialog[open]").wait_for()
        assert wrong_times(await page.evaluate(TEXTS, QUOTED), KOLKATA) == []
        await page.locator("dialog[open] [data-cancel]").click()
