"""The settled messages of all queues."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.paging import history_page
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import MessageOut, MessagesQuery


async def history(request: web.Request) -> web.StreamResponse:
    """Settled messages of all queues, newest first."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    listed = await history_page(context, query, None)
    if query.format != "html":
        return as_data(
            query.format, MessageOut, [MessageOut.of(m) for m in listed.rows], listed.next
        )
    return page(request, "history.html", listed=listed, query=query)


ROUTES: Final = (Route("GET", "/history", Role.VIEWER, "history", history),)
