"""The last 24 hours of Insights: what the broker counted, and the newest traces; no pipeline.

Counts and times come from the roll-ups of complete quarter hours, which are read once for each
quarter hour, and from those in memory.  A read is bounded by the number of queues with their own
rows, and the traces by ``MESSAGES_MAX``.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite import histogram
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.trends import BucketSums
from phpmq_lite.durations import DAY_S
from phpmq_lite.insights_document import (
    ALL_QUEUES,
    OTHER_QUEUES,
    DeadLetterTotals,
    ExpiryTotals,
    QueueTotals,
    SummaryStep,
    TracePath,
)
from phpmq_lite.losses import (
    DEAD_LETTER,
    EXPIRED_DISPATCHED,
    EXPIRED_NEVER,
    OTHERS,
    Losses,
    add_losses,
    unpack_losses,
)
from phpmq_lite.server.rollups import RollupSum
from phpmq_lite.storage.read import activity
from phpmq_lite.storage.read.activity import (
    ALL,
    COUNTS,
    QUARTER_S,
    Point,
    PublishedMessage,
    RecentActivity,
    StoredRollups,
)

QUEUES_MAX: Final = 40  # queues with rows of their own on the page, busiest first
MESSAGES_MAX: Final = 5_000  # newest messages of the broker whose traces are shown
STEPS_MAX: Final = 50  # of a path
PERCENT_HIGH: Final = 12.5  # by which a percentile can exceed the exact one
_TIMES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))

_ZEROS: Final = (0,) * len(COUNTS)

T = TypeVar("T")
Counts = Sequence[int]  # in the order of COUNTS


@dataclass(slots=True)
class DayCache:
    """What was read for the current quarter hour; complete ones do not change."""

    start_s: int = 0
    values: dict[Hashable, Any] = field(default_factory=dict)

    async def get(self, start_s: int, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return a value, which is read if it is not known for the quarter hour."""
        if start_s != self.start_s or len(self.values) > 32:  # callers with rights of their own
            self.start_s, self.values = start_s, {}
        if key not in self.values:
            self.values[key] = await read()
        value: T = self.values[key]
        return value


DAY_CACHE: Final = web.AppKey("day_cache", DayCache)


class TraceCoverage(BaseModel):
    """Which messages the paths of traces come from."""

    read: int = Field(0, description="number of newest messages whose traces were read")
    published: int = Field(0, description="number of messages published in the period")


class LastDayView(BaseModel):
    """The last 24 hours, counted by the broker, for at most 40 queues; the rest is (others)."""

    since_ms: int = Field(description="start of the period, Unix ms")
    until_ms: int = Field(description="end of the period, Unix ms")
    percent_high: float = Field(
        PERCENT_HIGH, description="by which each percentile and maximum can be too high, in percent"
    )
    steps: list[SummaryStep] = Field(description="all queues, or one, by quarter hour")
    queues: list[QueueTotals] = Field(description="totals by queue, busiest first")
    deaths: list[DeadLetterTotals] = Field(description="dead letters by queue, reason and URN")
    expiries: list[ExpiryTotals] = Field(description="expired messages by queue")
    paths: list[TracePath] = Field(description="paths of the newest traces, most common first")
    traces: TraceCoverage = Field(description="which messages the paths come from")


@dataclass(slots=True, frozen=True)
class LastDay:
    """The roll-ups of the last 24 hours that a caller can see; times are Unix seconds."""

    call: Call
    start_s: int  # beginning of the first of 96 quarter hours
    stored_s: int  # quarter hours before this are read from the database
    names: Mapping[int, str]  # by queue_id
    counts: Mapping[int, Counts]  # by queue_id, also of queues without a name

    @property
    def visible(self) -> list[str]:
        """The names of the queues in which something happened, in order."""
        return sorted(self.names[q] for q in self.names if any(self.counts.get(q, ())))

    def _weight(self, queue_id: int, *columns: str) -> int:
        counts = dict(zip(COUNTS, self.counts.get(queue_id, _ZEROS), strict=True))
        return sum(counts[name] for name in columns)

    def listed(self, *columns: str) -> list[int]:
        """Return the ids of the queues with the highest counts that are not 0, in order."""
        weights = {queue_id: self._weight(queue_id, *columns) for queue_id in self.names}
        ids = [queue_id for queue_id, weight in weights.items() if weight]
        return sorted(ids, key=lambda q: (-weights[q], self.names[q]))[:QUEUES_MAX]

    def others(self, listed: Iterable[int]) -> dict[str, int]:
        """Return the sum of all that is not listed."""
        remaining = self.counts.keys() - set(listed) - {ALL, activity.DEAD_LETTERS}
        sums = (
            sum(counts) for counts in zip(_ZEROS, *map(self.counts.get, remaining), strict=True)
        )
        return dict(zip(COUNTS, sums, strict=True))

    @property
    def recent(self) -> list[tuple[int, Mapping[int, RollupSum]]]:
        """The parts of all quarter hours that are not read, with their start."""
        return _recent(self.call, self.start_s, self.stored_s)

    async def _stored(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        cache = self.call.context.app[DAY_CACHE]
        return await cache.get(self.start_s, (self.stored_s, key), read)

    async def _points(self, ids: Sequence[int]) -> list[tuple[int, Point]]:
        stored = StoredRollups(self.call.context.readers)
        points = await self._stored(
            ("points", *ids),
            lambda: stored.of_queues(QUARTER_S, ids, self.start_s, self.stored_s),
        )
        recent = ((at_s, q, part[q]) for at_s, part in self.recent for q in ids if q in part)
        return [*points, *((q, total.point(at_s, QUARTER_S)) for at_s, q, total in recent)]

    async def steps(self, queue: str = "") -> list[SummaryStep]:
        """Return the quarter hours of a queue, or of all that the caller can see, in order."""
        ids = [queue_id for queue_id, name in self.names.items() if name == queue]
        if not queue:
            ids = self.listed(*_BUSY) if self.call.identity.queues else [ALL]
        points = await self._points(ids)
        return await asyncio.to_thread(_sum_steps, points, self.start_s, queue or ALL_QUEUES)

    async def queues(self) -> list[QueueTotals]:
        """Return the totals of the busiest queues, and the sum of the others without times."""
        ids = self.listed(*_BUSY)
        points = await self._points(ids)
        sums = await asyncio.to_thread(_sum_by, [(q, point) for q, point in points], ids)
        rows = [QueueTotals(queue=self.names[q], **_figures(sums[q])) for q in ids]
        remaining = self.others(ids)
        if any(remaining.values()):
            rows.append(QueueTotals(queue=OTHER_QUEUES, **_document_counts(remaining)))
        return rows

    async def losses(self) -> dict[str, tuple[Losses, int, int]]:
        """Return dead letters by reason and URN with both totals (dead, expired), by queue."""
        ids = self.listed("dead", "expired")
        groups = [*ids] if self.call.identity.queues else [*ids, activity.OTHERS]
        stored = StoredRollups(self.call.context.readers)

        async def read() -> dict[int, Losses]:
            rows = await stored.losses(QUARTER_S, groups, self.start_s, self.stored_s)
            return await asyncio.to_thread(_sum_losses, rows)

        losses = dict(await self._stored(("losses", *groups), read))
        for _, part in self.recent:
            for q in groups:
                if q in part:
                    losses[q] = add_losses(losses.get(q), part[q].losses) or {}
        remaining = self.others(ids)
        result = {
            self.names[q]: (losses.get(q, {}), self._weight(q, "dead"), self._weight(q, "expired"))
            for q in ids
        }
        others = losses.get(activity.OTHERS, {})
        return result | {OTHER_QUEUES: (others, remaining["dead"], remaining["expired"])}

    async def deaths(self) -> list[DeadLetterTotals]:
        """Return dead letters by queue, reason and URN, highest count first."""
        rows = []
        for queue, (losses, dead, _) in (await self.losses()).items():
            named = {loss: n for loss, n in losses.items() if loss[0] == DEAD_LETTER}
            missing = dead - sum(named.values())
            if missing > 0:  # beyond the pairs of a row, or counted by an older version
                key = (DEAD_LETTER, OTHERS, OTHERS)
                named[key] = named.get(key, 0) + missing
            rows += [
                DeadLetterTotals(queue=queue, urn=urn, reason=reason, count=n)
                for (_, reason, urn), n in named.items()
            ]
        return sorted(rows, key=lambda row: -row.count)

    async def expiries(self) -> list[ExpiryTotals]:
        """Return expired messages by queue, highest count first."""
        rows = []
        for queue, (losses, _, expired) in (await self.losses()).items():
            late = losses.get((EXPIRED_DISPATCHED, None, None), 0)
            never = losses.get((EXPIRED_NEVER, None, None), 0)
            unknown = max(expired - late - never, 0)
            if expired:
                rows.append(
                    ExpiryTotals(queue=queue, dispatched=late, never=never, unknown=unknown)
                )
        return sorted(rows, key=lambda row: -row.total)

    async def paths(self) -> tuple[list[TracePath], TraceCoverage]:
        """Return the paths of the newest traces, most common first, and where they come from."""
        recent = RecentActivity(self.call.context.readers)
        rows = await recent.newest_published(MESSAGES_MAX, self.start_s * 1_000)
        visible = {row.seq for row in rows if self._is_visible(row.queue)}
        paths = await asyncio.to_thread(trace_paths, rows, visible)
        ids = [*self.names] if self.call.identity.queues else [ALL]
        published = sum(self._weight(queue_id, "published") for queue_id in ids)
        return paths, TraceCoverage(read=len(visible), published=max(published, len(visible)))

    def _is_visible(self, name: str | None) -> bool:
        return not self.call.identity.queues or (name is not None and self.call.may_use(name))

    async def view(self, queue: str = "") -> LastDayView:
        """Return everything, with the steps of one queue or of all."""
        paths, traces = await self.paths()
        return LastDayView(
            since_ms=self.start_s * 1_000,
            until_ms=self.call.now_ms,
            steps=await self.steps(queue),
            queues=await self.queues(),
            deaths=await self.deaths(),
            expiries=await self.expiries(),
            paths=paths,
            traces=traces,
        )


_BUSY: Final = ("published", "dispatched", "acked", "expired", "dead", "deleted")


async def read_last_day(call: Call) -> LastDay:
    """Read the totals of all queues in the last 24 hours, of those that the caller can see."""
    context = call.context
    stored, rollups = StoredRollups(context.readers), context.rollups
    end_s = (call.now_ms // 1_000 // QUARTER_S + 1) * QUARTER_S
    start_s, stored_s = end_s - DAY_S, rollups.stored_until_s
    rows = await context.app[DAY_CACHE].get(
        start_s, ("totals", stored_s), lambda: stored.totals(QUARTER_S, start_s, stored_s)
    )
    names = {queue.queue_id: queue.name for queue in call.queues}
    names |= {queue_id: name for queue_id, name, _ in rows if name and call.may_use(name)}
    counts: dict[int, Counts] = {queue_id: sums for queue_id, _, sums in rows}
    for _, part in _recent(call, start_s, stored_s):
        for queue_id, activity_sum in part.items():
            before = counts.get(queue_id, _ZEROS)
            counts[queue_id] = list(map(sum, zip(before, activity_sum.counts, strict=True)))
    if call.identity.queues:
        counts = {queue_id: sums for queue_id, sums in counts.items() if queue_id in names}
    return LastDay(call, start_s, stored_s, names, counts)


def _recent(call: Call, start_s: int, stored_s: int) -> list[tuple[int, Mapping[int, RollupSum]]]:
    parts = call.context.rollups.quarters(call.context.broker.live_queues)
    return [part for part in parts if max(start_s, stored_s) <= part[0] < start_s + DAY_S]


# -- pure


def _sum_by(points: Iterable[tuple[int, Point]], keys: Iterable[int]) -> dict[int, BucketSums]:
    sums = {key: BucketSums() for key in keys}
    for key, point in points:
        if key in sums:
            sums[key].add(point, 1, with_times=True)
    return sums


def _sum_steps(points: Iterable[tuple[int, Point]], start_s: int, queue: str) -> list[SummaryStep]:
    """Return the quarter hours in which something happened, in order."""
    starts = range(start_s, start_s + DAY_S, QUARTER_S)
    sums = _sum_by(((point.at_s, point) for _, point in points), starts)
    return [
        SummaryStep(queue=queue, at_ms=at_s * 1_000, **_figures(total))
        for at_s, total in sums.items()
        if any(total.counts)
    ]


def _document_counts(counts: Mapping[str, float]) -> dict[str, Any]:
    """Return counts as in the insights document, in which a message is dispatched once."""
    first = counts["dispatched"] - counts["redelivered"]
    return {name: int(n) for name, n in counts.items()} | {"dispatched": int(first), "bytes": None}


def _figures(total: BucketSums) -> dict[str, Any]:
    values = _document_counts(dict(zip(COUNTS, total.counts, strict=True)))
    for span, counts in (("wait", total.wait), ("hold", total.hold)):
        for statistic, q in _TIMES:
            values[f"{span}_{statistic}"] = counts and histogram.percentile(counts, q)
    return values


def _sum_losses(rows: Iterable[tuple[int, str]]) -> dict[int, Losses]:
    sums: dict[int, Losses] = {}
    for queue_id, packed in rows:
        sums[queue_id] = add_losses(sums.get(queue_id), unpack_losses(packed)) or {}
    return sums


def trace_paths(rows: Iterable[PublishedMessage], visible: set[int]) -> list[TracePath]:
    """Return the paths of those traces whose messages are all visible, most common first.

    A path is the steps of a trace in order, up to ``STEPS_MAX``.  Durations are those of traces
    whose messages have all settled, from the first publish to the last settlement.
    """
    traces: dict[str, list[PublishedMessage]] = {}
    for row in rows:
        if row.trace_id is not None:
            traces.setdefault(row.trace_id, []).append(row)
    counts: Counter[tuple[str, ...]] = Counter()
    newest: dict[tuple[str, ...], tuple[int, str]] = {}
    durations: dict[tuple[str, ...], list[int]] = {}
    for trace_id, messages in traces.items():
        if any(message.seq not in visible for message in messages):
            continue
        path = tuple(f"{m.queue or ''}:{m.urn or ''}" for m in messages[:STEPS_MAX])
        counts[path] += 1
        newest[path] = max(newest.get(path, (0, "")), (messages[-1].seq, trace_id))
        ends = [m.settled_at for m in messages if m.settled_at is not None]
        if len(ends) == len(messages):
            begin = min(m.published_at for m in messages)
            durations.setdefault(path, []).append(max(max(ends) - begin, 0))
    return [
        TracePath(
            path=path,
            traces=count,
            p50_ms=_rank(durations.get(path), 0.5),
            p95_ms=_rank(durations.get(path), 0.95),
            newest=newest[path][1],
        )
        for path, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def _rank(values: Sequence[int] | None, q: float) -> int | None:
    """Return the smallest value that at least the share ``q`` of all values does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(-int(-q * len(ordered) // 1), 1) - 1]
