"""The overview: the broker at a glance, and what needs attention."""

from typing import Any, Final, Literal

from aiohttp import web

from phpmq_lite.admin import attention, charts, histories, views
from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.lists import page_of_queues
from phpmq_lite.admin.pages.queues import figures_of, live_rows, queues_as, snippets_of, trends_of
from phpmq_lite.admin.pages.system import restart_report
from phpmq_lite.admin.paging import oldest
from phpmq_lite.admin.render import page
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import QueueQuery
from phpmq_lite.admin.trends import SPANS
from phpmq_lite.server.status import BrokerStatus
from phpmq_lite.storage.read.activity import RecentSigns
from phpmq_lite.storage.read.measures import measure_disk
from phpmq_lite.storage.read.rollups import ALL, RECORDS

OVERVIEW_QUEUES: Final = 10
NOTICES_SHOWN: Final = 8


class OverviewQuery(QueueQuery):
    """What the overview shows."""

    span: Literal["1h", "24h", "7d", "30d"] = "1h"


async def overview(request: web.Request) -> web.StreamResponse:
    """The broker at a glance, with what needs attention and its fullest queues."""
    context, query = context_of(request), _query(request)
    status, now_ms = status_of(request), context.now_ms()
    ages = await oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    if query.format != "html":
        return queues_as(query, listed, now_ms)
    found = await _notices(context, status, ages)
    drawn = await _charts(request, query.span)
    report = await restart_report(request)
    await context.engine.pause()
    return await page(
        request,
        "overview.html",
        query=query,
        listed=listed,
        figures=figures_of(listed.queues, now_ms),
        trends=trends_of(context, listed.queues),
        tiles=views.tiles(status, ages, now_ms),
        sparks=histories.sparks(request),
        notices=found[:NOTICES_SHOWN],
        more_notices=found[NOTICES_SHOWN:],
        restart=report,
        snippets=snippets_of(request, status),
        **drawn,
    )


def _query(request: web.Request) -> OverviewQuery:
    given = {key: value for key, value in request.query.items() if value}
    return OverviewQuery.model_validate({"sort": "-ready", "limit": OVERVIEW_QUEUES} | given)


async def _charts(request: web.Request, key: str) -> dict[str, Any]:
    """Make the charts of all queues; for whom may see all of them."""
    context, span = context_of(request), SPANS[key]
    if allowed_queues(request) is not None or not status_of(request).queues:
        return {"charts": (), "table": None, "span": span}
    trend = await histories.trend_of(context, ALL, span)
    records = await histories.trend_of(context, RECORDS, span)
    return {
        "charts": (charts.depth(trend, records), charts.rates(trend)),
        "table": charts.table(trend, records=records),
        "span": span,
    }


async def _notices(
    context: Context, status: BrokerStatus, ages: dict[int, int]
) -> list[attention.Notice]:
    """Read what may need attention, and judge."""
    now_ms, signs = context.now_ms(), RecentSigns(context.readers)
    since_ms = now_ms - attention.LATELY_MS
    disk = await measure_disk(context.readers.path)
    return attention.notices(
        status,
        attention.Seen(
            now_ms,
            ages=ages,
            expiring=await context.reader.expiring(now_ms + attention.EXPIRY_NOTICE_MS),
            deaths=await signs.deaths(since_ms),
            unread=await signs.unread(since_ms),
            held=await signs.held() if status.held else (),
            refused=context.rollups.refused_lately(status.refused or {}),
            disk_share=1 - disk.free / disk.total if disk.total else 0.0,
            wal_bytes=disk.files["wal"],
            wal_limit_bytes=context.settings.storage.wal_bytes,
            **_care(context, now_ms),
        ),
    )


def _care(context: Context, now_ms: int) -> dict[str, Any]:
    """Give what the notices say of backups and scrub."""
    if context.care is None:
        return {}
    made = context.care.backups
    newest = made.newest
    return {
        "damage": context.care.scrub.state.damage,
        "backup_error": made.error,
        "backup_age_ms": now_ms - newest.made_at if newest and made.every_s else None,
        "backup_each_ms": int(made.every_s * 1_000),
    }


async def live_overview(
    request: web.Request, _argument: str, ids: tuple[int, ...]
) -> dict[str, Any]:
    """Give what changes on the overview; ``ids`` are the queues on show."""
    context, status = context_of(request), status_of(request)
    ages = await oldest(context, status.queues)
    shown = views.tiles(status, ages, context.now_ms())
    says = f"Ready {shown['total.ready']}, dispatched {shown['total.dispatched']}"
    rows, lines = live_rows(context, status.queues, ages, ids)
    listed = page_of_queues(status.queues, ages, _query(request))
    return {
        "shown": shown | rows,
        "points": histories.sparks(request) | lines,
        "new": sum(queue.status.queue_id not in ids for queue in listed.queues),
        "says": says,
    }


ROUTES: Final = (Route("GET", "/", Role.VIEWER, "overview", overview),)
