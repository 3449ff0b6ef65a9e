"""Chromium, and tabs that record the errors of their pages."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from shutil import which
from typing import Any, Final, Literal

import pytest
from axe_playwright_python.async_playwright import Axe

CLOSE_S: Final = 3.0  # Chromium often does not close at the end of a run
Scheme = Literal["light", "dark"]
Tab = tuple[Any, list[str]]  # a page, and its errors
Browse = Callable[..., Awaitable[Any]]  # the fixture: opens an address, returns the page
CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")

FINDINGS = """async (asked) => (await axe.run(asked)).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes[0].html])"""
LEAVE_ONE_OF_A_KIND = r"""() => {
  const state = /^(class|style|role|type|hidden|disabled|checked|tabindex|lang|dir|aria-(?!label))/;
  const reference = /^(for|aria-(labelledby|describedby|controls|owns))$/;
  const said = ({name, value}) => name + (
    reference.test(name) ? value.split(" ").every((id) => document.getElementById(id))
    : state.test(name) ? `=${value}` : Boolean(value.trim()));
  const shape = (node) => node.nodeType === Node.TEXT_NODE
    ? Math.min(node.data.trim().length, 2)
    : node.nodeType !== Node.ELEMENT_NODE ? ""
    : `<${node.tagName} ${[...node.attributes].map(said)}>${[...node.childNodes].map(shape)}</>`;
  for (const list of document.querySelectorAll("tbody, ul, ol, dl, svg, svg g")) {
    const seen = new Set();
    for (const each of [...list.children]) {
      const looks = shape(each);
      if (seen.has(looks)) each.remove();
      seen.add(looks);
    }
  }
}"""


@asynccontextmanager
async def launched(*arguments: str) -> AsyncIterator[Any]:
    """Run a browser with additional command line ``arguments``."""
    playwright = pytest.importorskip("playwright.async_api")
    common = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    driver = await playwright.async_playwright().start()
    try:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=[*common, *arguments])
        yield browser
        await _within(browser.close(), "Chromium did not close")
    finally:
        # The driver kills browsers that are still open when it stops.
        await _within(driver.stop(), "the driver of Chromium did not stop")


async def _within(closing: Awaitable[None], failure: str) -> None:
    """Wait at most ``CLOSE_S``: the tests have passed, and the processes end with this one."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await closing
    except TimeoutError:
        print(f"{failure} within {CLOSE_S:.0f} s", file=sys.__stderr__)


async def close_tabs(browser: Any, keep: Collection[Any] = ()) -> None:
    """Close all tabs with their cookies and storage, except those of the contexts to keep."""
    for context in list(browser.contexts):
        if context not in keep:
            await context.close()


async def clear_tab(page: Any) -> None:
    """Leave the page, and delete its storage and cookies."""
    await page.evaluate("if (origin !== 'null') { localStorage.clear(); sessionStorage.clear(); }")
    await page.goto("about:blank")
    await page.context.clear_cookies()


async def set_look(page: Any, *, width: int = 1280, scheme: Scheme = "light") -> None:
    """Set the size of the window and the theme of the system."""
    await page.set_viewport_size({"width": width, "height": 800})
    await page.emulate_media(color_scheme=scheme)


async def open_tab(
    chromium: Any,
    *,
    width: int = 1280,
    scheme: Scheme = "light",
    scripts: bool = True,
    zone: str | None = None,
) -> Tab:
    """Open a tab; return it with a list of its console and script errors, CSP reports, dialogs."""
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=scripts,
        timezone_id=zone,
        reduced_motion="reduce",  # axe must not measure a colour in transition
    )
    page = await context.new_page()
    troubles: list[str] = []

    def heard(message: Any) -> None:
        if message.type == "error" and "status of 4" not in message.text:  # our own error pages
            troubles.append(f"{page.url}: {message.text}")

    async def asked(dialog: Any) -> None:
        troubles.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("console", heard)
    page.on("pageerror", lambda error: troubles.append(f"{page.url}: {error}"))
    page.on("dialog", asked)
    return page, troubles


async def show_html(browse: Browse, html: str) -> Any:
    """Return a page of 400 px in a context of its own that shows this text."""
    page = await browse(width=400, is_fresh=True)
    await page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
    await page.goto("http://localhost/")
    return page


async def leave_one_of_a_kind(page: Any) -> None:
    """Remove from lists, tables and drawings the elements that repeat an earlier one, for axe.

    Elements are alike if all their descendants have the same tags, classes and states, texts of
    the same class (empty, one character, longer), and references that exist or do not.
    """
    await page.evaluate(LEAVE_ONE_OF_A_KIND)


async def barriers(page: Any, *, rules: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return the rule and the first place of each serious or critical finding of axe.

    With ``rules``, only these are checked.
    """
    asked: dict[str, Any] = {"resultTypes": ["violations"]}  # listing the rest is most of the cost
    if rules:
        asked["runOnly"] = list(rules)
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(Axe().axe_script)
    found = await page.evaluate(FINDINGS, asked)
    return [(rule, place) for rule, place in found]


async def barriers_in_both_themes(page: Any) -> list[tuple[Scheme, str, str]]:
    """Return the findings of all rules in the light theme, of the contrast in the dark one."""
    await page.emulate_media(color_scheme="dark")
    dark = await barriers(page, rules=("color-contrast",))
    await page.emulate_media(color_scheme="light")  # the next page is loaded with it
    light = await barriers(page)
    return [*(("dark", *each) for each in dark), *(("light", *each) for each in light)]
