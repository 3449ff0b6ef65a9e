"""The connections that are open."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.context import status_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import ClientOut, ClientsQuery


async def clients(request: web.Request) -> web.StreamResponse:
    """The connections that are open."""
    query = query_of(request, ClientsQuery)
    status = status_of(request)
    found = [c for c in status.clients if not query.queue or query.queue in c.queues]
    if query.format != "html":
        return as_data(query.format, ClientOut, [ClientOut.of(c) for c in found])
    return page(request, "clients.html", clients=found, query=query)


ROUTES: Final = (Route("GET", "/clients", Role.VIEWER, "clients", clients),)
