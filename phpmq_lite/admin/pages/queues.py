"""The list of all queues."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import histories, views
from phpmq_lite.admin.access.hosts import host_name
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.lists import ListedQueue, QueuePage, as_data, page_of_queues
from phpmq_lite.admin.paging import oldest
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import QueueOut, QueueQuery
from phpmq_lite.admin.snippets import http_address, snippets, tcp_address
from phpmq_lite.server.status import BrokerStatus, QueueStatus


async def queues(request: web.Request) -> web.StreamResponse:
    """All queues, with filter and order."""
    context = context_of(request)
    query = query_of(request, QueueQuery)
    status, now_ms = status_of(request), context.now_ms()
    ages = await oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    if query.format != "html":
        return queues_as(query, listed, now_ms)
    return await page(
        request,
        "queues.html",
        query=query,
        listed=listed,
        figures=figures_of(listed.queues, now_ms),
        trends=trends_of(context, listed.queues),
        stems=views.stems([q.status.name for q in listed.queues] if query.sort == "name" else []),
        total=len(status.queues),
        snippets=snippets_of(request, status),
    )


def snippets_of(request: web.Request, status: BrokerStatus) -> Any:
    """Give the first steps with the real addresses, while there is no queue."""
    if status.queues:
        return []
    host, port = tcp_address(status.listeners, host_name(request.host))
    base = context_of(request).settings.admin.public_url or http_address(
        request.scheme, request.host, context_of(request).urls.base_path
    )
    return snippets(host, port, base)


def figures_of(listed: Iterable[ListedQueue], now_ms: int) -> dict[int, dict[str, str]]:
    """Give what the table shows, by queue_id and column."""
    return {q.status.queue_id: views.queue_figures(q, now_ms) for q in listed}


def trends_of(context: Context, listed: Iterable[ListedQueue]) -> dict[int, str]:
    """Give the points of each queue's small chart."""
    return {q.status.queue_id: histories.spark_of(context, q.status.queue_id) for q in listed}


def queues_as(query: QueueQuery, listed: QueuePage, now_ms: int) -> web.Response:
    """Give the list as data."""
    items = [QueueOut.of(q.status, q.oldest_at, now_ms) for q in listed.queues]
    return as_data(query.format, QueueOut, items, listed.next)


# -- live


def live_rows(
    context: Context,
    queues: Iterable[QueueStatus],
    ages: Mapping[int, int],
    ids: Collection[int],
) -> tuple[dict[str, str], dict[str, str]]:
    """Give the fields and the small charts of the rows on show."""
    asked, now_ms = frozenset(ids), context.now_ms()
    shown: dict[str, str] = {}
    points: dict[str, str] = {}
    for queue in queues:
        if queue.queue_id in asked:
            row = ListedQueue(queue, ages.get(queue.queue_id))
            figures = views.queue_figures(row, now_ms)
            shown |= {f"{queue.queue_id}.{key}": value for key, value in figures.items()}
            points[f"{queue.queue_id}.in"] = histories.spark_of(context, queue.queue_id)
    return shown, points


async def live_queues(request: web.Request, _argument: str, ids: tuple[int, ...]) -> dict[str, Any]:
    """Give what changes on the list of queues; ``ids`` are those on show."""
    context, status = context_of(request), status_of(request)
    query = query_of(request, QueueQuery)
    ages = await oldest(context, status.queues)
    shown, points = live_rows(context, status.queues, ages, ids)
    sums = views.tiles(status, ages, context.now_ms())
    listed = page_of_queues(status.queues, ages, query)
    return {
        "shown": shown,
        "points": points,
        "new": sum(queue.status.queue_id not in ids for queue in listed.queues),
        "says": f"Ready {sums['total.ready']}, dispatched {sums['total.dispatched']}",
    }


ROUTES: Final = (Route("GET", "/queues", Role.VIEWER, "queues", queues),)
