r"""What a search asks for, as plain data: terms that all hold, those of one kind any of them.

A pattern has ``*`` (any text) and ``?`` (one character); a backslash takes the meaning of the
character behind it away.
"""

import re
from dataclasses import dataclass
from typing import Final

WILD: Final = "*?"
_GLOB_MARKS: Final = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
_QUOTED: Final = re.compile(r'\s|^"|^$|^-')


@dataclass(slots=True, frozen=True)
class Term:
    """One condition.

    ``kind`` is its qualifier, ``text`` for free text; ``value`` what stands behind the colon, as
    typed.  Comparisons have ``sign`` and ``number`` in the unit of the column: bytes, ms, times.
    """

    kind: str
    value: str
    is_negated: bool = False
    path: str = ""  # of a member of the body: "data.order_id"
    sign: str = ""  # = < <= > >=
    number: int = 0

    def __str__(self) -> str:
        """Give the term as it can be typed."""
        value = self.value
        if self.kind == "text":
            is_plain = not _QUOTED.search(value) and ":" not in value
        else:
            is_plain = not _QUOTED.search(value.lstrip("-"))
        if not is_plain:
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        name = "" if self.kind == "text" else f"{self.path or self.kind}:"
        return f"{'-' if self.is_negated else ''}{name}{value}"


@dataclass(slots=True, frozen=True)
class Query:
    """A whole search; no terms: every message."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        """Give the search as it can be typed; reading it again gives the same."""
        return " ".join(map(str, self.terms))

    def without(self, term: Term) -> "Query":
        """Give the search without one of its terms."""
        return Query(tuple(other for other in self.terms if other != term))

    def of(self, kind: str) -> list[Term]:
        """Give the terms of one kind."""
        return [term for term in self.terms if term.kind == kind]


def escape_pattern(text: str) -> str:
    """Make a pattern that only this text matches."""
    return re.sub(r"([*?\\])", r"\\\1", text)


def is_pattern(pattern: str) -> bool:
    """Tell whether there is a ``*`` or ``?`` that has its meaning."""
    return any(mark in WILD for mark in re.sub(r"\\.", "", pattern, flags=re.DOTALL))


def as_glob(pattern: str) -> str:
    """Write a pattern as SQLite's GLOB takes it."""
    out = []
    at = 0
    while at < len(pattern):
        mark = pattern[at]
        if mark == "\\" and at + 1 < len(pattern):
            at += 1
            out.append(pattern[at].translate(_GLOB_MARKS))
        elif mark in WILD:
            if not (mark == "*" and out and out[-1] == "*"):
                out.append(mark)
        else:
            out.append(mark.translate(_GLOB_MARKS))
        at += 1
    return "".join(out)


def start_of(pattern: str) -> str:
    """Give the text that everything begins with that a pattern matches."""
    found = re.match(r"(?:[^*?\\]|\\.)*", pattern, flags=re.DOTALL)
    return plain_text(found[0]) if found else ""


def end_of(start: str) -> str | None:
    """Give the first text behind all that begin so; None: there is none."""
    text = start.rstrip("\U0010ffff")
    if not text:
        return None
    code = ord(text[-1]) + 1
    return text[:-1] + chr(0xE000 if 0xD800 <= code < 0xE000 else code)  # no lone surrogates


def plain_text(pattern: str) -> str:
    """Give the text of a pattern without marks."""
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)
