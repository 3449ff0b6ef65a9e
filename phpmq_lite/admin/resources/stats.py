"""Figures of the broker, now and over time."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.auth.permissions import allowed_queues, find_queue
from phpmq_lite.admin.base.context import context_of, status_of
from phpmq_lite.admin.base.input import read_query
from phpmq_lite.admin.base.problems import Problem, not_found
from phpmq_lite.admin.base.responses import json_response
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.views import queue_list, trends
from phpmq_lite.admin.views.trends import SPANS, TrendBucket
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.measures import measure_disk
from phpmq_lite.storage.read.rollups import ALL


class StatsView(BaseModel):
    """The broker now; times are Unix ms."""

    version: str
    started_at: int
    is_ready: bool
    is_draining: bool
    step: str
    publishing_stopped: str | None  # why no message is taken, for want of room
    storing_stopped: str | None  # why nothing at all can be stored now
    queues: int
    ready: int  # without dead-letter records
    dispatched: int
    dead: int  # records in dead-letter queues
    published_per_s: float
    acked_per_s: float
    consumers: int
    clients: int
    disk_free_bytes: int
    disk_bytes: int
    database_bytes: int
    wal_bytes: int


class StatsHistoryQuery(BaseModel):
    """Which queue, and how much of the past."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    queue: str = Field("", max_length=LONGEST_NAME)  # empty: all queues together
    span: Literal["1h", "24h", "7d", "30d"] = "1h"


class PointView(BaseModel):
    """One step; null where nothing was measured.  Depths and the age are the highest within."""

    at: int  # Unix ms, its beginning
    published_per_s: float
    dispatched_per_s: float
    redelivered_per_s: float
    acked_per_s: float
    requeued_per_s: float
    expired_per_s: float
    dead_per_s: float
    deleted_per_s: float
    ready: int
    dispatched: int
    bytes: int
    oldest_age_ms: int | None
    wait_p50_ms: int | None  # publish to first dispatch
    wait_p95_ms: int | None
    hold_p50_ms: int | None  # dispatch to settlement
    hold_p95_ms: int | None


class StatsHistoryView(BaseModel):
    """How a queue, or all together, went; steps in which the broker did not run are left out."""

    queue: str | None
    span: str
    step_s: int
    start_at: int  # Unix ms
    end_at: int
    points: list[PointView]


async def get_stats(request: web.Request) -> web.StreamResponse:
    """Give the broker's figures of this moment."""
    context, status = context_of(request), status_of(request)
    sums = queue_list.sum_totals(status)
    disk = await measure_disk(context.readers.path)
    return json_response(
        StatsView(
            version=context.version,
            started_at=status.started_at,
            is_ready=context.is_ready(),
            is_draining=status.is_draining,
            step=status.step,
            publishing_stopped=None if status.shortage is None else status.shortage.detail,
            storing_stopped=status.trouble,
            queues=len(status.queues),
            ready=int(sums["ready"]),
            dispatched=int(sums["dispatched"]),
            dead=int(sums["dead"]),
            published_per_s=round(sums["published"], 3),
            acked_per_s=round(sums["acked"], 3),
            consumers=sum(queue.consumers for queue in status.queues),
            clients=len(status.clients),
            disk_free_bytes=disk.free,
            disk_bytes=disk.total,
            database_bytes=disk.files["database"],
            wal_bytes=disk.files["wal"],
        )
    )


async def get_stats_history(request: web.Request) -> web.StreamResponse:
    """Give how a queue, or all queues together, went over the last hour, day, week or month."""
    query = read_query(request, StatsHistoryQuery)
    queue_id, span = _queue_id(request, query.queue), SPANS[query.span]
    trend = await trends.read_trend(context_of(request), queue_id, span, with_times=True)
    points = [
        _point(bucket, (trend.start_s + at * span.step_s) * 1_000)
        for at, bucket in enumerate(trend.buckets)
        if bucket is not None
    ]
    return json_response(
        StatsHistoryView(
            queue=query.queue or None,
            span=span.key,
            step_s=span.step_s,
            start_at=trend.start_s * 1_000,
            end_at=trend.end_s * 1_000,
            points=points,
        )
    )


def _queue_id(request: web.Request, name: str) -> int:
    """Give the number of the queue that is asked for.

    Raises:
        Problem: 404 where there is none, 403 for all queues where not all may be seen.
    """
    if not name:
        if allowed_queues(request) is not None:
            raise Problem(
                403, "foreign_queue", "All queues together are shown to whom may see all of them.",
                field="queue",
            )  # fmt: skip
        return ALL
    found = find_queue(request, name)
    if found is None:
        raise not_found("queue", name)
    return found.queue_id


def _point(bucket: TrendBucket, at_ms: int) -> PointView:
    rates: dict[str, Any] = {
        f"{name}_per_s": round(getattr(bucket, name), 4)
        for name in ("published", "dispatched", "redelivered", "acked", "requeued", "expired",
                     "dead", "deleted")
    }  # fmt: skip
    return PointView(
        at=at_ms,
        ready=bucket.ready,
        dispatched=bucket.held,
        bytes=bucket.live_bytes,
        oldest_age_ms=bucket.oldest_age_ms,
        wait_p50_ms=bucket.wait_p50_ms,
        wait_p95_ms=bucket.wait_p95_ms,
        hold_p50_ms=bucket.hold_p50_ms,
        hold_p95_ms=bucket.hold_p95_ms,
        **rates,
    )


ROUTES: Final = (
    Route("GET", "/api/v1/stats", Role.VIEWER, "api-stats", get_stats, gives=StatsView, cli="top"),
    Route(
        "GET", "/api/v1/stats/history", Role.VIEWER, "api-stats-history", get_stats_history,
        query=StatsHistoryQuery, gives=StatsHistoryView,
    ),
)  # fmt: skip
