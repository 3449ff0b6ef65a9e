"""What the history gives up: by age, rows and bytes, from the front, in slices that do not stall.

Receipt keys, ended connections and the audit give up their oldest rows in the same slices.

Ordinary rows (acked, expired, dead) and deleted rows have a front and bounds of their own, so that
one large purge does not push other history out: deleted rows may take ``deleted_share`` of rows and
bytes, the others have the rest.  Rows keep their ``offset``, and none is given twice, because the
newest row stays, without its body where it is too old: a reader that stands behind both fronts sees
every number.

Nothing is counted here: ``places`` adds to the totals in the table ``counter`` (``history_rows``,
``history_bytes`` without deleted rows; ``deleted_rows``, ``deleted_bytes``), ``step`` subtracts.
It keeps ``history_lo`` and ``deleted_lo`` there too: the first offset that may still be there, and
``retention_removed``: rows of the history that left since the database was made.
"""

import json
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from phpmq_lite.pipeline_rows import ROW_BITS
from phpmq_lite.storage.sqlite_errors import translate_errors
from phpmq_lite.storage.statements import load

STEPS_KEPT: Final = 1_000  # jumps; a clock that is set all the time must not fill the disk


class ClockSteps:
    """How far the wall clock was ahead of the steady scale when something was settled, in ms."""

    __slots__ = ("_from", "_steps")

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        """Take ``(first offset, step)``, in order; none: never ahead."""
        self._from = [row[0] for row in rows]
        self._steps = [row[1] for row in rows] or [0]

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> "ClockSteps":
        """Read them all."""
        return cls(connection.execute(load("retention")["clock_steps"]).fetchall())

    def of(self, offset: int) -> int:
        """Give the step under which the message with this offset was settled."""
        return self._steps[max(0, bisect_right(self._from, offset) - 1)]

    @property
    def least(self) -> int:
        """The smallest: by it nothing counts as older than it is."""
        return min(self._steps)


ROWS_PER_STEP: Final = 1_000
STEP_S: Final = 0.02
_ROWS_AT_ONCE: Final = 100  # between two looks at the time
KEYS_AT_ONCE: Final = 10_000  # they leave page by page, in 5 ms; each slice costs a COMMIT besides
_BYTES_AT_ONCE: Final = 1 << 20  # SQLite reads each page of a large body to free it
_DAY_MS: Final = 86_400_000

Row = tuple[int, int, int, int, int]  # offset, seq, size, settled_at, is_passed


@dataclass(slots=True, frozen=True)
class RetentionBounds:
    """How much settled history, how many receipt keys and how much audit stay."""

    age_ms: int = 7 * _DAY_MS  # since it was settled; <= stays
    rows: int = 5_000_000  # deleted ones included
    bytes: int = 2 << 30  # of bodies, deleted ones included
    deleted_share: float = 0.1  # part of rows and bytes that deleted messages may take
    receipts: int = 100_000  # keys
    receipt_window_ms: int = 600_000  # of a key behind the newest; younger ones stay
    audit_age_ms: int = 400 * _DAY_MS
    audit_rows: int = 1_000_000

    def share_of_deleted(self) -> tuple[int, int]:
        """Return the rows and bytes that deleted messages may take."""
        return int(self.rows * self.deleted_share), int(self.bytes * self.deleted_share)

    def share_of_others(self) -> tuple[int, int]:
        """Return the rows and bytes that all other settled messages may take."""
        rows, size = self.share_of_deleted()
        return self.rows - rows, self.bytes - size


class Removed(NamedTuple):
    """What one step came to."""

    rows: int
    has_more: bool  # it ended before all was looked at: call it again soon


@dataclass(slots=True)
class RetentionSlice:
    """The next rows that leave, and where the front stands without them."""

    lo: int  # the first offset that may still be there afterwards
    excess_rows: int  # above the bound; <= 0: within
    excess_bytes: int
    cutoff_ms: int  # settled before, on the steady scale: too old
    steps: ClockSteps = field(default_factory=lambda: ClockSteps([]))
    offsets: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    bytes: int = 0

    def take(self, rows: Iterable[Row]) -> None:
        """Take rows, in order, up to the first that stays, or about a mebibyte of bodies."""
        for offset, seq, size, settled_at, is_passed in rows:
            if not is_passed:
                is_over = self.excess_rows > 0 or self.excess_bytes > 0
                if not is_over and settled_at - self.steps.of(offset) >= self.cutoff_ms:
                    return
                if self.offsets and self.bytes + size > _BYTES_AT_ONCE:
                    return
                self.offsets.append(offset)
                self.seqs.append(seq)
                self.bytes += size
                self.excess_rows -= 1
                self.excess_bytes -= size
            self.lo = offset + 1


def remove_expired(
    connection: sqlite3.Connection,
    bounds: RetentionBounds,
    now_ms: int,
    *,
    timer: Callable[[], float] = time.monotonic,
) -> Removed:
    """Remove what is past its bounds, at most 1,000 rows or for 20 ms, in one transaction.

    Runs in the writer's thread, outside of a batch.  What little has come since is left to the next
    second: a step beside each batch costs a COMMIT for a few rows, 8 % of confirmed publishing.
    ``now_ms`` is steady: on that scale nothing is old because a clock was set.

    Raises:
        StorageFullError, NotWritableError: nothing was removed; deleting needs room in the WAL too.
        OutcomeUnknownError: fail-stop, as for a batch.
    """
    with translate_errors(connection):
        connection.execute("BEGIN IMMEDIATE")
        done = _Step(connection, timer).run(bounds, now_ms)
        connection.execute("COMMIT")
    return done


class _Step:
    """One slice, inside its transaction."""

    def __init__(self, connection: sqlite3.Connection, timer: Callable[[], float]) -> None:
        self._execute = connection.execute
        self._sql = load("retention")
        self._timer = timer
        self._steps = ClockSteps.read(connection)
        self._ends_at = timer() + STEP_S
        self._removed = 0
        self._has_moved = False
        self._is_cut = False  # a part ended at a bound of its own

    def run(self, bounds: RetentionBounds, now_ms: int) -> Removed:
        cutoff_ms = now_ms - bounds.age_ms
        steps = self._steps
        # With what has no place yet: where the disk is full nothing gets one until rows leave.
        totals = self._execute(load("measures")["totals"]).fetchone()
        others = self._trim("history", totals[:2], bounds.share_of_others(), cutoff_ms)
        deleted = self._trim("deleted", totals[2:], bounds.share_of_deleted(), cutoff_ms)
        self._remove_newest_body(cutoff_ms + steps.least, others, deleted)
        self._trim_receipts(bounds.receipts, bounds.receipt_window_ms)
        self._trim_clients(cutoff_ms + steps.least)
        audit_ms = now_ms - bounds.audit_age_ms
        self._trim_audit(bounds.audit_rows, audit_ms + steps.least)
        self._execute(load("retention")["trim_clock_steps"], (min(cutoff_ms, audit_ms), STEPS_KEPT))
        return Removed(self._removed, self._is_cut or not self._room)

    @property
    def _room(self) -> int:
        """How many more rows may go; at least one slice is done however slow the disk."""
        is_late = self._has_moved and self._timer() >= self._ends_at
        return 0 if is_late else max(0, ROWS_PER_STEP - self._removed)

    def _trim(
        self, name: str, total: tuple[int, int], most: tuple[int, int], cutoff_ms: int
    ) -> bool:
        """Move one front: pick the next rows and remove those that are past a bound.

        ``total`` and ``most`` are rows and bytes.  Tells whether they are more even without all
        that may leave.
        """
        pick = "next_deleted" if name == "deleted" else "next_settled"
        rows, size = total
        fronts: dict[str, int] = dict(self._execute(self._sql["history_fronts"]).fetchall())
        lo = fronts.get(f"{name}_lo", 0)
        while room := self._room:
            part = RetentionSlice(lo, rows - most[0], size - most[1], cutoff_ms, self._steps)
            limit = min(room, _ROWS_AT_ONCE)
            part.take(self._execute(self._sql[pick], {"lo": lo, "limit": limit}).fetchall())
            if part.lo == lo:
                return rows > most[0] or size > most[1]
            self._has_moved = True
            if not self._remove_events(part.seqs):
                continue  # the same rows once more, if there is time
            self._remove(name, part)
            lo, rows, size = part.lo, rows - len(part.offsets), size - part.bytes
        return False

    def _remove_newest_body(self, cutoff_ms: int, others: bool, deleted: bool) -> None:
        """See that the row which stays keeps its content no longer than the others."""
        given = {"cutoff": cutoff_ms, "others": others, "deleted": deleted}
        found = self._execute(self._sql["newest_removable_body"], given).fetchone()
        if found is not None:
            self._remove_bodies([found[0]])

    def _remove_bodies(self, seqs: list[int]) -> None:
        self._execute(self._sql["store_next_number"])
        self._execute(self._sql["remove_bodies"], {"seqs": json.dumps(seqs)})

    def _remove_events(self, seqs: list[int]) -> bool:
        """Remove events of what leaves; tell whether all are gone."""
        given = {"seqs": json.dumps(seqs), "limit": ROWS_PER_STEP}
        return bool(self._execute(self._sql["remove_events"], given).rowcount < ROWS_PER_STEP)

    def _remove(self, name: str, part: RetentionSlice) -> None:
        if part.offsets:
            self._remove_bodies(part.seqs)
            self._execute(self._sql["remove_settled"], {"offsets": json.dumps(part.offsets)})
            self._count(f"{name}_rows", -len(part.offsets))
            self._count(f"{name}_bytes", -part.bytes)
            self._count("retention_removed", len(part.offsets))
            self._removed += len(part.offsets)
        self._execute(load("batch")["set_counter"], (f"{name}_lo", part.lo))

    def _count(self, name: str, number: int) -> None:
        self._execute(load("batch")["add_counter"], (name, number))

    def _trim_receipts(self, most: int, window_ms: int) -> None:
        """Remove the oldest keys.  Their age is measured from the newest key, not from a clock.

        So a clock that was set can make no key forgotten too early; the last window stays.
        """
        ends: tuple[Any, ...] | None = self._execute(self._sql["receipt_ends"]).fetchone()
        if ends is None or not self._room:
            return
        oldest, newest, newest_at = ends
        hi = min(oldest + KEYS_AT_ONCE - 1, newest)
        given = {"lo": oldest, "hi": hi, "floor": newest - most, "cutoff": newest_at - window_ms}
        kept = self._execute(self._sql["first_kept_receipt"], given).fetchone()[0]
        end = hi + 1 if kept is None else kept
        if end > oldest:
            self._removed += self._execute(self._sql["remove_receipts"], {"end": end}).rowcount
            self._is_cut |= kept is None

    def _trim_clients(self, cutoff_ms: int) -> None:
        """Remove connections that ended before everything that is still in the history."""
        if room := self._room:
            given = {"cutoff": cutoff_ms, "limit": min(room, _ROWS_AT_ONCE)}
            rows = self._execute(self._sql["remove_clients"], given).rowcount
            self._removed += rows
            self._is_cut |= rows == given["limit"]

    def _trim_audit(self, most: int, cutoff_ms: int) -> None:
        """Remove the oldest rows of the audit; they are numbered without gaps."""
        first, last = self._execute(self._sql["audit_ends"]).fetchone()
        room = self._room
        if first is None or not room:
            return
        hi = min(first + room - 1, last)
        given = {"lo": first, "hi": hi, "floor": last - most, "cutoff": cutoff_ms}
        kept = self._execute(self._sql["first_kept_audit"], given).fetchone()[0]
        end = hi + 1 if kept is None else kept
        if end > first:
            self._removed += self._execute(self._sql["remove_audit"], {"end": end}).rowcount
            self._is_cut |= kept is None


# Removing for 20 ms delayed the next batch by up to 66 ms: COMMIT writes every page that was freed.
SWEEP_STEP_S: Final = 0.002
_SWEEP_ROWS_AT_ONCE: Final = 20  # between two looks at the time; SQLite reads all pages it frees


def sweep_staged(
    connection: sqlite3.Connection, *, timer: Callable[[], float] = time.monotonic
) -> bool:
    """Remove staged rows that were published or dropped, for 2 ms; True: there are more.

    Runs in the writer's thread, outside of a batch.
    """
    execute, sql = connection.execute, load("retention")
    if execute(sql["next_dropped_stage"]).fetchone()[0] is None:
        return False
    ends_at = timer() + SWEEP_STEP_S
    execute("BEGIN IMMEDIATE")
    while (stage_id := execute(sql["next_dropped_stage"]).fetchone()[0]) is not None:
        span = (stage_id << ROW_BITS, stage_id + 1 << ROW_BITS)
        removed = execute(sql["delete_staged_rows"], (*span, _SWEEP_ROWS_AT_ONCE)).rowcount
        if removed < _SWEEP_ROWS_AT_ONCE:
            execute(sql["delete_stage"], (stage_id,))
        if timer() >= ends_at:
            break
    execute("COMMIT")
    return stage_id is not None
