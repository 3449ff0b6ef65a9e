"""Copies a store to the other engine: table by table, in blocks, and verified at the end.

Before the first row is copied, the source gets a mark with which no broker starts on it until
``store release``; the target gets another with its first row.  Each block is stored together with
the progress, so a copy that was interrupted continues when the command is repeated.

Users, sessions and tokens are copied unchanged.  A restore withdraws access because a backup is
older than what it replaces; a copy is not: nothing can be revoked in the source meanwhile.

The statements follow from the schema, so they are composed here and in ``copy_side.py``.
"""

import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union
from zlib import crc32

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.storage.copy_state import CopyState, Progress
from phpmq_lite.storage.read.read_pool import Row
from phpmq_lite.writes import AUDIT_BYTES, bounded_text

if TYPE_CHECKING:
    from phpmq_lite.storage.postgres.copy_side import PostgresSide
    from phpmq_lite.storage.sqlite.copy_side import SqliteSide

BLOCK_BYTES: Final = 4 << 20  # each block is one transaction of the target
AnySide = Union["SqliteSide", "PostgresSide"]

# What only one engine has: the other one rebuilds it or has no use for it.
ONE_SIDED: Final = frozenset(
    {
        *("migration", "copy_state", "epoch", "relay_secret", "queue.shard"),
        *("history_run", "trace_place", "_litestream_seq", "_litestream_lock"),
    }
)
# An entry of a PostgreSQL index takes at most 2,704 bytes, with all of its columns.
INDEXED_BYTES: Final = 2_600
# Columns of texts that are shortened, because an index or a CHECK refuses longer ones: their bounds
# in bytes.  No broker stores longer ones, but another program may have.
TEXT_BOUNDS: Final = {
    "audit": AUDIT_BYTES,
    "message": {"trace_id": INDEXED_BYTES},
    "history": {"trace_id": INDEXED_BYTES},
    "queue": {"name": INDEXED_BYTES},
    "user": {"name": INDEXED_BYTES},
    "token": {"name": INDEXED_BYTES},
    "subscription": {"name": INDEXED_BYTES},
    "stage": {"token": INDEXED_BYTES},
}


class Table(NamedTuple):
    """A table that both engines have."""

    name: str
    key: list[str]
    columns: dict[str, str]  # name -> INTEGER, TEXT or BLOB; those of the key first


class Block(NamedTuple):
    """Some consecutive rows of a table."""

    rows: list[Row]
    text: bytearray  # of the rows
    replaced: int  # characters that PostgreSQL cannot store
    shortened: int  # texts that were too long


def copy_store(
    source: AnySide, target: AnySide, progress: Progress, *, replace: bool = False
) -> CopyState:
    """Copy everything, or continue an interrupted copy; return what was copied.

    With ``replace``, data in the target is replaced.

    Raises:
        StartRefusedError: the source was copied before, or the target contains something else.
        DataDamagedError: the copy differs from the source; both stay as they are.
        StorageError: a server or disk failed; repeat the call to continue.
    """
    tables = _common_tables(source, target)
    state = _begin(source, target, [table.name for table in tables], replace=replace)
    if not state.is_verified:
        for table in tables:
            _copy_table(source, target, table, state, progress)
        differences = list(filter(None, _differences(source, target, tables, state, progress)))
        state.is_verified = not differences
        state.copy_id = "" if differences else state.copy_id  # it cannot be continued
        with target.store.transaction():
            target.set_target(state)
        if differences:
            raise DataDamagedError(f"{'; '.join(differences)}. Copy again with --replace")
    source.set_source(replaced(state, tables={}))
    target.finish(progress)
    return state


def release(side: AnySide) -> None:
    """Use a source again, with new numbers if a broker may have used the copy."""
    state = side.states().get("source")
    if state is None:
        raise StartRefusedError(f"{side.name} was not copied, so there is nothing to release")
    if state.is_verified:
        with side.store.transaction():
            side.store.renumber()
    side.set_source(None)


def _common_tables(source: AnySide, target: AnySide) -> list[Table]:
    """Return the tables to copy; raise StartRefusedError if one cannot be copied whole."""
    ours, theirs = (
        tables_of(side.store.execute(side.store.sql("copy")["tables"])) for side in (source, target)
    )
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise StartRefusedError(
                f"the table {name} of {source.name} cannot be copied, because {target.name} does "
                "not have it with the same columns. If another program created it, drop it"
            )
    return list(ours.values())


def tables_of(rows: Iterable[tuple[str, str, str, int | None]]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for name, column, kind, place in rows:
        if not ONE_SIDED & {name, f"{name}.{column}"}:
            table = tables.setdefault(name, Table(name, [], {}))
            table.columns[column] = kind
            if place is not None:
                table.key.append(column)
    return tables


def _begin(source: AnySide, target: AnySide, tables: list[str], *, replace: bool) -> CopyState:
    """Return the state of the interrupted copy, or mark both sides for a new one."""
    ours, unfinished = source.states(), target.states().get("target")
    mark = ours.get("source")
    if "target" in ours:
        raise StartRefusedError(f"{source.name}: {ours['target'].refusal()}")
    if unfinished is not None and mark is not None and mark.copy_id == unfinished.copy_id:
        return unfinished
    if mark is not None and mark.is_verified:
        raise StartRefusedError(f"{source.name}: {mark.refusal(source.name)}")
    if unfinished is not None and not replace:
        raise StartRefusedError(
            f"{target.name} contains an incomplete copy of {unfinished.source}, which cannot be "
            f"continued from {source.name} in its present state. Add --replace to begin again"
        )
    if not replace and not target.is_empty(tables):
        raise StartRefusedError(
            f"{target.name} contains data. Copy to an empty folder or database, or add --replace "
            "to replace this data"
        )
    state = CopyState(secrets.token_hex(8), source.name, target.name, time.time_ns() // 1_000_000)
    source.set_source(replaced(state, tables={}))  # its own, because the state changes
    target.begin(state, tables)
    return state


def _copy_table(
    source: AnySide, target: AnySide, table: Table, state: CopyState, progress: Progress
) -> None:
    empty = {"rows": 0, "bytes": 0, "seconds": 0.0, "replaced": 0, "shortened": 0}
    counts = empty | {"after": None} | state.tables.get(table.name, {})
    state.tables[table.name] = counts
    [(total,)] = source.store.execute(f'SELECT count(*) FROM "{table.name}"')
    began_s = time.monotonic() - counts["seconds"]
    reading = closing(_blocks(source, table, counts["after"]))
    with reading as blocks, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, blocks, None)
        while (block := waiting.result()) is not None:
            waiting = thread.submit(next, blocks, None)  # read the next one meanwhile
            progress(table.name, counts["rows"], total)
            counts["rows"] += len(block.rows)
            counts["bytes"] += len(block.text)
            counts["replaced"] += block.replaced
            counts["shortened"] += block.shortened
            counts["after"] = block.rows[-1][: len(table.key)]
            counts["seconds"] = round(time.monotonic() - began_s, 3)
            with target.store.transaction():
                target.insert(table.name, _names(table.columns), block.rows)
                target.set_target(state)


def _blocks(
    side: AnySide, table: Table, after: Sequence[Any] | None = None
) -> Generator[Block, None, None]:
    rows, text, side.replaced, shortened = list[Row](), bytearray(), 0, 0
    bounds = TEXT_BOUNDS.get(table.name, {})
    bounded = [(at, bounds[name]) for at, name in enumerate(table.columns) if name in bounds]
    for row in side.rows(_select(table, after, side.collation)):
        row, cut = _shortened(row, bounded)
        rows.append(row)
        shortened += cut
        text += repr(row).encode()
        if len(text) >= BLOCK_BYTES:
            yield Block(rows, text, side.replaced, shortened)
            rows, text, side.replaced, shortened = [], bytearray(), 0, 0
    if rows:
        yield Block(rows, text, side.replaced, shortened)


def _shortened(row: Row, bounds: Sequence[tuple[int, int]]) -> tuple[Row, int]:
    """Return a row whose texts take at most the bytes given by place, and how many were cut."""
    long = {
        at: bounded_text(row[at], limit)
        for at, limit in bounds
        if row[at] is not None and 4 * len(row[at]) > limit < len(row[at].encode())
    }
    return tuple(long.get(at, value) for at, value in enumerate(row)) if long else row, len(long)


def _select(table: Table, after: Sequence[Any] | None, collation: str) -> str:
    key = ", ".join(
        f'"{name}"' + f" COLLATE {collation}" * (table.columns[name] == "TEXT")
        for name in table.key
    )
    quoted = "'{}'".format
    values = (v if isinstance(v, int) else quoted(str(v).replace("'", "''")) for v in after or ())
    where = "" if after is None else f"WHERE ({key}) > ({', '.join(map(str, values))})"
    return f'SELECT {_names(table.columns)} FROM "{table.name}" {where} ORDER BY {key}'


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _differences(
    source: AnySide, target: AnySide, tables: list[Table], state: CopyState, progress: Progress
) -> Iterator[str]:
    """Compare number and checksum of all rows, read again; yield for each table how they differ."""
    copied, total = 0, sum(table["rows"] for table in state.tables.values())
    for table in tables:
        progress("verifying", copied, total)
        copied += state.tables[table.name]["rows"]
        with ThreadPoolExecutor(2) as threads:
            ours, theirs = threads.map(_digest, (_blocks(s, table) for s in (source, target)))
        if ours != theirs:
            yield (
                f"the table {table.name} in {target.name} differs from {source.name}: {theirs[0]} "
                f"rows with checksum {theirs[1]:08x} instead of {ours[0]} with {ours[1]:08x}"
            )


def _digest(blocks: Iterator[Block]) -> tuple[int, int]:
    rows = checksum = 0
    for block in blocks:
        rows += len(block.rows)
        checksum = crc32(block.text, checksum)
    return rows, checksum
