"""The documentation, whose Markdown pages are rendered as HTML."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape, unescape
from pathlib import Path
from posixpath import dirname, normpath
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

INDEX: Final = "index"
PICTURE_TYPES: Final = {".png": "image/png", ".svg": "image/svg+xml"}
_COMMENT: Final = re.compile(r"^<!--.*?-->\n", re.MULTILINE)
_FENCE: Final = re.compile(r"^(```+|~~~+)")
_HEADING: Final = re.compile(r"^(#{1,6}) +(.+?) *#*$")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ALIGNED: Final = re.compile(r"text-align:(\w+)")
_MARKS: Final = re.compile(r"(?<!\w)(\*\*?)(?=\S)(.+?)(?<=\S)\1(?!\w)")  # of emphasis
_TABLE_RULE: Final = re.compile(r"\|[-:| ]+")
_WORD: Final = re.compile(r"[^\s?!,;:'\"“”()]+")
_MAX_WORDS: Final = 10  # of a search; further ones are ignored
_SHOWN_SECTIONS: Final = 4  # of a page, in the result of a search
_EXCERPT_CHARS: Final = 160


@dataclass(slots=True, frozen=True)
class DocHeading:
    """A heading on a page, with the same anchor as on GitHub."""

    level: int
    title: str
    anchor: str
    text: str  # up to the next heading, on one line


@dataclass(slots=True, frozen=True)
class DocMatch:
    """A page that matches a search, with the headings to list below its title."""

    name: str
    title: str
    headings: list[DocHeading]
    excerpts: list[list[str]]  # of the first headings; every second piece is a searched word


@dataclass(slots=True, frozen=True)
class DocGroup:
    """A heading in the index, with the names of the pages listed below it."""

    title: str
    names: tuple[str, ...]


def outline_of(text: str) -> tuple[DocHeading, ...]:
    """Return the headings of a Markdown page in order, without parsing the rest of the page."""
    headings: list[tuple[int, str, str, list[str]]] = []
    used: dict[str, int] = {}
    fence = ""
    for line in _COMMENT.sub("", text).splitlines():
        if mark := _FENCE.match(line):
            fence = "" if line.startswith(fence) and fence else fence or mark[1]
        elif not fence and (heading := _HEADING.match(line)):
            title = _LINK.sub(r"\1", heading[2]).replace("`", "").replace("*", "")
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            count = used[slug] = used.get(slug, -1) + 1
            headings.append((len(heading[1]), title, f"{slug}-{count}" if count else slug, []))
        elif headings and not _TABLE_RULE.fullmatch(line):
            headings[-1][3].append(
                line.strip("| ").replace(" | ", " · ") if line[:1] == "|" else line
            )
    return tuple(DocHeading(*heading[:3], _plain(" ".join(heading[3]))) for heading in headings)


def _plain(text: str) -> str:
    text = _LINK.sub(r"\1", text).replace("`", "").replace("\\|", "|")
    return unescape(" ".join(_MARKS.sub(r"\2", text).split()))


def _word_pattern(*words: str) -> re.Pattern[str]:
    """Return a pattern with one group for any of ``words``, or the beginning of a longer word."""
    return re.compile(rf"(?<![^\W_])({'|'.join(map(re.escape, words))})", re.IGNORECASE)


def _rank(word: re.Pattern[str], title: str, section: DocHeading) -> float:
    """Return 0 for a word in the page's title, 1 for the heading, 3 if absent, else in between."""
    if match := word.search(f"{title}\n{section.title}"):
        return float(match.start() > len(title))
    size, count = len(section.text), len(word.findall(section.text))
    return 2 + size / (size + _EXCERPT_CHARS * count) if count else 3


def _excerpt(words: re.Pattern[str], text: str) -> list[str]:
    at = match.start() if (match := words.search(text)) else 0
    start = text.rfind(" ", 0, max(0, at - _EXCERPT_CHARS // 3)) + 1
    end = text.find(" ", max(at, start + _EXCERPT_CHARS))
    return words.split("…" * (start > 0) + (text[start:end] + "…" if end >= 0 else text[start:]))


class Documentation:
    """The documentation pages in a folder; the list is read, and each page rendered, on first use.

    ``url_of`` returns the URL of a page or picture, given its name below ``/docs/``.  Names are
    looked up in the list of the folder's files, so no URL leads outside the folder.
    """

    def __init__(self, folder: Path, url_of: Callable[[str], str]) -> None:
        self._folder = folder
        self._url_of = url_of
        self._rendered: dict[str, Markup] = {}

    @cached_property
    def _markdown(self) -> "MarkdownIt":
        from markdown_it import MarkdownIt

        markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        markdown.add_render_rule("fence", _render_code)
        markdown.add_render_rule("code_block", _render_code)
        return markdown

    @cached_property
    def _files(self) -> dict[str, Path]:
        files = (path for path in sorted(self._folder.rglob("*")) if path.is_file())
        return {path.relative_to(self._folder).as_posix(): path for path in files}

    @cached_property
    def outlines(self) -> dict[str, tuple[DocHeading, ...]]:
        """The headings of all pages, keyed by page name, such as ``start/tutorial``."""
        return {
            name.removesuffix(".md"): outline_of(path.read_text(encoding="utf-8"))
            for name, path in self._files.items()
            if name.endswith(".md")
        }

    @cached_property
    def pictures(self) -> dict[str, Path]:
        """Pictures in all folders, keyed by file name."""
        return {path.name: path for path in self._files.values() if path.suffix in PICTURE_TYPES}

    @cached_property
    def groups(self) -> tuple[DocGroup, ...]:
        """The navigation groups: each heading of the index, with the pages linked below it."""
        groups: list[tuple[str, list[str]]] = []
        for line in self._files[f"{INDEX}.md"].read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                groups.append((line[3:], []))
            elif groups:
                groups[-1][1].extend(re.findall(r"\]\(([\w/-]+)\.md\)", line))
        return tuple(DocGroup(title, tuple(names)) for title, names in groups)

    def title_of(self, name: str) -> str:
        """Return a page's title, up to its first colon, if any."""
        return self.outlines[name][0].title.partition(":")[0]

    def find(self, name: str) -> str | None:
        """Return the page with this name, or whose name ends with it; None if there is none."""
        name = name.removesuffix(".md").strip("/")
        candidates = [name, f"{name}/{INDEX}"]
        if "/" not in name:
            candidates += [page for page in self.outlines if page.endswith(f"/{name}")]
        return next((page for page in candidates if page in self.outlines), None)

    def search(self, text: str) -> list[DocMatch]:
        """Return the pages with every word of ``text``, or longer words that begin with it.

        Those with the words in their title come first, with their second-level headings; then those
        with the other words in one heading, in one section, and in several sections.
        """
        words = (_WORD.findall(text) or [""])[:_MAX_WORDS]
        patterns, marked = [_word_pattern(word) for word in words], _word_pattern(*words)
        ranks: list[tuple[tuple[float, float, int], DocMatch]] = []
        for name, parts in self.outlines.items():
            rows = [[_rank(word, parts[0].title, part) for word in patterns] for part in parts]
            if 3 in map(min, zip(*rows, strict=True)):
                continue  # a word is in no section
            ranked = sorted(
                (max(row) // 1, sum(row), at)
                for at, row in enumerate(rows)
                if min(filter(None, row), default=0) < 3
            )
            kind = ranked[0][0]
            same = [parts[at] for other, _, at in ranked if other == kind]
            same = same if kind else [part for part in same if part.level == 2]
            excerpts = [_excerpt(marked, part.text) for part in same[:_SHOWN_SECTIONS]]
            ranks.append((ranked[0], DocMatch(name, parts[0].title, same, excerpts)))
        return [match for _, match in sorted(ranks, key=lambda pair: pair[0])]

    def render(self, name: str) -> Markup:
        """Return a page as HTML, or raise KeyError; rendering it once takes up to 0.2 s."""
        if name not in self._rendered:
            text = self._files[f"{name}.md"].read_text(encoding="utf-8")
            tokens = self._markdown.parse(_COMMENT.sub("", text))
            changed = list(self._changed(name, tokens))
            html = self._markdown.renderer.render(changed, self._markdown.options, {})
            self._rendered[name] = Markup(html)  # noqa: S704 - raw HTML in pages is escaped
        return self._rendered[name]

    def _changed(self, name: str, tokens: "list[Token]") -> "Iterator[Token]":
        """Yield a page's tokens with anchors added, links resolved and inline styles removed."""
        headings = iter(self.outlines[name])
        for token in tokens:
            if token.type == "heading_open":
                token.attrSet("id", next(headings).anchor)
            elif token.type in {"th_open", "td_open"} and "style" in token.attrs:
                aligned = _ALIGNED.search(str(token.attrs.pop("style")))
                if aligned:
                    token.attrSet("class", aligned[1])
            elif token.type == "inline":
                token.children = list(self._linked(name, token.children or []))
            if token.type == "table_open":
                yield _raw('<div class="scroll" tabindex="0">')
            yield token
            if token.type == "table_close":
                yield _raw("</div>\n")

    def _linked(self, name: str, tokens: "list[Token]") -> "Iterator[Token]":
        """Yield inline tokens with links resolved; links that are not served become text."""
        is_dropped = False
        for token in tokens:
            if token.type == "image":
                token.attrSet("src", self._resolve(name, str(token.attrs["src"])) or "")
                token.attrSet("loading", "lazy")
            elif token.type == "link_open":
                address = self._resolve(name, str(token.attrs["href"]))
                is_dropped = address is None
                token.attrSet("href", address or "")
            if not (is_dropped and token.type in {"link_open", "link_close"}):
                yield token

    def _resolve(self, name: str, link: str) -> str | None:
        """Return the URL for a link on a page, or None if its target is not served."""
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        target = normpath(f"{dirname(name)}/{path}").lstrip("/")
        if target not in self._files:
            return None
        if target.endswith(".md"):
            return self._url_of(target.removesuffix(".md")) + mark + anchor
        picture = self._files[target].name
        return self._url_of(f"images/{picture}") if picture in self.pictures else None


def _raw(html: str) -> "Token":
    from markdown_it.token import Token

    return Token("html_block", "", 0, content=html)


def _render_code(_renderer: Any, tokens: "list[Token]", index: int, *_: Any) -> str:
    """Return the HTML of a code block that can also be scrolled with the keyboard."""
    text = escape(tokens[index].content, quote=False)
    return f'<pre class="code" tabindex="0"><code>{text}</code></pre>\n'
