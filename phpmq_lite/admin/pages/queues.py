"""The list of all queues."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import views
from phpmq_lite.admin.access.hosts import host_name
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.lists import ListedQueue, QueuePage, as_data, page_of_queues
from phpmq_lite.admin.paging import oldest
from phpmq_lite.admin.render import live, page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import QueueOut, QueueQuery
from phpmq_lite.admin.snippets import address, snippets
from phpmq_lite.admin.trends import polyline
from phpmq_lite.server.status import Status


async def queues(request: web.Request) -> web.StreamResponse:
    """All queues, with filter and order."""
    context = context_of(request)
    query = query_of(request, QueueQuery)
    status, now_ms = status_of(request), context.now_ms()
    ages = await oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    if query.format != "html":
        return queues_as(query, listed, context, status, ages)
    return page(
        request,
        "queues.html",
        query=query,
        listed=listed,
        figures=figures_of(listed.queues, now_ms),
        trends=trends_of(context, listed.queues),
        total=len(status.queues),
        snippets=snippets_of(request, status),
    )


def snippets_of(request: web.Request, status: Status) -> Any:
    """Give the first steps with the real addresses, while there is no queue."""
    if status.queues:
        return []
    return snippets(*address(status.listeners, host_name(request.host)))


def figures_of(listed: Iterable[ListedQueue], now_ms: int) -> dict[int, dict[str, str]]:
    """Give what the table shows, by queue_id and column."""
    return {q.status.queue_id: views.queue_figures(q, now_ms) for q in listed}


def trends_of(context: Context, listed: Iterable[ListedQueue]) -> dict[int, str]:
    """Give the points of each queue's small chart."""
    return {
        q.status.queue_id: polyline(context.trends.queue(q.status.queue_id), 72, 20) for q in listed
    }


def queues_as(
    query: QueueQuery,
    listed: QueuePage,
    context: Context,
    status: Status,
    ages: Mapping[int, int],
) -> web.Response:
    """Give the list as data, or as the update of a page that shows it."""
    now_ms = context.now_ms()
    if query.format != "live":
        items = [QueueOut.of(q.status, q.oldest_at, now_ms) for q in listed.queues]
        return as_data(query.format, QueueOut, items, listed.next)
    asked = {int(number) for number in query.ids.split(",") if number}
    shown = views.tiles(status, ages, now_ms)
    points = views.charts(context.trends)
    for queue in status.queues:
        if queue.queue_id in asked:
            row = ListedQueue(queue, ages.get(queue.queue_id))
            figures = views.queue_figures(row, now_ms)
            shown |= {f"{queue.queue_id}.{key}": value for key, value in figures.items()}
            line = polyline(context.trends.queue(queue.queue_id), 72, 20)
            points[f"{queue.queue_id}.in"] = line
    is_new = sum(q.status.queue_id not in asked for q in listed.queues)
    says = f"Ready {shown['total.ready']}, dispatched {shown['total.dispatched']}"
    return live(shown, points, is_new, says)


ROUTES: Final = (Route("GET", "/queues", Role.VIEWER, "queues", queues),)
