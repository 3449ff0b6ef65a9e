"""A queue's recent rates: read, aggregated, extrapolated."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from aiohttp import web

from phpmq_lite import histogram
from phpmq_lite.admin.auth.permissions import allowed_queues
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import Context, context_of
from phpmq_lite.storage.read.rollups import (
    ALL,
    COUNTS,
    MINUTE_S,
    QUARTER_S,
    RECORDS,
    Point,
    StoredRollups,
    UptimeSpan,
)

BUCKETS_MAX: Final = 240
SPARK_STEP_S: Final = 30
SPARK_SAMPLES: Final = 120  # of a small chart: one hour
FORECAST_S: Final = 300  # what a forecast looks back at


class Span(NamedTuple):
    """How much a chart shows, and in which steps."""

    key: str  # of the URL
    title: str
    length_s: int
    step_s: int


SPANS: Final = {
    span.key: span
    for span in (
        Span("1h", "1 h", 3_600, 20),
        Span("24h", "24 h", 86_400, 360),
        Span("7d", "7 d", 7 * 86_400, 2_700),
        Span("30d", "30 d", 30 * 86_400, 10_800),
    )
}


@dataclass(slots=True, frozen=True)
class TrendBucket:
    """One step of a chart; rates are per second, percentiles and the age in ms.

    None: nothing was dispatched, settled or waiting.
    """

    published: float = 0.0
    dispatched: float = 0.0
    redelivered: float = 0.0
    acked: float = 0.0
    requeued: float = 0.0
    expired: float = 0.0
    dead: float = 0.0
    deleted: float = 0.0
    ready: int = 0
    held: int = 0
    live_bytes: int = 0
    oldest_age_ms: int | None = None
    wait_p50_ms: int | None = None
    wait_p95_ms: int | None = None
    hold_p50_ms: int | None = None
    hold_p95_ms: int | None = None


@dataclass(slots=True, frozen=True)
class Trend:
    """How one queue, or all together, went over a span; None is a gap."""

    span: Span
    start_s: int  # Unix seconds, a multiple of the step
    buckets: Sequence[TrendBucket | None]

    @property
    def end_s(self) -> int:
        """When the last bucket ends; it may lie ahead."""
        return self.start_s + self.span.step_s * len(self.buckets)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing at all was observed."""
        return not any(self.buckets)


@dataclass(slots=True)
class _Gathered:
    """What a bucket has so far."""

    observed_s: int = 0
    has_rest: bool = False
    is_known: bool = False
    counts: list[float] = field(default_factory=lambda: [0.0] * len(COUNTS))
    gauges: list[int] = field(default_factory=lambda: [0] * 4)
    wait: list[int] | None = None
    hold: list[int] | None = None

    def add(self, point: Point, share: float, *, with_times: bool) -> None:
        self.is_known = True
        for at, count in enumerate(point.counts):
            if count:
                self.counts[at] += count * share
        self.gauges = list(map(max, self.gauges, point.gauges))
        if with_times:
            self.wait = _merged(self.wait, point.wait)
            self.hold = _merged(self.hold, point.hold)

    def bucket(self) -> TrendBucket | None:
        if not self.observed_s or (self.has_rest and not self.is_known):
            return None
        ready, held, size, age_ms = self.gauges
        values: list[Any] = [count / self.observed_s for count in self.counts]
        values += (ready, held, size, age_ms or None)
        values += (*_percentiles(self.wait), *_percentiles(self.hold))
        return TrendBucket(*values)


def _merged(counts: list[int] | None, packed: bytes | None) -> list[int] | None:
    if packed is None:
        return counts
    merged = [0] * histogram.BUCKETS if counts is None else counts
    histogram.add_packed(merged, packed)
    return merged


def _percentiles(counts: list[int] | None) -> tuple[int | None, int | None]:
    if counts is None:
        return None, None
    return histogram.percentile(counts, 0.5), histogram.percentile(counts, 0.95)


def first_bucket_s(span: Span, now_s: int) -> int:
    """Say when the first bucket of a chart begins; the last one has ``now_s`` in it."""
    return (now_s // span.step_s + 1) * span.step_s - span.length_s


def make_trend(
    points: Iterable[Point],
    beats: Iterable[UptimeSpan],
    span: Span,
    now_s: int,
    *,
    with_times: bool = True,
) -> Trend:
    """Put points into the buckets of a span that ends now.

    Where the broker ran and there is no point, the queue was idle and empty; unless it may have
    been one of the rest: then nothing is known.
    """
    start_s, count = first_bucket_s(span, now_s), span.length_s // span.step_s
    gathered = [_Gathered() for _ in range(count)]
    for beat in beats:
        for at, seconds in _pieces(beat.at_s, beat.span_s, start_s, span.step_s, count):
            bucket = gathered[at]
            bucket.observed_s = min(bucket.observed_s + seconds, span.step_s)
            bucket.has_rest |= beat.has_rest
    for point in points:
        for at, seconds in _pieces(point.at_s, point.span_s, start_s, span.step_s, count):
            gathered[at].add(point, seconds / point.span_s, with_times=with_times)
    return Trend(span, start_s, [bucket.bucket() for bucket in gathered])


def _pieces(
    at_s: int, span_s: int, start_s: int, step_s: int, count: int
) -> Iterator[tuple[int, int]]:
    """Cut a point along the buckets: yields bucket and seconds in it."""
    end_s = at_s + span_s
    while at_s < end_s:
        bucket = (at_s - start_s) // step_s
        until_s = min(end_s, start_s + (bucket + 1) * step_s)
        if 0 <= bucket < count:
            yield bucket, until_s - at_s
        at_s = until_s


# -- small charts


def make_spark(
    points: Iterable[Point], beats: Sequence[UptimeSpan], column: str, now_s: int, *, is_rate: bool
) -> list[float]:
    """Give the values of a small chart of one hour, since the last gap; the newest comes last."""
    value_of = attrgetter(column)
    start_s = (now_s // SPARK_STEP_S + 1 - SPARK_SAMPLES) * SPARK_STEP_S
    observed = [0] * SPARK_SAMPLES
    for beat in beats:
        for at, seconds in _pieces(beat.at_s, beat.span_s, start_s, SPARK_STEP_S, SPARK_SAMPLES):
            observed[at] += seconds
    values = [0.0] * SPARK_SAMPLES
    for point in points:
        for at, seconds in _pieces(point.at_s, point.span_s, start_s, SPARK_STEP_S, SPARK_SAMPLES):
            if is_rate:
                values[at] += value_of(point) * seconds / point.span_s
            else:
                values[at] = max(values[at], value_of(point))
    if not observed[-1]:  # its first slot is not over
        observed, values = observed[:-1], values[:-1]
    since = max((at + 1 for at, seconds in enumerate(observed) if not seconds), default=0)
    if is_rate:
        return [
            value / min(seconds, SPARK_STEP_S)
            for value, seconds in zip(values[since:], observed[since:], strict=True)
        ]
    return values[since:]


def polyline(values: Iterable[float], width: int = 120, height: int = 28) -> str:
    """Give the ``points`` of an SVG polyline, newest at the right edge; the scale starts at 0.

    Empty below two samples, and where there was nothing at all.
    """
    numbers = list(values)
    if len(numbers) < 2 or not any(numbers):
        return ""
    top = max(numbers) * 1.1
    step = width / (SPARK_SAMPLES - 1)
    left = width - step * (len(numbers) - 1)
    room = height - 3  # the line keeps a pixel from the edges
    return " ".join(
        f"{left + at * step:.1f},{height - 1.5 - value / top * room:.1f}"
        for at, value in enumerate(numbers)
    )


# -- what comes next


def slope(points: Iterable[Point], beats: Iterable[UptimeSpan], now_s: int) -> float | None:
    """Say how fast the ready messages of a queue become more (per second), from the last minutes.

    The least squares through all points; None where there are too few to tell.
    """
    depth = {point.at_s: point.ready for point in points}
    seen = [
        (beat.at_s + beat.span_s, depth.get(beat.at_s, 0))
        for beat in beats
        if beat.at_s >= now_s - FORECAST_S
    ]
    if len(seen) < 3:
        return None
    mean_x = sum(x for x, _ in seen) / len(seen)
    mean_y = sum(y for _, y in seen) / len(seen)
    width = sum((x - mean_x) ** 2 for x, _ in seen)
    if not width:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in seen) / width


def forecast(ready: int, per_s: float | None, consumers: int) -> str:
    """Say where a backlog goes: ``empty in about 4 min``, ``grows by 12/s``; empty without one."""
    if not ready:
        return ""
    nobody = "" if consumers else ", nobody consumes"
    if per_s is None:
        return nobody.removeprefix(", ").capitalize()
    if abs(per_s) * FORECAST_S < max(1.0, ready / 1_000):
        return f"Steady{nobody}"
    if per_s > 0:
        return f"Grows by {_speed(per_s)}{nobody}"
    return f"Empty in about {_about(ready / -per_s)}"


def _speed(per_s: float) -> str:
    if per_s >= 1:
        return f"{formats.format_rate(per_s)}/s"
    per_minute = per_s * 60
    if per_minute >= 1:
        return f"{formats.format_rate(per_minute)}/min"
    return f"{formats.format_rate(max(per_minute * 60, 0.1))}/h"


def _about(seconds: float) -> str:
    """Write a time roughly: nobody knows it better."""
    if seconds < 60:
        return f"{max(1, round(seconds / 5) * 5)} s"
    if seconds < 5_400:
        return f"{round(seconds / 60)} min"
    if seconds < 172_800:
        return f"{round(seconds / 3_600)} h"
    return f"{round(seconds / 86_400):,} d"


_MINUTES_S: Final = 90_000  # minutes are stored for so long


async def read_trend(
    context: Context, queue_id: int, span: Span, *, with_times: bool = False
) -> Trend:
    """Give how a queue went over a span that ends now; ALL and RECORDS stand for several.

    ``with_times``: percentiles of wait and hold too.
    """
    now_s = context.now_ms() // 1_000
    points, beats = context.rollups.points(queue_id), context.rollups.beats()
    start_s = first_bucket_s(span, now_s)
    if start_s < now_s - 3_600 - span.step_s:
        points, beats = await gather_points(context, queue_id, start_s)
    if not with_times:
        return make_trend(points, beats, span, now_s, with_times=False)
    return await asyncio.to_thread(make_trend, points, beats, span, now_s)


async def gather_points(
    context: Context, queue_id: int, start_s: int
) -> tuple[list[Point], list[UptimeSpan]]:
    """Put the points since ``start_s`` together: stored ones, then those of the memory."""
    rollups = context.rollups
    points, beats = rollups.points(queue_id), rollups.beats()
    joint_s = _joint(beats, rollups.minute_s)
    older, ran = await _older(context, queue_id, start_s, joint_s)
    return (
        [*older, *(point for point in points if point.at_s >= joint_s)],
        [*ran, *(beat for beat in beats if beat.at_s >= joint_s)],
    )


def _joint(beats: list[UptimeSpan], minute_s: int) -> int:
    """Say from when on to take the memory: its first full minute, or all while that is not over.

    A minute is stored once it is over; ``minute_s`` is when the open one began.
    """
    if not beats:
        return minute_s
    full_s = -(-beats[0].at_s // MINUTE_S) * MINUTE_S
    return full_s if full_s <= minute_s else beats[0].at_s


async def _older(
    context: Context, queue_id: int, start_s: int, until_s: int
) -> tuple[list[Point], list[UptimeSpan]]:
    """Read quarters up to where the minutes begin, and minutes up to where the memory does."""
    points: list[Point] = []
    beats: list[UptimeSpan] = []
    if start_s >= until_s:
        return points, beats
    stored, minutes_s = StoredRollups(context.readers), start_s
    if start_s < until_s - _MINUTES_S:
        last_s = await stored.last(QUARTER_S)
        if last_s is not None:
            minutes_s = max(start_s, min(last_s + QUARTER_S, until_s))
        points += await stored.of_queue(QUARTER_S, queue_id, start_s, minutes_s)
        beats += await stored.beats(QUARTER_S, start_s, minutes_s)
    points += await stored.of_queue(MINUTE_S, queue_id, minutes_s, until_s)
    beats += await stored.beats(MINUTE_S, minutes_s, until_s)
    return points, beats


# -- small charts


def read_spark(context: Context, queue_id: int) -> str:
    """Give the points of the small chart of a queue: what was published."""
    return _spark(context, queue_id, "published", 72, 20)


def read_sparks(request: web.Request) -> dict[str, str]:
    """Give the points of the small charts of the overview, by the name of their live field."""
    context = context_of(request)
    if allowed_queues(request) is not None:  # they are about all queues
        return {}
    return {
        "total.ready": _spark(context, ALL, "ready"),
        "total.dispatched": _spark(context, ALL, "held"),
        "total.dead": _spark(context, RECORDS, "ready"),
        "total.age": _spark(context, ALL, "oldest_age_ms"),
        "total.in": _spark(context, ALL, "published"),
        "total.out": _spark(context, ALL, "acked"),
    }


def _spark(context: Context, queue_id: int, column: str, width: int = 120, height: int = 28) -> str:
    """Draw a small chart; it changes with each sample, so it is kept until the next one."""
    rollups = context.rollups
    kept = rollups.lines
    key = (queue_id, column)
    if key not in kept:
        values = make_spark(
            rollups.points(queue_id), rollups.beats(), column, context.now_ms() // 1_000,
            is_rate=column in ("published", "acked"),
        )  # fmt: skip
        kept[key] = polyline(values, width, height)
    return kept[key]
