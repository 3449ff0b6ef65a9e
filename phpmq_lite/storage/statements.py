"""Loads named statements of an engine from ``storage/sql/``, and adapts them to the engine.

``sql/`` has what both engines share, and ``sql/sqlite/`` and ``sql/postgres/`` have what differs,
in files of the same names.  They contain statements like this one, each ending with a semicolon::

    -- name: insert_client
    -- its purpose; its parameters, columns and index
    INSERT INTO client {values: client, kind};

This inserts any number of rows.  SQLite gets the first text, here for two, PostgreSQL the other::

    INSERT INTO client (client, kind) VALUES (?,?), (?,?)
    INSERT INTO client (client, kind) SELECT * FROM unnest($1::bigint[], $2::text[])

``{given: COLUMNS}`` is a table of such rows; ``{rows:X}`` is X for each, and ``{n}`` counts from 0.
``UPDATE message {set: seq, COLUMNS}`` sets the columns of the message with the seq of each row.

``{NAME}`` is replaced by the text under ``-- part: NAME``, which several statements of a file can
share; a shared statement can contain a part that differs.  A statement or part with a line
``-- twin: NAME`` is two, such as the pages before and after a row: of ``{A | B}``, the first has A
and its twin has B.  A part ``state_X`` is one for each live state, such as ``ready_X``: in it,
STATE is the number of the state and PLACES its index by position.  ``{each state_X UNION ALL}``
joins them, ``{each state_X,}`` with commas.  What is shared is written for both engines with the
few terms in ``_TERMS``.

``python -m tests.support.statement_files postgres ready_page`` prints what an engine executes.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

SIZES: Final = (500, 100, 20, 5, 1)  # only a few, so that all statements stay in SQLite's cache

_FOLDER = Path(__file__).parent / "sql"
_NAME = re.compile(r"^-- (name|part): (\w+)(?:\n-- twin: (\w+))?$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_CHOICE = re.compile(r"\{((?:[^{}|]|\{\w+\})+?)\s+\|\s+((?:[^{}|]|\{\w+\})+)\}")
_EACH = re.compile(r"\{each state(\w+)(,| UNION ALL)\}")
_PART = re.compile(r"\{(\w+)\}")
_ROWS = re.compile(r"\{rows:((?:[^{}]|\{n\})*)\}")
_COLUMNS = re.compile(r"\{(values|given): ([^{}]+)\}")
_SET = re.compile(r"UPDATE (\w+) \{set: (\w+),\s*([^{}]+)\}")
_GIVEN = re.compile(r"\bgiven\.(\w+)")
_OWN = re.compile(r"\?(?!\d)")  # a parameter of one row
# What is quoted and casts are matched first, so that nothing in them is taken for a parameter.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|::|:([A-Za-z_]\w*)|\?(\d*)""")

_UNCHANGED: Final = r"\g<0>"
# Terms of shared texts: what SQLite gets, and what PostgreSQL gets.
_TERMS: Final = (
    # a JSON array of numbers as a list and as a table
    (r"IN ids\(([^()]+)\)", r"IN (SELECT value FROM json_each(\1))", r"= ANY (ids(\1))"),
    (r"ids\((:\w+)\) AS (\w+)", r"json_each(\1) AS \2", r"unnest(ids(\1)) AS \2 (value)"),
    (r"IN \(\{rows:\?\}\)", _UNCHANGED, "= ANY (?::bigint[])"),
    # an id of a message, and the digits of its seq, which are compared with the start of ids
    (
        r"message_id\(([^(),]+), ([^(),]+)\)",
        r"printf('%016x%016x', \1, \2)",
        r"lpad(to_hex(\1), 16, '0') || lpad(to_hex(\2), 16, '0')",
    ),
    (
        r"seq_digits\(([^(),]+)\)",
        r"printf('%016x', \1)",
        r"""(lpad(to_hex(\1::bigint), 16, '0') COLLATE "C")""",
    ),
    # a function of PostgreSQL that remembers the place of the row
    (r"counter_value\(('\w+')\)", r"(SELECT value FROM counter WHERE name = \1)", _UNCHANGED),
    # types of parameters, which SQLite does not need, and hints for its planner
    (r"(\?\d*)::(?:bigint|text)\b", r"\1", _UNCHANGED),
    (r" (?:NOT INDEXED|INDEXED BY (?:\w+|\{\w+ \| \w+\}))", _UNCHANGED, ""),
    (r"CROSS (JOIN \w+(?: AS \w+)?\s(?:ON|USING))", _UNCHANGED, r"\1"),
)
_ENGINES: Final = ("sqlite", "postgres")
_LIVE: Final = {  # live state -> its number, and its index by position
    "ready": ("0", "message_place"),
    "dispatched": ("1", "message_held"),
    "scheduled": ("6", "message_scheduled"),
    "blocked": ("7", "message_blocked"),
}
# How an engine takes the rows of a statement.
_ROW_TEXTS: Final = {
    ("sqlite", "values"): "({columns}) VALUES {{rows:({row})}}",
    ("sqlite", "given"): "(VALUES {{rows:({row})}}) AS given",
    ("postgres", "values"): "({columns}) SELECT * FROM unnest({arrays})",
    ("postgres", "given"): "unnest({arrays}) AS given ({columns})",
}
_UPDATE: Final = (
    "UPDATE {table} SET {values} FROM {{given: {key}, {names}}} WHERE {table}.{key} = given.{key}"
)
# Columns of rows whose type in PostgreSQL is not bigint.
_TYPES: Final = {
    **dict.fromkeys(("urn", "trace_id", "meta_id", "kind", "address", "detail"), "text"),
    **dict.fromkeys(("reason", "source_reason", "group_name", "group_text", "unique_key"), "text"),
    **dict.fromkeys(("content", "keys", "record_id", "record"), "bytea"),
}


def load(name: str, engine: str) -> dict[str, str]:
    """Return an engine's statements in ``<name>.sql``, keyed by name, with comments removed."""
    return _read(name, engine)[1]


def parts(name: str, engine: str) -> dict[str, str]:
    """Return an engine's parts in ``<name>.sql``, by name, to compose statements at run time."""
    return _read(name, engine)[0]


@cache
def _read(name: str, engine: str) -> tuple[dict[str, str], dict[str, str]]:
    parts: dict[str, str] = {}
    statements: dict[str, str] = {}
    for folder in (_FOLDER, _FOLDER / engine):
        path = folder / f"{name}.sql"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for term in _TERMS if folder == _FOLDER else ():
            pattern, replacement = term[0], term[1 + _ENGINES.index(engine)]
            if replacement != _UNCHANGED:
                text = re.sub(pattern, replacement, text)
        pieces = _NAME.split(text)
        for kind, title, twin, piece in zip(*(pieces[at::4] for at in (1, 2, 3, 4)), strict=True):
            texts = parts if kind == "part" else statements
            texts[title] = bare = _COMMENT.sub("", piece).strip().rstrip(";")
            if twin:
                texts[title], texts[twin] = _CHOICE.sub(r"\1", bare), _CHOICE.sub(r"\2", bare)
    for title in [title for title in parts if title.startswith("state_")]:
        for state, (number, index) in _LIVE.items():
            text = parts[title].replace("STATE", number).replace("PLACES", index)
            parts[title.replace("state", state, 1)] = text

    def each(mark: re.Match[str]) -> str:
        return f"{mark[2]} ".join(f"{{{state}{mark[1]}}}" for state in _LIVE)

    def fill(text: str) -> str:
        text = _EACH.sub(each, text)
        return _PART.sub(lambda part: fill(parts[part[1]]) if part[1] in parts else part[0], text)

    return (
        {title: fill(text) for title, text in parts.items()},
        {title: _expand_rows(fill(text), engine) for title, text in statements.items()},
    )


def _expand_rows(text: str, engine: str) -> str:
    """Return a statement with its ``{values: …}`` or ``{given: …}`` as the engine takes rows."""
    if update := _SET.match(text):
        values = ", ".join(f"{name} = given.{name}" for name in re.split(r",\s*", update[3]))
        text = _UPDATE.format(table=update[1], key=update[2], names=update[3], values=values)
    rows = _COLUMNS.search(text)
    if rows is None:
        return text
    columns = re.split(r",\s*", rows[2])
    if engine == "sqlite":
        text = _GIVEN.sub(lambda column: f"given.column{columns.index(column[1]) + 1}", text)
    expanded = _ROW_TEXTS[engine, rows[1]].format(
        columns=", ".join(columns),
        row=",".join("?" * len(columns)),
        arrays=", ".join(f"?::{_TYPES.get(column, 'bigint')}[]" for column in columns),
    )
    return text.replace(rows[0], expanded)


class MultiRowStatement:
    """A statement for many rows, executed in chunks of fixed size from a flat parameter list.

    A multi-row statement holds the GIL only to bind its parameters, not to run;
    ``executemany`` reached only 50 to 90 % of this rate.
    """

    __slots__ = ("_is_numbered", "_texts", "width")

    def __init__(self, text: str) -> None:
        rows = _ROWS.search(text)
        if rows is None:
            raise ValueError(f"no rows to repeat in: {text}")
        row = rows[1]
        self.width = len(_OWN.findall(row))  # number of parameters per row
        self._is_numbered = "{n}" in row  # whether the first parameter counts rows
        self._texts = {
            size: _ROWS.sub(", ".join(row.replace("{n}", str(n)) for n in range(size)), text)
            for size in SIZES
        }

    def run(
        self, execute: Callable[..., Any], flat: Sequence[Any], before: tuple[Any, ...] = ()
    ) -> list[Any]:
        """Execute the statement for all rows in ``flat`` and return the resulting rows.

        ``before`` holds the parameters that precede the rows in the statement.  If rows are
        numbered, its first value is a number that the statement adds to the number of each row.
        """
        rows: list[Any] = []
        for text, values in self._pieces(flat, before):
            rows += execute(text, values).fetchall()
        return rows

    def write(
        self, execute: Callable[..., Any], flat: Sequence[Any], before: tuple[Any, ...] = ()
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


@cache
def many(name: str, statement: str) -> MultiRowStatement:
    return MultiRowStatement(load(name, "sqlite")[statement])


@lru_cache(maxsize=1024)
def compiled(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with ``$1``, ``$2``, … for ``:name``, ``?`` and ``?1``, and their names.

    Numbers are assigned as in SQLite: a name has one number, and ``?`` has the next number.  The
    name of a parameter without a name is its number.
    """
    names: list[str] = []

    def number(token: re.Match[str]) -> str:
        name, digits = token.groups()
        if name is None and digits is None:
            return token[0]
        name = name or digits or str(len(names) + 1)
        if digits:
            names.extend(str(n) for n in range(len(names) + 1, int(digits) + 1))
            return f"${digits}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _TOKEN.sub(number, text), tuple(names)


def postgres_value(value: Any) -> Any:
    """Return a parameter without NUL, which PostgreSQL's texts cannot contain."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
