"""Page, settings and API for a single queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.actions.flash_messages import FlashMessage, store_message
from phpmq_lite.admin.auth.permissions import (
    check_forward_right,
    check_queue_right,
    find_queue,
    queue_named,
    require_queue,
)
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base.context import Context, context_of, status_of
from phpmq_lite.admin.base.input import Form, read_form, read_json_model, read_query
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.responses import json_response
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.search_query import queue_search, verdict_search
from phpmq_lite.admin.insights.history_readers import read_claims
from phpmq_lite.admin.monitoring import attention
from phpmq_lite.admin.resource import view_response
from phpmq_lite.admin.resources.messages import (
    MessagePage,
    MessagesQuery,
    SettledQuery,
    messages_view,
    read_failed_attempts,
    read_history_page,
    read_messages_page,
)
from phpmq_lite.admin.resources.queues import QueueView
from phpmq_lite.admin.views import charts, queue_list, queue_settings_form, trends
from phpmq_lite.admin.views.dead_letter_queues import (
    RETRY,
    dead_letter_queue_of,
    is_dead_letter_queue,
)
from phpmq_lite.admin.views.queue_list import ListedQueue, read_oldest_ready
from phpmq_lite.admin.views.queue_settings_form import (
    KINDS,
    BadFieldError,
    SettingsInput,
    SettingsView,
)
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.admin.views.trends import SPANS
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.errors import RefusedError
from phpmq_lite.queue_settings import home_of
from phpmq_lite.server.status import ClientStatus, QueueStatus
from phpmq_lite.storage.read.activity import ConsumerLoad, RecentActivity
from phpmq_lite.storage.read.messages import MessageRow


class QueuePageQuery(MessagesQuery, SettledQuery):
    """Query for a queue's page: the selected tab and its filters."""

    tab: Literal["messages", "dead", "history", "consumers", "charts", "settings"] = "messages"
    span: Literal["1h", "24h", "7d", "30d"] = "1h"


@dataclass(slots=True, frozen=True)
class QueueConsumer:
    """A consumer of a queue, and the messages that it holds."""

    client: ClientStatus
    credit: int
    held: int
    holding: ConsumerLoad | None  # details read from the database; None if no message is held


async def show_queue(request: web.Request) -> web.StreamResponse:
    """Show a queue's current statistics and the selected tab."""
    query = read_query(request, QueuePageQuery)
    status = require_queue(request)
    if query.format != "html":
        listed = await _listed(request, query, status)
        return view_response(messages_view(listed.rows, listed.next), query.format)
    return await render_queue_page(request, status, query)


async def render_queue_page(
    request: web.Request,
    status: QueueStatus,
    query: QueuePageQuery,
    http_status: int = 200,
    **values: Any,
) -> web.Response:
    """Render a queue's page; ``values`` extends or replaces the tab's template values."""
    context, queues = context_of(request), status_of(request).queues
    ages = await read_oldest_ready(context, [status])
    figures = queue_list.queue_figures(
        ListedQueue(status, ages.get(status.queue_id)), context.now_ms()
    )
    shown = await _part(request, query, status)
    is_odd = status.consumers and status.name.endswith(RETRY)
    return await render_page(
        request,
        "queue.html",
        status=http_status,
        queue=status,
        query=query,
        figures=figures,
        forecast=_forecast(request, status),
        pauses=queue_list.paused_sides(status),
        records=find_queue(request, dead_letter_queue_of(queues, status.name)),
        records_name=dead_letter_queue_of(queues, status.name),
        quarantined=await _quarantined(context, status),
        consumers=queue_list.consumers_of(status_of(request), status.name),
        is_shelf=is_dead_letter_queue(queues, status.name),
        retry_warning=f"{queue_list.retry_hint(status)}." if is_odd else "",
        **(shown | values),
    )


async def _part(request: web.Request, query: QueuePageQuery, status: QueueStatus) -> dict[str, Any]:
    """Read the data that the selected tab shows."""
    context = context_of(request)
    if query.tab == "consumers":
        claims = [one for one in await read_claims(request) if one.queue == status.name]
        return {"consuming": await _consuming(request, status), "subscriptions": claims}
    if query.tab == "charts":
        return await _charts(context, status, _records(request, status), query.span)
    if query.tab == "settings":
        return {"fields": _fields(request, status)}
    listed = await _listed(request, query, status)
    about = records if query.tab == "dead" and (records := _records(request, status)) else status
    return {
        "listed": listed,
        "failed": await read_failed_attempts(request, listed.rows),
        "all_text": _all_text(query, about, listed.rows),
    }


def _records(request: web.Request, queue: QueueStatus) -> QueueStatus | None:
    """Return a queue's dead-letter queue, or None if it does not exist."""
    return find_queue(request, dead_letter_queue_of(status_of(request).queues, queue.name))


async def _quarantined(context: Context, queue: QueueStatus) -> list[tuple[str, int, str]]:
    """Return (reason, count, search) rows for recent quarantines, highest count first."""
    if queue.settings.payload_policy != "envelope" and not any(
        reason in REASONS for reason in queue.deaths
    ):
        return []
    since_ms = context.now_ms() - attention.LATELY_MS
    lately = (await RecentActivity(context.readers).deaths(since_ms)).get(queue.queue_id, {})
    return [
        (reason, count, str(verdict_search(queue.name, reason)))
        for reason, count in sorted(lately.items(), key=lambda item: -item[1])
        if reason in REASONS
    ]


def _fields(
    request: web.Request,
    queue: QueueStatus,
    typed: Mapping[str, str] | None = None,
    error: tuple[str, str] = ("", ""),
) -> Any:
    """Return the fields of the settings form, with the values entered and the error, if any."""
    defaults = context_of(request).settings.queues.model_dump()
    home = find_queue(request, home_of(queue.name) or "")
    return queue_settings_form.form_fields_of(queue, defaults, typed, error, home=home)


async def _listed(request: web.Request, query: QueuePageQuery, queue: QueueStatus) -> MessagePage:
    context = context_of(request)
    if query.tab == "history":
        return await read_history_page(context, query, queue.queue_id)
    about = _records(request, queue) if query.tab == "dead" else queue
    if about is None:
        return MessagePage(())
    return await read_messages_page(context, query, about.queue_id)


def _all_text(query: QueuePageQuery, queue: QueueStatus, rows: Sequence[MessageRow]) -> str:
    """Return a search that matches every message in the list, for an action on all messages."""
    if not rows:
        return ""
    if query.tab == "history":
        return str(queue_search(queue.name, (query.outcome,))) if query.outcome else ""
    return str(queue_search(queue.name, (query.state,) if query.state else ()))


async def _consuming(request: web.Request, queue: QueueStatus) -> list[QueueConsumer]:
    """Return a queue's consumers, sorted by how long they have held a message, longest first."""
    consumers = queue_list.consumers_of(status_of(request), queue.name)
    if not consumers:
        return []
    held = {
        holding.client: holding
        for holding in await RecentActivity(context_of(request).readers).held()
        if holding.queue_id == queue.queue_id
    }
    made = [
        QueueConsumer(client, credit, count, held.get(client.client))
        for client, credit, count in consumers
    ]
    made.sort(key=lambda one: (one.holding.since_ms if one.holding else 1 << 62, one.client.client))
    return made


async def _charts(
    context: Context, queue: QueueStatus, records: QueueStatus | None, key: str
) -> dict[str, Any]:
    span = SPANS[key]
    trend = await trends.read_trend(context, queue.queue_id, span, with_times=True)
    dead = None if records is None else await trends.read_trend(context, records.queue_id, span)
    return {
        "span": span,
        "charts": (
            charts.draw_depth(trend, dead), charts.draw_rates(trend), charts.draw_waits(trend),
            charts.draw_holds(trend),
        ),
        "table": charts.trend_table(trend, records=dead, with_times=True),
    }  # fmt: skip


def _forecast(request: web.Request, queue: QueueStatus) -> str:
    if not queue.ready or is_dead_letter_queue(status_of(request).queues, queue.name):
        return ""
    context = context_of(request)
    points, beats = context.rollups.points(queue.queue_id), context.rollups.uptime()
    per_s = trends.slope(points, beats, context.now_ms() // 1_000)
    return trends.forecast(queue, per_s)


async def live_queue(request: web.Request, argument: str, _ids: tuple[int, ...]) -> dict[str, Any]:
    """Return the live values for the header of a queue's page."""
    context, status = context_of(request), queue_named(request, argument)
    ages = await read_oldest_ready(context, [status])
    figures = queue_list.queue_figures(
        ListedQueue(status, ages.get(status.queue_id)), context.now_ms()
    )
    figures["forecast"] = _forecast(request, status)
    shown = {f"{status.queue_id}.{key}": value for key, value in figures.items()}
    return {"shown": shown, "points": {}, "new": 0, "says": f"Ready {figures['ready']}"}


async def submit_settings(request: web.Request) -> web.StreamResponse:
    """Change a queue's settings, or reset a single setting to its default."""
    context, queue, form = context_of(request), require_queue(request), await read_form(request)
    defaults = context.settings.queues.model_dump()
    home = find_queue(request, home_of(queue.name) or "")
    try:
        reset = form.raw("reset")
        changes: Mapping[str, Any] = (
            {reset: None}
            if reset in KINDS
            else queue_settings_form.changed_settings(queue, defaults, form.raw, home=home)
        )
        if changes:
            check_forward_right(request, changes.get("on_expire"))
            await context.engine.run(
                queue_operations.configure, audit_entry(request), queue.name, changes
            )
    except BadFieldError as error:
        return await _again(request, queue, form, error.field, str(error))
    except RefusedError as error:
        if error.code != "bad_setting":
            raise
        field, _, text = str(error).partition(" ")
        return await _again(request, queue, form, field, f"{text[:1].upper()}{text[1:]}.")
    titles = ", ".join(KINDS[name].title.lower() for name in changes)
    text = f"Saved: {titles}." if changes else "No settings were changed."
    store_message(request, FlashMessage(text))
    raise web.HTTPSeeOther(context.urls.to("queue", q=queue.name, tab="settings"))


async def _again(
    request: web.Request, queue: QueueStatus, form: Form, field: str, text: str
) -> web.StreamResponse:
    """Show the form again with the entered values, and the error next to the invalid field.

    Raises:
        Problem: 422 if the form does not contain the field; nothing was changed.
    """
    if field not in KINDS:
        raise Problem(422, "bad_setting", f"{field} {text}", field=field)
    audit_entry(request).result = "bad_setting"
    typed = {name: form.raw(name) for name in (*KINDS, "forward_to")}
    return await render_queue_page(
        request, queue, QueuePageQuery(tab="settings"), 422,
        fields=_fields(request, queue, typed, (field, text)), has_error=True,
    )  # fmt: skip


class QueueDetailView(QueueView):
    """A queue with its current statistics and settings."""

    settings: SettingsView = Field(description="effective settings, including broker defaults")


async def get_queue(request: web.Request) -> web.StreamResponse:
    """Return a queue with its settings. The ETag identifies the version of the settings."""
    context = context_of(request)
    status = require_queue(request)
    ages = await queue_list.read_oldest_ready(context, [status])
    figures = QueueView.of_status(status, ages.get(status.queue_id), context.now_ms())
    settings = SettingsView.of(status.settings)
    response = json_response(QueueDetailView(**figures.model_dump(), settings=settings))
    response.headers["ETag"] = settings_etag(asdict(status.settings))
    return response


async def configure_queue(request: web.Request) -> web.StreamResponse:
    """Change a queue's settings; with an If-Match header, only if the ETag still matches."""
    context, name = context_of(request), require_queue(request).name
    changes = (await read_json_model(request, SettingsInput)).changes()
    check_forward_right(request, changes.get("on_expire"))
    if target := changes.get("dead_letter_queue"):
        check_queue_right(request, target, "dead_letter_queue")
    made = await context.engine.run(
        queue_operations.configure, audit_entry(request, target=name), name, changes,
        check=check_etag(request, name),
    )  # fmt: skip
    response = json_response(SettingsView(**made))
    response.headers["ETag"] = settings_etag(made)
    return response


def settings_etag(settings: dict[str, Any]) -> str:
    """Return the ETag for a set of settings."""
    return f'"{sha256(dumps(settings, sort_keys=True).encode()).hexdigest()[:16]}"'


def check_etag(request: web.Request, name: str) -> Callable[[Broker], None]:
    """Return a function that checks If-Match and must run in the same batch as the change."""
    given = request.headers.get("If-Match")

    def check(core: Broker) -> None:
        if given is None or given.strip() == "*" or name not in core.state.queues:
            return
        known = settings_etag(asdict(core.state.queues[name].settings))
        if known not in {tag.strip() for tag in given.split(",")}:
            raise RefusedError(
                "stale",
                f"the settings of {name!r} have changed; the current ETag is {known}",
            )

    return check


ROUTES: Final = (
    Route("GET", "/queues/{q}", Role.VIEWER, "queue", show_queue),
    Route(
        "POST", "/queues/{q}/settings", Role.ADMIN, "queue-settings", submit_settings,
        "queue.configure",
    ),
)  # fmt: skip
