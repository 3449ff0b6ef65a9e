"""Copies a store to the other engine: table by table, in blocks, and verified at the end.

Before the first row is copied, the source gets a mark with which no broker starts on it until
``store release``; the target gets another with its first row.  Each block is stored together with
the progress, so a copy that was interrupted continues when the command is repeated.

Users, sessions and tokens are copied unchanged.  A restore withdraws access because a backup is
older than what it replaces; a copy is not: nothing can be revoked in the source meanwhile.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replaced
from typing import TypeVar
from zlib import crc32

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.storage.copy_state import (
    Block,
    CopyMark,
    CopySide,
    CopyState,
    CopyTarget,
    Table,
    TableProgress,
)

T = TypeVar("T")
Progress = Callable[[str, int, int | None], None]  # phase, rows done, rows in total


def copy_store(
    source: CopySide, target: CopyTarget, progress: Progress, *, replace: bool = False
) -> CopyState:
    """Copy everything, or continue an interrupted copy; return what was copied.

    With ``replace``, data in the target is replaced.

    Raises:
        StartRefusedError: the source was copied before, or the target contains something else.
        DataDamagedError: the copy differs from the source; both stay as they are.
        StorageError: a server or disk failed; repeat the call to continue.
    """
    if (unfinished := source.state()) is not None:
        raise StartRefusedError(f"{source.name}: {unfinished.refusal()}")
    tables = _common_tables(source, target)
    mark, state = source.mark(), target.state()
    if state is None and mark is not None and mark.is_complete and target.is_finishing():
        target.finish(progress)
        return CopyState(mark.copy_id, source.name, mark.at_ms)
    if state is None or mark is None or mark.copy_id != state.copy_id:
        _refuse(source, target, mark, state, replace=replace)
        state = CopyState(secrets.token_hex(8), source.name, time.time_ns() // 1_000_000)
        mark = CopyMark(state.copy_id, target.name, state.at_ms)
        source.set_mark(mark)
        target.begin(state)
    if not state.is_verified:
        for table in tables:
            _copy_table(source, target, table, state, progress)
        differences: list[str] = []
        verified, total = 0, sum(one.rows for one in state.tables.values())
        for table in tables:
            progress("verifying", verified, total)
            differences += _differences(source, target, table)
            verified += state.tables[table.name].rows
        state.is_verified = not differences
        state.copy_id = "" if differences else state.copy_id  # it cannot be continued
        target.save(state)
        if differences:
            raise DataDamagedError(f"{'; '.join(differences)}. Copy again with --replace")
    if not mark.is_complete:
        source.set_mark(replaced(mark, is_complete=True))
    target.finish(progress)
    return state


def _common_tables(source: CopySide, target: CopySide) -> list[Table]:
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


def _refuse(
    source: CopySide,
    target: CopyTarget,
    mark: CopyMark | None,
    state: CopyState | None,
    *,
    replace: bool,
) -> None:
    """Raise StartRefusedError unless a new copy can begin."""
    if mark is not None and mark.is_complete:
        raise StartRefusedError(f"{source.name}: {mark.refusal(source.name)}")
    if replace:
        return
    if state is not None:
        raise StartRefusedError(
            f"{target.name} contains an incomplete copy of {state.source}, which cannot be "
            f"continued from {source.name} in its present state. Add --replace to begin again"
        )
    if not target.is_empty():
        raise StartRefusedError(
            f"{target.name} contains data. Copy to an empty folder or database, or add --replace "
            "to replace this data"
        )


def _copy_table(
    source: CopySide, target: CopyTarget, table: Table, state: CopyState, progress: Progress
) -> None:
    done = state.tables.setdefault(table.name, TableProgress())
    total = source.count(table)
    if total:
        progress(table.name, done.rows, total)
    began_s, before_s = time.monotonic(), done.seconds
    for block in _read_ahead(source.blocks(table, done.after)):
        done.rows += block.rows
        done.bytes += len(block.text)
        done.after = table.key_of(block.text)
        for column, count in block.replaced.items():
            done.replaced[column] = done.replaced.get(column, 0) + count
        done.seconds = round(before_s + time.monotonic() - began_s, 3)
        target.write(table, block, state)
        progress(table.name, done.rows, total)


def _read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield items, while a thread gets the next one."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(next, items, None)
            yield item


def _differences(source: CopySide, target: CopySide, table: Table) -> Iterator[str]:
    """Compare number and checksum of all rows, read again from both sides."""
    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.map(_digest, (s.blocks(table, None) for s in (source, target)))
    if ours != theirs:
        yield (
            f"the table {table.name} in {target.name} differs from {source.name}: {theirs[0]} rows "
            f"with checksum {theirs[1]:08x} instead of {ours[0]} with {ours[1]:08x}"
        )


def _digest(blocks: Iterator[Block]) -> tuple[int, int]:
    rows = checksum = 0
    for block in blocks:
        rows += block.rows
        checksum = crc32(block.text, checksum)
    return rows, checksum
