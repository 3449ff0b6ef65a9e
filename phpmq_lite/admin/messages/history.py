"""History of settled messages from all queues, and the trash."""

from datetime import UTC, datetime
from typing import Final, Literal

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin import history_chart
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.history_chart import read_slices
from phpmq_lite.admin.http import responses
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.fields import (
    LimitParameter,
    ListQuery,
    OutputFormat,
    QueryModel,
    parse_time,
    read_query,
)
from phpmq_lite.admin.http.permissions import allowed_queues, queue_id_of
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.responses import ListPage
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.messages.listing import (
    MessagePage,
    MessageView,
    SettledQuery,
    messages_view,
    read_failed_attempts,
    read_history_page,
    read_search_page,
)
from phpmq_lite.admin.messages.search_query import states_search
from phpmq_lite.admin.resource import api_route, view_response
from phpmq_lite.model import State
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.rollups import ALL

OFFSET_MAX: Final = 1 << 62
HistoryOutcome = Literal["acked", "expired", "dead", "deleted"]


class HistoryFilter(QueryModel):
    """Filter for settled messages; times without a time zone are in UTC."""

    queue: str = Field("", max_length=LONGEST_NAME, description="only this queue, or empty for all")
    outcome: HistoryOutcome | None = Field(None, description="only messages with this outcome")
    since: str = Field(
        "",
        max_length=40,
        description="settled at or after this time (Unix ms or ISO 8601); empty for no limit",
    )
    until: str = Field(
        "",
        max_length=40,
        description="settled before this time (Unix ms or ISO 8601); empty for no limit",
    )


class HistoryInput(HistoryFilter):
    """Filter for settled messages; without an offset, the newest messages are listed."""

    after_offset: int | None = Field(
        None, ge=0, le=OFFSET_MAX, description="only messages after this offset, oldest first"
    )
    before_offset: int | None = Field(
        None, ge=0, le=OFFSET_MAX, description="only messages before this offset, newest first"
    )
    limit: LimitParameter = 50
    format: OutputFormat = "json"


class HistoryView(ListPage[MessageView]):
    """A page of settled messages; the next page starts after the last message's ``offset``."""

    next: None = Field(None, description="always null; use the last item's offset to continue")
    lowest: int | None = Field(description="first offset in the history; null if empty")
    highest: int | None = Field(description="last offset in the history; null if empty")
    searched_to: int | None = Field(
        description="offset at which the search reached its time limit; null if it did not"
    )


async def list_history(request: web.Request, asked: HistoryInput) -> HistoryView:
    """List settled messages in offset order, optionally filtered by queue, outcome and time."""
    if asked.after_offset is not None and asked.before_offset is not None:
        raise Problem(422, "invalid", "Pass either after_offset or before_offset, but not both.",
                      field="before_offset")  # fmt: skip
    queue_id = queue_id_of(request, asked.queue)
    found = await context_of(request).reader.history(
        after=asked.after_offset,
        before=asked.before_offset,
        queue_id=queue_id,
        outcome=State[asked.outcome.upper()] if asked.outcome else None,
        since=parse_time(asked.since, "since"),
        until=parse_time(asked.until, "until"),
        limit=asked.limit,
    )
    rows = found.rows if asked.after_offset is None else found.rows[::-1]
    return HistoryView.of(found, items=[MessageView.of_row(row) for row in rows])


class HistoryPageQuery(HistoryFilter, ListQuery):
    """Query for the history page: the filter, the page of messages, and the chart's time span."""

    span: Literal["1h", "24h", "7d", "30d"] = "1h"


async def show_history(request: web.Request) -> web.StreamResponse:
    """Show settled messages from all queues, newest first."""
    query = read_query(request, HistoryPageQuery)
    since, until = parse_time(query.since, "since"), parse_time(query.until, "until")
    listed = await _listed(request, query, since, until)
    if query.format != "html":
        return view_response(messages_view(listed.rows, listed.next), query.format)
    chosen = history_chart.ChosenPeriod(since, until)
    span = query.span if query.span != "1h" else ""
    return await render_page(
        request,
        "history.html",
        listed=listed,
        failed=await read_failed_attempts(Call.of(request), listed.rows),
        query=query,
        key={"queue": query.queue, "since": query.since, "until": query.until, "span": span},
        span=span,
        since=_field(since),
        until=_field(until),
        chip=history_chart.format_chosen(chosen, context_of(request).now_ms())
        if _is_one(request, query)
        else "",
        brush=await _draw_chart(request, query, chosen),
    )


def _is_one(request: web.Request, query: HistoryPageQuery) -> bool:
    """Return whether an index can sort the list: the list must cover one queue or all queues."""
    return bool(query.queue) or allowed_queues(request) is None


async def _draw_chart(
    request: web.Request, query: HistoryPageQuery, chosen: history_chart.ChosenPeriod
) -> history_chart.HistoryChart | None:
    """Return the chart, or None if it would count messages hidden from the caller."""
    if not _is_one(request, query) or not status_of(request).queues:
        return None
    context, span = context_of(request), history_chart.SPANS[query.span]
    queue_id = queue_id_of(request, query.queue)
    cut = await read_slices(context, ALL if queue_id is None else queue_id, span)
    return history_chart.draw_history(cut, span, context.now_ms() // 1_000, chosen, query.outcome)


async def _listed(
    request: web.Request, query: HistoryPageQuery, since: int | None, until: int | None
) -> MessagePage:
    if not _is_one(request, query):
        # No index covers several queues at once, so the search scans the rows.
        states = (query.outcome,) if query.outcome else history_chart.OUTCOMES
        found = await read_search_page(
            Call.of(request), states_search(states), query.cursor, query.limit
        )
        searched = found.searched if found.is_cut else None
        return MessagePage(found.rows, found.next, None, searched)
    asked = SettledQuery(outcome=query.outcome, cursor=query.cursor, limit=query.limit)
    queue_id = queue_id_of(request, query.queue)
    return await read_history_page(context_of(request), asked, queue_id, since=since, until=until)


def _field(at_ms: int | None) -> str:
    """Format a time for ``<input type=datetime-local>``, in UTC."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M")
    except (OverflowError, ValueError, OSError):
        return ""


class TrashPageQuery(ListQuery):
    """Query for a page of the trash, optionally limited to one queue."""

    queue: str = Field("", max_length=LONGEST_NAME)


async def show_trash(request: web.Request) -> web.StreamResponse:
    """Show deleted messages that can be restored, newest first."""
    query = read_query(request, TrashPageQuery)
    queues = allowed_queues(request)
    if query.queue:
        queue_id = queue_id_of(request, query.queue)
        queues = frozenset(() if queue_id is None else (queue_id,))
    scope = f"trash {query.queue} {sorted(queues or ())}"
    place = responses.position_in(responses.decode_cursor(scope, query.cursor))
    found = await context_of(request).reader.trash(
        before=place.get("before"), queues=queues, limit=query.limit
    )
    goes_on = None if found.next is None else responses.encode_cursor(scope, "before", found.next)
    if query.format != "html":
        return view_response(messages_view(found.rows, goes_on), query.format)
    return await render_page(
        request,
        "trash.html",
        rows=found.rows,
        is_cut=found.is_truncated,
        next=goes_on,
        query=query,
    )


ROUTES: Final = (
    api_route("GET", "/api/v1/history", Role.VIEWER, "api-history", list_history),
    Route("GET", "/history", Role.VIEWER, "history", show_history),
    Route("GET", "/trash", Role.VIEWER, "trash", show_trash),
)
