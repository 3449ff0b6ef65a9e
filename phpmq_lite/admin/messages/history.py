"""History of settled messages from all queues, and the trash."""

from datetime import UTC, datetime
from typing import Final, Literal

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin import history_chart
from phpmq_lite.admin.history_chart import ChosenPeriod, HistoryChart, read_slices
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import JsonFormatQuery, LimitParameter, ListQuery, QueryModel
from phpmq_lite.admin.http.input import parse_time
from phpmq_lite.admin.http.output import ListPage
from phpmq_lite.admin.http.problems import invalid
from phpmq_lite.admin.messages.listing import (
    MessagePage,
    MessageView,
    SettledQuery,
    messages_view,
    read_history_page,
    read_search_page,
)
from phpmq_lite.admin.messages.traces import read_failed_attempts
from phpmq_lite.model import OUTCOMES, OutcomeName, State
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.activity import ALL
from phpmq_lite.storage.read.read_pool import Page
from phpmq_lite.storage.search.language import states_search

OFFSET_MAX: Final = 1 << 62
endpoints: Final = Endpoints()


class HistoryFilter(QueryModel):
    """Filter for settled messages; times without a time zone are in UTC."""

    queue: str = Field("", max_length=LONGEST_NAME, description="only this queue, or empty for all")
    outcome: OutcomeName | None = Field(None, description="only messages with this outcome")
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

    @property
    def period(self) -> ChosenPeriod:
        """The period in which messages were settled; raise a 422 ``Problem`` if it is invalid."""
        return ChosenPeriod(parse_time(self.since, "since"), parse_time(self.until, "until"))


class HistoryInput(JsonFormatQuery, HistoryFilter):
    """Filter for settled messages; without an offset, the newest messages are listed."""

    after_offset: int | None = Field(
        None, ge=0, le=OFFSET_MAX, description="only messages after this offset, oldest first"
    )
    before_offset: int | None = Field(
        None, ge=0, le=OFFSET_MAX, description="only messages before this offset, newest first"
    )
    limit: LimitParameter = 50


class HistoryView(ListPage[MessageView]):
    """A page of settled messages; the next page starts after the last message's ``offset``."""

    next: None = Field(None, description="always null; use the last item's offset to continue")
    lowest: int | None = Field(description="first offset in the history; null if empty")
    highest: int | None = Field(description="last offset in the history; null if empty")
    searched_to: int | None = Field(
        description="offset at which the search reached its time limit; null if it did not"
    )


@endpoints.api("GET /history", "api-history")
async def list_history(call: Call, query: HistoryInput) -> HistoryView:
    """List settled messages in offset order, optionally filtered by queue, outcome and time."""
    if query.after_offset is not None and query.before_offset is not None:
        raise invalid("Pass either after_offset or before_offset, but not both.", "before_offset")
    queue_id = call.queue_id(query.queue)
    history = await call.context.reader.history(
        after=query.after_offset,
        before=query.before_offset,
        queue_id=queue_id,
        outcome=State[query.outcome.upper()] if query.outcome else None,
        since=query.period.since,
        until=query.period.until,
        limit=query.limit,
    )
    rows = history.rows if query.after_offset is None else history.rows[::-1]
    return HistoryView.of(history, items=[MessageView.of_row(row) for row in rows])


class HistoryPageQuery(HistoryFilter, ListQuery):
    """Query for the history page: the filter, the page of messages, and the chart's time span."""

    span: Literal["1h", "24h", "7d", "30d"] = "1h"


async def list_history_page(call: Call, query: HistoryPageQuery) -> ListPage[MessageView]:
    """Return the messages of the history page, for the formats that lists have."""
    page = await _read_page(call, query)
    return messages_view(page.rows, page.next)


@endpoints.page("/history", "history", data=list_history_page)
async def show_history(call: Call, query: HistoryPageQuery) -> web.Response:
    """Show settled messages from all queues, newest first."""
    period, page = query.period, await _read_page(call, query)
    span = query.span if query.span != "1h" else ""
    has_chip = _has_index(call, query)
    return await call.render(
        "history.html",
        listed=page,
        failed=await read_failed_attempts(call, page.rows),
        query=query,
        key={"queue": query.queue, "since": query.since, "until": query.until, "span": span},
        span=span,
        since=_local_time(period.since),
        until=_local_time(period.until),
        chip=history_chart.format_chosen(period, call.now_ms) if has_chip else "",
        brush=await _draw_chart(call, query),
    )


def _has_index(call: Call, query: HistoryPageQuery) -> bool:
    """Return whether an index can sort the list: the list must cover one queue or all queues."""
    return bool(query.queue) or call.allowed is None


async def _draw_chart(call: Call, query: HistoryPageQuery) -> HistoryChart | None:
    """Return the chart, or None if it would count messages hidden from the caller."""
    if not _has_index(call, query) or not call.queues:
        return None
    span, queue_id = history_chart.SPANS[query.span], call.queue_id(query.queue)
    slices = await read_slices(call.context, ALL if queue_id is None else queue_id, span)
    now_s = call.now_ms // 1_000
    return history_chart.draw_history(slices, span, now_s, query.period, query.outcome)


async def _read_page(call: Call, query: HistoryPageQuery) -> MessagePage:
    if _has_index(call, query):
        settled = SettledQuery(outcome=query.outcome, cursor=query.cursor, limit=query.limit)
        queue_id, (since, until) = call.queue_id(query.queue), query.period
        return await read_history_page(call.context, settled, queue_id, since=since, until=until)
    # No index covers several queues at once, so the search scans the rows.
    states = (query.outcome,) if query.outcome else tuple(OUTCOMES)
    return await read_search_page(call, states_search(states), query.cursor, query.limit)


def _local_time(at_ms: int | None) -> str:
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


async def list_trash(call: Call, query: TrashPageQuery) -> ListPage[MessageView]:
    """Return the messages of the trash, for the formats that lists have."""
    page = await _read_trash(call, query)
    return messages_view(page.rows, page.next)


@endpoints.page("/trash", "trash", data=list_trash)
async def show_trash(call: Call, query: TrashPageQuery) -> web.Response:
    """Show deleted messages that can be restored, newest first."""
    return await call.render("trash.html", listed=await _read_trash(call, query), query=query)


async def _read_trash(call: Call, query: TrashPageQuery) -> MessagePage:
    queues = frozenset({call.queue(query.queue).queue_id}) if query.queue else call.allowed
    scope = f"trash {query.queue} {sorted(queues or ())}"
    place = cursors.position_in(cursors.decode_cursor(scope, query.cursor))
    page = await call.context.reader.trash(
        before=place.get("before"), queues=queues, limit=query.limit
    )
    following = page.next and cursors.encode_cursor(scope, "before", page.next)
    return Page(page.rows, following or None, is_cut=page.is_cut)
