"""Queue activity: the last hour's 10 s points in memory, minutes and quarter hours on disk.

``Rollups`` keeps the numbers and uses no clock, task or disk; ``RollupSampler`` drives it::

    for writes in rollups.collect(queues): …   add changes since the last call
    rollups.oldest_ready_at = …                when the first ready messages were published
    for writes in rollups.close(now_s): …      add a point per queue; yield rows each minute

Both methods yield typed writes for the batch; the event loop can run between two slices of work.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import chain
from operator import add, attrgetter, sub
from typing import Final

from phpmq_lite import histogram
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue, QueueCounters
from phpmq_lite.errors import StorageError
from phpmq_lite.histogram import pack, unpack
from phpmq_lite.losses import Losses, add_losses, pack_losses, unpack_losses
from phpmq_lite.model import Reply
from phpmq_lite.server.engine import Engine
from phpmq_lite.storage.read.activity import (
    ALL,
    COUNTS,
    DEAD_LETTERS,
    GAUGES,
    KEPT_S,
    MINUTE_S,
    OTHERS,
    QUARTER_S,
    Point,
    StoredRollups,
    UptimeSpan,
)
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.writes import PutRollup, TrimRollups, Write

SLOT_S: Final = 10
HOUR_S: Final = 3_600
QUEUES_MAX: Final = 200  # maximum number of queues with their own points and rows
_LATE_S: Final = 60  # longest time that a point covers; a longer delay leaves a gap
_QUEUES_AT_ONCE: Final = 500  # number of idle queues per slice
_CHANGED_AT_ONCE: Final = 50  # number of queues with histograms per slice
_REMOVED_AT_ONCE: Final = 500  # maximum number of rows trimmed per minute; at most 203 are added

_NUMBERS: Final = 2 + len(COUNTS) + len(GAUGES)
_ZEROS: Final = (0,) * len(COUNTS)
_counts: Final = attrgetter(*COUNTS)

Writes = list[Write]


class RollupSum:
    """Activity in a time span: total counts, final values of gauges, and histograms."""

    __slots__ = ("counts", "gauges", "hold", "losses", "wait")

    def __init__(self, counts: Sequence[int] = _ZEROS) -> None:
        self.counts = list(counts)
        self.gauges = [0] * len(GAUGES)
        self.wait: list[int] | None = None
        self.hold: list[int] | None = None
        self.losses: Losses | None = None

    @classmethod
    def from_point(cls, point: Point) -> "RollupSum":
        total = cls(point.counts)
        total.gauges = list(point.gauges)
        total.wait = None if point.wait is None else unpack(point.wait)
        total.hold = None if point.hold is None else unpack(point.hold)
        total.losses = unpack_losses(point.losses) or None
        return total

    def point(self, at_s: int, span_s: int) -> Point:
        """Return the values as a point, with packed histograms and losses."""
        return Point.create(
            (at_s, span_s, *self.counts, *self.gauges),
            None if self.wait is None else pack(self.wait),
            None if self.hold is None else pack(self.hold),
            pack_losses(self.losses),
        )

    def append(self, later: "RollupSum") -> None:
        """Add the activity of the following time span."""
        self.add(later)
        self.gauges = list(later.gauges)

    def add(self, other: "RollupSum") -> None:
        """Add activity from the same time span, leaving the gauges unchanged."""
        self.counts = list(map(add, self.counts, other.counts))
        self.wait = _sum_histograms(self.wait, other.wait)
        self.hold = _sum_histograms(self.hold, other.hold)
        self.losses = add_losses(self.losses, other.losses)


def _sum_histograms(first: list[int] | None, second: list[int] | None) -> list[int] | None:
    if first is None or second is None:
        return first if second is None else second  # lists are never changed in place
    return histogram.add(first, second)


class Series:
    """A queue's points in the last hour, oldest first; each has 14 numbers and what is packed."""

    __slots__ = ("_numbers", "_packed")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._packed: deque[tuple[bytes | None, bytes | None, str | None]] = deque()

    def add(self, point: Point) -> None:
        self._numbers.extend(point.numbers)
        self._packed.append((point.wait, point.hold, point.losses))

    def trim(self, before_s: int) -> bool:
        """Drop points that began before ``before_s``; return whether any points are left."""
        numbers, at = self._numbers, 0
        while at < len(numbers) and numbers[at] < before_s:
            at += _NUMBERS
            self._packed.popleft()
        if at:
            del numbers[:at]
        return bool(numbers)

    def points(self) -> list[Point]:
        """Return all points, oldest first."""
        numbers = self._numbers
        return [
            Point.create(numbers[at : at + _NUMBERS], *packed)
            for at, packed in zip(range(0, len(numbers), _NUMBERS), self._packed, strict=True)
        ]


class Rollups:
    """Activity of all queues in the last hour; times are Unix seconds.

    The busiest ``QUEUES_MAX`` queues have their own points.
    """

    def __init__(self) -> None:
        self.oldest_ready_at: dict[int, int] = {}  # of each queue's first ready message, Unix ms
        self.ready_queues: list[int] = []  # queue_ids with ready messages at the last ``collect``
        self.dead_letter_queues: set[int] = set()  # non-empty queues of dead letters
        # Charts drawn from the points are valid until new points are added.
        self.charts: dict[tuple[int, str], str] = {}
        self._series: dict[int, Series] = {}
        self._before: dict[int, tuple[QueueCounters, tuple[int, ...]]] = {}
        self._waits: dict[int, Sequence[int]] = {}
        self._holds: dict[int, Sequence[int]] = {}
        self._nonempty: set[int] = set()  # queue_ids that were not empty at the last sample
        self._own_queues: set[int] = set()  # queue_ids with their own points
        self._activity: dict[int, int] = {}  # number of events in this minute, by queue_id
        self._slot: dict[int, RollupSum] = {}
        self._minute: dict[int, RollupSum] = {}
        self._quarter: dict[int, RollupSum] = {}
        self._quarter_s = 0  # start of the quarter hour to which the last three belong
        # The two quarter hours before it, with their start: the last one may not be stored yet.
        self._complete: deque[tuple[int, Mapping[int, RollupSum]]] = deque(maxlen=2)
        self.minute_s = 0  # start of the open minute; earlier minutes are stored
        self._slot_s = 0  # start of the open slot
        self._refused: deque[tuple[int, dict[str, int]]] = deque()  # one each minute, for an hour

    # -- reading

    def points(self, queue_id: int) -> list[Point]:
        """Return the points of a queue or of ALL, DEAD_LETTERS or OTHERS, oldest first."""
        series = self._series.get(queue_id)
        return series.points() if series is not None else []

    def uptime(self) -> list[UptimeSpan]:
        """Return the time spans in which the broker was running; all other times are gaps."""
        rests = {point.at_s for point in self.points(OTHERS)}
        return [UptimeSpan(p.at_s, p.span_s, p.at_s in rests) for p in self.points(ALL)]

    @property
    def stored_until_s(self) -> int:
        """The start of the first quarter hour in ``quarters``; earlier ones are stored."""
        return min([self._quarter_s, *(at_s for at_s, _ in self._complete)])

    def quarters(self, queues: Iterable[Queue]) -> list[tuple[int, Mapping[int, RollupSum]]]:
        """Return parts of the last quarter hours and of the open one, with their start.

        The last part is the activity of ``queues`` since the last ``collect``, and its sum as ALL.
        """
        recent: dict[int, RollupSum] = {ALL: RollupSum()}
        for queue in queues:
            counts, before = _counts(queue.counters), self._counts_before(queue)
            if counts != before:
                recent[queue.queue_id] = self._growth(queue, counts, before)
                recent[ALL].add(recent[queue.queue_id])
        parts = (self._quarter, self._minute, self._slot, recent)
        return [*self._complete, *((self._quarter_s, part) for part in parts)]

    def recently_refused(self, refused: Mapping[str, int]) -> dict[str, int]:
        """Return the number of publish commands refused in the last hour, by reason."""
        before = self._refused[0][1] if self._refused else {}
        growth = {reason: count - before.get(reason, 0) for reason, count in refused.items()}
        return {reason: count for reason, count in growth.items() if count > 0}

    # -- start

    def begin(self, now_s: int) -> None:
        self._slot_s = now_s // SLOT_S * SLOT_S
        self.minute_s = now_s // MINUTE_S * MINUTE_S
        self._quarter_s = now_s // QUARTER_S * QUARTER_S

    def load(self, rows: Sequence[tuple[int, Point]]) -> Iterator[Writes]:
        """Continue from the stored minutes of the last hour and the last quarter hour, in order.

        A minute or quarter hour that a stop interrupted is continued.
        """
        if not rows:
            return
        minute_s = self.minute_s
        self._quarter_s = quarter_s = rows[-1][1].at_s // QUARTER_S * QUARTER_S
        for count, (queue_id, point) in enumerate(rows, 1):
            if minute_s - HOUR_S <= point.at_s <= minute_s:
                self._series.setdefault(queue_id, Series()).add(point)
            if point.at_s == minute_s:
                self._minute[queue_id] = RollupSum.from_point(point)
            elif quarter_s <= point.at_s < minute_s:
                self._append(self._quarter, queue_id, RollupSum.from_point(point))
            if not count % _CHANGED_AT_ONCE:
                yield []
        yield from self._end_quarter(minute_s)

    # -- each slot

    def collect(self, queues: Sequence[Queue]) -> Iterator[Writes]:
        """Add each queue's activity since the last call."""
        self._slot.setdefault(ALL, RollupSum()).gauges = [0] * len(GAUGES)
        for group in (DEAD_LETTERS, OTHERS):
            if group in self._slot:
                self._slot[group].gauges = [0] * len(GAUGES)
        self.ready_queues, self.dead_letter_queues = [], set()
        room = 0
        for queue in queues:
            room += _QUEUES_AT_ONCE // _CHANGED_AT_ONCE if self._sample_queue(queue) else 1
            if room >= _QUEUES_AT_ONCE:
                room = 0
                yield []

    def _sample_queue(self, queue: Queue) -> bool:
        """Add one queue's activity; return False if there was none."""
        queue_id, row, held = queue.queue_id, queue.row, queue.dispatched
        counts: tuple[int, ...] = _counts(queue.counters)
        if self._before.get(queue_id, (queue.counters,))[0] is not queue.counters:  # recreated
            self._forget(queue_id)
        before = self._counts_before(queue)
        live, ready = row.live_count, row.live_count - held - row.scheduled_count
        if not live and counts == before and queue_id not in self._nonempty:
            return False
        if live:
            self._nonempty.add(queue_id)
        else:
            self._nonempty.discard(queue_id)
        is_records = queue.is_dead_letter_queue
        if ready > 0:
            self.ready_queues.append(queue_id)
            if is_records:
                self.dead_letter_queues.add(queue_id)
        activity = self._changes(queue, counts, before)
        activity.gauges = [ready, held, row.live_bytes, 0]
        self._add_to_group(ALL, activity, 0 if is_records else ready)
        if is_records:
            self._add_to_group(DEAD_LETTERS, activity, ready)
        self._activity[queue_id] = self._activity.get(queue_id, 1) + sum(activity.counts)
        if queue_id in self._own_queues or len(self._own_queues) < QUEUES_MAX:
            self._own_queues.add(queue_id)
            self._append(self._slot, queue_id, activity)
        else:
            self._add_to_group(OTHERS, activity, ready)
        return True

    def _changes(self, queue: Queue, counts: tuple[int, ...], before: tuple[int, ...]) -> RollupSum:
        queue_id = queue.queue_id
        if counts == before:
            return RollupSum()
        activity = self._growth(queue, counts, before)
        self._before[queue_id] = queue.counters, counts
        if activity.wait is not None:
            self._waits[queue_id] = (queue.wait_histogram or [])[:]
        if activity.hold is not None:
            self._holds[queue_id] = (queue.hold_histogram or [])[:]
        queue.losses = {}
        return activity

    def _counts_before(self, queue: Queue) -> tuple[int, ...]:
        totals, before = self._before.get(queue.queue_id, (queue.counters, _ZEROS))
        return before if totals is queue.counters else _ZEROS

    def _growth(self, queue: Queue, counts: tuple[int, ...], before: tuple[int, ...]) -> RollupSum:
        """Return a queue's activity since it had the counts ``before``, without noting it."""
        growth, queue_id = RollupSum(tuple(map(sub, counts, before))), queue.queue_id
        is_new = before is _ZEROS
        wait, hold = (None if is_new else of.get(queue_id) for of in (self._waits, self._holds))
        growth.wait = _histogram_growth(wait, queue.wait_histogram)
        growth.hold = _histogram_growth(hold, queue.hold_histogram)
        growth.losses = queue.losses or None
        return growth

    def _add_to_group(self, number: int, activity: RollupSum, ready: int) -> None:
        total = self._slot.setdefault(number, RollupSum())
        total.add(activity)
        if number != OTHERS:
            total.losses = None  # the rows of the queues have them
        _, held, size, _ = activity.gauges
        gauges = total.gauges
        gauges[0] += ready
        gauges[1] += held
        gauges[2] += size

    def close(self, now_s: int, *, is_last: bool = False) -> Iterator[Writes]:
        """Append a point per queue; yield rows at the end of a minute or if ``is_last``."""
        slot_s, slot = self._slot_s, self._slot
        span_s = max(SLOT_S, min(now_s // SLOT_S * SLOT_S - slot_s, _LATE_S))
        self._set_ages(slot, now_s)
        self._slot_s = now_s // SLOT_S * SLOT_S
        self.charts.clear()
        for count, queue_id in enumerate(list(slot), 1):
            activity = slot.pop(queue_id)
            self._series.setdefault(queue_id, Series()).add(activity.point(slot_s, span_s))
            self._append(self._minute, queue_id, activity)
            if not count % _CHANGED_AT_ONCE:
                yield []
        self._series = {
            queue_id: series
            for queue_id, series in self._series.items()
            if series.trim(now_s - HOUR_S)
        }
        if is_last or now_s // MINUTE_S * MINUTE_S != self.minute_s:
            yield from self._end_minute(now_s)

    def _set_ages(self, slot: dict[int, RollupSum], now_s: int) -> None:
        first: dict[int, int] = {}
        for queue_id in self.ready_queues:
            at_ms = self.oldest_ready_at.get(queue_id)
            if at_ms is None:
                continue
            if queue_id in slot:
                slot[queue_id].gauges[3] = max(0, now_s * 1_000 - at_ms)
            group = DEAD_LETTERS if queue_id in self.dead_letter_queues else ALL
            first[group] = min(first.get(group, at_ms), at_ms)
        for group, at_ms in first.items():
            slot[group].gauges[3] = max(0, now_s * 1_000 - at_ms)

    def _end_minute(self, now_s: int) -> Iterator[Writes]:
        minute_s, minute = self.minute_s, self._minute
        self.minute_s = now_s // MINUTE_S * MINUTE_S
        yield from self._rows(minute, minute_s, MINUTE_S)
        for count, queue_id in enumerate(list(minute), 1):
            self._append(self._quarter, queue_id, minute.pop(queue_id))
            if not count % _CHANGED_AT_ONCE:
                yield []
        yield from self._end_quarter(now_s)
        yield [
            TrimRollups(span, now_s - kept_s, _REMOVED_AT_ONCE) for span, kept_s in KEPT_S.items()
        ]
        # Those that already have their own points are preferred.
        events, self._activity = self._activity, {}
        own = self._own_queues
        rank = {number: count << (number in own) for number, count in events.items()}
        self._own_queues = {*nlargest(QUEUES_MAX, rank, key=rank.__getitem__)}

    def _end_quarter(self, now_s: int) -> Iterator[Writes]:
        """Store the open quarter hour if it has ended."""
        quarter_s, quarter = self._quarter_s, self._quarter
        if now_s // QUARTER_S * QUARTER_S != quarter_s:
            self._complete.append((quarter_s, quarter))
            self._quarter, self._quarter_s = {}, now_s // QUARTER_S * QUARTER_S
            yield from self._rows(quarter, quarter_s, QUARTER_S)

    def _rows(self, sums: Mapping[int, RollupSum], at_s: int, span_s: int) -> Iterator[Writes]:
        items = list(sums.items())
        for at in range(0, len(items), _CHANGED_AT_ONCE):
            yield [
                PutRollup(*activity.point(at_s, span_s), queue_id)
                for queue_id, activity in items[at : at + _CHANGED_AT_ONCE]
            ]

    @staticmethod
    def _append(sums: dict[int, RollupSum], queue_id: int, later: RollupSum) -> None:
        sums.setdefault(queue_id, RollupSum()).append(later)

    # -- once a minute

    def record_refused(self, now_s: int, refused: Mapping[str, int]) -> None:
        """Record the number of publish commands refused so far."""
        self._refused.append((now_s, dict(refused)))
        while self._refused[0][0] < now_s - HOUR_S:
            self._refused.popleft()

    def forget(self, alive: Iterable[int]) -> None:
        for queue_id in self._before.keys() - set(alive):
            self._forget(queue_id)
            self._nonempty.discard(queue_id)

    def _forget(self, queue_id: int) -> None:
        """Forget a removed queue, after adding what it counted since the last ``collect``."""
        totals, before = self._before.pop(queue_id)
        counts = _counts(totals)
        if counts != before:
            activity = RollupSum(tuple(map(sub, counts, before)))
            self._add_to_group(ALL, activity, 0)
            if queue_id in self._own_queues:
                self._append(self._slot, queue_id, activity)
            else:
                self._add_to_group(OTHERS, activity, 0)
        self._waits.pop(queue_id, None)
        self._holds.pop(queue_id, None)


def _histogram_growth(
    before: Sequence[int] | None, counts: Sequence[int] | None
) -> list[int] | None:
    """Return the counts added to a histogram since it was ``before``, or None if unchanged."""
    if not counts or before == counts:
        return None
    return list(counts) if before is None else list(map(sub, counts, before))


_AFTER_S: Final = 0.05  # delay after a slot, because a timer may fire slightly early
_AGES_AT_ONCE: Final = 500  # number of queues whose ages are read together


class RollupSampler:
    """Samples the broker's activity.  To stop, cancel ``run``, then call ``finish`` once."""

    def __init__(self, engine: Engine, readers: Readers, rollups: Rollups) -> None:
        self._engine = engine
        self._rollups = rollups
        self._stored = StoredRollups(readers)
        self._reader = MessageReader(readers)
        self._work: Iterator[Writes] = iter(())  # a sample in progress
        self.is_loaded = False  # True once the stored rows have been read or found unreadable
        rollups.begin(self._now_ms() // 1_000)

    def _now_ms(self) -> int:
        return self._engine.clock.now().wall_ms

    async def run(self) -> None:
        """Continue from stored rows, then sample at the end of each slot."""
        with suppress(StorageError):  # without the stored rows, sampling still works
            await self._run_slices(self._rollups.load(await self._stored_rows()))
        self.is_loaded = True
        await self._collect()
        while True:
            await asyncio.sleep(SLOT_S - self._now_ms() / 1_000 % SLOT_S + _AFTER_S)
            await self.sample()

    async def _stored_rows(self) -> list[tuple[int, Point]]:
        last_s = await self._stored.last(MINUTE_S)
        if last_s is None:
            return []
        now_s = self._now_ms() // 1_000
        since_s = min(now_s // MINUTE_S * MINUTE_S - HOUR_S, last_s // QUARTER_S * QUARTER_S)
        return await self._stored.since(MINUTE_S, since_s)

    async def sample(self) -> None:
        """Sample all queues, and store each completed time span."""
        rollups, core = self._rollups, self._engine.core
        await self._collect()
        now_s = self._now_ms() // 1_000
        await self._run_slices(rollups.close(now_s))
        if not now_s % MINUTE_S // SLOT_S:
            rollups.record_refused(now_s, core.refused)
            rollups.forget(core.queues_by_id)

    async def _collect(self) -> None:
        rollups = self._rollups
        await self._run_slices(rollups.collect(list(self._engine.core.queues_by_id.values())))
        with suppress(StorageError):  # on failure, keep the previous ages
            ready, oldest = rollups.ready_queues, dict[int, int]()
            for at in range(0, len(ready), _AGES_AT_ONCE):
                oldest |= await self._reader.oldest_ready_at(ready[at : at + _AGES_AT_ONCE])
            rollups.oldest_ready_at = oldest

    async def _run_slices(self, work: Iterator[Writes]) -> None:
        self._work = work
        for writes in work:
            if writes:
                self._engine.submit(lambda core, writes=writes: core.batch.writes.extend(writes))  # type: ignore[misc]
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Store the incomplete minute; call this after the last command, before the engine stops.

        If the stored rows were never read, nothing is stored.
        """
        if not self.is_loaded:
            return

        def finish(core: Broker, answer: Reply) -> None:
            self._rollups.forget(core.queues_by_id)
            for writes in chain(
                self._work,  # the rest of a cancelled sample
                self._rollups.collect(list(core.queues_by_id.values())),
                self._rollups.close(self._now_ms() // 1_000, is_last=True),
            ):
                core.batch.writes += writes
            core.reply(answer, None)

        await self._engine.call(finish)
