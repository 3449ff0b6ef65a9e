"""The dead letters of all queues."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import DeadGroupOut, MessagesQuery


async def dead(request: web.Request) -> web.StreamResponse:
    """The records of all dead-letter queues, by origin and reason."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    groups = await context.reader.dead_groups()
    if query.format != "html":
        return as_data(query.format, DeadGroupOut, [DeadGroupOut.of(g) for g in groups])
    return page(request, "dead.html", groups=groups)


ROUTES: Final = (Route("GET", "/dead", Role.VIEWER, "dead", dead),)
