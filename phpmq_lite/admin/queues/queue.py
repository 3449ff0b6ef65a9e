"""Page, settings and API for a single queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin import charts, trends
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints, Queue
from phpmq_lite.admin.http.fields import MessageId
from phpmq_lite.admin.http.input import Form
from phpmq_lite.admin.http.live_feeds import LiveValues
from phpmq_lite.admin.http.output import ListPage, ResponseModel, json_response
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.listing import (
    MessagePage,
    MessageView,
    SettledQuery,
    messages_view,
    read_history_page,
    read_live_page,
)
from phpmq_lite.admin.messages.traces import read_failed_attempts, read_retries
from phpmq_lite.admin.pipeline.claims import read_claims
from phpmq_lite.admin.queues import settings
from phpmq_lite.admin.queues.settings import FIELDS, SettingsInput, SettingsView
from phpmq_lite.admin.queues.view import QueueView, paused_sides, queue_cells, read_oldest_ready_at
from phpmq_lite.admin.trends import PERIODS
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.checks import RECENT_MS
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.errors import BadSettingError, RefusedError
from phpmq_lite.model import ALIVE, STATE_NAMES, State
from phpmq_lite.queue_settings import QueueSettings, home_of, to_dict
from phpmq_lite.roles import Role
from phpmq_lite.server.status import ClientStatus, QueueStatus
from phpmq_lite.storage.read.activity import ConsumerLoad, RecentActivity
from phpmq_lite.storage.read.messages import HEADS_SHOWN, MessageRow
from phpmq_lite.storage.read.read_pool import Page
from phpmq_lite.storage.search.language import queue_search, verdict_search

endpoints: Final = Endpoints()
QueueTab = Literal[
    "ready", "scheduled", "held", "dead", "history", "consumers", "charts", "settings"
]
_STATES: Final = {  # in the tabs of live messages
    "ready": (State.READY, State.BLOCKED),
    "scheduled": (State.SCHEDULED,),
    "held": (State.DISPATCHED,),
}


class QueuePageQuery(SettledQuery):
    """Query for a queue's page: the selected tab and its filters."""

    tab: QueueTab = "ready"
    span: Literal["1h", "24h", "7d", "30d"] = "1h"


@dataclass(slots=True, frozen=True)
class QueueConsumer:
    """A consumer of a queue, and the messages that it holds."""

    client: ClientStatus
    credit: int
    held: int
    holding: ConsumerLoad | None  # details read from the database; None if no message is held


async def list_tab(call: Call, queue: Queue, query: QueuePageQuery) -> ListPage[MessageView]:
    """Return the messages of a queue's tab, for the formats that lists have."""
    listed = await _listed(call, query, queue)
    return messages_view(listed.rows, listed.next)


@endpoints.page("/queues/{q}", "queue", data=list_tab)
async def show_queue(call: Call, queue: Queue, query: QueuePageQuery) -> web.Response:
    """Show a queue's current statistics and the selected tab."""
    return await _show(call, queue, query, await _part(call, query, queue))


async def _show(
    call: Call, queue: QueueStatus, query: QueuePageQuery, part: dict[str, Any], status: int = 200
) -> web.Response:
    return await call.render(
        "queue.html",
        status=status,
        queue=queue,
        query=query,
        cells=await _cells(call, queue),
        forecast=_forecast(call, queue),
        pauses=paused_sides(queue),
        records=call.find_queue(queue.records_queue),
        quarantined=await _quarantined(call, queue),
        consumers=_consumers(call, queue),
        **part,
    )


async def _cells(call: Call, queue: QueueStatus) -> dict[str, str]:
    oldest_ready_at = await read_oldest_ready_at(call, [queue])
    return queue_cells(queue, oldest_ready_at.get(queue.queue_id), call.now_ms)


def _consumers(call: Call, queue: QueueStatus) -> list[tuple[ClientStatus, int, int]]:
    """Return a queue's consumers, each with its credit and the number of messages it holds."""
    name = queue.name
    return [
        (client, *client.queues[name]) for client in call.status.clients if name in client.queues
    ]


async def _part(call: Call, query: QueuePageQuery, queue: QueueStatus) -> dict[str, Any]:
    if query.tab == "consumers":
        claims = [row for row in await read_claims(call) if row.queue == queue.name]
        return {"consuming": await _consuming(call, queue), "subscriptions": claims}
    if query.tab == "charts":
        return await _charts(call, queue, query.span)
    if query.tab == "settings":
        return {"fields": settings.form_fields_of(queue, _default_settings(call, queue))}
    listed = await _listed(call, query, queue)
    name = queue.records_queue if query.tab == "dead" else queue.name
    states = [STATE_NAMES[state] for state in _STATES.get(query.tab, ())]
    if query.tab == "history" and query.outcome:
        states = [query.outcome]
    search = ""  # which matches every message in the list, for an action on all messages
    if listed.rows and (states or query.tab != "history"):
        search = str(queue_search(name, states))
    heads: Sequence[MessageRow] = ()
    if query.tab == "ready" and queue.settings.group_by:
        heads = await call.context.reader.blocking_heads(queue.queue_id)
    return {
        "listed": listed,
        "failed": await read_failed_attempts(call, listed.rows),
        "retries": await read_retries(call, [*listed.rows, *heads]),
        "all_text": search,
        "heads": heads,
        "has_more_heads": len(heads) == HEADS_SHOWN,
        "ends": call.context.broker.hold_ends(row.seq for row in listed.rows),
    }


async def _quarantined(call: Call, queue: QueueStatus) -> list[tuple[str, int, str]]:
    """Return (reason, count, search) rows for recent quarantines, highest count first."""
    if queue.settings.payload_policy != "envelope" and not any(
        reason in REASONS for reason in queue.deaths
    ):
        return []
    since_ms = call.now_ms - RECENT_MS
    recent = (await RecentActivity(call.context.readers).deaths(since_ms)).get(queue.queue_id, {})
    return [
        (reason, count, str(verdict_search(queue.name, reason)))
        for reason, count in sorted(recent.items(), key=lambda item: -item[1])
        if reason in REASONS
    ]


def _default_settings(call: Call, queue: QueueStatus) -> QueueSettings:
    defaults = call.context.settings.queues.model_dump()
    return settings.default_settings(queue, defaults, call.find_queue(home_of(queue.name)))


async def _listed(call: Call, query: QueuePageQuery, queue: QueueStatus) -> MessagePage:
    if query.tab == "history":
        return await read_history_page(call.context, query, queue.queue_id)
    source = call.find_queue(queue.records_queue) if query.tab == "dead" else queue
    if source is None:
        return Page(())
    states = _STATES.get(query.tab, ALIVE)
    return await read_live_page(call.context, query, source.queue_id, states)


async def _consuming(call: Call, queue: QueueStatus) -> list[QueueConsumer]:
    """Return a queue's consumers, sorted by how long they have held a message, longest first."""
    consumers = _consumers(call, queue)
    if not consumers:
        return []
    held = {
        holding.client: holding
        for holding in await RecentActivity(call.context.readers).held()
        if holding.queue_id == queue.queue_id
    }
    rows = [
        QueueConsumer(client, credit, count, held.get(client.client))
        for client, credit, count in consumers
    ]
    rows.sort(key=lambda row: (row.holding.since_ms if row.holding else 1 << 62, row.client.client))
    return rows


async def _charts(call: Call, queue: QueueStatus, key: str) -> dict[str, Any]:
    context, period, records = call.context, PERIODS[key], call.find_queue(queue.records_queue)
    trend = await trends.read_trend(context, queue.queue_id, period, with_times=True)
    dead = None if records is None else await trends.read_trend(context, records.queue_id, period)
    return {
        "span": period,
        "charts": [charts.draw_trend(key, trend, dead) for key in charts.TREND_CHARTS],
        "table": charts.trend_table(charts.TREND_CHARTS, trend, dead),
    }


def _forecast(call: Call, queue: QueueStatus) -> str:
    if not queue.ready or queue.is_dead_letter_queue:
        return ""
    rollups = call.context.rollups
    points, now_s = rollups.points(queue.queue_id), call.now_ms // 1_000
    return trends.forecast(queue, trends.slope(points, rollups.uptime(), now_s))


async def live_queue(call: Call, argument: str, _ids: tuple[int, ...]) -> LiveValues:
    queue = call.queue(argument)
    cells = await _cells(call, queue) | {"forecast": _forecast(call, queue)}
    texts = {f"{queue.queue_id}.{key}": value for key, value in cells.items()}
    return LiveValues(texts, new=0, says=f"Ready {cells['ready']}")


# -- settings


@endpoints.action("/queues/{q}/settings", "queue-settings", Role.ADMIN, "queue.configure")
async def submit_settings(call: Call, queue: Queue, form: Form) -> web.Response | Done[None]:
    """Change a queue's settings, or reset a single setting to its default."""
    try:
        reset = form.raw("reset")
        changes: Mapping[str, Any] = (
            {reset: None}
            if reset in FIELDS
            else settings.changed_settings(queue, _default_settings(call, queue), form.raw)
        )
        if changes:
            call.check_setting_targets(changes)
            await call.run(queue_operations.configure, queue.name, changes)
    except BadSettingError as error:
        text = f"{error.problem[:1].upper()}{error.problem[1:]}."
        return await _again(call, queue, form, error.setting, text)
    titles = ", ".join(FIELDS[name].label.lower() for name in changes)
    text = f"Saved: {titles}." if changes else "No settings were changed."
    return Done(None, text, call.url("queue", q=queue.name, tab="settings"))


async def _again(call: Call, queue: QueueStatus, form: Form, field: str, text: str) -> web.Response:
    """Show the form again with the entered values, and the error next to the invalid field.

    Raises:
        Problem: 422 if the form does not contain the field; nothing was changed.
    """
    if field not in FIELDS:
        raise Problem(422, "bad_setting", f"{field} {text}", field=field)
    call.audit().result = "bad_setting"
    typed = {name: form.raw(name) for name in (*FIELDS, "forward_to")}
    defaults = _default_settings(call, queue)
    fields = settings.form_fields_of(queue, defaults, typed, (field, text))
    part = {"fields": fields, "has_error": True}
    return await _show(call, queue, QueuePageQuery(tab="settings"), part, 422)


class GroupHeadView(ResponseModel):
    """A message that blocks its group until it is settled or leaves the queue."""

    group: str = Field(description="name of the group")
    id: MessageId = Field(validation_alias="message_id")
    state: str = Field(description="state of the message that blocks the others")
    since: int = Field(validation_alias="head_since", description="first dispatch, Unix ms")
    deliver_at: int | None = Field(
        validation_alias="scheduled_for",
        description="when it becomes ready, Unix ms; null unless it is scheduled",
    )


@endpoints.api("GET /queues/{q}/groups", "api-queue-groups")
async def list_blocking_heads(call: Call, queue: Queue) -> ListPage[GroupHeadView]:
    """List messages that block others of their groups, at most 50, the longest first."""
    rows = await call.context.reader.blocking_heads(queue.queue_id)
    items = [GroupHeadView.of(row, state=STATE_NAMES[row.state]) for row in rows]
    return ListPage[GroupHeadView](items=items)


class QueueDetailView(QueueView):
    """A queue with its current statistics and settings."""

    settings: SettingsView = Field(description="effective settings, including broker defaults")


@endpoints.api("GET /queues/{q}", "api-queue", gives=QueueDetailView, cli="queue show")
async def get_queue(call: Call, queue: Queue) -> web.Response:
    """Return a queue with its settings. The ETag identifies the version of the settings."""
    oldest_ready_at = await read_oldest_ready_at(call, [queue])
    view = QueueView.of_status(queue, oldest_ready_at.get(queue.queue_id), call.now_ms)
    view = QueueDetailView(**view.model_dump(), settings=SettingsView(**to_dict(queue.settings)))
    return _with_etag(view, asdict(queue.settings))


@endpoints.api(
    "PATCH /queues/{q}",
    "api-queue-configure",
    Role.ADMIN,
    "queue.configure",
    gives=SettingsView,
    cli="queue set",
)
async def configure_queue(call: Call, queue: Queue, body: SettingsInput) -> web.Response:
    """Change a queue's settings; with an If-Match header, only if the ETag still matches."""
    changes = body.changes()
    call.check_setting_targets(changes)
    check = check_etag(call, queue.name)
    new_settings = await call.run(queue_operations.configure, queue.name, changes, check=check)
    return _with_etag(SettingsView(**new_settings), new_settings)


def _with_etag(view: object, queue_settings: dict[str, Any]) -> web.Response:
    response = json_response(view)
    response.headers["ETag"] = settings_etag(queue_settings)
    return response


def settings_etag(queue_settings: dict[str, Any]) -> str:
    return f'"{sha256(dumps(queue_settings, sort_keys=True).encode()).hexdigest()[:16]}"'


def check_etag(call: Call, name: str) -> Callable[[Broker], None]:
    """Return a function that checks If-Match and must run in the same batch as the change."""
    condition = call.request.headers.get("If-Match")

    def check(core: Broker) -> None:
        if condition is None or condition.strip() == "*" or name not in core.queues:
            return
        current = settings_etag(asdict(core.queues[name].settings))
        if current not in {tag.strip() for tag in condition.split(",")}:
            raise RefusedError(
                "stale", f"the settings of {name!r} have changed; the current ETag is {current}"
            )

    return check
