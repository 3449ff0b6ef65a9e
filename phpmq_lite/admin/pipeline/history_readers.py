"""The readers of the history: how far each has read, and when retention will overtake it."""

from dataclasses import asdict, dataclass
from typing import Final

from pydantic import Field

from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.output import ResponseModel
from phpmq_lite.durations import DAY_S, HOUR_S
from phpmq_lite.storage.disk_space import measure_database
from phpmq_lite.storage.read.consumers import StoredPipeline

BURST_MS: Final = HOUR_S * 1_000  # rates are averaged over at least this time, to smooth out bursts


@dataclass(slots=True, frozen=True)
class HistoryExtent:
    """The stored history and its retention limits; times are in milliseconds."""

    lo: int  # oldest offset that still exists
    hi: int  # newest offset
    rows: int
    bytes: int
    oldest_at: int | None  # when the oldest row was settled
    age_ms: int  # retention time, after which rows are removed
    rows_max: int
    bytes_max: int
    lo_deleted: int = 0  # deleted messages with at least this offset still have rows


@dataclass(slots=True, frozen=True)
class ReaderLag:
    """A reader's lag; ``reached_at`` is when the reader's next row is expected to be removed."""

    behind: int  # number of unread offsets
    is_reached: bool  # whether rows were removed before the reader read them
    reached_at: int | None  # Unix ms
    bound: str | None  # retention limit that will remove the row: days, rows or bytes


def measure_lag(
    extent: HistoryExtent, position: int, next_settled_at: int | None, now_ms: int
) -> ReaderLag:
    """Return the lag of a reader that has read all rows up to ``position``.

    ``next_settled_at`` is when the first unread row was settled, or None if there is none.
    The growth of the history is forecast from the mean rate and size of existing rows.
    """
    behind = max(extent.hi - position, 0)
    if not behind or next_settled_at is None:
        return ReaderLag(behind, is_reached=bool(behind), reached_at=None, bound=None)
    if position + 1 < max(extent.lo, extent.lo_deleted):
        return ReaderLag(behind, is_reached=True, reached_at=None, bound=None)
    limits = [(next_settled_at + extent.age_ms, "days")]
    if extent.rows and extent.oldest_at is not None:
        per_ms = extent.rows / max(now_ms - extent.oldest_at, BURST_MS)
        ahead = position + 1 - extent.lo  # number of rows older than the reader's next row
        remaining = max(extent.rows_max - extent.rows, 0) + ahead
        limits.append((now_ms + round(remaining / per_ms), "rows"))
        if size := extent.bytes / extent.rows:
            remaining = max(round((extent.bytes_max - extent.bytes) / size), 0) + ahead
            limits.append((now_ms + round(remaining / per_ms), "bytes"))
    at, bound = min(limits)
    return ReaderLag(behind, is_reached=False, reached_at=max(at, now_ms), bound=bound)


class ReaderView(ResponseModel):
    """A history reader; at ``reached_at``, the limit ``bound`` is likely to remove its next row."""

    reader: str = Field(validation_alias="name")
    offset: int
    behind: int
    seen_at: int = Field(validation_alias="at_ms")
    is_reached: bool  # whether rows were removed before they were read
    reached_at: int | None
    bound: str | None
    owner: str | None  # user or token NAME; None means the next user who reports


async def read_readers(context: Context) -> list[ReaderView]:
    """Return the readers that have reported a position, sorted by lag, largest first."""
    rows = await StoredPipeline(context.readers).readers()
    if not rows:
        return []
    extent, now_ms = await _history_extent(context), context.now_ms()
    views = []
    for row in sorted(rows, key=lambda row: (row.offset, row.name)):
        unread = (await context.reader.history(after=row.offset, limit=1)).rows
        lag = measure_lag(extent, row.offset, unread[0].settled_at if unread else None, now_ms)
        views.append(ReaderView.of(row, **asdict(lag)))
    return views


async def _history_extent(context: Context) -> HistoryExtent:
    bounds = await StoredPipeline(context.readers).history_bounds()
    database, limits = await measure_database(context.readers), context.settings.history
    return HistoryExtent(
        lo=bounds.lo + 1,
        hi=bounds.hi,
        lo_deleted=bounds.lo_deleted + 1,
        rows=database.history_rows,
        bytes=database.history_bytes,
        oldest_at=database.history_oldest_at,
        age_ms=round(limits.days * DAY_S * 1_000),
        rows_max=limits.rows,
        bytes_max=int(limits.bytes),
    )
