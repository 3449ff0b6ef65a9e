"""One trace over all queues."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.base.context import status_of
from phpmq_lite.admin.base.input import LIMIT_MAX, OutputFormat, path_name, read_query
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.search_query import traces_search
from phpmq_lite.admin.resources import messages
from phpmq_lite.admin.resources.search import (
    CompletionsInput,
    CompletionsView,
    FoundMessagesView,
    SearchPageInput,
    list_completions,
    search_response,
)
from phpmq_lite.admin.views.dead_letter_queues import dead_letter_queues_named
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.admin.views.trace_view import build_trace

TRACE_CHARACTERS: Final = 512


def trace_id_in(request: web.Request) -> str:
    """Give the trace id that the path names.

    Raises:
        Problem: 404 where it can be none.
    """
    trace_id = path_name(request, "trace")
    if len(trace_id) > TRACE_CHARACTERS or not trace_id.isprintable():
        raise Problem(404, "unknown_trace", "This is no trace id.")
    return trace_id


async def get_trace(request: web.Request) -> web.StreamResponse:
    """List the messages of a trace over all queues, newest first; it is searched for."""
    asked = read_query(request, SearchPageInput)
    query = traces_search(trace_id_in(request))
    found = await messages.read_search_page(request, query, asked.cursor, asked.limit)
    return search_response(asked.format, found)


API_ROUTES: Final = (
    Route(
        "GET", "/api/v1/traces/{trace}", Role.VIEWER, "api-trace", get_trace,
        query=SearchPageInput, gives=FoundMessagesView, cli="trace",
    ),
    Route(
        "GET", "/api/v1/completions", Role.VIEWER, "api-completions", list_completions,
        query=CompletionsInput, gives=CompletionsView,
    ),
)  # fmt: skip


class TracePageQuery(SearchPageInput):
    """A page of a trace."""

    limit: int = LIMIT_MAX
    format: OutputFormat = "html"


async def show_trace(request: web.Request) -> web.StreamResponse:
    """The messages of one trace over all queues, oldest first."""
    query, trace_id = read_query(request, TracePageQuery), trace_id_in(request)
    asked = traces_search(trace_id)
    found = await messages.read_search_page(
        request, asked, query.cursor, min(query.limit, LIMIT_MAX)
    )
    if query.format != "html":
        return search_response(query.format, found)
    return await render_page(
        request,
        "trace.html",
        trace_id=trace_id,
        found=found,
        told=build_trace(found.rows, dead_letter_queues_named(status_of(request).queues)),
        says=messages.describe_searched(found),
        q=str(asked),
    )


PAGE_ROUTES: Final = (Route("GET", "/trace/{trace}", Role.VIEWER, "trace", show_trace),)
