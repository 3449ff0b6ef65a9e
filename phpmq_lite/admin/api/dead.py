"""Dead letters over HTTP."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.requests import json_of, query_of, queue_name_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import DeadGroupOut, MessagesQuery, RedriveIn


async def dead(request: web.Request) -> web.StreamResponse:
    """List dead-letter records, grouped by origin queue and reason."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    groups = await context.reader.dead_groups()
    return as_data(query.format, DeadGroupOut, [DeadGroupOut.of(group) for group in groups])


async def redrive(request: web.Request) -> web.StreamResponse:
    """Send the records of a queue back to it, or to a target; with or without ``.dlq``."""
    context, asked = context_of(request), await json_of(request, RedriveIn)
    count = await commands.redrive(
        context,
        queue_name_of(request),
        target=asked.target,
        ttl_s=asked.ttl_s,
        limit=asked.limit,
    )
    return as_json({"redriven": count})


ROUTES: Final = (
    Route("GET", "/api/v1/dead", Role.VIEWER, "api-dead", dead),
    Route(
        "POST", "/api/v1/dead/{q}/redrive", Role.OPERATOR, "api-redrive", redrive, "dead.redrive"
    ),
)
