"""The last 24 hours of Insights: what the broker counted, and its newest traces; no pipeline.

Complete quarter hours are read from the roll-ups, once for each quarter hour; later ones are in
memory.  A read is bounded by the number of queues with their own rows, and the traces by
``MESSAGES_MAX``.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite import histogram
from phpmq_lite.admin.http.call import Call
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
from phpmq_lite.losses import DEAD_LETTER, EXPIRED_DISPATCHED, EXPIRED_NEVER, OTHERS
from phpmq_lite.server.rollups import RollupSum
from phpmq_lite.storage.read import activity
from phpmq_lite.storage.read.activity import ALL, COUNTS, QUARTER_S, PublishedMessage

QUEUES_MAX: Final = 40  # queues with rows of their own on the page, busiest first
MESSAGES_MAX: Final = 3_000  # newest messages of the broker whose traces are shown
STEPS_MAX: Final = 50  # of a path
PERCENT_HIGH: Final = 12.5  # by which a percentile can exceed the exact one
_CACHED_MAX: Final = 200  # sums of queues
_BUSY: Final = ("published", "dispatched", "acked", "expired", "dead", "deleted")
_TIMES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
_ZEROS: Final = (0,) * len(COUNTS)
# What was read of complete quarter hours, which do not change, by their range and the queue.
DAY_CACHE: Final = web.AppKey("day_cache", dict[Hashable, Any])

T = TypeVar("T")


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
    names: dict[int, str]  # by queue_id
    counts: dict[int, Sequence[int]]  # by queue_id, also of queues without a name

    @classmethod
    async def read(cls, call: Call) -> "LastDay":
        """Read the totals of all queues."""
        end_s = (call.now_ms // 1_000 // QUARTER_S + 1) * QUARTER_S
        stored_s = call.context.rollups.stored_until_s or end_s  # 0: this process counts nothing
        day = cls(call, end_s - DAY_S, stored_s, {}, {})
        rollups = activity.StoredRollups(call.context.readers)
        rows = await day._stored(
            "totals", partial(rollups.totals, QUARTER_S, day.start_s, day.stored_s)
        )
        day.names.update({queue.queue_id: queue.name for queue in call.queues})
        day.names.update({q: name for q, name, _ in rows if name and call.may_use(name)})
        sums = {q: RollupSum(counts) for q, _, counts in rows}
        for _, part in day._recent():
            for q, total in part.items():
                sums.setdefault(q, RollupSum()).add(RollupSum(total.counts))
        is_limited = bool(call.identity.queues)
        day.counts.update(
            {q: total.counts for q, total in sums.items() if q in day.names or not is_limited}
        )
        return day

    @property
    def visible(self) -> list[str]:
        """The names of the queues in which something happened, in order."""
        return sorted(self.names[q] for q in self.names if any(self.counts.get(q, ())))

    def _count(self, queue_id: int, *columns: str) -> int:
        counts = zip(COUNTS, self.counts.get(queue_id, _ZEROS), strict=True)
        return sum(count for name, count in counts if name in columns)

    def _listed(self, *columns: str) -> list[int]:
        """Return the ids of the queues with the highest counts that are not 0, in order."""
        ranks = [(-self._count(q, *columns), name, q) for q, name in self.names.items()]
        return [q for rank, _, q in sorted(ranks)[:QUEUES_MAX] if rank]

    def _others(self, listed: Iterable[int]) -> RollupSum:
        """Return the counts of all that is not listed."""
        total = RollupSum()
        for q in self.counts.keys() - set(listed) - {ALL, activity.DEAD_LETTERS}:
            total.add(RollupSum(self.counts[q]))
        return total

    async def _stored(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        cache, key = self.call.context.app[DAY_CACHE], (self.start_s, self.stored_s, key)
        if key in cache:
            value: T = cache[key]
            return value
        if len(cache) >= _CACHED_MAX:
            cache.clear()
        cache[key] = value = await read()
        return value

    def _recent(self) -> list[tuple[int, Mapping[int, RollupSum]]]:
        """Return the parts of all quarter hours that are not read, with their start."""
        first_s, until_s = max(self.start_s, self.stored_s), self.start_s + DAY_S
        parts = self.call.context.rollups.quarters(self.call.context.broker.live_queues)
        return [part for part in parts if first_s <= part[0] < until_s]

    async def _read(self, queue_id: int) -> list[activity.Point]:
        rollups = activity.StoredRollups(self.call.context.readers)
        return await rollups.of_queue(QUARTER_S, queue_id, self.start_s, self.stored_s)

    async def _totals(self, ids: Sequence[int]) -> dict[int, RollupSum]:
        async def read(queue_id: int) -> RollupSum:
            sums = await asyncio.to_thread(_sum, await self._read(queue_id), lambda point: ALL)
            return sums.get(ALL) or RollupSum()

        totals = {q: RollupSum() for q in ids}
        for q in ids:
            totals[q].add(await self._stored(q, partial(read, q)))
        for _, part in self._recent():
            for q in totals.keys() & part.keys():
                totals[q].add(part[q])
        return totals

    async def steps(self, queue: str = "") -> list[SummaryStep]:
        """Return the quarter hours of a queue, or of all that the caller can see, in order."""
        ids = [queue_id for queue_id, name in self.names.items() if name == queue]
        if not queue:
            ids = self._listed(*_BUSY) if self.call.identity.queues else [ALL]
        points = [point for q in ids for point in await self._read(q)]
        sums = await asyncio.to_thread(_sum, points, lambda point: point.at_s)
        for at_s, part in self._recent():
            for q in part.keys() & set(ids):
                sums.setdefault(at_s, RollupSum()).add(part[q])
        return [
            SummaryStep(queue=queue or ALL_QUEUES, at_ms=at_s * 1_000, **_figures(sums[at_s]))
            for at_s in sorted(sums)
            if any(sums[at_s].counts)
        ]

    async def queues(self) -> list[QueueTotals]:
        """Return the totals of the busiest queues, and the sum of the others without times."""
        ids = self._listed(*_BUSY)
        totals = await self._totals(ids)
        rows = [QueueTotals(queue=self.names[q], **_figures(totals[q])) for q in ids]
        others = self._others(ids)
        return rows + [QueueTotals(queue=OTHER_QUEUES, **_figures(others))] * any(others.counts)

    async def _losses(self) -> list[tuple[str, RollupSum]]:
        """Return what was lost in each queue, and in all others."""
        ids = self._listed("dead", "expired")
        groups = [*ids] if self.call.identity.queues else [*ids, activity.OTHERS]
        totals, others = await self._totals(groups), self._others(ids)
        if activity.OTHERS in totals:
            others.losses = totals[activity.OTHERS].losses
        return [*((self.names[q], totals[q]) for q in ids), (OTHER_QUEUES, others)]

    async def deaths(self) -> list[DeadLetterTotals]:
        """Return dead letters by queue, reason and URN, highest count first."""
        rows = []
        for queue, total in await self._losses():
            pairs = Counter({(r, u): n for (k, r, u), n in (total.losses or {}).items()
                             if k == DEAD_LETTER})  # fmt: skip
            # What is beyond the pairs of a row, or was counted by an older version.
            pairs[OTHERS, OTHERS] += max(_count(total, "dead") - pairs.total(), 0)
            rows += [
                DeadLetterTotals(queue=queue, urn=urn, reason=reason, count=count)
                for (reason, urn), count in pairs.items()
                if count
            ]
        return sorted(rows, key=lambda row: -row.count)

    async def expiries(self) -> list[ExpiryTotals]:
        """Return expired messages by queue, highest count first."""
        rows = []
        for queue, total in await self._losses():
            losses = total.losses or {}
            dispatched = losses.get((EXPIRED_DISPATCHED, None, None), 0)
            never = losses.get((EXPIRED_NEVER, None, None), 0)
            unknown = max(_count(total, "expired") - dispatched - never, 0)
            row = ExpiryTotals(queue=queue, dispatched=dispatched, never=never, unknown=unknown)
            rows += [row] * (row.total > 0)
        return sorted(rows, key=lambda row: -row.total)

    async def paths(self) -> tuple[list[TracePath], TraceCoverage]:
        """Return the paths of the newest traces, most common first, and where they come from."""
        recent = activity.RecentActivity(self.call.context.readers)
        rows = await recent.newest_published(MESSAGES_MAX, self.start_s * 1_000)
        is_limited = bool(self.call.identity.queues)
        may_use = self.call.may_use
        visible = {row.seq for row in rows if not is_limited or (row.queue and may_use(row.queue))}
        paths = await asyncio.to_thread(trace_paths, rows, visible)
        published = sum(self._count(q, "published") for q in (self.names if is_limited else [ALL]))
        return paths, TraceCoverage(read=len(visible), published=max(published, len(visible)))

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


# -- pure


def _sum(
    points: Iterable[activity.Point], key: Callable[[activity.Point], int]
) -> dict[int, RollupSum]:
    """Return the sums of the points with the same key."""
    sums: dict[int, RollupSum] = {}
    for point in points:
        sums.setdefault(key(point), RollupSum()).add(RollupSum.from_point(point))
    return sums


def _count(total: RollupSum, column: str) -> int:
    return total.counts[COUNTS.index(column)]


def _figures(total: RollupSum) -> dict[str, Any]:
    """Return the fields of the insights document, in which a message is dispatched once."""
    values: dict[str, Any] = dict(zip(COUNTS, total.counts, strict=True)) | {"bytes": None}
    values["dispatched"] -= values["redelivered"]
    for span, counts in (("wait", total.wait), ("hold", total.hold)):
        for statistic, q in _TIMES:
            values[f"{span}_{statistic}"] = counts and histogram.percentile(counts, q)
    return values


def trace_paths(rows: Iterable[PublishedMessage], visible: set[int]) -> list[TracePath]:
    """Return the paths of those traces whose messages are all visible, most common first.

    Durations are those of traces whose messages have all settled, from the first publish to the
    last settlement.
    """
    traces: dict[str, list[PublishedMessage]] = {}
    for row in rows:
        if row.trace_id is not None:
            traces.setdefault(row.trace_id, []).append(row)
    by_path: dict[tuple[str, ...], list[tuple[int, str, int | None]]] = {}
    for trace_id, messages in traces.items():
        if all(message.seq in visible for message in messages):
            path = tuple(f"{m.queue or ''}:{m.urn or ''}" for m in messages[:STEPS_MAX])
            begin, ends = messages[0].published_at, [m.settled_at for m in messages]
            settled = [end for end in ends if end is not None]
            ms = max(max(settled) - begin, 0) if len(settled) == len(ends) else None
            by_path.setdefault(path, []).append((messages[-1].seq, trace_id, ms))
    return [
        TracePath(
            path=path,
            traces=len(walked),
            p50_ms=_rank([ms for *_, ms in walked if ms is not None], 0.5),
            p95_ms=_rank([ms for *_, ms in walked if ms is not None], 0.95),
            newest=max(walked)[1],
        )
        for path, walked in sorted(by_path.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _rank(values: Sequence[int], q: float) -> int | None:
    """Return the smallest value that at least the share ``q`` of all values does not exceed."""
    return sorted(values)[max(ceil(q * len(values)), 1) - 1] if values else None
