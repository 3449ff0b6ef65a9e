"""The overview: the broker at a glance."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin import views
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import page_of_queues
from phpmq_lite.admin.pages.queues import figures_of, queues_as, snippets_of, trends_of
from phpmq_lite.admin.paging import oldest
from phpmq_lite.admin.render import page
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import QueueQuery

OVERVIEW_QUEUES: Final = 20


async def overview(request: web.Request) -> web.StreamResponse:
    """The broker at a glance, with its busiest queues."""
    context = context_of(request)
    raw = {"sort": "-ready", "limit": OVERVIEW_QUEUES} | {
        k: v for k, v in request.query.items() if v
    }
    query = QueueQuery.model_validate(raw)
    status, now_ms = status_of(request), context.now_ms()
    ages = await oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    if query.format != "html":
        return queues_as(query, listed, context, status, ages)
    expiring = await context.reader.expiring(now_ms + views.EXPIRY_NOTICE_MS)
    return page(
        request,
        "overview.html",
        query=query,
        listed=listed,
        figures=figures_of(listed.queues, now_ms),
        trends=trends_of(context, listed.queues),
        tiles=views.tiles(status, ages, now_ms),
        charts=views.charts(context.trends),
        notices=views.notices(status, expiring, now_ms),
        snippets=snippets_of(request, status),
    )


ROUTES: Final = (Route("GET", "/", Role.VIEWER, "overview", overview),)
