r"""A source or target of a copy, and the text as which rows are copied.

Rows are exchanged, and compared, in the text format of PostgreSQL's COPY: one line for each row,
with tabs between its values, backslash escapes in texts, and ``\N`` for NULL.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from phpmq_lite.storage.store import Store

BLOCK_BYTES: Final = 4 << 20  # each block is one transaction of the target
NULL: Final = "\\N"
ESCAPES: Final = {"\\": "\\", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r"}
_UNESCAPED: Final = {escaped: one for one, escaped in ESCAPES.items()}

# What only one engine has: the other one rebuilds it or has no use for it.
ONE_SIDED: Final = frozenset(
    {
        *("migration", "copy_state", "epoch", "relay_secret", "queue.shard"),
        *("history_run", "trace_place", "_litestream_seq", "_litestream_lock"),
    }
)
_NOT_IN_KEY: Final = 1_000
Progress = Callable[[str, int, int | None], None]  # phase, rows done, rows in total


class Table(NamedTuple):
    """A table that both engines have; values are in this order, those of the key first."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, str]  # name -> INTEGER, TEXT or BLOB


class Block(NamedTuple):
    """Some consecutive rows of a table."""

    text: bytes  # ends with a newline
    rows: int
    replaced: int = 0  # characters that PostgreSQL cannot store


class CopySide:
    """A source or target, which no broker can use until it is closed."""

    collation: ClassVar[str]  # by which bytes are compared
    store: Store

    def __init__(self, name: str, block_bytes: int) -> None:
        self.name = name  # folder, or servers and database
        self._block_bytes = block_bytes

    def tables(self) -> dict[str, Table]:
        """Return the tables by name."""
        return tables_of(self.store.execute(self.store.sql("copy")["tables"]))

    def count(self, table: Table) -> int:
        """Return the number of rows."""
        return int(self.store.execute(f'SELECT count(*) FROM "{table.name}"').fetchone()[0])

    def select(self, table: Table, values: str, after: Sequence[Any] | None) -> str:
        """Return the query for all rows after a key, in the order of the keys."""
        key = ", ".join(
            f'"{name}"' + f" COLLATE {self.collation}" * (table.columns[name] == "TEXT")
            for name in table.key
        )
        where = "" if after is None else f"WHERE ({key}) > ({', '.join(map(_literal, after))})"
        return f'SELECT {values} FROM "{table.name}" {where} ORDER BY {key}'


def tables_of(rows: Iterable[tuple[str, str, str, int]]) -> dict[str, Table]:
    """Return tables by name; ``rows`` are table, column, type and place in the key (0: none)."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for table, column, kind, place in rows:
        if not ONE_SIDED & {table, f"{table}.{column}"}:
            found.setdefault(table, []).append((place or _NOT_IN_KEY, column, kind))
    return {
        name: Table(
            name,
            tuple(column for place, column, _ in sorted(columns) if place < _NOT_IN_KEY),
            {column: kind for _, column, kind in sorted(columns)},
        )
        for name, columns in sorted(found.items())
    }


def key_of(table: Table, text: bytes) -> list[Any]:
    """Return the key of the last row in a block."""
    line = text[text.rfind(b"\n", 0, -1) + 1 : -1].decode()
    values = zip(table.columns.values(), line.split("\t"), strict=True)
    return [value_of(kind, value) for kind, value in values][: len(table.key)]


def value_of(kind: str, value: str) -> Any:
    """Return the value that a text stands for."""
    if value == NULL:
        return None
    if kind == "BLOB":
        return bytes.fromhex(value[3:])
    if kind == "INTEGER":
        return int(value)
    return re.sub(r"\\(.)", lambda found: _UNESCAPED[found[1]], value) if "\\" in value else value


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
