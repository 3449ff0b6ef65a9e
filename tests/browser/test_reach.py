"""Every control of every page is usable: at each width, in both themes, by each role."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.roles import Role
from tests.browser.filled import Site, log_in
from tests.browser.production import PEOPLE, production
from tests.browser.tabs import Browse, show_html

CONTROLS: Final = (Path(__file__).parent / "controls.js").read_text(encoding="utf-8")
WIDTHS: Final = (1920, 1280, 1180, 1024, 768, 390)  # the widest shows every control
THEMES: Final = ("light", "dark")
# The other pages are the same for admins and operators.
ADMIN_PAGES: Final = ("system", *(route.name for route in ROUTES if route.role is Role.ADMIN))


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def busy(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Site, dict[str, dict[str, str]]]]:
    """Run the broker of ``production``; return it with the paths of the pages of each role."""
    async with production(tmp_path_factory.mktemp("busy") / "data") as made:
        yield made


async def unusable_controls(page: Any) -> list[str]:
    found: list[str] = []
    known: list[str] | None = None
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 800})
        for theme in THEMES:
            await page.emulate_media(color_scheme=theme)
            seen = await page.evaluate(CONTROLS, {"known": known})
            known = known or seen["keys"]
            found += [f"{width} px, {theme}: {each}" for each in seen["wrong"]]
    return found


@pytest.mark.timeout(600)  # by itself some 90 s; beside other work on the same cores much longer
@pytest.mark.sample("admin")
@pytest.mark.parametrize("role", PEOPLE)
async def test_every_control_is_usable_at_each_width(
    busy: tuple[Site, dict[str, dict[str, str]]], browse: Browse, role: str
) -> None:
    site, paths = busy
    page = await browse(width=WIDTHS[0])
    await log_in(page, site, "/login", PEOPLE[role])
    await page.locator("details.menu").wait_for()
    wrong = {}
    for name, path in paths[role].items():
        if role == "admin" and name.split()[0] not in ADMIN_PAGES:
            continue
        answer = await page.goto(site.url(path))
        if answer.status >= 500:
            wrong[name] = [str(answer.status)]
        elif found := await unusable_controls(page):
            wrong[name] = found
    if role == "operator":  # a selection belongs to the user that made it
        await page.goto(site.url("/messages?q=queue:orders"))
        await page.get_by_role("button", name="matching messages").click()
        wrong |= {"selection": found} if (found := await unusable_controls(page)) else {}
    assert wrong == {}


async def test_check_reports_unusable_controls(browse: Browse) -> None:
    """Each control below but the last is unusable for a different reason."""
    html = """<!doctype html><main>
      <div style="overflow: clip; width: 90px">
        <a href="/cut" style="margin-left: 60px">clipped</a></div>
      <div style="position: relative"><a href="/under">under</a>
        <p style="position: absolute; inset: 0; margin: 0; background: white"></p></div>
      <a href="/far" style="position: absolute; left: 390px">far out</a>
      <p style="width: 40px; overflow-wrap: anywhere"><span class="all">127.0.0.1:9101</span></p>
      <div style="overflow-x: auto; width: 90px">
        <a href="/fine" style="margin-left: 99px">fine</a></div>
    </main>"""
    page = await show_html(browse, html)
    seen = await page.evaluate(CONTROLS, {"known": ["a /fine", "a /gone"]})
    assert seen["keys"] == ["a /fine"]
    found = [each.split(",")[0].split(" px")[0] for each in seen["wrong"]]
    assert [one.partition(": ")[0] for one in found] == [
        "page", "127.0.0.1:9101", "a /cut", "a /under", "a /far", "a /gone",
    ]  # fmt: skip
    assert "clipped by div" in found[2]
    assert "overlapped by p" in found[3]
    assert "outside" in found[4]
    assert "not there" in found[5]
