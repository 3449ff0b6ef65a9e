"""The readers of the history: how far each has read, and when retention will overtake it."""

from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.checks import CHECKS, Check, Level
from phpmq_lite.durations import DAY_S, HOUR_S
from phpmq_lite.storage.disk_space import measure_database
from phpmq_lite.storage.read.consumers import HistoryReaderRow, StoredPipeline, UnreadRows

BURST_MS: Final = HOUR_S * 1_000  # rates are averaged over at least this time, to smooth out bursts
UNREAD_ROWS: Final = 20_000  # rows that a request reads to sum up their sizes, for all readers
endpoints: Final = Endpoints()


@dataclass(slots=True, frozen=True)
class RowLimits:
    """Rows of deleted messages, or all other rows, which retention removes separately."""

    lo: int  # oldest offset from which all of them still exist
    rows: int
    bytes: int
    rows_max: int
    bytes_max: int


@dataclass(slots=True, frozen=True)
class HistoryExtent:
    """The stored history and its retention limits; times are in milliseconds."""

    hi: int  # newest offset
    per_ms: float  # offsets that are settled per millisecond, for the forecast
    age_ms: int  # retention time, after which rows are removed
    others: RowLimits
    deleted: RowLimits


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

    ``next_settled_at`` is when the first unread row was settled, or None if there is none. The
    growth of the history is forecast from ``per_ms`` and the mean size of the stored rows.
    """
    behind = max(extent.hi - position, 0)
    if not behind or next_settled_at is None:
        return ReaderLag(behind, is_reached=bool(behind), reached_at=None, bound=None)
    kinds = (extent.others, extent.deleted)
    if position + 1 < max(kind.lo for kind in kinds):
        return ReaderLag(behind, is_reached=True, reached_at=None, bound=None)
    limits = [(next_settled_at + extent.age_ms, "days")]
    for kind in kinds:
        if kind.rows and extent.per_ms:
            share = kind.rows / (extent.hi - kind.lo + 1)  # of the offsets
            ahead = (position + 1 - kind.lo) * share  # number of rows before the reader's next row
            spare_rows = max(kind.rows_max - kind.rows, 0)
            remaining = [(spare_rows + ahead, "rows")]
            if size := kind.bytes / kind.rows:
                remaining.append((max(kind.bytes_max - kind.bytes, 0) / size + ahead, "bytes"))
            limits += [(now_ms + round(n / share / extent.per_ms), name) for n, name in remaining]
    at, bound = min(limits)
    return ReaderLag(behind, is_reached=False, reached_at=max(at, now_ms), bound=bound)


class ReaderView(ResponseModel):
    """A history reader, how far it is behind, and when retention will remove unread rows."""

    reader: str = Field(validation_alias="name", description="reader name")
    offset: int = Field(description="last offset that it has processed")
    behind: int = Field(description="number of offsets that it has not processed")
    behind_bytes: int = Field(
        0,
        description="size of their bodies; an estimate if readers have more than 20,000 rows",
    )
    lag_s: float | None = Field(
        None, description="age of the oldest unread row in seconds; null if there is none"
    )
    seen_at: int = Field(validation_alias="at_ms", description="when it last reported, Unix ms")
    is_stopped: bool = Field(
        False, description="whether it has unread rows and has not reported for 26 h"
    )
    is_reached: bool = Field(description="whether rows were removed before it read them")
    reached_at: int | None = Field(
        description="when retention is expected to remove its next row, Unix ms; null if unknown"
    )
    reached_in_s: float | None = Field(
        None, description="seconds until then; 0 if is_reached; null if there are no unread rows"
    )
    bound: str | None = Field(
        description="retention limit that will remove it: days, rows or bytes; null if unknown"
    )
    owner: str | None = Field(description="user or token NAME; null: the next user who reports")

    @classmethod
    def measure(
        cls, row: HistoryReaderRow, extent: HistoryExtent, unread: UnreadRows, now_ms: int
    ) -> Self:
        """Return the view of a reader, of whose ``unread`` rows only the first may be counted."""
        lag = measure_lag(extent, row.offset, unread.settled_at, now_ms)
        stored = min(lag.behind, extent.hi - extent.others.lo + 1)
        behind_bytes = unread.bytes
        if unread.is_cut and unread.rows:
            behind_bytes = round(unread.bytes / unread.rows * stored)
        silent_s = (now_ms - row.at_ms) / 1_000
        lag_s = reached_in_s = None
        if lag.behind:
            first_at = row.at_ms if unread.settled_at is None else unread.settled_at
            lag_s = max(now_ms - first_at, 0) / 1_000
            reached_in_s = (0 if lag.reached_at is None else lag.reached_at - now_ms) / 1_000
        return cls.of(
            row,
            behind=lag.behind,
            behind_bytes=behind_bytes,
            lag_s=lag_s,
            is_stopped=bool(lag.behind) and is_silent(silent_s),
            is_reached=lag.is_reached,
            reached_at=lag.reached_at,
            reached_in_s=reached_in_s,
            bound=lag.bound,
        )

    @property
    def share_left(self) -> float:
        """The part of the time between settling and removal that the reader's next row has left."""
        if self.lag_s is None or self.reached_in_s is None:
            return 1.0
        return self.reached_in_s / (self.reached_in_s + self.lag_s) if self.reached_in_s else 0.0


def is_silent(silent_s: float) -> bool:
    """Return whether a reader has stopped that last reported ``silent_s`` seconds ago."""
    return CHECKS[Check.READER_STOPPED].notice.level(silent_s) is not Level.OK


@endpoints.api("GET /pipeline/history/readers", "api-pipeline-readers", cli="pipeline status")
async def list_readers(call: Call) -> ListPage[ReaderView]:
    """List the readers of the history, those that are furthest behind first."""
    return ListPage[ReaderView](items=await read_readers(call.context))


async def read_readers(context: Context) -> list[ReaderView]:
    """Return the readers that have reported a position, sorted by lag, largest first."""
    stored = StoredPipeline(context.readers)
    rows = await stored.readers()
    if not rows:
        return []
    now_ms, views = context.now_ms(), []
    extent = await _history_extent(context, now_ms)
    for row in sorted(rows, key=lambda row: (row.offset, row.name)):
        unread = await stored.unread(row.offset, max(UNREAD_ROWS // len(rows), 1))
        views.append(ReaderView.measure(row, extent, unread, now_ms))
    return views


async def _history_extent(context: Context, now_ms: int) -> HistoryExtent:
    """Measure the history; its rate is that of the last hour, or its mean rate if higher."""
    stored = StoredPipeline(context.readers)
    bounds = await stored.history_bounds()
    recent = bounds.hi - await stored.offset_at(bounds, now_ms - BURST_MS)
    size, settings = await measure_database(context.readers), context.settings.history
    span_ms = max(now_ms - (size.history_oldest_at or now_ms), BURST_MS)
    # As in storage/retention.py.
    rows_max, bytes_max = (
        int(limit * settings.deleted_share) for limit in (settings.rows, settings.bytes)
    )
    deleted = RowLimits(
        bounds.lo_deleted + 1, size.deleted_rows, size.deleted_bytes, rows_max, bytes_max
    )
    return HistoryExtent(
        hi=bounds.hi,
        per_ms=max(recent / BURST_MS, (bounds.hi - bounds.lo) / span_ms),
        age_ms=round(settings.days * DAY_S * 1_000),
        others=RowLimits(
            bounds.lo + 1,
            size.history_rows - deleted.rows,
            size.history_bytes - deleted.bytes,
            settings.rows - rows_max,
            settings.bytes - bytes_max,
        ),
        deleted=deleted,
    )
