"""The page and the API for traces, which cover all queues."""

from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin.context import status_of
from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.fields import LIMIT_MAX, OutputFormat, path_name
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import Role
from phpmq_lite.admin.messages import listing as messages
from phpmq_lite.admin.messages.search import (
    FoundMessagesView,
    SearchPageInput,
    found_messages,
    list_completions,
)
from phpmq_lite.admin.messages.search_query import traces_search
from phpmq_lite.admin.messages.trace_view import build_trace
from phpmq_lite.admin.resource import Api, Page, Resource, api_route

TRACE_CHARACTERS: Final = 512


def trace_id_in(request: web.Request) -> str:
    """Return the trace id from the path.

    Raises:
        Problem: 404 if the trace id is not valid.
    """
    trace_id = path_name(request, "trace")
    if len(trace_id) > TRACE_CHARACTERS or not trace_id.isprintable():
        raise Problem(404, "unknown_trace", "The trace id is too long or not printable.")
    return trace_id


class TracePageQuery(SearchPageInput):
    """Query for a page of a trace's messages."""

    limit: int = LIMIT_MAX
    format: OutputFormat = "html"


async def find_trace(request: web.Request, asked: TracePageQuery) -> messages.SearchPage:
    """List a trace's messages across all queues, newest first."""
    query = traces_search(trace_id_in(request))
    limit = min(asked.limit, LIMIT_MAX)
    return await messages.read_search_page(Call.of(request), query, asked.cursor, limit)


async def _values(
    request: web.Request, _query: object, found: messages.SearchPage
) -> dict[str, Any]:
    trace_id = trace_id_in(request)
    return {
        "trace_id": trace_id,
        "told": build_trace(found.rows, dead_letter_queues_named(status_of(request).queues)),
        "says": messages.describe_searched(found),
        "q": str(traces_search(trace_id)),
    }


ROUTES: Final = (
    *Resource(
        run=find_trace, role=Role.VIEWER, view_model=FoundMessagesView,
        view=lambda _request, found: found_messages(found),
        page=Page("/trace/{trace}", "trace", "trace.html", _values),
        api=Api("GET", "/api/v1/traces/{trace}", "api-trace", query=SearchPageInput, cli="trace"),
    ).routes(),
    api_route("GET", "/api/v1/completions", Role.VIEWER, "api-completions", list_completions),
)  # fmt: skip
