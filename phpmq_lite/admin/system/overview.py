"""The overview page, which shows the broker's state at a glance and what needs attention."""

from typing import Any, Final, Literal

from aiohttp import web

from phpmq_lite.admin import charts, trends
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import LimitParameter
from phpmq_lite.admin.http.input import read_query
from phpmq_lite.admin.queues.list import (
    QueueQuery,
    QueueSort,
    first_snippets,
    list_queues,
    make_queue_page,
    read_cells,
    read_live_list,
    read_trends,
)
from phpmq_lite.admin.queues.view import overview_tiles, read_oldest_ready_at
from phpmq_lite.admin.system.attention import read_notices
from phpmq_lite.admin.system.system import read_restart_report
from phpmq_lite.admin.trends import SPANS
from phpmq_lite.storage.read.activity import ALL, DEAD_LETTERS

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
    await call.context.engine.pause()
    return await call.render(
        "overview.html",
        query=query,
        listed=listed,
        cells=read_cells(listed.queues, call.now_ms),
        trends=read_trends(call.context, listed.queues),
        tiles=overview_tiles(call.status, oldest_ready_at, call.now_ms),
        sparks=trends.read_sparks(call.context, call.allowed),
        notices=notices[:NOTICES_SHOWN],
        more_notices=notices[NOTICES_SHOWN:],
        restart=report,
        snippets=first_snippets(call),
        **drawn,
    )


async def _charts(call: Call, key: str) -> dict[str, Any]:
    """Return charts covering all queues, or none if the caller cannot access every queue."""
    context, span = call.context, SPANS[key]
    if call.allowed is not None or not call.queues:
        return {"charts": (), "table": None, "span": span}
    trend = await trends.read_trend(context, ALL, span)
    records = await trends.read_trend(context, DEAD_LETTERS, span)
    return {
        "charts": [charts.draw_trend(kind, trend, records) for kind in ("depth", "rates")],
        "table": charts.trend_table(("depth", "rates"), trend, records),
        "span": span,
    }


async def live_overview(call: Call, _argument: str, ids: tuple[int, ...]) -> dict[str, Any]:
    """Return live values for the overview; ``ids`` are the ids of the queues shown."""
    query = read_query(call.request, OverviewPageQuery)
    tiles, listed = await read_live_list(call, ids, query)
    points = trends.read_sparks(call.context, call.allowed) | listed["points"]
    return listed | {"shown": tiles | listed["shown"], "points": points}
