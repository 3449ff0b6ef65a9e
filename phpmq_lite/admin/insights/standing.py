"""Who reads the history or holds claims now: read from the broker, put into rows of lists."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin.access.identity import may_use
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.insights.lagging import Kept, lagging
from phpmq_lite.storage.read.consumers import PipelineReaders
from phpmq_lite.storage.read.measures import measure_database

_DAY_MS: Final = 86_400_000


class ClaimsOut(BaseModel):
    """A subscription and the claims that it has open."""

    subscription: str
    queue: str | None
    claims: int
    bytes: int
    oldest_at: int | None  # Unix ms
    acked: int
    hi: int
    created_at: int


class ReaderOut(BaseModel):
    """A reader of the history; ``reached_at`` is a forecast, ``bound`` what takes its rows."""

    reader: str
    offset: int
    behind: int
    seen_at: int  # Unix ms
    is_reached: bool  # rows that it has not read have gone
    reached_at: int | None
    bound: str | None


class Bounds(BaseModel):
    """What of the history is there: every offset above ``lo`` up to ``hi``, but deleted ones.

    Above ``lo_deleted`` those of deleted messages are there too.
    """

    history_id: str
    lo: int
    hi: int
    lo_deleted: int


async def bounds_of(context: Context) -> Bounds:
    """Give how far the history goes now."""
    history_id, lo, hi, lo_deleted = (await context.readers.read("ranges", "bounds"))[0]
    return Bounds(history_id=history_id, lo=lo, hi=hi, lo_deleted=lo_deleted)


async def claims_of(request: web.Request) -> list[ClaimsOut]:
    """Give the subscriptions whose queue somebody may see, the longest holder first."""
    rows = await PipelineReaders(context_of(request).readers).subscriptions()
    made = [
        ClaimsOut(
            subscription=row.name, queue=row.queue, claims=row.count, bytes=row.bytes,
            oldest_at=row.oldest_at_ms, acked=row.acked_upto, hi=row.hi, created_at=row.created_at,
        )
        for row in rows
        if may_use(request, row.queue or "")
    ]  # fmt: skip
    made.sort(key=lambda row: (row.oldest_at or 1 << 62, row.subscription))
    return made


async def readers_of(context: Context) -> list[ReaderOut]:
    """Give who said how far they read the history, the one furthest behind first."""
    rows = await PipelineReaders(context.readers).readers()
    if not rows:
        return []
    kept, now_ms = await _kept(context), context.now_ms()
    made = []
    for row in sorted(rows, key=lambda row: (row.offset, row.name)):
        following = (await context.reader.history(after=row.offset, limit=1)).rows
        stands = lagging(kept, row.offset, following[0].settled_at if following else None, now_ms)
        made.append(
            ReaderOut(
                reader=row.name, offset=row.offset, behind=stands.behind, seen_at=row.at_ms,
                is_reached=stands.is_reached, reached_at=stands.reached_at, bound=stands.bound,
            )
        )  # fmt: skip
    return made


async def _kept(context: Context) -> Kept:
    bounds, found, keep = (
        await bounds_of(context), await measure_database(context.readers), context.settings.history,
    )  # fmt: skip
    return Kept(
        lo=bounds.lo + 1, hi=bounds.hi, lo_deleted=bounds.lo_deleted + 1,
        rows=found.history_rows, bytes=found.history_bytes, oldest_at=found.history_oldest_at,
        age_ms=round(keep.days * _DAY_MS), rows_max=keep.rows, bytes_max=int(keep.bytes),
    )  # fmt: skip
