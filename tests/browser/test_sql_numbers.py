"""Every number on every page is what SQL says, or of a kind that is named in ``known_numbers``."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from phpmq_lite.installation import templates_folder
from tests.browser.filled import Site, log_in
from tests.browser.known_numbers import judge, now_ms, template_texts
from tests.browser.number_checks import Known, Number
from tests.browser.production import ENOUGH_S, PEOPLE, production
from tests.browser.tabs import Browse
from tests.support.stores import ON_POSTGRES

NUMBERS: Final = (Path(__file__).parent / "numbers.js").read_text(encoding="utf-8")
SCRIPT: Final = NUMBERS[NUMBERS.index("(quoted)") :]
# Bodies, code and names that people chose.
QUOTED: Final = (
    "pre, code, bdi, q, kbd, textarea, .preview, .tree, .tree-row, .name, .hex, script, template,"
    " style, select, .choice"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(ON_POSTGRES, reason="the SQL reads the SQLite file"),
]


@pytest_asyncio.fixture(loop_scope="session")
async def busy(tmp_path: Path) -> AsyncIterator[tuple[Site, dict[str, str]]]:
    """Run the broker of a team, with the paths of the pages of its administrator."""
    async with production(tmp_path / "data") as (site, paths):
        yield site, paths["admin"]


async def test_every_number_on_every_page_is_what_sql_says(
    busy: tuple[Site, dict[str, str]], browse: Browse
) -> None:
    site, paths = busy
    known = Known(site.running.data / "phpmq.db", template_texts(templates_folder()))
    page = await browse(scripts=False, is_fresh=True)
    await log_in(page, site, "/login", PEOPLE["admin"])
    depth = page.locator("figure", has_text="Depth").locator("li.ready b")
    async with asyncio.timeout(6 * ENOUGH_S):  # charts end with the last sample or whole minute
        for path in ("/", "/?span=24h"):
            await page.goto(site.url(path))
            while await depth.inner_text() != await page.locator(".ready .tile-value").inner_text():
                await asyncio.sleep(1)
                await page.goto(site.url(path))
    bad: list[Any] = []
    seen = 0
    for name, path in paths.items():
        known.since_ms = now_ms()
        await page.goto(site.url(path), wait_until="domcontentloaded")
        known.until_ms = now_ms()
        for section, row, column, text in await page.evaluate(SCRIPT, QUOTED):
            at = Number(name.split()[0], path, section, row, column, text)
            seen += 1
            if reason := judge(known, at):
                bad.append((reason, at))
    assert seen > 5_000
    assert bad == [], "\n".join(f"{reason}: {tuple(at)}" for reason, at in bad)
