"""One trace over all queues, by time."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin import paging
from phpmq_lite.admin.api.message_list import FoundIn, found_as
from phpmq_lite.admin.api.traces import trace_of
from phpmq_lite.admin.context import status_of
from phpmq_lite.admin.query import of_traces
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import LIMIT_MAX, OutputFormat
from phpmq_lite.admin.shelves import named
from phpmq_lite.admin.traced import tell


class TracePageQuery(FoundIn):
    """A page of a trace."""

    limit: int = LIMIT_MAX
    format: OutputFormat = "html"


async def trace(request: web.Request) -> web.StreamResponse:
    """The messages of one trace over all queues, oldest first."""
    query, trace_id = query_of(request, TracePageQuery), trace_of(request)
    asked = of_traces(trace_id)
    found = await paging.search_page(request, asked, query.cursor, min(query.limit, LIMIT_MAX))
    if query.format != "html":
        return found_as(query.format, found)
    return await page(
        request,
        "trace.html",
        trace_id=trace_id,
        found=found,
        told=tell(found.rows, named(status_of(request).queues)),
        says=paging.say_searched(found),
        q=str(asked),
    )


ROUTES: Final = (Route("GET", "/trace/{trace}", Role.VIEWER, "trace", trace),)
