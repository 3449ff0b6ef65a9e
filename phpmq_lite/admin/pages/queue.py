"""One queue: its figures, and its messages, dead letters or history."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin import views
from phpmq_lite.admin.acting.commands import dead_letter_queue
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import ListedQueue, as_data
from phpmq_lite.admin.paging import Listed, history_page, messages_page, oldest
from phpmq_lite.admin.render import live, page
from phpmq_lite.admin.requests import find_queue, query_of, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import MessageOut, MessagesQuery
from phpmq_lite.server.status import QueueStatus


async def queue(request: web.Request) -> web.StreamResponse:
    """One queue: its figures, and its messages, dead letters or history."""
    context = context_of(request)
    status, query = queue_of(request), query_of(request, MessagesQuery)
    now_ms = context.now_ms()
    ages = await oldest(context, [status])
    row = ListedQueue(status, ages.get(status.queue_id))
    figures = views.queue_figures(row, now_ms)
    if query.format == "live":
        prefix = status.queue_id
        shown = {f"{prefix}.{key}": value for key, value in figures.items()}
        return live(shown, {}, 0, f"Ready {figures['ready']}")
    if query.confirm:
        return _confirm(request, query.confirm, status)
    listed = await _listed(request, query, status)
    if query.format != "html":
        return as_data(
            query.format, MessageOut, [MessageOut.of(m) for m in listed.rows], listed.next
        )
    return page(
        request,
        "queue.html",
        queue=status,
        query=query,
        listed=listed,
        figures=figures,
        pauses=views.pauses(status),
        consumers=views.consumers_of(status_of(request), status.name),
        records=find_queue(request, dead_letter_queue(status.name)),
        is_shelf=status.name.endswith(".dlq"),
    )


def _confirm(request: web.Request, action: str, queue: QueueStatus) -> web.Response:
    records = find_queue(request, dead_letter_queue(queue.name))
    return page(
        request, "confirm.html", action=action, queue=queue,
        count=queue.ready if action == "purge" else (records.ready if records else 0),
    )  # fmt: skip


async def _listed(request: web.Request, query: MessagesQuery, queue: QueueStatus) -> Listed:
    context = context_of(request)
    if query.tab == "history":
        return await history_page(context, query, queue.queue_id)
    if query.tab == "dead":
        records = find_queue(request, dead_letter_queue(queue.name))
        if records is None:
            return Listed(())
        return await messages_page(context, query, records.queue_id)
    return await messages_page(context, query, queue.queue_id)


ROUTES: Final = (Route("GET", "/queues/{q}", Role.VIEWER, "queue", queue),)
