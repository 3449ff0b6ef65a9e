"""Long work in slices that let other tasks run, templates, and static files."""

import asyncio
import re
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from phpmq_lite.admin.http import templates
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.templates import COLOURS, StaticFiles
from phpmq_lite.admin.page_environment import page_environment
from phpmq_lite.installation import templates_folder


async def test_items_are_collected_in_order() -> None:
    pauses_made = 0

    async def pause() -> None:
        nonlocal pauses_made
        pauses_made += 1

    assert await templates.collect_in_slices(iter(range(1_000)), pause) == list(range(1_000))
    assert pauses_made >= 1  # one pause before the first slice


async def test_slice_ends_after_its_time() -> None:
    async def pause() -> None:
        turns.append(len(taken))

    def work() -> object:
        for number in range(5):
            ends = asyncio.get_running_loop().time() + templates.PIECE_S
            while asyncio.get_running_loop().time() < ends:
                pass
            taken.append(number)
            yield number

    turns: list[int] = []
    taken: list[int] = []
    await templates.collect_in_slices(work(), pause)  # type: ignore[arg-type]
    assert turns == [1, 2, 3, 4, 5]


SCRIPT_BYTES = 27_000  # all scripts together
FOLDER = templates_folder()
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "static").iterdir()}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}


async def ask(static: StaticFiles, name: str, version: str = "") -> Any:
    parts = {"version": version, "name": name}
    request = make_mocked_request("GET", f"/static/{version}/{name}", match_info=parts)
    return await static.handle(request)


async def test_static_file_is_cached_under_its_version() -> None:
    static = StaticFiles(FOLDER / "static")
    kept = await ask(static, "app.css", static.version)
    asked = await ask(static, "app.css", "old")
    assert kept.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert asked.headers["Cache-Control"] == "no-cache"
    assert kept.content_type == "text/css"


@pytest.mark.parametrize("name", ["../base.html", "base.html", "", "app.css/"])
async def test_only_static_files_are_served(name: str) -> None:
    with pytest.raises(Problem, match="There is no page"):
        await ask(StaticFiles(FOLDER / "static"), name)


async def test_favicon_has_the_colour_of_the_environment() -> None:
    static = StaticFiles(FOLDER / "static")
    for name, colour in COLOURS.items():
        picture = (await ask(static, f"mark-{name}.svg")).body.decode()
        assert (colour in picture, "#5357c6" in picture) == (True, False)


def test_scripts_are_small_and_write_texts_only() -> None:
    script = "".join(SCRIPTS.values())
    words = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function"
    assert len(script.encode()) <= SCRIPT_BYTES
    assert re.findall(words, script) == []


def test_scripts_import_exactly_what_others_export() -> None:
    """Every import is exported, and every export is imported, so no script is unused."""
    taken = {
        (name, word)
        for text in SCRIPTS.values()
        for words, name in re.findall(r"^import \{ (.+) \} from \"\./(.+)\";$", text, re.MULTILINE)
        for word in words.split(", ")
    }
    given = {
        (name, word)
        for name, text in SCRIPTS.items()
        for word in re.findall(r"^export (?:async )?\w+ (\w+)", text, re.MULTILINE)
    }
    assert taken == given
    assert {name for name, _ in given} == SCRIPTS.keys() - {"app.js"}


def test_templates_have_no_inline_script_or_style() -> None:
    words = re.compile(r"\sstyle=|<style|\son\w+=\"|<script(?! type=\"module\" src=)|\|safe|Markup")
    found = {
        path.name: words.findall(path.read_text(encoding="utf-8"))
        for path in sorted(FOLDER.rglob("*.html"))
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_static_files_load_nothing_from_elsewhere() -> None:
    for name, text in TEXTS.items():
        own = text.replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|@import|url\(", own) == [], name


async def test_first_requests_compile_the_templates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 90 did, in threads at once, while the event loop waited for the GIL."""
    pages = templates.PageTemplates(page_environment(templates_folder()))
    compiled: list[str] = []
    monkeypatch.setattr(pages, "_compile", compiled.append)
    await asyncio.gather(*(pages.get("error.html") for _ in range(90)))
    assert compiled == ["error.html"]
