"""Numbers of eight digits fit: no text of any page overlaps another one or is cut off."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from phpmq_lite.admin import formats
from phpmq_lite.admin.page_environment import page_environment
from tests.browser.filled import Site, log_in, site_of
from tests.browser.production import PEOPLE, production
from tests.browser.tabs import Browse, show_html
from tests.browser.tour import paths

TEXTS: Final = (Path(__file__).parent / "texts.js").read_text(encoding="utf-8")
WIDTHS: Final = (1280, 1180, 1024, 390)
CROWDED: Final = """<!doctype html><main style="display: grid; grid-template-columns: 8rem 8rem">
  <div style="overflow: clip; width: 30px">clipped</div>
  <div style="overflow: hidden; width: 60px; text-overflow: ellipsis">shortened text</div>
  <div style="width: 20px; white-space: nowrap">sticking out</div>
  <div style="overflow-x: auto; width: 30px">scrolling</div>
  <div style="overflow: hidden; width: 30px; text-overflow: ellipsis">123</div>
  <div>7</div>
  <p style="margin: 0"><span style="position: absolute">under</span>over</p>
  <p class="sr" style="clip-path: inset(50%)">said</p>
  <pre style="width: 7ch; white-space: nowrap">sticking</pre>
  <pre style="width: 7ch; white-space: pre-wrap; overflow-wrap: anywhere">hanging space</pre>
</main>"""
EIGHT_DIGITS: Final = 12_345_678
Toured = tuple[Site, dict[str, str]]  # paths by name


@pytest.fixture(scope="module")
def eight_digits() -> Any:
    """Replace each count on the pages by ``EIGHT_DIGITS``."""
    number = formats.format_number
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "format_number", lambda value: number(EIGHT_DIGITS))
        page_environment.cache_clear()  # brokers share it, and it has the function
        yield
    page_environment.cache_clear()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def filled(
    eight_digits: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Toured]:
    async with site_of(tmp_path_factory.mktemp("filled") / "data") as site:
        yield site, await paths(site)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def busy(
    eight_digits: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Toured]:
    async with production(tmp_path_factory.mktemp("busy") / "data") as (site, roles):
        yield site, roles["admin"]


async def crowded_texts(page: Any, site: Site, tour: dict[str, str]) -> dict[str, list[str]]:
    wrong = {}
    for name, path in tour.items():
        if name.startswith("docs"):
            continue  # the broker formats no number of these pages
        await page.goto(site.url(path))
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            if found := await page.evaluate(TEXTS):
                wrong[f"{name}, {width} px"] = found
    return wrong


@pytest.mark.timeout(300)
async def test_texts_do_not_overlap_with_numbers_of_eight_digits(
    filled: Toured, browse: Browse
) -> None:
    assert await crowded_texts(await browse(), *filled) == {}


@pytest.mark.timeout(300)
async def test_texts_of_a_busy_broker_do_not_overlap_with_numbers_of_eight_digits(
    busy: Toured, browse: Browse
) -> None:
    page = await browse()
    await log_in(page, busy[0], "/login", PEOPLE["admin"])
    await page.locator("details.menu").wait_for()
    assert await crowded_texts(page, *busy) == {}


async def test_check_reports_crowded_texts(browse: Browse) -> None:
    """Each text of the second column is fine."""
    page = await show_html(browse, CROWDED)
    wrong = await page.evaluate(TEXTS)
    assert [each.split(" by ")[0] for each in wrong] == [
        '"clipped" is cut off', '"sticking out" sticks out of div', '"12345678" is cut off',
        '"sticking" sticks out of pre', '"under" overlaps "over"',
    ]  # fmt: skip
