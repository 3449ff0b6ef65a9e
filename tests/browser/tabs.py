"""Chromium, and a tab of it that remembers what went wrong in it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from shutil import which
from typing import Any, Final, Literal

import pytest
from axe_playwright_python.async_playwright import Axe

CLOSE_S: Final = 3.0  # Chromium often does not close at the end of a run
Scheme = Literal["light", "dark"]
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
    """Run a browser; ``arguments`` are more of its command line."""
    playwright = pytest.importorskip("playwright.async_api")
    common = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    driver = await playwright.async_playwright().start()
    try:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=[*common, *arguments])
        yield browser
        await _within(browser.close(), "Chromium did not close")
    finally:
        # A driver that is stopped kills the browsers that have not closed.
        await _within(driver.stop(), "the driver of Chromium did not stop")


async def _within(closing: Awaitable[None], failure: str) -> None:
    """Wait for ``CLOSE_S`` at most: the tests have passed, and the processes end with this one."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await closing
    except TimeoutError:
        print(f"{failure} within {CLOSE_S:.0f} s", file=sys.__stderr__)


async def close_tabs(browser: Any) -> None:
    """Close what was opened, with all cookies and storage of it."""
    for context in list(browser.contexts):
        await context.close()


async def open_tab(
    chromium: Any, *, width: int = 1280, scheme: Scheme = "light", scripts: bool = True
) -> tuple[Any, list[str]]:
    """Open a tab; the list takes every console error, CSP report, script error and dialog."""
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=scripts,
        reduced_motion="reduce",  # a colour on its way is no colour to judge
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


async def leave_one_of_a_kind(page: Any) -> None:
    """Remove from lists, tables and drawings what looks like something before it, for axe.

    Alike are elements whose tags, classes and states are, all the way down, whose texts are
    empty, of one sign or longer at the same places, and whose references lead somewhere or not.
    """
    await page.evaluate(LEAVE_ONE_OF_A_KIND)


async def barriers(page: Any, *, rules: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Give the rule and the first place of each serious or critical finding of axe.

    ``rules`` are the only ones to look for; none: all of them.
    """
    asked: dict[str, Any] = {"resultTypes": ["violations"]}  # listing the rest costs most of it
    if rules:
        asked["runOnly"] = list(rules)
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(Axe().axe_script)
    found = await page.evaluate(FINDINGS, asked)
    return [(rule, place) for rule, place in found]
