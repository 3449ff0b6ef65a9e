"""Copies a store to the other engine: table by table, in blocks, and verified at the end.

Before the first row is copied, the source gets a mark with which no broker starts on it until
``store release``; the target gets another with its first row.  Each block is stored together with
the progress, so a copy that was interrupted continues when the command is repeated.

Users, sessions and tokens are copied unchanged.  A restore withdraws access because a backup is
older than what it replaces; a copy is not: nothing can be revoked in the source meanwhile.
"""

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, TypeVar, Union
from zlib import crc32

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.storage.copy_side import Block, Progress, Table, key_of
from phpmq_lite.storage.copy_state import CopyState

if TYPE_CHECKING:
    from phpmq_lite.storage.postgres.copy_side import PostgresSide
    from phpmq_lite.storage.sqlite.copy_side import SqliteSide

T = TypeVar("T")
AnySide = Union["SqliteSide", "PostgresSide"]


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
    state = _begin(source, target, replace=replace)
    if not state.is_verified:
        for table in tables:
            _copy_table(source, target, table, state, progress)
        found = [_differences(source, target, table, state, progress) for table in tables]
        state.is_verified = not any(found)
        state.copy_id = "" if any(found) else state.copy_id  # it cannot be continued
        target.save(state)
        if any(found):
            raise DataDamagedError(f"{'; '.join(filter(None, found))}. Copy again with --replace")
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
    """Return the tables to copy.

    Raises:
        StartRefusedError: a table would not be copied, or not whole.
    """
    ours, theirs = source.tables(), target.tables()
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise StartRefusedError(
                f"the table {name} of {source.name} cannot be copied, because {target.name} does "
                "not have it with the same columns. If another program created it, drop it"
            )
    return list(ours.values())


def _begin(source: AnySide, target: AnySide, *, replace: bool) -> CopyState:
    """Return the state of the interrupted copy, or mark both sides for a new one."""
    ours, found = source.states(), target.states().get("target")
    mark = ours.get("source")
    if "target" in ours:
        raise StartRefusedError(f"{source.name}: {ours['target'].refusal()}")
    if found is not None and mark is not None and mark.copy_id == found.copy_id:
        return found
    if mark is not None and mark.is_verified:
        raise StartRefusedError(f"{source.name}: {mark.refusal(source.name)}")
    if found is not None and not replace:
        raise StartRefusedError(
            f"{target.name} contains an incomplete copy of {found.source}, which cannot be "
            f"continued from {source.name} in its present state. Add --replace to begin again"
        )
    if not replace and not target.is_empty():
        raise StartRefusedError(
            f"{target.name} contains data. Copy to an empty folder or database, or add --replace "
            "to replace this data"
        )
    now_ms = time.time_ns() // 1_000_000
    state = CopyState(secrets.token_hex(8), source.name, target.name, now_ms)
    source.set_source(replaced(state, tables={}))  # its own, because the state changes
    target.begin(state)
    return state


def _copy_table(
    source: AnySide, target: AnySide, table: Table, state: CopyState, progress: Progress
) -> None:
    empty = {"rows": 0, "bytes": 0, "seconds": 0.0, "replaced": 0, "after": None}
    done = state.tables.setdefault(table.name, empty)
    began_s, total = time.monotonic() - done["seconds"], source.count(table)
    for block in _read_ahead(source.blocks(table, done["after"])):
        progress(table.name, done["rows"], total)
        done["rows"] += block.rows
        done["bytes"] += len(block.text)
        done["replaced"] += block.replaced
        done["after"] = key_of(table, block.text)
        done["seconds"] = round(time.monotonic() - began_s, 3)
        target.write(table, block, state)


def _read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield items, while a thread gets the next one."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(next, items, None)
            yield item


def _differences(
    source: AnySide, target: AnySide, table: Table, state: CopyState, progress: Progress
) -> str:
    """Compare number and checksum of all rows, read again; return how they differ."""
    names = list(state.tables)
    counts = [one["rows"] for one in state.tables.values()]
    progress("verifying", sum(counts[: names.index(table.name)]), sum(counts))
    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.map(_digest, (s.blocks(table) for s in (source, target)))
    if ours == theirs:
        return ""
    return (
        f"the table {table.name} in {target.name} differs from {source.name}: {theirs[0]} rows "
        f"with checksum {theirs[1]:08x} instead of {ours[0]} with {ours[1]:08x}"
    )


def _digest(blocks: Iterator[Block]) -> tuple[int, int]:
    rows = checksum = 0
    for block in blocks:
        rows += block.rows
        checksum = crc32(block.text, checksum)
    return rows, checksum
