"""Trends, sparklines and forecasts for queues, computed from stored and recent points."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, lt
from typing import Any, Final, NamedTuple, TypeVar

from phpmq_lite import histogram
from phpmq_lite.admin import formats
from phpmq_lite.admin.http.context import Context
from phpmq_lite.durations import DAY_S, HOUR_S
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.activity import (
    ALL,
    COUNTS,
    DEAD_LETTERS,
    GAUGES,
    MINUTE_S,
    QUARTER_S,
    Point,
    StoredRollups,
    UptimeSpan,
)

Span = TypeVar("Span", Point, UptimeSpan)
SPARK_STEP_S: Final = 30
SPARK_SAMPLES: Final = 120  # number of samples in a sparkline, which covers one hour
FORECAST_S: Final = 300  # number of seconds of data on which a forecast is based


class TrendPeriod(NamedTuple):
    """A period that a chart covers, and the length of its steps."""

    key: str  # the period's name in URLs
    title: str
    length_s: int
    step_s: int


PERIODS: Final = {
    period.key: period
    for period in (
        TrendPeriod("1h", "1 h", HOUR_S, 20),
        TrendPeriod("24h", "24 h", DAY_S, 360),
        TrendPeriod("7d", "7 d", 7 * DAY_S, 2_700),
        TrendPeriod("30d", "30 d", 30 * DAY_S, 10_800),
    )
}


@dataclass(slots=True, frozen=True)
class TrendBucket:
    """One step of a chart; rates are per second, and percentiles and the age are in ms.

    A percentile or age is None if nothing was dispatched, settled or waiting.
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
    """The trend of one queue or of all queues over a period; buckets without data are None."""

    period: TrendPeriod
    start_s: int  # in Unix seconds; a multiple of the step length
    buckets: Sequence[TrendBucket | None]
    gauges: Mapping[str, Any] = field(default_factory=dict)  # newest depths and age

    @property
    def end_s(self) -> int:
        """The end of the last bucket, which may be in the future."""
        return self.start_s + self.period.step_s * len(self.buckets)

    @property
    def drawn(self) -> Sequence[TrendBucket | None]:
        """The buckets as charts show them: the last one has the newest depths, not the highest."""
        buckets = list(self.buckets)
        for at in range(len(buckets) - 1, -1, -1):
            if (bucket := buckets[at]) is not None:
                buckets[at] = replace(bucket, **self.gauges)
                break
        return buckets


@dataclass(slots=True)
class BucketSums:
    """The values of all points in one bucket; counts are in the order of ``COUNTS``."""

    observed_s: int = 0
    has_rest: bool = False
    is_known: bool = False
    counts: list[float] = field(default_factory=lambda: [0.0] * len(COUNTS))
    gauges: list[int] = field(default_factory=lambda: [0] * 4)
    wait: list[int] | None = None
    hold: list[int] | None = None

    @property
    def has_data(self) -> bool:
        """Return whether the counts are known: a queue without points may count with others."""
        return self.is_known or (self.observed_s > 0 and not self.has_rest)

    def add(self, point: Point, share: float, *, with_times: bool) -> None:
        """Add a point of which ``share`` (0 to 1) is in the bucket."""
        self.is_known = True
        for at, count in enumerate(point.counts):
            if count:
                self.counts[at] += count * share
        self.gauges = list(map(max, self.gauges, point.gauges))
        if with_times:
            self.wait = _merge_histograms(self.wait, point.wait)
            self.hold = _merge_histograms(self.hold, point.hold)

    def bucket(self) -> TrendBucket | None:
        """Return the rates, highest gauges and percentiles, or None without data."""
        if not self.observed_s or not self.has_data:
            return None
        ready, held, live_bytes, age_ms = self.gauges
        wait_p50_ms, wait_p95_ms = _percentiles(self.wait)
        hold_p50_ms, hold_p95_ms = _percentiles(self.hold)
        per_s = {n: count / self.observed_s for n, count in zip(COUNTS, self.counts, strict=True)}
        return TrendBucket(
            **per_s,
            ready=ready,
            held=held,
            live_bytes=live_bytes,
            oldest_age_ms=age_ms or None,
            wait_p50_ms=wait_p50_ms,
            wait_p95_ms=wait_p95_ms,
            hold_p50_ms=hold_p50_ms,
            hold_p95_ms=hold_p95_ms,
        )


def _merge_histograms(counts: list[int] | None, packed: bytes | None) -> list[int] | None:
    if packed is None:
        return counts
    merged = [0] * histogram.BUCKETS if counts is None else counts
    histogram.add_packed(merged, packed)
    return merged


def _percentiles(counts: list[int] | None) -> tuple[int | None, int | None]:
    if counts is None:
        return None, None
    return histogram.percentile(counts, 0.5), histogram.percentile(counts, 0.95)


def first_bucket_s(period: TrendPeriod, now_s: int) -> int:
    """Return when a chart's first bucket starts, given that the last one contains ``now_s``."""
    return (now_s // period.step_s + 1) * period.step_s - period.length_s


def make_trend(
    points: Sequence[Point],
    beats: Sequence[UptimeSpan],
    period: TrendPeriod,
    now_s: int,
    *,
    with_times: bool = True,
) -> Trend:
    """Compute the trend over a period that ends now; points and beats are ordered by time.

    If the broker was running, a bucket without points counts as idle and empty.  However, it has
    no data if the queue may have been counted in the combined point for other queues.
    """
    sums = sum_buckets(points, beats, period, now_s, with_times=with_times)
    gauges = dict.fromkeys(GAUGES, 0)
    if points and (not beats or beats[-1].at_s <= points[-1].at_s or beats[-1].has_rest):
        gauges = dict(zip(GAUGES, points[-1].gauges, strict=True))
    newest = gauges | {"oldest_age_ms": gauges["oldest_age_ms"] or None}
    return Trend(
        period, first_bucket_s(period, now_s), [bucket.bucket() for bucket in sums], newest
    )


def sum_buckets(
    points: Iterable[Point],
    beats: Iterable[UptimeSpan],
    period: TrendPeriod,
    now_s: int,
    *,
    with_times: bool,
) -> list[BucketSums]:
    """Return the sums of all buckets; a point that overlaps two of them is divided between them."""
    start_s, count = first_bucket_s(period, now_s), period.length_s // period.step_s
    sums = [BucketSums() for _ in range(count)]
    for beat, at, seconds in split_over_buckets(beats, start_s, period.step_s, count):
        bucket = sums[at]
        bucket.observed_s = min(bucket.observed_s + seconds, period.step_s)
        bucket.has_rest |= beat.has_rest
    for point, at, seconds in split_over_buckets(points, start_s, period.step_s, count):
        sums[at].add(point, seconds / point.span_s, with_times=with_times)
    return sums


def split_over_buckets(
    parts: Iterable[Span], start_s: int, step_s: int, count: int
) -> Iterator[tuple[Span, int, int]]:
    """Yield each part with the index of a bucket that it overlaps, and the overlap in seconds."""
    for part in parts:
        at_s, end_s = part.at_s, part.at_s + part.span_s
        while at_s < end_s:
            bucket = (at_s - start_s) // step_s
            until_s = min(end_s, start_s + (bucket + 1) * step_s)
            if 0 <= bucket < count:
                yield part, bucket, until_s - at_s
            at_s = until_s


# -- sparklines


def make_spark(
    points: Iterable[Point], beats: Sequence[UptimeSpan], column: str, now_s: int, *, is_rate: bool
) -> list[float]:
    """Return a sparkline's samples since the last gap in the past hour, oldest first."""
    value_of = attrgetter(column)
    start_s = (now_s // SPARK_STEP_S + 1 - SPARK_SAMPLES) * SPARK_STEP_S
    observed = [0] * SPARK_SAMPLES
    for _, at, seconds in split_over_buckets(beats, start_s, SPARK_STEP_S, SPARK_SAMPLES):
        observed[at] += seconds
    values = [0.0] * SPARK_SAMPLES
    for point, at, seconds in split_over_buckets(points, start_s, SPARK_STEP_S, SPARK_SAMPLES):
        if is_rate:
            values[at] += value_of(point) * seconds / point.span_s
        else:
            values[at] = max(values[at], value_of(point))
    if not observed[-1]:  # omit the current sample if it has no data yet
        observed, values = observed[:-1], values[:-1]
    since = max((at + 1 for at, seconds in enumerate(observed) if not seconds), default=0)
    if is_rate:
        return [
            value / min(seconds, SPARK_STEP_S)
            for value, seconds in zip(values[since:], observed[since:], strict=True)
        ]
    return values[since:]


def polyline(
    values: Iterable[float], width: int = 120, height: int = 28, samples: int = SPARK_SAMPLES
) -> str:
    """Return the ``points`` of an SVG polyline that ends at the right edge; its scale starts at 0.

    ``samples`` values fill the width.  Returns "" for fewer than two values, or if all are 0.
    """
    numbers = list(values)
    if len(numbers) < 2 or not any(numbers):
        return ""
    top = max(numbers) * 1.1
    step = width / (samples - 1)
    left = width - step * (len(numbers) - 1)
    room = height - 3  # keep the line a pixel away from the edges
    return " ".join(
        f"{left + at * step:.1f},{height - 1.5 - value / top * room:.1f}"
        for at, value in enumerate(numbers)
    )


def read_spark(context: Context, queue_id: int) -> str:
    """Return the ``points`` of a sparkline of the messages published to a queue."""
    return _spark(context, queue_id, "published", 72, 20)


def read_sparks(context: Context, allowed: frozenset[int] | None) -> dict[str, str]:
    """Return the ``points`` of the overview's sparklines, keyed by the name of the live field.

    They include all queues, so a caller who is ``allowed`` to see only some queues gets none.
    """
    if allowed is not None:
        return {}
    return {
        "total.ready": _spark(context, ALL, "ready"),
        "total.dispatched": _spark(context, ALL, "held"),
        "total.dead": _spark(context, DEAD_LETTERS, "ready"),
        "total.age": _spark(context, ALL, "oldest_age_ms"),
        "total.in": _spark(context, ALL, "published"),
        "total.out": _spark(context, ALL, "acked"),
    }


def _spark(context: Context, queue_id: int, column: str, width: int = 120, height: int = 28) -> str:
    """Return the ``points`` of a sparkline, which are cached until the next sample."""
    rollups, now_s, key = context.rollups, context.now_ms() // 1_000, (queue_id, column)
    if key not in rollups.charts:
        points, beats, is_rate = rollups.points(queue_id), rollups.uptime(), column in COUNTS
        values = make_spark(points, beats, column, now_s, is_rate=is_rate)
        rollups.charts[key] = polyline(values, width, height)
    return rollups.charts[key]


# -- forecasts


def slope(points: Iterable[Point], beats: Iterable[UptimeSpan], now_s: int) -> float | None:
    """Return the growth per second of a queue's ready messages over the last 5 min.

    Uses least squares over all points and returns None if there are too few.
    """
    depth = {point.at_s: point.ready for point in points}
    samples = [
        (beat.at_s + beat.span_s, depth.get(beat.at_s, 0))
        for beat in beats
        if beat.at_s >= now_s - FORECAST_S
    ]
    if len(samples) < 3:
        return None
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    width = sum((x - mean_x) ** 2 for x, _ in samples)
    if not width:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / width


def growth(points: Iterable[Point], beats: Sequence[UptimeSpan], now_s: int) -> int:
    """Return by how much a queue's ready messages have grown in each third of the last 5 min.

    Returns 0 if they did not grow in one of them, or if the broker has not run for so long.
    """
    depth = {point.at_s: point.ready for point in points}
    ends_s = [now_s - FORECAST_S * thirds // 3 for thirds in (3, 2, 1, 0)]
    starts_s = [max((b.at_s for b in beats if b.at_s < end_s), default=None) for end_s in ends_s]
    depths = [depth.get(at_s, 0) for at_s in starts_s if at_s is not None]
    is_growing = len(depths) == len(ends_s) and all(map(lt, depths, depths[1:]))
    return depths[-1] - depths[0] if is_growing else 0


def forecast(queue: QueueStatus, per_s: float | None) -> str:
    """Return a forecast such as ``Empty in about 4 min`` or ``Grows by 12/s``, or ``""``.

    It follows from the rates that are shown beside it, if the last minutes (``per_s``) agree.
    """
    if not queue.ready:
        return ""
    note = "delivery paused" if queue.delivery_paused else "" if queue.consumers else "no consumers"
    rate, steady = queue.published_per_s - queue.acked_per_s, max(1.0, queue.ready / 1_000)
    signs = set() if per_s is None else {_sign(x * FORECAST_S, steady) for x in (rate, per_s)}
    text = "Steady" if signs == {0} else f"Grows by {_speed(rate)}" if signs == {1} else ""
    if signs == {-1} and not queue.delivery_paused:
        return f"Empty in about {_about(queue.ready / -rate)}"
    return f"{text}, {note}" if text and note else text or note.capitalize()


def _sign(value: float, steady: float) -> int:
    return 0 if abs(value) < steady else 1 if value > 0 else -1


def _speed(per_s: float) -> str:
    if per_s >= 1:
        return f"{formats.format_rate(per_s)}/s"
    per_minute = per_s * 60
    if per_minute >= 1:
        return f"{formats.format_rate(per_minute)}/min"
    return f"{formats.format_rate(max(per_minute * 60, 0.1))}/h"


def _about(seconds: float) -> str:
    if seconds < MINUTE_S:
        return f"{max(1, round(seconds / 5) * 5)} s"
    if seconds < 5_400:
        return f"{round(seconds / MINUTE_S)} min"
    if seconds < 172_800:
        return f"{round(seconds / HOUR_S)} h"
    return f"{round(seconds / DAY_S):,} d"


# -- points in memory and in the database

_MINUTES_S: Final = 90_000  # how long per-minute points are stored


async def read_trend(
    context: Context, queue_id: int, period: TrendPeriod, *, with_times: bool = False
) -> Trend:
    """Return the trend of a queue, ALL or DEAD_LETTERS over a period that ends now.

    ``with_times`` adds the percentiles of wait and hold times.
    """
    now_s = context.now_ms() // 1_000
    points, beats = context.rollups.points(queue_id), context.rollups.uptime()
    start_s = first_bucket_s(period, now_s)
    if start_s < now_s - HOUR_S - period.step_s:
        points, beats = await gather_points(context, queue_id, start_s)
    if not with_times:
        return make_trend(points, beats, period, now_s, with_times=False)
    return await asyncio.to_thread(make_trend, points, beats, period, now_s)


async def gather_points(
    context: Context, queue_id: int, start_s: int
) -> tuple[list[Point], list[UptimeSpan]]:
    """Return the points and uptime since ``start_s``, from the database and then from memory."""
    rollups = context.rollups
    points, beats = rollups.points(queue_id), rollups.uptime()
    joint_s = _joint(beats, rollups.minute_s)
    older, ran = await _older(context, queue_id, start_s, joint_s)
    return (
        [*older, *(point for point in points if point.at_s >= joint_s)],
        [*ran, *(beat for beat in beats if beat.at_s >= joint_s)],
    )


def _joint(beats: list[UptimeSpan], minute_s: int) -> int:
    """Return the time from which points in memory are used: the first minute boundary, if any.

    A minute is stored once it is complete; before any is complete, all points in memory are used.
    ``minute_s`` is the start of the current minute.
    """
    if not beats:
        return minute_s
    full_s = -(-beats[0].at_s // MINUTE_S) * MINUTE_S
    return full_s if full_s <= minute_s else beats[0].at_s


async def _older(
    context: Context, queue_id: int, start_s: int, until_s: int
) -> tuple[list[Point], list[UptimeSpan]]:
    """Read points and uptime from the database: per minute, or per quarter hour if older."""
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
        beats += await stored.uptime(QUARTER_S, start_s, minutes_s)
    points += await stored.of_queue(MINUTE_S, queue_id, minutes_s, until_s)
    beats += await stored.uptime(MINUTE_S, minutes_s, until_s)
    return points, beats
