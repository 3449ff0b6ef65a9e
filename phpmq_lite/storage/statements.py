"""Loads named statements of an engine from ``storage/sql/``, and adapts them to the engine.

A file contains statements like this one, each ending with a semicolon::

    -- name: delete_bodies
    -- its purpose; its parameters, columns and index
    DELETE FROM body WHERE seq IN ({rows:?});

``{rows:X}`` is replaced by one X per row, separated by commas, and ``{n}`` in X by the number of
the row, from 0.  ``{NAME}`` is replaced by the text under ``-- part: NAME``, which several
statements of a file can share.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

SIZES: Final = (500, 100, 20, 5, 1)  # only a few, so that all statements stay in SQLite's cache

_FOLDER = Path(__file__).parent / "sql"
_NAME = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_ROWS = re.compile(r"\{rows:((?:[^{}]|\{n\})*)\}")
_OWN = re.compile(r"\?(?!\d)")  # a parameter of one row
# What is quoted and casts are matched first, so that nothing in them is taken for a parameter.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|::|:([A-Za-z_]\w*)|\?(\d*)""")


def load(name: str, engine: str = "sqlite") -> dict[str, str]:
    """Return the statements in ``<engine>/<name>.sql``, keyed by name, with comments removed."""
    return _read(name, engine)[1]


def parts(name: str, engine: str = "sqlite") -> dict[str, str]:
    """Return the parts in ``<engine>/<name>.sql``, by name, to compose statements at run time."""
    return _read(name, engine)[0]


@cache
def _read(name: str, engine: str) -> tuple[dict[str, str], dict[str, str]]:
    pieces = _NAME.split((_FOLDER / engine / f"{name}.sql").read_text(encoding="utf-8"))
    parts: dict[str, str] = {}
    statements: dict[str, str] = {}
    for kind, title, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        bare = re.sub(r"--[^\n]*", "", text).strip().rstrip(";")
        for part, content in parts.items():
            bare = bare.replace(f"{{{part}}}", content)
        (parts if kind == "part" else statements)[title] = bare
    return parts, statements


class MultiRowStatement:
    """A statement for many rows, executed in chunks of fixed size from a flat parameter list.

    A multi-row statement holds the GIL only to bind its parameters, not to run;
    ``executemany`` reached only 50 to 90 % of this rate.
    """

    __slots__ = ("_is_numbered", "_texts", "width")

    def __init__(self, text: str) -> None:
        found = _ROWS.search(text)
        if found is None:
            raise ValueError(f"no rows to repeat in: {text}")
        row = found[1]
        self.width = len(_OWN.findall(row))  # number of parameters per row
        self._is_numbered = "{n}" in row  # whether the first parameter counts rows
        self._texts = {size: _repeat_row(text, row, size) for size in SIZES}

    def run(
        self,
        execute: Callable[..., Any],
        flat: Sequence[Any],
        before: tuple[Any, ...] = (),
    ) -> list[Any]:
        """Execute the statement for all rows in ``flat`` and return the resulting rows.

        ``before`` holds the parameters that precede the rows in the statement.  If rows are
        numbered, its first value is a number that the statement adds to the number of each row.
        """
        given: list[Any] = []
        for text, values in self._pieces(flat, before):
            given += execute(text, values).fetchall()
        return given

    def write(
        self,
        execute: Callable[..., Any],
        flat: Sequence[Any],
        before: tuple[Any, ...] = (),
    ) -> None:
        """Execute the statement like ``run``, but without returning rows."""
        if len(flat) == self.width:  # the usual case when one message is in flight
            execute(self._texts[1], (*before, *flat))
            return
        for text, values in self._pieces(flat, before):
            execute(text, values)

    def _pieces(
        self, flat: Sequence[Any], before: tuple[Any, ...]
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        at, left = 0, len(flat) // self.width
        for size in SIZES:
            while left >= size:
                end = at + size * self.width
                yield self._texts[size], (*before, *flat[at:end])
                at, left = end, left - size
                if self._is_numbered:
                    before = (before[0] + size, *before[1:])


def _repeat_row(text: str, row: str, size: int) -> str:
    rows = ", ".join(row.replace("{n}", str(n)) for n in range(size))
    return _ROWS.sub(rows, text)


@cache
def many(name: str, statement: str) -> MultiRowStatement:
    """Return a statement whose text contains ``{rows:…}``."""
    return MultiRowStatement(load(name)[statement])


@lru_cache(maxsize=1024)
def compiled(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with ``$1``, ``$2``, … for ``:name``, ``?`` and ``?1``, and their names.

    Numbers are assigned as in SQLite: a name has one number, and ``?`` has the next number.  The
    name of a parameter without a name is its number.
    """
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name, digits = found.groups()
        if name is None and digits is None:
            return found[0]
        name = name or digits or str(len(names) + 1)
        if digits:
            names.extend(str(n) for n in range(len(names) + 1, int(digits) + 1))
            return f"${digits}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _TOKEN.sub(number, text), tuple(names)
