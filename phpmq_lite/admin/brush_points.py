"""Where the chart of the history gets its numbers: points of memory and database together.

As ``histories.py``: the last hour is in memory, what is older is read; minutes for a day,
quarters of an hour for a month.
"""

import asyncio

from phpmq_lite.admin.brush import Slice, slices
from phpmq_lite.admin.context import Context
from phpmq_lite.admin.trends import Span, start_of
from phpmq_lite.storage.rollups import MINUTE_S, QUARTER_S, Beat, Point, StoredRollups

_MINUTES_S = 90_000  # minutes are stored for so long


async def slices_of(context: Context, queue_id: int, span: Span) -> list[Slice]:
    """Say what settled in each slice of a span that ends now; ALL stands for all queues."""
    now_s, rollups = context.now_ms() // 1_000, context.rollups
    points, beats = rollups.points(queue_id), rollups.beats()
    since_s = rollups.minute_s  # the memory counts from then on
    if beats:
        full_s = -(-beats[0].at_s // MINUTE_S) * MINUTE_S
        since_s = full_s if full_s <= since_s else beats[0].at_s
    start_s = start_of(span, now_s)
    older, ran = await _older(context, queue_id, start_s, since_s)
    points = older + [point for point in points if point.at_s >= since_s]
    beats = ran + [beat for beat in beats if beat.at_s >= since_s]
    return await asyncio.to_thread(slices, points, beats, span, now_s)


async def _older(
    context: Context, queue_id: int, start_s: int, until_s: int
) -> tuple[list[Point], list[Beat]]:
    """Read quarters up to where the minutes begin, and minutes up to where the memory does."""
    points: list[Point] = []
    beats: list[Beat] = []
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
