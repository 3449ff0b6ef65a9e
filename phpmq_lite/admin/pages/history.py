"""The settled messages of all queues, newest first."""

from datetime import UTC, datetime
from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import brush
from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.api.history import Outcome, queue_id_of, time_of
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.histories import slices_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.paging import Listed, failed_attempts, history_page, search_page
from phpmq_lite.admin.query import of_states
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import Cursor, Limit, MessageOut, MessagesQuery, OutputFormat
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.rollups import ALL


class HistoryPageQuery(BaseModel):
    """Which settled messages to show; times are UTC where they name no zone."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    outcome: Outcome | None = None
    queue: str = Field("", max_length=LONGEST_NAME)
    since: str = Field("", max_length=40)
    until: str = Field("", max_length=40)
    span: Literal["1h", "24h", "7d", "30d"] = "1h"  # of the chart
    cursor: Cursor = None
    limit: Limit = 50
    format: OutputFormat = "html"


async def history(request: web.Request) -> web.StreamResponse:
    """Settled messages of all queues, newest first."""
    query = query_of(request, HistoryPageQuery)
    since, until = time_of(query.since, "since"), time_of(query.until, "until")
    listed = await _listed(request, query, since, until)
    if query.format != "html":
        return as_data(
            query.format, MessageOut, [MessageOut.of(m) for m in listed.rows], listed.next
        )
    chosen = brush.Chosen(since, until)
    span = query.span if query.span != "1h" else ""
    return await page(
        request,
        "history.html",
        listed=listed,
        failed=await failed_attempts(request, listed.rows),
        query=query,
        key={"queue": query.queue, "since": query.since, "until": query.until, "span": span},
        span=span,
        since=_field(since),
        until=_field(until),
        chip=brush.chip(chosen, context_of(request).now_ms()) if _is_one(request, query) else "",
        brush=await _brush(request, query, chosen),
    )


def _is_one(request: web.Request, query: HistoryPageQuery) -> bool:
    """Tell whether the list has an index for its time: all queues, or one of them."""
    return bool(query.queue) or allowed_queues(request) is None


async def _brush(
    request: web.Request, query: HistoryPageQuery, chosen: brush.Chosen
) -> brush.Brush | None:
    """Make the chart; None for whom may not see all that would be in it."""
    if not _is_one(request, query) or not status_of(request).queues:
        return None
    context, span = context_of(request), brush.SPANS[query.span]
    queue_id = queue_id_of(request, query.queue)
    cut = await slices_of(context, ALL if queue_id is None else queue_id, span)
    return brush.brush(cut, span, context.now_ms() // 1_000, chosen, query.outcome)


async def _listed(
    request: web.Request, query: HistoryPageQuery, since: int | None, until: int | None
) -> Listed:
    if not _is_one(request, query):
        # Several queues have no index together: the search walks over them.
        states = (query.outcome,) if query.outcome else brush.OUTCOMES
        found = await search_page(request, of_states(states), query.cursor, query.limit)
        searched = found.searched if found.is_cut else None
        return Listed(found.rows, found.next, None, searched)
    asked = MessagesQuery(outcome=query.outcome, cursor=query.cursor, limit=query.limit)
    queue_id = queue_id_of(request, query.queue)
    return await history_page(context_of(request), asked, queue_id, since=since, until=until)


def _field(at_ms: int | None) -> str:
    """Write a time as ``<input type=datetime-local>`` takes it, in UTC."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M")
    except (OverflowError, ValueError, OSError):
        return ""


ROUTES: Final = (Route("GET", "/history", Role.VIEWER, "history", history),)
