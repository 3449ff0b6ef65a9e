"""What the script adds: live numbers, theme, keyboard, selection, dialogs, copying."""

import re
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.installation import templates_folder
from phpmq_lite.testing import running_service
from tests.browser.filled import Site, site_of
from tests.browser.tabs import Browse, Scheme, open_tab

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect
SOON_MS = 10_000


async def shade(page: Any) -> int:
    """Return the brightness of the page: near 0 dark, near 765 light."""
    colour = await page.evaluate("getComputedStyle(document.querySelector('.top')).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


# -- theme


async def test_theme_follows_the_system(still_site: Site, browse: Browse) -> None:
    shades = []
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        page = await browse(still_site.url("/"), scheme=scheme)
        shades.append(await shade(page))
    assert shades[0] > 600
    assert shades[1] < 120


async def test_chosen_theme_is_rendered_into_next_page(still_site: Site, browse: Browse) -> None:
    page = await browse(still_site.url("/"), scheme="light")
    await page.locator("details.menu summary").click()
    await page.get_by_role("button", name="Dark", exact=True).click()
    assert await shade(page) < 120
    answer = await page.goto(still_site.url("/queues"))
    assert '<html lang="en" data-theme="dark">' in await answer.text()  # so nothing flashes
    await page.keyboard.press("t")  # dark, then auto again
    assert await shade(page) > 600


async def test_environment_is_in_title_colour_and_icon(tmp_path: Path, browse: Browse) -> None:
    ui = {"environment": "production"}
    async with site_of(tmp_path / "data", is_filled=False, ui=ui) as site:
        page = await browse(site.url("/queues"))
        assert await page.title() == "Queues · production · PHPMQ Lite"
        icon = await page.locator("link[rel=icon]").get_attribute("href")
        picture = await page.request.get(site.url(icon))
        assert "#b3261e" in await picture.text()
        await page.goto("about:blank")  # before the broker stops


# -- live


async def test_numbers_update_in_place_and_queues_on_click(site: Site, browse: Browse) -> None:
    page = await browse(site.url("/queues"))
    row = page.locator("tbody tr", has=page.get_by_role("link", name="invoices", exact=True))
    await expect(page.locator("#live-text")).to_have_text("Live")
    rows = await page.locator("tbody tr").count()
    await site.client.publish_many("invoices", [b"{}"] * 770)
    await site.client.publish_confirmed("brand.new", b"{}")
    await expect(row.locator('[data-label="Ready"]')).to_have_text("777", timeout=SOON_MS)
    await expect(page.locator("#new-rows")).to_have_text("Show 1 new", timeout=SOON_MS)
    assert await page.locator("tbody tr").count() == rows
    await page.locator("#new-rows").click()
    await expect(page.get_by_role("link", name="brand.new")).to_be_visible()


async def test_paused_numbers_do_not_change_until_resumed(site: Site, browse: Browse) -> None:
    page = await browse(site.url("/queues/invoices"))
    other = await browse(site.url("/queues/invoices"))
    for tab in (page, other):
        await expect(tab.locator("#live-text")).to_have_text("Live", timeout=SOON_MS)
    await page.keyboard.press(".")
    await site.client.publish_many("invoices", [b"{}"] * 3)
    ready = '.facts-bar [data-live$=".ready"]'
    await expect(other.locator(ready)).to_have_text("10", timeout=SOON_MS)
    assert await page.locator(ready).text_content() == "7"
    await page.keyboard.press(".")
    await expect(page.locator(ready)).to_have_text("10", timeout=SOON_MS)


async def test_lost_connection_is_shown_and_numbers_stay(tmp_path: Path, chromium: Any) -> None:
    page, _ = await open_tab(chromium)
    async with site_of(tmp_path / "data") as site:
        await page.goto(site.url("/queues"))
        await expect(page.locator("#live-text")).to_have_text("Live", timeout=SOON_MS)
        before = await page.locator("tbody").inner_text()
        listen = [site.running.admin_url.removeprefix("http://").rstrip("/")]
    await expect(page.locator("#live-text")).to_have_text("Not live, retrying", timeout=SOON_MS)
    assert await page.locator("main.stale").count() == 1
    assert "orders" in before
    assert "orders" in await page.locator("tbody").inner_text()
    async with running_service(tmp_path / "data", admin={"listen": listen}):
        await expect(page.locator("#live-text")).to_have_text("Live", timeout=2 * SOON_MS)
        assert await page.locator("main.stale").count() == 0


@pytest.mark.slow
async def test_status_chip_shows_if_the_broker_is_gone(tmp_path: Path, chromium: Any) -> None:
    live, _ = await open_tab(chromium)
    still, _ = await open_tab(chromium)  # a page without a stream
    async with site_of(tmp_path / "data", is_filled=False) as site:
        await live.goto(site.url("/queues"))
        await still.goto(site.url("/publish"))
        for page in (live, still):
            await expect(page.locator("#broker.good")).to_have_text("Running")
        listen = [site.running.admin_url.removeprefix("http://").rstrip("/")]
    for page in (live, still):
        chip = page.locator("#broker.bad")
        await expect(chip).to_have_text("Unreachable", timeout=2 * SOON_MS)
    async with running_service(tmp_path / "data", admin={"listen": listen}):
        for page in (live, still):
            await expect(page.locator("#broker.good")).to_have_text("Running", timeout=3 * SOON_MS)


@pytest.mark.parametrize(
    ("answer", "shown"), [("standby\n", "Running"), ("not ready\nBAD role", "Not ready")]
)
async def test_status_chip_shows_what_the_broker_says_of_itself(
    site: Site, chromium: Any, answer: str, shown: str
) -> None:
    page, _ = await open_tab(chromium)
    await page.route("**/readyz", lambda route: route.fulfill(body=answer))
    await page.goto(site.url("/publish"))
    await page.evaluate("document.querySelector('#broker-text').textContent = ''")
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#broker-text")).to_have_text(shown, timeout=SOON_MS)


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_seven_tabs_stay_live(site: Site, chromium: Any) -> None:
    first, _ = await open_tab(chromium)
    tabs = [first, *[await first.context.new_page() for _ in range(6)]]
    for tab in tabs:
        await tab.goto(site.url("/queues/invoices"))
    await site.client.publish_many("invoices", [b"{}"] * 3)
    for tab in tabs:
        ready = tab.locator('.facts-bar [data-live$=".ready"]')
        await expect(ready).to_have_text("10", timeout=2 * SOON_MS)
        await expect(tab.locator("#live-text")).to_have_text("Live")


async def test_tail_shows_what_happens(site: Site, browse: Browse) -> None:
    page = await browse(site.url("/queues/invoices/tail"))
    await expect(page.locator("#live-text")).to_have_text("Live", timeout=SOON_MS)
    await site.client.publish_confirmed("invoices", b"<b>told</b>")
    row = page.locator("[data-tail] li").filter(has_text="<b>told</b>")
    await expect(row).to_have_count(1, timeout=SOON_MS)
    await page.locator("[data-tail-filter]").fill("no such text")
    await expect(row).to_be_hidden()
    assert await page.locator("[data-tail] b").count() == 0


async def test_tail_is_in_the_order_of_time_at_a_second_visit(site: Site, browse: Browse) -> None:
    page = await browse(site.url("/queues/invoices/tail"))
    for number in range(3):
        await site.client.publish_confirmed("invoices", b"visit %d" % number)
        row = page.locator("[data-tail] li").filter(has_text=f"visit {number}")
        await expect(row).to_have_count(1, timeout=SOON_MS)
        await page.goto(site.url("/queues"))
        await site.client.publish_confirmed("invoices", b"away %d" % number)
        await page.goto(site.url("/queues/invoices/tail"))
        await expect(page.locator("#live-text")).to_have_text("Live", timeout=SOON_MS)
    await site.client.publish_confirmed("invoices", b"the last")
    last = page.locator("[data-tail] li").filter(has_text="the last")
    await expect(last).to_have_count(1, timeout=SOON_MS)
    times = await page.locator("[data-tail] li").evaluate_all("all => all.map(e => +e.dataset.at)")
    assert times == sorted(times, reverse=True)


async def test_times_show_as_the_reader_likes(still_site: Site, browse: Browse) -> None:
    page = await browse(still_site.url("/queues/invoices"))
    time = page.locator("tbody time").first
    assert "ago" in await time.inner_text() or "now" in await time.inner_text()
    await page.locator("details.menu summary").click()
    await page.get_by_role("button", name="UTC", exact=True).click()
    await page.reload()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", await time.inner_text())


# -- keyboard


async def test_keyboard_goes_to_pages_walks_rows_and_comes_back_to_the_same_row(
    still_site: Site, browse: Browse
) -> None:
    page = await browse(still_site.url("/"))
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await page.wait_for_url("**/queues")
    for key in ("j", "j", "j", "k"):
        await page.keyboard.press(key)
    opened = await page.evaluate("document.activeElement.href")
    second = page.locator("tbody tr").nth(1).locator(".lead a")
    assert opened == await second.evaluate("a => a.href")
    await page.keyboard.press("Enter")
    await page.wait_for_url(opened)
    await page.keyboard.press("Escape")
    await page.wait_for_url("**/queues")
    await page.wait_for_function("document.activeElement.matches('tbody a')")
    assert await page.evaluate("document.activeElement.href") == opened


async def test_keyboard_selects_rows_and_ranges(still_site: Site, browse: Browse) -> None:
    page = await browse(still_site.url("/queues/orders"))
    bar = page.locator(".bar")
    await expect(bar).to_be_hidden()
    for key in ("j", "x", "j", "j", "Shift+X"):
        await page.keyboard.press(key)
    await expect(page.locator("[data-selected]").first).to_have_text("3 selected")
    await expect(bar).to_be_visible()
    await page.locator("[data-select-all]").check()
    ticked = await page.locator("tbody .tick input:checked").count()
    assert ticked == await page.locator("tbody tr").count()


async def test_keyboard_is_off_in_inputs_and_if_disabled(still_site: Site, browse: Browse) -> None:
    page = await browse(still_site.url("/queues"))
    await page.keyboard.press("/")
    await page.keyboard.type("tgq?")
    assert await page.locator(".search input").input_value() == "tgq?"
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.locator("dialog#keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.locator("details.menu summary").click()
    choice = page.get_by_role("group", name="Keyboard")
    await choice.get_by_role("button", name="Off").click()
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.locator("dialog#keys")).to_be_hidden()


# -- dialogs, copying


async def test_confirmation_is_a_dialog_with_focus_on_cancel(
    still_site: Site, browse: Browse
) -> None:
    page = await browse(still_site.url("/queues/orders"))
    await page.get_by_role("link", name=re.compile("^Purge")).click()
    dialog = page.locator("dialog[open]")
    await expect(dialog.get_by_role("link", name="Cancel")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("link", name=re.compile("^Purge"))).to_be_focused()
    assert page.url == still_site.url("/queues/orders")


@pytest.mark.parametrize(("path", "count"), [("/", 4), ("/insights?span=30d", 3)])
async def test_snippet_is_copied(empty_site: Site, browse: Browse, path: str, count: int) -> None:
    page = await browse(empty_site.url(path), is_fresh=True)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert await page.locator(".snippet").count() == count
    await page.locator(".snippet button").first.click()
    await expect(page.locator(".toast")).to_have_text("Copied")
    shown = await page.locator(".snippet code").first.text_content()
    assert await page.evaluate("navigator.clipboard.readText()") == shown


async def test_copying_works_without_the_clipboard_api(empty_site: Site, browse: Browse) -> None:
    """On plain http beyond this machine there is none."""
    page = await browse(is_fresh=True)
    await page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    await page.goto(empty_site.url("/"))
    await page.evaluate("addEventListener('copy', () => { document.title = 'copied'; })")
    await page.locator(".snippet button").first.click()
    await expect(page.locator(".toast")).to_have_text("Copied")
    assert await page.title() == "copied"


# -- the files


async def test_scripts_and_styles_are_versioned_and_cached(
    empty_site: Site, browse: Browse
) -> None:
    """Includes the scripts that only other scripts import."""
    page = await browse()
    kept = {}
    page.on("response", lambda one: kept.update({one.url: one.headers.get("cache-control")}))
    await page.goto(empty_site.url("/"))
    files = {url: header for url, header in kept.items() if "/static/" in url}
    folders, names = zip(*(url.rsplit("/", 1) for url in files), strict=True)
    shared = {path.name for path in (templates_folder() / "static").iterdir()}
    assert shared - {"mark.svg"} <= set(names)
    assert len(set(folders)) == 1
    assert set(files.values()) == {"public, max-age=31536000, immutable"}


# -- without the script


async def test_pages_read_and_buttons_work_without_scripts(site: Site, browse: Browse) -> None:
    page = await browse(site.url("/"), scripts=False)
    await page.get_by_role("link", name="orders", exact=True).first.click()
    main = page.locator("main")
    for words in ("Pause delivery", "Resume delivery"):
        await page.get_by_role("button", name=words).click()
        assert await page.locator(".note").count() == 1
    await page.locator("tbody .tick input").nth(5).check()
    await page.locator(".bar").get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Undo").click()
    assert await page.locator(".note").count() == 1
    await page.get_by_role("link", name=re.compile("^Purge")).click()
    await page.get_by_label(re.compile("^Type")).fill("orders")
    await page.get_by_role("button", name=re.compile("^Delete")).click()
    assert "deleted" in await main.inner_text()
