"""Queues over HTTP: their figures, purge, pause."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin import paging
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import as_data, as_json, page_of_queues
from phpmq_lite.admin.requests import json_of, query_of, queue_name_of, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import PauseIn, PurgeIn, QueueOut, QueueQuery


async def queues(request: web.Request) -> web.StreamResponse:
    """List queues with their live figures."""
    context, query = context_of(request), query_of(request, QueueQuery)
    status = status_of(request)
    ages = await paging.oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    now_ms = context.now_ms()
    items = [QueueOut.of(q.status, q.oldest_at, now_ms) for q in listed.queues]
    return as_data(query.format, QueueOut, items, listed.next)


async def queue(request: web.Request) -> web.StreamResponse:
    """Give one queue."""
    context = context_of(request)
    status = queue_of(request)
    ages = await paging.oldest(context, [status])
    out = QueueOut.of(status, ages.get(status.queue_id), context.now_ms())
    return as_json(out)


async def purge(request: web.Request) -> web.StreamResponse:
    """Settle what is in a queue as deleted."""
    context, asked = context_of(request), await json_of(request, PurgeIn)
    name = queue_name_of(request)
    count = await commands.purge(context, name, with_dispatched=asked.dispatched)
    return as_json({"settled": count})


async def pause(request: web.Request) -> web.StreamResponse:
    """Stop delivery or publishing of a queue; it stays so over a restart."""
    return await _turn(request, is_paused=True)


async def resume(request: web.Request) -> web.StreamResponse:
    """Let delivery or publishing of a queue go on."""
    return await _turn(request, is_paused=False)


async def _turn(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, asked = context_of(request), await json_of(request, PauseIn)
    name = queue_name_of(request)
    await commands.pause(context, name, asked.side, is_paused=is_paused)
    return as_json({"queue": name, "side": asked.side, "paused": is_paused})


ROUTES: Final = (
    Route("GET", "/api/v1/queues", Role.VIEWER, "api-queues", queues),
    Route("GET", "/api/v1/queues/{q}", Role.VIEWER, "api-queue", queue),
    Route("POST", "/api/v1/queues/{q}/purge", Role.OPERATOR, "api-purge", purge, "queue.purge"),
    Route("POST", "/api/v1/queues/{q}/pause", Role.OPERATOR, "api-pause", pause, "queue.pause"),
    Route("POST", "/api/v1/queues/{q}/resume", Role.OPERATOR, "api-resume", resume, "queue.resume"),
)
