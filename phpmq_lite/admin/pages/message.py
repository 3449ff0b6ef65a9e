"""One message: facts, body, life."""

import asyncio
from typing import Final

from aiohttp import web

from phpmq_lite.admin import bodies, views
from phpmq_lite.admin.api.messages import download
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import message_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import MessageOut, MessageQuery


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


ROUTES: Final = (
    Route("GET", "/messages/{id}", Role.VIEWER, "message", message),
    Route("GET", "/messages/{id}/body", Role.VIEWER, "body", download),
)
