"""One queue: its figures and its parts, messages, consumers, charts, settings and so on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from phpmq_lite.admin import attention, charts, histories, queue_settings, trends, views
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.insights.standing import claims_of
from phpmq_lite.admin.lists import ListedQueue, as_data
from phpmq_lite.admin.paging import Listed, failed_attempts, history_page, messages_page, oldest
from phpmq_lite.admin.problems import not_found
from phpmq_lite.admin.query import of_queue, of_verdict
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import find_queue, query_of, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import Cursor, Limit, MessageOut, MessagesQuery, OutputFormat
from phpmq_lite.admin.shelves import RETRY, is_shelf, records_of
from phpmq_lite.admin.trends import SPANS
from phpmq_lite.envelopes.verdict import REASONS
from phpmq_lite.queue_settings import home_of
from phpmq_lite.server.status import ClientStatus, QueueStatus
from phpmq_lite.storage.read.activity import ConsumerLoad, RecentSigns
from phpmq_lite.storage.read.messages import MessageRow

Tab = Literal["messages", "dead", "history", "consumers", "charts", "settings"]


class QueuePageQuery(BaseModel):
    """Which part of a queue to show."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: OutputFormat = "html"
    limit: Limit = 50
    cursor: Cursor = None
    tab: Tab = "messages"
    state: Literal["ready", "dispatched"] | None = None
    outcome: Literal["acked", "expired", "dead", "deleted"] | None = None
    span: Literal["1h", "24h", "7d", "30d"] = "1h"

    def of_messages(self) -> MessagesQuery:
        """Give what asks for a page of messages."""
        return MessagesQuery(
            format=self.format, limit=self.limit, cursor=self.cursor,
            state=self.state, outcome=self.outcome,
        )  # fmt: skip


@dataclass(slots=True, frozen=True)
class Consuming:
    """One consumer of a queue, and what it holds of it."""

    client: ClientStatus
    credit: int
    held: int
    holding: ConsumerLoad | None  # as stored; None: nothing


async def queue(request: web.Request) -> web.StreamResponse:
    """One queue: its figures, and one of its parts."""
    query = query_of(request, QueuePageQuery)
    status = queue_of(request)
    if query.format != "html":
        listed = await _listed(request, query, status)
        rows = [MessageOut.of(row) for row in listed.rows]
        return as_data(query.format, MessageOut, rows, listed.next)
    return await show(request, status, query)


async def show(
    request: web.Request,
    status: QueueStatus,
    query: QueuePageQuery,
    http_status: int = 200,
    **values: Any,
) -> web.Response:
    """Make the page; ``values`` come on top of what its part needs."""
    context, queues = context_of(request), status_of(request).queues
    ages = await oldest(context, [status])
    figures = views.queue_figures(ListedQueue(status, ages.get(status.queue_id)), context.now_ms())
    shown = await _part(request, query, status)
    return await page(
        request,
        "queue.html",
        status=http_status,
        queue=status,
        query=query,
        figures=figures,
        forecast=_forecast(request, status),
        pauses=attention.pauses(status),
        records=find_queue(request, records_of(queues, status.name)),
        records_name=records_of(queues, status.name),
        quarantined=await _quarantined(context, status),
        consumers=views.consumers_of(status_of(request), status.name),
        is_shelf=is_shelf(queues, status.name),
        retry_warning=_warning(status),
        **(shown | values),
    )


def _warning(queue: QueueStatus) -> str:
    is_odd = queue.consumers and queue.name.endswith(RETRY)
    return f"{attention.says_retry(queue)}." if is_odd else ""


async def _part(request: web.Request, query: QueuePageQuery, status: QueueStatus) -> dict[str, Any]:
    """Read what the part on show needs."""
    context = context_of(request)
    if query.tab == "consumers":
        claims = [one for one in await claims_of(request) if one.queue == status.name]
        return {"consuming": await _consuming(request, status), "subscriptions": claims}
    if query.tab == "charts":
        return await _charts(context, status, _records(request, status), query.span)
    if query.tab == "settings":
        home = find_queue(request, home_of(status.name) or "")
        return {"fields": queue_settings.fields(status, _defaults(context), home=home)}
    listed = await _listed(request, query, status)
    about = records if query.tab == "dead" and (records := _records(request, status)) else status
    return {
        "listed": listed,
        "failed": await failed_attempts(request, listed.rows),
        "all_text": _all_text(query, about, listed.rows),
    }


def _records(request: web.Request, queue: QueueStatus) -> QueueStatus | None:
    """Give the queue that has the records of a queue; None where there is none."""
    return find_queue(request, records_of(status_of(request).queues, queue.name))


async def _quarantined(context: Context, queue: QueueStatus) -> list[tuple[str, int, str]]:
    """Count what the verdict kept from consumers lately: reason, messages, the search for them.

    It is only read where there may be any.
    """
    if queue.settings.payload_policy != "envelope" and not any(
        reason in REASONS for reason in queue.deaths
    ):
        return []
    since_ms = context.now_ms() - attention.LATELY_MS
    lately = (await RecentSigns(context.readers).deaths(since_ms)).get(queue.queue_id, {})
    return [
        (reason, count, str(of_verdict(queue.name, reason)))
        for reason, count in sorted(lately.items(), key=lambda item: -item[1])
        if reason in REASONS
    ]


def _defaults(context: Context) -> dict[str, Any]:
    defaults: dict[str, Any] = context.settings.queues.model_dump()
    return defaults


async def _listed(request: web.Request, query: QueuePageQuery, queue: QueueStatus) -> Listed:
    context, asked = context_of(request), query.of_messages()
    if query.tab == "history":
        return await history_page(context, asked, queue.queue_id)
    if query.tab == "dead":
        records = _records(request, queue)
        if records is None:
            return Listed(())
        return await messages_page(context, asked, records.queue_id)
    return await messages_page(context, asked, queue.queue_id)


def _all_text(query: QueuePageQuery, queue: QueueStatus, rows: Sequence[MessageRow]) -> str:
    """Give the search that finds all that the list is about, for acting on all of them."""
    if not rows:
        return ""
    if query.tab == "history":
        return str(of_queue(queue.name, (query.outcome,))) if query.outcome else ""
    return str(of_queue(queue.name, (query.state,) if query.state else ()))


async def _consuming(request: web.Request, queue: QueueStatus) -> list[Consuming]:
    """Say who consumes a queue; the longest holder comes first."""
    consumers = views.consumers_of(status_of(request), queue.name)
    if not consumers:
        return []
    held = {
        holding.client: holding
        for holding in await RecentSigns(context_of(request).readers).held()
        if holding.queue_id == queue.queue_id
    }
    made = [
        Consuming(client, credit, count, held.get(client.client))
        for client, credit, count in consumers
    ]
    made.sort(key=lambda one: (one.holding.since_ms if one.holding else 1 << 62, one.client.client))
    return made


async def _charts(
    context: Context, queue: QueueStatus, records: QueueStatus | None, key: str
) -> dict[str, Any]:
    span = SPANS[key]
    trend = await histories.trend_of(context, queue.queue_id, span, with_times=True)
    dead = None if records is None else await histories.trend_of(context, records.queue_id, span)
    return {
        "span": span,
        "charts": (
            charts.depth(trend, dead), charts.rates(trend), charts.waits(trend),
            charts.holds(trend),
        ),
        "table": charts.table(trend, records=dead, with_times=True),
    }  # fmt: skip


def _forecast(request: web.Request, queue: QueueStatus) -> str:
    if not queue.ready or is_shelf(status_of(request).queues, queue.name):
        return ""
    context = context_of(request)
    points, beats = context.rollups.points(queue.queue_id), context.rollups.beats()
    per_s = trends.slope(points, beats, context.now_ms() // 1_000)
    return trends.forecast(queue.ready, per_s, queue.consumers)


async def live_queue(request: web.Request, argument: str, _ids: tuple[int, ...]) -> dict[str, Any]:
    """Give what changes at the head of a queue's page."""
    context, status = context_of(request), find_queue(request, argument)
    if status is None:
        raise not_found("queue", argument)
    ages = await oldest(context, [status])
    figures = views.queue_figures(ListedQueue(status, ages.get(status.queue_id)), context.now_ms())
    figures["forecast"] = _forecast(request, status)
    shown = {f"{status.queue_id}.{key}": value for key, value in figures.items()}
    return {"shown": shown, "points": {}, "new": 0, "says": f"Ready {figures['ready']}"}


ROUTES: Final = (Route("GET", "/queues/{q}", Role.VIEWER, "queue", queue),)
