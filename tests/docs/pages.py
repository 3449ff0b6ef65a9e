"""Parse a page: the blocks that a reader would paste, their outputs, headings and links.

The rules for pages:

- Commands are an indented block, or a fence of the language ``bash``.
- Code is a fence of ``python``, ``php``, ``sql``; data one of ``json``, ``toml``, ``ini``,
  ``yaml``.  Directly below a paragraph that names a file in backticks and ends with a colon, it is
  written to that file if its extension matches the language.
- Output is a fence of ``text`` or without a language, or an indented block right after a paragraph
  that says "prints" and ends with a colon.  Directly after a block, or with that paragraph in
  between, it is the output of the block: ``…`` matches anything, spaces match any spaces.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).parent.parent.parent
PAGES: Final = sorted(
    str(page.relative_to(ROOT))
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "clients/**/*.md",
        "examples/**/*.md",
        "deploy/**/*.md",
        "benchmarks/*.md",
    )
    for page in ROOT.glob(pattern)
)

SHOWN: Final = "text"
COMMANDS: Final = "bash"
ENDINGS: Final = {  # language of code and data -> its file extensions
    "python": (".py",),
    "php": (".php",),
    "sql": (".sql",),
    "json": (".json",),
    "toml": (".toml",),
    "ini": (".ini", ".conf", ".service", ".timer"),
    "yaml": (".yaml", ".yml"),
}
_PRINTS: Final = re.compile(r"\bprints?\b[^.]*:\Z")
_NAMED: Final = re.compile(r"`([\w./-]+)`")


@dataclass(frozen=True)
class Block:
    page: str
    section: str  # the heading above it
    line: int  # of the page, from 1
    language: str
    text: str
    file: str | None = None  # the block is written to this file, and not run
    output: str | None = None  # as the page shows it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def text_of(page: str) -> str:
    """Return the text of a page, named by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def rows(page: str, head: str) -> list[list[str]]:
    """Return the cells by row of the table whose first line begins with ``head``."""
    text = text_of(page)
    table = text[text.index(f"\n{head}") + 1 :].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the blocks of a page in order, without outputs."""
    return tuple(parse_blocks(page, text_of(page)))


def parse_blocks(page: str, text: str) -> list[Block]:
    found: list[Block] = []
    section = before = ""
    is_behind = False  # only a paragraph with "prints" may be in between
    for token in _tokens(text):
        if token.type == "heading":
            section, before, is_behind = token.content, "", False
        elif token.type == "paragraph":
            before = token.content
            is_behind = is_behind and _PRINTS.search(before) is not None
        elif token.type in {"fence", "code_block"}:
            block = _block(page, section, before, token)
            if block.language != SHOWN:
                found.append(block)
            elif is_behind:
                found[-1] = Block(**vars(found[-1]) | {"output": block.text})
            before, is_behind = "", block.language != SHOWN and block.file is None
        else:
            before, is_behind = "", False
    return found


def _block(page: str, section: str, before: str, token: Token) -> Block:
    assert token.map is not None
    line = token.map[0] + 1
    if token.type == "code_block":
        language = SHOWN if _PRINTS.search(before) else COMMANDS
    else:
        language = token.info.strip() or SHOWN
        line += 1
    return Block(page, section, line, language, token.content, _file(before, language))


def _file(before: str, language: str) -> str | None:
    """Return the file that the paragraph above a block names."""
    if not before.endswith(":"):
        return None
    endings = ENDINGS.get(language, ())
    named = [name for name in _NAMED.findall(before) if name.endswith(tuple(endings))]
    return named[-1] if named else None


@cache
def _parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def _tokens(text: str) -> Iterator[Token]:
    """Yield headings and paragraphs with their text, blocks, and all other elements."""
    kind = ""
    for token in _parsed(text):
        if token.type in {"heading_open", "paragraph_open"}:
            kind = token.type.removesuffix("_open")
        elif token.type == "inline" and kind:
            yield Token(kind, token.tag, 0, content=token.content, map=token.map)
            kind = ""
        elif token.type in {"fence", "code_block", "table_open", "html_block", "hr"}:
            yield token


@cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors of the headings of a page, as on GitHub."""
    found: set[str] = set()
    for token in _tokens(text_of(page)):
        if token.type == "heading":
            plain = re.sub(r"\]\([^)]*\)", "", token.content).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            number = 0
            while (anchor := f"{slug}-{number}" if number else slug) in found:
                number += 1
            found.add(anchor)
    return frozenset(found)


def links(page: str) -> Iterator[str]:
    for token in _parsed(text_of(page)):
        for part in token.children or ():
            leads_to = part.attrGet("href" if part.type == "link_open" else "src")
            if part.type in {"link_open", "image"} and leads_to is not None:
                yield str(leads_to)
