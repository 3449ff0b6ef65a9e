"""The pages to read: overview, queues, a queue, a message, dead letters, clients, history."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import bodies, cursors, views
from phpmq_lite.admin.actions import dead_letter_queue
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.lists import ListedQueue, QueuePage, as_data, page_of_queues
from phpmq_lite.admin.render import live, page
from phpmq_lite.admin.requests import find_queue, message_of, query_of, queue_of
from phpmq_lite.admin.schemas import (
    ClientOut,
    ClientsQuery,
    DeadGroupOut,
    MessageOut,
    MessageQuery,
    MessagesQuery,
    QueueOut,
    QueueQuery,
    SearchQuery,
)
from phpmq_lite.admin.security import host_name
from phpmq_lite.admin.snippets import address, snippets
from phpmq_lite.admin.trends import polyline
from phpmq_lite.model import State
from phpmq_lite.server.status import QueueStatus, Status
from phpmq_lite.storage.browse import MessageRow, is_message_id

OVERVIEW_QUEUES: Final = 20


@dataclass(slots=True, frozen=True)
class Listed:
    """A page of messages and cursors to its neighbours."""

    rows: Sequence[MessageRow]
    next: str | None = None
    previous: str | None = None
    searched: int | None = None  # offsets looked at, where the time ran out first


async def oldest(context: Context, queues: Iterable[QueueStatus]) -> dict[int, int]:
    """Say when the first ready message of each queue was published."""
    return await context.reader.oldest_ready(q.queue_id for q in queues if q.ready > 0)


# -- overview and queues


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
        return _queues_as(query, listed, context, status, ages)
    expiring = await context.reader.expiring(now_ms + views.EXPIRY_NOTICE_MS)
    return page(
        request,
        "overview.html",
        query=query,
        listed=listed,
        figures=_figures(listed.queues, now_ms),
        trends=_trends(context, listed.queues),
        tiles=views.tiles(status, ages, now_ms),
        charts=views.charts(context.trends),
        notices=views.notices(status, expiring, now_ms),
        snippets=_snippets(request, status),
    )


async def queues(request: web.Request) -> web.StreamResponse:
    """All queues, with filter and order."""
    context = context_of(request)
    query = query_of(request, QueueQuery)
    status, now_ms = status_of(request), context.now_ms()
    ages = await oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    if query.format != "html":
        return _queues_as(query, listed, context, status, ages)
    return page(
        request,
        "queues.html",
        query=query,
        listed=listed,
        figures=_figures(listed.queues, now_ms),
        trends=_trends(context, listed.queues),
        total=len(status.queues),
        snippets=_snippets(request, status),
    )


def _snippets(request: web.Request, status: Status) -> Any:
    if status.queues:
        return []
    return snippets(*address(status.listeners, host_name(request.host)))


def _figures(listed: Iterable[ListedQueue], now_ms: int) -> dict[int, dict[str, str]]:
    return {q.status.queue_id: views.queue_figures(q, now_ms) for q in listed}


def _trends(context: Context, listed: Iterable[ListedQueue]) -> dict[int, str]:
    return {
        q.status.queue_id: polyline(context.trends.queue(q.status.queue_id), 72, 20) for q in listed
    }


def _queues_as(
    query: QueueQuery,
    listed: QueuePage,
    context: Context,
    status: Status,
    ages: Mapping[int, int],
) -> web.Response:
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


# -- one queue


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


async def messages_page(context: Context, query: MessagesQuery, queue_id: int) -> Listed:
    """Give a page of a queue in order, with cursors."""
    scope = f"messages {queue_id} {query.state}"
    cursor = cursors.decode(scope, query.cursor)
    place = cursors.position(cursor)
    state = State[query.state.upper()] if query.state else None
    rows = await context.reader.messages(queue_id, **place, state=state, limit=query.limit)
    is_full, is_back = len(rows) == query.limit, cursor is not None and cursor.direction == "before"
    has_next, has_previous = is_full or is_back, (is_full if is_back else cursor is not None)
    return Listed(
        rows,
        cursors.encode(scope, "after", rows[-1].position) if rows and has_next else None,
        cursors.encode(scope, "before", rows[0].position) if rows and has_previous else None,
    )


async def history_page(context: Context, query: MessagesQuery, queue_id: int | None) -> Listed:
    """Give a page of settled messages, newest first, with cursors."""
    scope = f"history {queue_id} {query.outcome}"
    cursor = cursors.decode(scope, query.cursor)
    place = cursors.position(cursor)
    outcome = State[query.outcome.upper()] if query.outcome else None
    found = await context.reader.history(
        **place, queue_id=queue_id, outcome=outcome, limit=query.limit
    )
    first, last = _ends(found.rows)
    is_back = "after" in place
    if found.searched_to is not None and not is_back:
        last, has_older = found.searched_to, True
    else:
        has_older = is_back or found.has_more
    has_newer = found.has_more if is_back else cursor is not None
    start = place.get("before", found.highest or 0)
    searched = None if found.searched_to is None else abs(start - found.searched_to)
    return Listed(
        found.rows,
        cursors.encode(scope, "before", last) if has_older and last is not None else None,
        cursors.encode(scope, "after", first) if has_newer and first is not None else None,
        searched,
    )


def _ends(rows: Sequence[MessageRow]) -> tuple[int | None, int | None]:
    return (rows[0].offset, rows[-1].offset) if rows else (None, None)


# -- one message


async def message(request: web.Request) -> web.StreamResponse:
    """One message: facts, body, life."""
    context = context_of(request)
    query, row = query_of(request, MessageQuery), await message_of(request, context)
    if query.format != "html":
        return as_data(query.format, MessageOut, [MessageOut.of(row)])
    body, events = await asyncio.gather(context.reader.body(row), context.reader.events(row.seq))
    shown = None
    if body is not None:  # indenting 256 KiB takes a while
        shown = await asyncio.to_thread(bodies.show, body.content, body.size, query.view)
    now_ms = context.now_ms()
    return page(
        request,
        "message.html",
        row=row,
        body=body,
        shown=shown,
        steps=views.timeline(row, events, now_ms),
        query=query,
    )


# -- dead letters, clients, history, search


async def dead(request: web.Request) -> web.StreamResponse:
    """The records of all dead-letter queues, by origin and reason."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    groups = await context.reader.dead_groups()
    if query.format != "html":
        return as_data(query.format, DeadGroupOut, [DeadGroupOut.of(g) for g in groups])
    return page(request, "dead.html", groups=groups)


async def clients(request: web.Request) -> web.StreamResponse:
    """The connections that are open."""
    query = query_of(request, ClientsQuery)
    status = status_of(request)
    found = [c for c in status.clients if not query.queue or query.queue in c.queues]
    if query.format != "html":
        return as_data(query.format, ClientOut, [ClientOut.of(c) for c in found])
    return page(request, "clients.html", clients=found, query=query)


async def history(request: web.Request) -> web.StreamResponse:
    """Settled messages of all queues, newest first."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    listed = await history_page(context, query, None)
    if query.format != "html":
        return as_data(
            query.format, MessageOut, [MessageOut.of(m) for m in listed.rows], listed.next
        )
    return page(request, "history.html", listed=listed, query=query)


async def search(request: web.Request) -> web.StreamResponse:
    """Lead from the search field to a message, a queue or the list of queues."""
    context, query = context_of(request), query_of(request, SearchQuery)
    text = query.q.strip()
    if is_message_id(text.lower()):
        raise web.HTTPSeeOther(context.urls.to("message", id=text.lower()))
    if find_queue(request, text) is not None:
        raise web.HTTPSeeOther(context.urls.to("queue", q=text))
    raise web.HTTPSeeOther(context.urls.to("queues", q=text[:255]))
