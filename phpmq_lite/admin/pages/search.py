"""The search field of the header: where it leads."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.requests import find_queue, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import SearchQuery
from phpmq_lite.storage.read.messages import is_message_id


async def search(request: web.Request) -> web.StreamResponse:
    """Lead from the search field to a message, a queue or the messages that match."""
    context, query = context_of(request), query_of(request, SearchQuery)
    text = query.q.strip()
    if is_message_id(text.lower()):
        raise web.HTTPSeeOther(context.urls.to("message", id=text.lower()))
    if find_queue(request, text) is not None:
        raise web.HTTPSeeOther(context.urls.to("queue", q=text))
    raise web.HTTPSeeOther(context.urls.to("messages", q=text))


ROUTES: Final = (Route("GET", "/search", Role.VIEWER, "search", search),)
