"""The list of queues, and actions on selected queues."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Self

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.actions import bulk
from phpmq_lite.admin.actions.flash_messages import FlashMessage, store_message
from phpmq_lite.admin.auth.permissions import find_queue
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.auth.request_source import host_name
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import Context, Reply, context_of, status_of
from phpmq_lite.admin.base.input import read_form, read_query
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.responses import ListPage, PerSecond, ResponseModel
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.search_query import queue_search
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resource import Api, Page, Resource
from phpmq_lite.admin.views import queue_list, trends
from phpmq_lite.admin.views.copy_snippets import http_address, publish_snippets, tcp_address
from phpmq_lite.admin.views.queue_list import (
    ListedQueue,
    QueuePage,
    QueueQuery,
    make_queue_page,
    read_oldest_ready,
)
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.server.status import BrokerStatus, QueueStatus
from phpmq_lite.storage.read.search_plan import SearchQuery, SearchTerm


class QueueView(ResponseModel):
    """A queue with its current statistics."""

    queue_id: int = Field(description="queue number")
    name: str = Field(description="queue name")
    ready: int = Field(description="number of ready messages")
    dispatched: int = Field(description="number of messages held by consumers")
    dead: int = Field(
        description="dead-letter records for this queue; 0 for a dead-letter or retry queue"
    )
    bytes: int = Field(description="total size of live message bodies, in bytes")
    oldest_ready_at: int | None = Field(
        description="when the first ready message was published, Unix ms; null if none"
    )
    oldest_age_s: float | None = Field(description="age of the first ready message; null if none")
    published_per_s: PerSecond = Field(description="messages published per second")
    dispatched_per_s: PerSecond = Field(description="messages dispatched per second")
    acked_per_s: PerSecond = Field(description="messages acknowledged per second")
    consumers: int = Field(description="number of consumers")
    credit: int = Field(description="number of messages that consumers can accept now")
    delivery_paused: bool = Field(description="true if no messages are dispatched")
    publishing_paused: bool = Field(description="true if messages are rejected")

    @classmethod
    def of_status(cls, queue: QueueStatus, oldest_ready_at: int | None, now_ms: int) -> Self:
        """Return the API view of a queue's status."""
        age_ms = None if oldest_ready_at is None else max(0, now_ms - oldest_ready_at)
        return cls.of(
            queue,
            oldest_ready_at=oldest_ready_at,
            oldest_age_s=None if age_ms is None else age_ms / 1_000,
        )


async def find_queues(request: web.Request, query: QueueQuery) -> QueuePage:
    """List queues with their current statistics."""
    queues = status_of(request).queues
    return make_queue_page(queues, await read_oldest_ready(context_of(request), queues), query)


async def _values(request: web.Request, query: QueueQuery, listed: QueuePage) -> dict[str, Any]:
    context, status = context_of(request), status_of(request)
    return {
        "listed": listed,
        "figures": read_figures(listed.queues, context.now_ms()),
        "trends": read_trends(context, listed.queues),
        "stems": queue_list.common_prefixes(
            [q.status.name for q in listed.queues] if query.sort == "name" else []
        ),
        "total": len(status.queues),
        "snippets": first_snippets(request, status),
    }


def first_snippets(request: web.Request, status: BrokerStatus) -> Any:
    """Return getting-started code with the broker's addresses, or no code once a queue exists."""
    if status.queues:
        return []
    host, port = tcp_address(status.listeners, host_name(request.host))
    base = context_of(request).settings.admin.public_url or http_address(
        request.scheme, request.host, context_of(request).urls.base_path
    )
    return publish_snippets(host, port, base)


def read_figures(listed: Iterable[ListedQueue], now_ms: int) -> dict[int, dict[str, str]]:
    """Return the values for the table of queues, keyed by queue_id and column."""
    return {q.status.queue_id: queue_list.queue_figures(q, now_ms) for q in listed}


def read_trends(context: Context, listed: Iterable[ListedQueue]) -> dict[int, str]:
    """Return the data points for each queue's sparkline, keyed by queue_id."""
    return {q.status.queue_id: trends.read_spark(context, q.status.queue_id) for q in listed}


def queues_view(request: web.Request, listed: QueuePage) -> ListPage[QueueView]:
    """Return the API view of a page of queues."""
    now_ms = context_of(request).now_ms()
    items = [QueueView.of_status(q.status, q.oldest_at, now_ms) for q in listed.queues]
    return ListPage[QueueView](items=items, next=listed.next)


# -- live updates


async def read_live_list(
    request: web.Request, ids: Collection[int], query: QueueQuery
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the totals over all queues, and the live values of a list that shows these ids."""
    context, status = context_of(request), status_of(request)
    ages = await read_oldest_ready(context, status.queues)
    asked, now_ms = frozenset(ids), context.now_ms()
    shown: dict[str, str] = {}
    points: dict[str, str] = {}
    for queue in status.queues:
        if queue.queue_id in asked:
            row = ListedQueue(queue, ages.get(queue.queue_id))
            figures = queue_list.queue_figures(row, now_ms)
            shown |= {f"{queue.queue_id}.{key}": value for key, value in figures.items()}
            points[f"{queue.queue_id}.in"] = trends.read_spark(context, queue.queue_id)
    tiles = queue_list.overview_tiles(status, ages, now_ms)
    listed = make_queue_page(status.queues, ages, query)
    return tiles, {
        "shown": shown,
        "points": points,
        "new": sum(queue.status.queue_id not in ids for queue in listed.queues),
        "says": f"Ready {tiles['total.ready']}, dispatched {tiles['total.dispatched']}",
    }


async def live_queues(request: web.Request, _argument: str, ids: tuple[int, ...]) -> dict[str, Any]:
    """Return live values for the queue list; ``ids`` are the ids of the queues shown."""
    _, listed = await read_live_list(request, ids, read_query(request, QueueQuery))
    return listed


TICKED_MAX: Final = 200
_TURNS: Final = {
    "pause-delivery": ("delivery", True),
    "resume-delivery": ("delivery", False),
    "pause-publishing": ("publishing", True),
    "resume-publishing": ("publishing", False),
}
_ACTIONS: Final = (*_TURNS, "purge", "remove")


async def submit_queue_actions(request: web.Request) -> web.StreamResponse:
    """Apply an action to the queues selected in the list."""
    context, form = context_of(request), await read_form(request)
    action = form.text("action", 40)
    if action not in _ACTIONS:
        raise Problem(422, "invalid", "Unknown action.", field="action", bound=", ".join(_ACTIONS))
    asked = dict.fromkeys(form.texts("queue", TICKED_MAX))
    names = [name for name in asked if find_queue(request, name) is not None]
    if not names:
        raise Problem(
            422, "invalid", "Select at least one queue.", field="queue", bound="at least one queue"
        )
    to = own_path_or(form.raw("next"), context.urls.to("queues"))
    target = names[0] if len(names) == 1 else json.dumps(names, ensure_ascii=False)[:1_000]
    entry = audit_entry(request, target=target, reason=form.reason())
    entry.action = "selection.make" if action == "purge" else f"queue.{action}"
    if action == "purge":  # a purge must be previewed first
        terms = (term for name in names for term in queue_search(name).terms)
        ready = SearchQuery((*terms, SearchTerm("state", "ready")))
        selection = await bulk.freeze_selection(request, ready)
        raise web.HTTPSeeOther(
            context.urls.to("selection", token=selection.token, action="delete", next=to)
        )
    if action == "remove":
        done, refused = await remove_queues(context, entry, names)
        text = f"{formats.count_of(done, 'queue', 'queues')} removed."
        store_message(request, FlashMessage(f"{text} {'; '.join(refused)}." if refused else text))
    else:
        side, is_paused = _TURNS[action]
        await pause_queues(context, entry, names, side, is_paused)
        verb = "Paused" if is_paused else "Resumed"
        count = formats.count_of(len(names), "queue", "queues")
        store_message(request, FlashMessage(f"{verb} {side} for {count}."))
    raise web.HTTPSeeOther(to)


async def pause_queues(
    context: Context, entry: AuditEntry, names: Sequence[str], side: str, is_paused: bool
) -> None:
    """Pause or resume delivery or publishing for several queues in one transaction."""

    def run(core: Broker, reply: Reply) -> None:
        known = [name for name in names if name in core.state.queues]
        for name in known:
            queue_operations.pause(core, ignore_reply, entry, name, side, is_paused)
        if not known:
            raise RefusedError("unknown_queue", "the selected queues no longer exist")
        core.state.batch.replies.append((reply, len(known)))

    await context.engine.run(run)


async def remove_queues(
    context: Context, entry: AuditEntry, names: Sequence[str]
) -> tuple[int, list[str]]:
    """Remove the empty queues; return how many were removed, and why the others were kept."""
    done, refused = 0, []
    for name in names:
        try:
            await context.engine.run(queue_operations.remove_queue, entry, name)
            done += 1
        except RefusedError as error:
            refused.append(str(error))
    if not done:
        raise RefusedError("nothing_removed", "; ".join(refused))
    return done, refused


def ignore_reply(_answer: object) -> None:
    """Ignore the reply to a single operation in a batch of several."""


ROUTES: Final = (
    *Resource(
        run=find_queues, role=Role.VIEWER, view_model=ListPage[QueueView], view=queues_view,
        page=Page("/queues", "queues", "queues.html", _values),
        api=Api("GET", "/api/v1/queues", "api-queues", query=QueueQuery, cli="queue list"),
    ).routes(),
    Route("POST", "/queues/act", Role.OPERATOR, "queues-act", submit_queue_actions, "queue.act"),
)  # fmt: skip
