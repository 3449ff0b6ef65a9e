"""The state of the broker: the overview page, and its current and historical statistics."""

from dataclasses import replace
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import charts, trends
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import LimitParameter, QueryModel
from phpmq_lite.admin.http.input import read_query
from phpmq_lite.admin.http.live_feeds import LiveValues
from phpmq_lite.admin.http.output import PerSecond, ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.queues.list import (
    QueueQuery,
    QueueSort,
    list_queues,
    make_queue_page,
    read_live_list,
    table_values,
)
from phpmq_lite.admin.queues.view import overview_tiles, read_oldest_ready_at, sum_totals
from phpmq_lite.admin.system.attention import read_notices
from phpmq_lite.admin.system.system import read_restart_report
from phpmq_lite.admin.trends import PERIODS
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.disk_space import measure_disk
from phpmq_lite.storage.read.activity import ALL, COUNTS, DEAD_LETTERS

OVERVIEW_QUEUES: Final = 10
NOTICES_SHOWN: Final = 8
endpoints: Final = Endpoints()


class OverviewPageQuery(QueueQuery):
    """Options for the overview page, which by default lists the fullest queues."""

    sort: QueueSort = "-ready"
    limit: LimitParameter = OVERVIEW_QUEUES
    span: Literal["1h", "24h", "7d", "30d"] = "1h"


@endpoints.page("/", "overview", data=list_queues)
async def show_overview(call: Call, query: OverviewPageQuery) -> web.Response:
    """Show the broker's state at a glance, what needs attention, and the fullest queues."""
    oldest_ready_at = await read_oldest_ready_at(call, call.queues)
    listed = make_queue_page(call.queues, oldest_ready_at, query)
    notices = await read_notices(call, oldest_ready_at)
    drawn = await _charts(call, query.span)
    report = await read_restart_report(call)
    await call.context.broker.pause()
    return await call.render(
        "overview.html",
        query=query,
        tiles=overview_tiles(call.status, oldest_ready_at, call.now_ms),
        sparks=trends.read_sparks(call.context, call.allowed),
        notices=notices[:NOTICES_SHOWN],
        more_notices=notices[NOTICES_SHOWN:],
        restart=report,
        **table_values(call, listed),
        **drawn,
    )


async def _charts(call: Call, key: str) -> dict[str, Any]:
    """Return charts covering all queues, or none if the caller cannot access every queue."""
    context, period = call.context, PERIODS[key]
    if call.allowed is not None or not call.queues:
        return {"charts": (), "table": None, "span": period}
    trend = await trends.read_trend(context, ALL, period)
    records = await trends.read_trend(context, DEAD_LETTERS, period)
    return {
        "charts": [charts.draw_trend(kind, trend, records) for kind in ("depth", "rates")],
        "table": charts.trend_table(("depth", "rates"), trend, records),
        "span": period,
    }


async def live_overview(call: Call, _argument: str, ids: tuple[int, ...]) -> LiveValues:
    """Return live values for the overview; ``ids`` are the ids of the queues shown."""
    query = read_query(call.request, OverviewPageQuery)
    tiles, listed = await read_live_list(call, ids, query)
    points = trends.read_sparks(call.context, call.allowed) | listed.points
    return replace(listed, shown=tiles | listed.shown, points=points)


# -- statistics


class StoreView(ResponseModel):
    """Where the broker stores messages."""

    engine: str = Field(description="SQLite or PostgreSQL")
    place: str = Field(description="data folder, or hosts and database")
    epoch: int = Field(description="number of takeovers so far; 0 on SQLite")
    replicas_required: int = Field(description="number of replicas that must confirm a commit")
    replicas_ready: int | None = Field(description="how many can; null if unknown, or on SQLite")


class StatsView(ResponseModel):
    """The current state of the broker."""

    version: str = Field(description="broker version")
    started_at: int = Field(description="when the broker started, Unix ms")
    is_ready: bool = Field(description="whether the broker accepts messages")
    is_draining: bool = Field(description="whether the broker is stopping")
    step: str = Field(description="step: starting, migrating, recovering, …, ready or draining")
    publishing_stopped: str | None = Field(description="why publishing is stopped; null if not")
    storing_stopped: str | None = Field(description="reason nothing can be stored; null if none")
    oldest_batch_s: float = Field(description="age of the oldest batch without an answer, in s")
    queues: int = Field(description="number of queues")
    ready: int = Field(description="number of ready messages, excluding dead-letter records")
    scheduled: int = Field(description="number of messages that become ready later")
    dispatched: int = Field(description="number of messages held by consumers")
    dead: int = Field(description="number of records in all dead-letter queues")
    published_per_s: PerSecond = Field(description="messages published per second")
    acked_per_s: PerSecond = Field(description="messages acknowledged per second")
    consumers: int = Field(description="number of consumers, counted once per queue")
    clients: int = Field(description="number of open connections")
    store: StoreView = Field(description="where messages are stored")
    disk_free_bytes: int = Field(description="free space on the data folder's disk, in bytes")
    disk_bytes: int = Field(description="size of the data folder's disk, in bytes")
    database_bytes: int | None = Field(description="size of the database; null if not read yet")
    wal_bytes: int | None = Field(
        description="size of the write-ahead log, in bytes; null on PostgreSQL"
    )


class StatsHistoryQuery(QueryModel):
    """The queue and the period for which to return statistics."""

    queue: str = Field("", max_length=LONGEST_NAME, description="queue, or empty for all queues")
    span: Literal["1h", "24h", "7d", "30d"] = Field("1h", description="period: 1h, 24h, 7d or 30d")


class PointView(ResponseModel):
    """One time step in the history; values that were not measured are null."""

    at: int = Field(description="start of the step, Unix ms")
    published_per_s: float = Field(description="messages published per second")
    dispatched_per_s: float = Field(description="messages dispatched per second")
    redelivered_per_s: float = Field(description="redeliveries per second")
    acked_per_s: float = Field(description="messages acknowledged per second")
    requeued_per_s: float = Field(description="messages requeued per second")
    expired_per_s: float = Field(description="messages expired per second")
    dead_per_s: float = Field(description="messages dead-lettered per second")
    deleted_per_s: float = Field(description="messages deleted per second")
    ready: int = Field(description="maximum number of ready messages")
    dispatched: int = Field(description="maximum number of dispatched messages")
    bytes: int = Field(description="maximum total size of live message bodies, in bytes")
    oldest_age_ms: int | None = Field(
        description="maximum age of the first ready message; null if none"
    )
    wait_p50_ms: int | None = Field(description="median publish-to-dispatch time; null if none")
    wait_p95_ms: int | None = Field(description="p95 publish-to-dispatch time; null if none")
    hold_p50_ms: int | None = Field(description="median dispatch-to-settling time; null if none")
    hold_p95_ms: int | None = Field(description="p95 dispatch-to-settling time; null if none")


class StatsHistoryView(BaseModel):
    """Statistics for one or all queues; steps during which the broker was down are omitted."""

    queue: str | None = Field(description="queue name; null for all queues")
    span: str = Field(description="period: 1h, 24h, 7d or 30d")
    step_s: int = Field(description="length of a step in seconds")
    start_at: int = Field(description="start of the first step, Unix ms")
    end_at: int = Field(description="end of the last step, Unix ms; may be in the future")
    points: list[PointView] = Field(description="steps with data, oldest first")


@endpoints.api("GET /stats", "api-stats", cli="status")
async def get_stats(call: Call) -> StatsView:
    """Return the broker's current statistics."""
    context, status = call.context, call.status
    sums = sum_totals(status)
    disk, store = await measure_disk(context.database), status.store
    size = disk.files["database"] if store.has_file else None
    if store.server is not None:
        size = store.server.database_bytes
    return StatsView.of(
        status,
        version=context.version,
        is_ready=context.is_ready(),
        publishing_stopped=None if status.shortage is None else status.shortage.detail,
        storing_stopped=status.write_problem,
        queues=len(status.queues),
        ready=int(sums["ready"]),
        scheduled=int(sums["scheduled"]),
        dispatched=int(sums["dispatched"]),
        dead=int(sums["dead"]),
        published_per_s=sums["published"],
        acked_per_s=sums["acked"],
        consumers=sum(queue.consumers for queue in status.queues),
        clients=len(status.clients),
        disk_free_bytes=disk.free,
        disk_bytes=disk.total,
        database_bytes=size,
        wal_bytes=disk.files["wal"] if store.has_file else None,
        store=StoreView.of(store),
    )


@endpoints.api("GET /stats/history", "api-stats-history")
async def get_stats_history(call: Call, query: StatsHistoryQuery) -> StatsHistoryView:
    """Return statistics for one or all queues over the last hour, day, week or month."""
    if not query.queue and call.allowed is not None:
        detail = "Only users with access to all queues can see the totals."
        raise Problem(403, "foreign_queue", detail, field="queue")
    queue_id = call.queue(query.queue).queue_id if query.queue else ALL
    period = PERIODS[query.span]
    trend = await trends.read_trend(call.context, queue_id, period, with_times=True)
    points = [
        PointView.of(
            bucket,
            at=(trend.start_s + at * period.step_s) * 1_000,
            dispatched=bucket.held,
            bytes=bucket.live_bytes,
            **{f"{name}_per_s": round(getattr(bucket, name), 4) for name in COUNTS},
        )
        for at, bucket in enumerate(trend.buckets)
        if bucket is not None
    ]
    return StatsHistoryView(
        queue=query.queue or None,
        span=period.key,
        step_s=period.step_s,
        start_at=trend.start_s * 1_000,
        end_at=trend.end_s * 1_000,
        points=points,
    )
