"""Removes the oldest history by age, rows and bytes, in slices that do not delay batches.

The oldest receipts, closed connections and audit rows are removed in the same slices.

Ordinary rows (acked, expired, dead) and deleted rows have separate fronts and bounds, so that a
large purge does not push out other history: deleted rows can use ``deleted_share`` of rows and
bytes, and ordinary rows the remainder.  Rows keep their ``offset``, and offsets are never reused,
because the newest row stays, even if its body is removed.  No offset is missing above
both fronts.

``history_index`` adds to the totals in the table ``counter`` (``history_rows``, ``history_bytes``
without deleted rows; ``deleted_rows``, ``deleted_bytes``); this module subtracts.  It also stores
``history_lo`` and ``deleted_lo``, the offsets after the last row of each kind that was removed;
``history_front``, where the search continues if deleted rows follow; and ``retention_removed``, the
number of history rows removed since the database was created.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from phpmq_lite.model import ROW_BITS
from phpmq_lite.storage.batch_sql import MIN_RUN, number_runs
from phpmq_lite.storage.store import Store

JUMPS_KEPT: Final = 1_000  # maximum number of clock jumps kept, so that they cannot fill the disk


class ClockJumps:
    """Records the lead of the wall clock over the steady scale, in ms, for each settled message."""

    __slots__ = ("_from", "_jumps")

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        """Create the object from ordered rows of (first offset, lead); no rows mean a lead of 0."""
        self._from = [row[0] for row in rows]
        self._jumps = [row[1] for row in rows] or [0]

    def at_offset(self, offset: int) -> int:
        """Return the lead that applied when the message with this offset was settled."""
        return self._jumps[max(0, bisect_right(self._from, offset) - 1)]

    @property
    def smallest(self) -> int:
        """The smallest lead; using it never makes a row appear older than it is."""
        return min(self._jumps)


ROWS_PER_SLICE: Final = 1_000
SLICE_S: Final = 0.02
_ROWS_AT_ONCE: Final = 100  # number of rows removed between two checks of the time
_RANGE_ROWS: Final = 1_000  # the same within a batch, where more rows free more whole pages
KEYS_AT_ONCE: Final = 10_000  # deleting this many takes 5 ms; each slice requires a COMMIT
_BYTES_AT_ONCE: Final = 1 << 20  # to free a large body, SQLite reads each of its pages
_DAY_MS: Final = 86_400_000

Row = tuple[int, int, int, int, int]  # columns: offset, seq, size, settled_at, is_passed


@dataclass(slots=True, frozen=True)
class RetentionBounds:
    """Limits on the history, the receipts and the audit log."""

    age_ms: int = 7 * _DAY_MS  # maximum time since settlement
    rows: int = 5_000_000  # maximum number of rows, including those of deleted messages
    bytes: int = 2 << 30  # maximum total body size, including bodies of deleted messages
    deleted_share: float = 0.1  # fraction of rows and bytes reserved for deleted messages
    receipt_window_ms: int = 600_000  # keep receipts younger than this, relative to the newest
    audit_age_ms: int = 400 * _DAY_MS
    audit_rows: int = 1_000_000
    audit_refusals: int = 10_000  # maximum number of rows of callers without an identity
    clients: int = 100_000  # maximum number of connections, not counting open ones

    def share_of_deleted(self) -> tuple[int, int]:
        return int(self.rows * self.deleted_share), int(self.bytes * self.deleted_share)

    def share_of_others(self) -> tuple[int, int]:
        rows, size = self.share_of_deleted()
        return self.rows - rows, self.bytes - size


class RetentionResult(NamedTuple):
    """Result of one slice of retention."""

    rows: int
    has_more: bool  # whether the slice ended early and another should follow soon


@dataclass(slots=True)
class RetentionSlice:
    """The next rows to remove, and where the search for more of them continues."""

    lo: int  # first offset that has not been looked at
    excess_rows: int  # number of rows by which the bound is exceeded, if positive
    excess_bytes: int
    cutoff_ms: int  # rows settled before this time on the steady scale are too old
    jumps: ClockJumps = field(default_factory=lambda: ClockJumps([]))
    offsets: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)  # of seqs, if these are not listed
    last: int = 0  # offset of the last row to remove
    rows: int = 0
    bytes: int = 0
    has_traces: bool = True  # whether one of the rows may have a trace

    def may_take(self, rows: int, size: int, newest_at: int | None) -> bool:
        """Return whether the next rows, of which these are sums, can be removed together."""
        is_over = rows <= self.excess_rows or size <= self.excess_bytes
        is_old = newest_at is None or newest_at - self.jumps.smallest < self.cutoff_ms
        return (is_over or is_old) and size <= _BYTES_AT_ONCE

    def is_old(self, offset: int, settled_at: int) -> bool:
        return settled_at - self.jumps.at_offset(offset) < self.cutoff_ms

    def take(self, rows: Iterable[Row]) -> None:
        """Add rows in order until one must be kept or the bodies total about 1 MiB."""
        for offset, seq, size, settled_at, is_passed in rows:
            if not is_passed:
                is_over = self.excess_rows > 0 or self.excess_bytes > 0
                if not is_over and not self.is_old(offset, settled_at):
                    return
                if self.offsets and self.bytes + size > _BYTES_AT_ONCE:
                    return
                self.offsets.append(offset)
                self.seqs.append(seq)
                self.last = offset
                self.rows += 1
                self.bytes += size
                self.excess_rows -= 1
                self.excess_bytes -= size
            self.lo = offset + 1


def remove_expired(
    store: Store,
    bounds: RetentionBounds,
    now_ms: int,
    *,
    timer: Callable[[], float] = time.monotonic,
) -> RetentionResult:
    """Remove rows that exceed a bound: up to 1,000 rows, for up to 20 ms, in one transaction.

    Runs once a second in the writer's thread, outside of a batch.  A slice after each batch would
    require a COMMIT for a few rows, which cost 8 % of the confirmed publishing rate. ``now_ms`` is
    steady, so setting the wall clock does not make rows old.

    Raises:
        StorageFullError, NotWritableError: nothing was removed; even deleting needs space in the
            WAL.
        OutcomeUnknownError: fail-stop, as for a batch.
    """
    with store.transaction():
        return _SliceRun(store, timer).run(bounds, now_ms)


def remove_in_batch(store: Store, bounds: RetentionBounds, now_ms: int, settled: int) -> None:
    """Remove history rows that exceed a bound in the open transaction of a batch.

    At most twice as many as ``settled``, the messages settled since the last call, so that the
    removal is spread evenly and catches up.  In transactions of their own, the same rows kept the
    writer, and with it the event loop, from a third of the flow.  Only whole ranges are removed,
    because smaller ones write the same pages several times; ``remove_expired`` removes the rest.
    """
    slice_run = _SliceRun(store, time.monotonic, 2 * settled, _RANGE_ROWS)
    slice_run.trim_history(bounds, now_ms - bounds.age_ms)


@dataclass(slots=True, frozen=True)
class _RowKind:
    """Ordinary or deleted rows: the statements that select the next ones, and their counters."""

    next_rows: str
    next_range: str | None  # None if rows of the other kind lie between them
    lo: str
    begin: str
    rows: str
    bytes: str


_OTHERS: Final = _RowKind(
    "next_settled", "settled_range", "history_lo", "history_front", "history_rows", "history_bytes"
)
_DELETED: Final = _RowKind(
    "next_deleted", None, "deleted_lo", "deleted_lo", "deleted_rows", "deleted_bytes"
)


class _SliceRun:
    """One slice of retention, executed inside a transaction."""

    def __init__(
        self,
        store: Store,
        timer: Callable[[], float],
        rows: int = ROWS_PER_SLICE,
        rows_at_once: int = _ROWS_AT_ONCE,
    ) -> None:
        self._rows = rows
        self._rows_at_once = rows_at_once
        self._execute = store.execute
        self._has_index_tables = store.has_index_tables
        self._sql = store.sql("retention")
        self._counters = store.sql("batch")
        self._totals = store.sql("database_size")["totals"]
        self._timer = timer
        self._jumps = ClockJumps(self._execute(self._sql["clock_steps"]).fetchall())
        self._ends_at = timer() + SLICE_S
        self._removed = 0
        self._has_moved = False
        self._was_cut = False  # whether a part of the slice reached its own row limit

    def run(self, bounds: RetentionBounds, now_ms: int) -> RetentionResult:
        cutoff_ms = now_ms - bounds.age_ms
        ahead_ms = self._jumps.smallest
        self._remove_newest_body(cutoff_ms + ahead_ms, *self.trim_history(bounds, cutoff_ms))
        if self._has_index_tables:
            self._execute(self._sql["remove_runs"], {"limit": ROWS_PER_SLICE})
        self._trim_receipts(bounds.receipt_window_ms)
        self._trim_clients("remove_clients", {"cutoff": cutoff_ms + ahead_ms})
        self._trim_clients("remove_excess_clients", {"most": bounds.clients})
        audit_ms = now_ms - bounds.audit_age_ms
        self._trim_audit(bounds, audit_ms + ahead_ms)
        self._execute(self._sql["trim_clock_steps"], (min(cutoff_ms, audit_ms), JUMPS_KEPT))
        return RetentionResult(self._removed, self._was_cut or not self._rows_left)

    def trim_history(self, bounds: RetentionBounds, cutoff_ms: int) -> tuple[bool, bool]:
        """Remove history rows; return whether ordinary and deleted ones still exceed a bound."""
        # Include unindexed rows, because a full disk prevents indexing until rows are removed.
        rows, size, deleted_rows, deleted_size = self._execute(self._totals).fetchone()
        return (
            self._trim(_OTHERS, rows, size, *bounds.share_of_others(), cutoff_ms),
            self._trim(_DELETED, deleted_rows, deleted_size, *bounds.share_of_deleted(), cutoff_ms),
        )

    @property
    def _rows_left(self) -> int:
        """Number of rows that can still be removed; even a slow disk gets at least one slice."""
        is_late = self._has_moved and self._timer() >= self._ends_at
        return 0 if is_late else max(0, self._rows - self._removed)

    def _trim(
        self, kind: _RowKind, rows: int, size: int, max_rows: int, max_bytes: int, cutoff_ms: int
    ) -> bool:
        """Remove the next of ``rows`` rows with ``size`` bytes while they exceed a bound.

        Returns whether they still exceed it when no more of them can be removed.
        """
        fronts: dict[str, int] = dict(self._execute(self._sql["history_fronts"]).fetchall())
        lo, is_old = max(fronts[kind.lo], fronts[kind.begin]), False
        while room := self._rows_left:
            part = RetentionSlice(lo, rows - max_rows, size - max_bytes, cutoff_ms, self._jumps)
            excess = max(part.excess_rows, part.excess_bytes * rows // max(1, size))
            if not self._is_enough(kind, part, excess):
                return False
            # If no bound is exceeded, look at one row first: usually, it is not too old.
            is_check = not is_old and part.excess_rows <= 0 >= part.excess_bytes
            limit = 1 if is_check else excess if excess > 0 else self._rows_at_once
            parameters = {"lo": lo, "limit": min(limit, room, self._rows_at_once)}
            if kind.next_range is None or not self._take_range(kind.next_range, part, parameters):
                part.take(self._execute(self._sql[kind.next_rows], parameters))
            if part.lo == lo:
                return rows > max_rows or size > max_bytes
            if is_check:
                is_old = True
                continue
            self._has_moved = True
            events = self._remove_by_seq("remove_events", "remove_events_run", part)
            if events >= ROWS_PER_SLICE:
                continue  # retry the same rows if time remains
            self._remove(kind, lo, part)
            lo, rows, size = part.lo, rows - part.rows, size - part.bytes
        return False

    def _is_enough(self, kind: _RowKind, part: RetentionSlice, excess: int) -> bool:
        """Return whether a complete range exceeds a bound, if this slice is part of a batch."""
        if self._rows_at_once < _RANGE_ROWS or excess >= _RANGE_ROWS:
            return True
        parameters = {"lo": part.lo + _RANGE_ROWS - 1, "limit": 1}
        rows = self._execute(self._sql[kind.next_rows], parameters)
        is_old = any(part.is_old(offset, settled_at) for offset, _, _, settled_at, _ in rows)
        return is_old or part.excess_bytes >= _BYTES_AT_ONCE

    def _remove_newest_body(self, cutoff_ms: int, others: bool, deleted: bool) -> None:
        """Remove the newest row's body if it exceeds a bound; the row itself stays."""
        parameters = {"cutoff": cutoff_ms, "others": others, "deleted": deleted}
        row = self._execute(self._sql["newest_removable_body"], parameters).fetchone()
        if row is not None:
            self._execute(self._sql["store_next_number"])
            self._execute(self._sql["remove_bodies"], {"seqs": json.dumps([row[0]])})

    def _take_range(self, name: str, part: RetentionSlice, parameters: dict[str, int]) -> bool:
        """Add all of the next rows to ``part`` if all may go: a third of the time of ``take``."""
        execute, sql = self._execute, self._sql
        sums = execute(sql[name], parameters).fetchone()
        last, last_removed, rows, records, traces, low, high, size, newest_at = sums
        if last is None or records or not part.may_take(rows, size, newest_at):
            return False
        seqs: Sequence[int] = range(low or 0, (high or -1) + 1)
        if len(seqs) > rows:
            seq_rows = execute(sql["seqs_of_range"], {"lo": part.lo, "end": last + 1})
            seqs = [seq for (seq,) in seq_rows]
        part.lo, part.rows, part.bytes, part.has_traces = last + 1, rows, size, traces > 0
        part.last = last_removed or 0
        part.runs = number_runs(seqs) if rows else []
        if len(part.runs) * MIN_RUN > rows:
            part.seqs, part.runs = [*seqs], []
        return True

    def _remove_by_seq(self, by_seqs: str, by_run: str, part: RetentionSlice) -> int:
        """Remove events (at most 1,000 per run) or bodies; return the number of rows."""
        parameters: dict[str, Any] = {"limit": ROWS_PER_SLICE}
        if part.seqs:
            parameters["seqs"] = json.dumps(part.seqs)
            return int(self._execute(self._sql[by_seqs], parameters).rowcount)
        statement, rows = self._sql[by_run], 0
        for parameters["first"], parameters["last"] in part.runs:
            rows += self._execute(statement, parameters).rowcount
        return rows

    def _remove(self, kind: _RowKind, lo: int, part: RetentionSlice) -> None:
        execute, sql = self._execute, self._sql
        if part.rows:
            execute(sql["store_next_number"])
            self._remove_by_seq("remove_bodies", "remove_bodies_run", part)
            parameters: dict[str, Any] = {"lo": lo, "end": part.lo}
            remove_traces, remove_rows = "remove_traces_range", "remove_settled_range"
            if part.offsets:
                parameters = {"offsets": json.dumps(part.offsets)}
                remove_traces, remove_rows = "remove_traces", "remove_settled"
                execute(sql["remove_originals"], parameters)
            if part.has_traces and self._has_index_tables:
                execute(sql[remove_traces], parameters)
            execute(sql[remove_rows], parameters)
            self._count(kind.rows, -part.rows)
            self._count(kind.bytes, -part.bytes)
            self._count("retention_removed", part.rows)
            self._removed += part.rows
            execute(self._counters["set_counter"], (kind.lo, part.last + 1))
        if part.lo > part.last + 1:
            execute(self._counters["set_counter"], (kind.begin, part.lo))

    def _count(self, name: str, number: int) -> None:
        self._execute(self._counters["add_counter"], (name, number))

    def _trim_receipts(self, window_ms: int) -> None:
        """Remove the oldest receipts if they are too old compared with the newest one."""
        ends: tuple[Any, ...] | None = self._execute(self._sql["receipt_ends"]).fetchone()
        if ends is not None and self._rows_left:
            oldest, newest, newest_at = ends
            hi = min(oldest + KEYS_AT_ONCE - 1, newest)
            parameters = {"lo": oldest, "hi": hi, "cutoff": newest_at - window_ms}
            removed = self._execute(self._sql["remove_receipts"], parameters).rowcount
            self._removed += removed
            self._was_cut |= removed > 0 and hi < newest

    def _trim_clients(self, name: str, parameters: dict[str, int]) -> None:
        if room := self._rows_left:
            limit = min(room, _ROWS_AT_ONCE)
            rows = self._execute(self._sql[name], parameters | {"limit": limit}).rowcount
            self._removed += rows
            self._was_cut |= rows == limit

    def _trim_audit(self, bounds: RetentionBounds, cutoff_ms: int) -> None:
        """Count new audit rows, and remove the oldest of callers with and without an identity."""
        execute, sql = self._execute, self._sql
        counters: dict[str, int] = dict(execute(sql["audit_counters"]).fetchall())
        after = {"after": counters["audit_counted"]}
        new, refused, last = execute(sql["count_audit"], after).fetchone()
        if last is not None:
            execute(self._counters["set_counter"], ("audit_counted", last))
        kinds = (("audit_rows", new - refused), ("audit_refusals", refused))
        for is_refusal, (name, more) in enumerate(kinds):
            kind = {"refused": is_refusal}
            excess = counters[name] + more - getattr(bounds, name)
            oldest = execute(sql["oldest_audit"], kind).fetchone()
            removed, room = 0, self._rows_left
            if room and oldest is not None and (excess > 0 or oldest[0] < cutoff_ms):
                parameters = kind | {"excess": excess, "cutoff": cutoff_ms, "limit": room}
                removed = execute(sql["remove_audit"], parameters).rowcount
                self._was_cut |= removed == room
            self._removed += removed
            if more != removed:
                self._count(name, more - removed)


# Removing rows for 20 ms delayed the next batch by up to 66 ms: COMMIT writes each freed page.
SWEEP_S: Final = 0.002
_SWEEP_ROWS_AT_ONCE: Final = 20  # rows removed between time checks; SQLite reads each page it frees


def remove_dropped_stages(store: Store, *, timer: Callable[[], float] = time.monotonic) -> bool:
    """For up to 2 ms, between batches, remove dropped staged rows; return whether any remain."""
    execute, sql = store.execute, store.sql("retention")
    if execute(sql["next_dropped_stage"]).fetchone()[0] is None:
        return False
    ends_at = timer() + SWEEP_S
    with store.transaction():
        while (stage_id := execute(sql["next_dropped_stage"]).fetchone()[0]) is not None:
            span = (stage_id << ROW_BITS, stage_id + 1 << ROW_BITS)
            removed = execute(sql["delete_staged_rows"], (*span, _SWEEP_ROWS_AT_ONCE)).rowcount
            if removed < _SWEEP_ROWS_AT_ONCE:
                execute(sql["delete_stage"], (stage_id,))
            if timer() >= ends_at:
                break
    return stage_id is not None
