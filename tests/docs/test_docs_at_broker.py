"""The documentation served by the broker: every page renders, and every link has a target."""

import re
from html import unescape
from pathlib import Path

import pytest

from phpmq_lite.admin.http import problems
from phpmq_lite.admin.http.page_layout import HELP
from phpmq_lite.admin.urls import Urls
from phpmq_lite.cli import main as cli
from phpmq_lite.documentation import PICTURE_TYPES, Documentation
from tests.docs.pages import ROOT, anchors

BASE = "/mq"
DOCS = Documentation(ROOT / "docs", Urls(BASE, {}).docs)
SHORT = {
    "admin": "guides/admin",
    "concepts/ttl": "concepts/ttl",
    "decisions": "decisions/index",
    "tutorial": "start/tutorial",
}


def docs_of(folder: Path, **pages: str) -> Documentation:
    """Return the documentation of a folder with these pages; ``a__b`` is the page ``a/b``."""
    for name, text in pages.items():
        path = folder / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Documentation(folder, Urls("", {}).docs)


@pytest.mark.parametrize("name", DOCS.outlines)
def test_page_renders_with_the_anchors_of_its_source(name: str) -> None:
    html = DOCS.render(name)
    ids = re.findall(r'<h\d id="([^"]*)"', html)
    assert ids == [heading.anchor for heading in DOCS.outlines[name]]
    assert set(ids) == anchors(f"docs/{name}.md")
    assert html.count("<h1") == 1
    assert re.findall(r"<(?:script|style|iframe)|<[^>]* (?:style|on\w+)=|<!--", html) == []


@pytest.mark.parametrize("name", DOCS.outlines)
def test_links_and_pictures_of_a_page_exist(name: str) -> None:
    lost = []
    for link in map(unescape, re.findall(r'(?:href|src)="([^"]*)"', DOCS.render(name))):
        path, _, anchor = link.partition("#")
        page = path.removeprefix(f"{BASE}/docs/") or ("index" if path else name)
        if "://" in link:
            continue
        known = {heading.anchor for heading in DOCS.outlines.get(page, ())}
        is_picture = page.removeprefix("images/") in DOCS.pictures
        if not (anchor in known if anchor else page in DOCS.outlines or is_picture):
            lost.append(link)
    assert lost == []


def test_help_leads_to_pages_and_anchors_that_exist() -> None:
    commands = (*cli.DOCS.values(), *cli.DOCS_OF_CODES.values())
    assert set(cli.DOCS) <= set(cli.COMMANDS)
    for target in (*HELP.values(), *problems.DOCS.values(), *commands, "guides/admin"):
        name, _, anchor = target.partition("#")
        assert name in DOCS.outlines
        assert not anchor or anchor in {heading.anchor for heading in DOCS.outlines[name]}, target


@pytest.mark.parametrize(("short", "name"), SHORT.items())
def test_short_address_leads_to_the_page(short: str, name: str) -> None:
    assert DOCS.find(short) == DOCS.find(f"{short}.md") == name


def test_unknown_address_is_not_redirected() -> None:
    for name in ("", "nothing", "guides", "../pyproject", "guides/../index", "concepts/admin"):
        assert DOCS.find(name) is None, name


def test_pictures_have_unique_names() -> None:
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in PICTURE_TYPES]
    assert len(files) == len(DOCS.pictures) > 5


def test_index_lists_every_page_but_the_single_decisions() -> None:
    listed = [name for group in DOCS.groups for name in group.names]
    pages = {
        name
        for name in DOCS.outlines
        if not name.startswith("decisions/") or name == "decisions/index"
    }
    assert sorted(listed) == sorted(pages - {"index"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apple", [("fruit", ["sort", "wash"])]),
        ("WASH", [("fruit", ["wash"])]),
        ("fruit wash", [("fruit", ["wash"])]),
        ("tea", [("tea", ["pour"]), ("cups", ["tea"])]),
        ("nothing", []),
    ],
)
def test_filter_finds_titles_first_and_then_headings(
    tmp_path: Path, text: str, expected: list[tuple[str, list[str]]]
) -> None:
    docs = docs_of(
        tmp_path, cups="# Cups\n\n## Tea\n", tea="# Tea\n\n## Pour\n\n### Slowly\n",
        fruit="# Apple, and other fruit\n\n## Sort\n\n```\n# apple\n```\n\n## Wash\n",
    )  # fmt: skip
    found = docs.search(text)
    assert [(match.name, [each.anchor for each in match.headings]) for match in found] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("KETTLE", ["b#the-kettle Of steel.", "c#water # [kettle]_1 --milk",
                    "a#brew The [kettle] is hot."]),
        ("milk kettle", ["c#water # [kettle]_1 --[milk]", "a#brew The [kettle] is hot.",
                         "a#serve With [milk] first. and · with sugar · salt"]),
        ("milk, and SUGAR?", ["a#serve With [milk] first. [and] · with [sugar] · salt"]),
        ("work hot", ["a#brew The kettle is [hot]."]),
        ("tools", ["b#the-kettle Of steel."]),
        ("ettle", []),
        ("kettle saucer", []),
    ],
)  # fmt: skip
def test_reader_finds_sections_by_their_text_after_titles_and_headings(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    docs = docs_of(
        tmp_path,
        a="# Work\n\n## Serve\n\nWith **milk** first.\n\n| and | with |\n|--|--|\n"
        "| [sugar](x) | `salt` |\n\n## Brew\n\nThe kettle is hot.\n",
        b="# Tools\n\nCups.\n\n## The kettle\n\nOf *steel*.\n",
        c="# Water\n\n```\n# kettle_1 --milk\n```\n",
    )
    assert [
        f"{match.name}#{heading.anchor} " + "".join(
            f"[{piece}]" if at % 2 else piece for at, piece in enumerate(excerpt)
        )
        for match in docs.search(text)
        for heading, excerpt in zip(match.headings, match.excerpts, strict=True)
    ] == expected  # fmt: skip


@pytest.mark.parametrize("name", DOCS.outlines)
def test_reader_finds_sections_of_each_page_by_words_of_their_text(name: str) -> None:
    lost = []
    for heading in DOCS.outlines[name][::5]:
        words = re.findall(r"(?<![^\W_])[a-z]{4,}", heading.text)[3:6]
        if words and name not in {match.name for match in DOCS.search(" ".join(words).upper())}:
            lost.append(heading.anchor)
    assert lost == []


def test_excerpts_are_short_and_a_page_lists_few_sections() -> None:
    for match in DOCS.search("the a of and to " * 50):
        assert 0 < len(match.excerpts) <= 4
        assert max(len("".join(pieces)) for pieces in match.excerpts) < 300
        assert len(match.headings) >= len(match.excerpts)


def test_raw_html_is_text_and_comments_are_left_out(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, a="# A\n\n<!-- made -->\n\n<script>x()</script> <b>y</b>\n")
    html = docs.render("a")
    assert "<script" not in html
    assert "&lt;script&gt;x()&lt;/script&gt; &lt;b&gt;y&lt;/b&gt;" in html
    assert "made" not in html


def test_link_out_of_the_folder_is_its_text(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, b__c="# C\n\n[`run`](../../x/run), [up](../a.md#z), [data](d.json)\n",
                   a="# A")  # fmt: skip
    (tmp_path / "b" / "d.json").write_text("{}")
    expected = '<p><code>run</code>, <a href="/docs/a#z">up</a>, data</p>'
    assert expected in docs.render("b/c")


def test_cells_are_aligned_by_class_and_code_scrolls_by_keyboard(tmp_path: Path) -> None:
    html = docs_of(tmp_path, a="# A\n\n| x |\n|--:|\n| 1 |\n\n    run <b>\n").render("a")
    assert '<td class="right">1</td>' in html
    assert '<pre class="code" tabindex="0"><code>run &lt;b&gt;\n</code></pre>' in html


def test_equal_headings_get_anchors_as_github_numbers_them(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, a="# `A` b!\n\n## See [it](x.md)\n\n## See it\n")
    assert [each.anchor for each in docs.outlines["a"]] == ["a-b", "see-it", "see-it-1"]
