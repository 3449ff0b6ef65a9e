r"""What both engines share when a store is copied: marks, progress, and rows as text.

Rows are exchanged, and compared, in the text format of PostgreSQL's COPY: one line for each row,
with tabs between its values, backslash escapes in texts, and ``\N`` for NULL.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol, Self

BLOCK_BYTES: Final = 4 << 20  # each block is one transaction of the target
NULL: Final = "\\N"
ESCAPES: Final = {
    b"\\": b"\\\\", b"\b": b"\\b", b"\t": b"\\t", b"\n": b"\\n", b"\v": b"\\v", b"\f": b"\\f",
    b"\r": b"\\r",
}  # fmt: skip
_ESCAPED: Final = {value.decode(): key.decode() for key, value in ESCAPES.items()}

# What only one engine has: the other one rebuilds it or has no use for it.
ONE_SIDED: Final = frozenset(
    {
        *("migration", "epoch", "relay_secret", "copy_state", "queue.shard"),
        *("history_run", "trace_place"),  # rebuilt after the copy
        *("_litestream_seq", "_litestream_lock"),
    }
)


class Table(NamedTuple):
    """A table that both engines have; values are in this order, those of the key first."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, str]  # name -> INTEGER, TEXT or BLOB

    def key_of(self, text: bytes) -> list[Any]:
        """Return the key of the last row in a block."""
        line = text[text.rfind(b"\n", 0, -1) + 1 : -1].decode()
        values = line.split("\t", len(self.key))
        return [
            int(value) if self.columns[name] == "INTEGER" else unescape(value)
            for name, value in zip(self.key, values, strict=False)
        ]


class Block(NamedTuple):
    """Some consecutive rows of a table."""

    text: bytes  # ends with a newline
    rows: int
    replaced: Mapping[str, int] = {}  # column -> texts that PostgreSQL could not have stored


def unescape(value: str) -> str:
    """Return the text that a value stands for."""
    return re.sub(r"\\.", lambda found: _ESCAPED[found[0]], value) if "\\" in value else value


def tables_of(rows: Sequence[tuple[str, str, str, int]]) -> dict[str, Table]:
    """Return tables by name; ``rows`` are table, column, type and place in the key (0: none)."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for table, column, kind, place in rows:
        if not ONE_SIDED & {table, f"{table}.{column}"}:
            found.setdefault(table, []).append((place or len(rows), column, kind))
    return {
        name: Table(
            name,
            tuple(column for place, column, _ in sorted(columns) if place < len(rows)),
            {column: kind for _, column, kind in sorted(columns)},
        )
        for name, columns in sorted(found.items())
    }


@dataclass(slots=True, frozen=True)
class CopyMark:
    """Says in a source that its data is elsewhere, or is being copied there."""

    copy_id: str
    other: str  # the target
    at_ms: int  # Unix ms
    is_complete: bool = False

    def refusal(self, place: str) -> str:
        """Return why no broker may start on the source."""
        was = "was" if self.is_complete else "is being"
        return (
            f"this data {was} copied to {self.other} on {_date(self.at_ms)}. If the copy is not "
            f"used and this data is to be used again, run `phpmq-lite store release {place}`"
        )

    def to_json(self) -> str:
        """Return the mark as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return a stored mark."""
        return cls(**json.loads(text))


@dataclass(slots=True)
class TableProgress:
    """How much of a table is in the target."""

    rows: int = 0
    bytes: int = 0  # of the rows as text
    seconds: float = 0.0
    after: list[Any] | None = None  # key of the last row
    replaced: dict[str, int] = field(default_factory=dict)  # see Block


@dataclass(slots=True)
class CopyState:
    """The progress of a copy, stored in the target with each block."""

    copy_id: str
    source: str
    at_ms: int  # Unix ms
    is_verified: bool = False
    tables: dict[str, TableProgress] = field(default_factory=dict)

    def refusal(self) -> str:
        """Return why no broker may start on the target."""
        return (
            f"the database is an incomplete copy of {self.source}, begun on {_date(self.at_ms)}: "
            "run `phpmq-lite store copy` again"
        )

    def to_json(self) -> str:
        """Return the progress as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return stored progress."""
        state = cls(**json.loads(text))
        state.tables = {
            name: TableProgress(**one)  # type: ignore[arg-type]
            for name, one in state.tables.items()
        }
        return state


def _date(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1_000))


class CopySide(Protocol):
    """A source or target, which no broker can use until it is closed."""

    name: str  # folder, or servers and database

    def tables(self) -> dict[str, Table]:
        """Return the tables by name."""

    def count(self, table: Table) -> int:
        """Return the number of rows."""

    def blocks(self, table: Table, after: Sequence[Any] | None) -> Iterator[Block]:
        """Yield all rows after a key, in the order of the keys."""

    def state(self) -> CopyState | None:
        """Return the progress if this is an incomplete copy."""

    def mark(self) -> CopyMark | None:
        """Return the mark of a source."""

    def set_mark(self, mark: CopyMark) -> None:
        """Store the mark of a source durably."""


class CopyTarget(CopySide, Protocol):
    """What a target can do in addition."""

    def is_empty(self) -> bool:
        """Return whether the target contains no data of a broker."""

    def begin(self, state: CopyState) -> None:
        """Mark the target as incomplete; remove all rows that a copy would replace."""

    def write(self, table: Table, block: Block, state: CopyState) -> None:
        """Store a block and the progress in one transaction."""

    def save(self, state: CopyState) -> None:
        """Store whether the copy is verified."""

    def finish(self, progress: Callable[[str, int, int | None], None]) -> None:
        """Rebuild what was not copied; then brokers may start.  Can be repeated."""

    def is_finishing(self) -> bool:
        """Return whether ``finish`` was interrupted after it had removed the progress."""
