"""How queues went, for pages and API: points of memory and database put together.

The last hour is in memory, and so are, after a start, its minutes from before; what is older is
read: minutes for a day, quarters of an hour for a month.
"""

import asyncio
from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.brush import Slice, slices
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.trends import Span, Trend, polyline, spark, start_of, trend
from phpmq_lite.storage.read.rollups import (
    ALL,
    MINUTE_S,
    QUARTER_S,
    RECORDS,
    Point,
    StoredRollups,
    UptimeSpan,
)

_MINUTES_S: Final = 90_000  # minutes are stored for so long


async def trend_of(
    context: Context, queue_id: int, span: Span, *, with_times: bool = False
) -> Trend:
    """Give how a queue went over a span that ends now; ALL and RECORDS stand for several.

    ``with_times``: percentiles of wait and hold too.
    """
    now_s = context.now_ms() // 1_000
    points, beats = context.rollups.points(queue_id), context.rollups.beats()
    start_s = start_of(span, now_s)
    if start_s < now_s - 3_600 - span.step_s:
        points, beats = await _gathered(context, queue_id, start_s)
    if not with_times:
        return trend(points, beats, span, now_s, with_times=False)
    return await asyncio.to_thread(trend, points, beats, span, now_s)


async def slices_of(context: Context, queue_id: int, span: Span) -> list[Slice]:
    """Say what settled in each slice of a span that ends now; ALL stands for all queues."""
    now_s = context.now_ms() // 1_000
    points, beats = await _gathered(context, queue_id, start_of(span, now_s))
    return await asyncio.to_thread(slices, points, beats, span, now_s)


async def _gathered(
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


def spark_of(context: Context, queue_id: int) -> str:
    """Give the points of the small chart of a queue: what was published."""
    return _spark(context, queue_id, "published", 72, 20)


def sparks(request: web.Request) -> dict[str, str]:
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
        values = spark(
            rollups.points(queue_id), rollups.beats(), column, context.now_ms() // 1_000,
            is_rate=column in ("published", "acked"),
        )  # fmt: skip
        kept[key] = polyline(values, width, height)
    return kept[key]
