"""The overview page, which shows the broker's state at a glance and what needs attention."""

from typing import Any, Final, Literal

from aiohttp import web

from phpmq_lite.admin import charts, trends
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.permissions import allowed_queues
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.queues import listing as queue_list
from phpmq_lite.admin.queues.list import (
    first_snippets,
    list_queues,
    read_figures,
    read_live_list,
    read_trends,
)
from phpmq_lite.admin.queues.listing import QueueQuery, make_queue_page, read_oldest_ready
from phpmq_lite.admin.resource import view_response
from phpmq_lite.admin.system.attention import read_notices
from phpmq_lite.admin.system.system import read_restart_report
from phpmq_lite.admin.trends import SPANS
from phpmq_lite.storage.read.rollups import ALL, DEAD_LETTERS

OVERVIEW_QUEUES: Final = 10
NOTICES_SHOWN: Final = 8


class OverviewPageQuery(QueueQuery):
    """Options for the overview page."""

    span: Literal["1h", "24h", "7d", "30d"] = "1h"


async def show_overview(request: web.Request) -> web.StreamResponse:
    """Show the broker's state at a glance, what needs attention, and the fullest queues."""
    context, query = context_of(request), _query(request)
    status, now_ms = status_of(request), context.now_ms()
    ages = await read_oldest_ready(Call.of(request), status.queues)
    listed = make_queue_page(status.queues, ages, query)
    if query.format != "html":
        return view_response(await list_queues(Call.of(request), query), query.format)
    found = await read_notices(context, status, ages)
    drawn = await _charts(request, query.span)
    report = await read_restart_report(request)
    await context.engine.pause()
    return await render_page(
        request,
        "overview.html",
        query=query,
        listed=listed,
        figures=read_figures(listed.queues, now_ms),
        trends=read_trends(context, listed.queues),
        tiles=queue_list.overview_tiles(status, ages, now_ms),
        sparks=trends.read_sparks(context, allowed_queues(request)),
        notices=found[:NOTICES_SHOWN],
        more_notices=found[NOTICES_SHOWN:],
        restart=report,
        snippets=first_snippets(Call.of(request)),
        **drawn,
    )


def _query(request: web.Request) -> OverviewPageQuery:
    given = {key: value for key, value in request.query.items() if value}
    return OverviewPageQuery.model_validate({"sort": "-ready", "limit": OVERVIEW_QUEUES} | given)


async def _charts(request: web.Request, key: str) -> dict[str, Any]:
    """Return charts covering all queues, or none if the caller cannot access every queue."""
    context, span = context_of(request), SPANS[key]
    if allowed_queues(request) is not None or not status_of(request).queues:
        return {"charts": (), "table": None, "span": span}
    trend = await trends.read_trend(context, ALL, span)
    records = await trends.read_trend(context, DEAD_LETTERS, span)
    return {
        "charts": [charts.draw_trend(kind, trend, records) for kind in ("depth", "rates")],
        "table": charts.trend_table(("depth", "rates"), trend, records),
        "span": span,
    }


async def live_overview(
    request: web.Request, _argument: str, ids: tuple[int, ...]
) -> dict[str, Any]:
    """Return live values for the overview; ``ids`` are the ids of the queues shown."""
    tiles, listed = await read_live_list(Call.of(request), ids, _query(request))
    sparks = trends.read_sparks(context_of(request), allowed_queues(request))
    points = sparks | listed["points"]
    return listed | {"shown": tiles | listed["shown"], "points": points}


ROUTES: Final = (Route("GET", "/", Role.VIEWER, "overview", show_overview),)
