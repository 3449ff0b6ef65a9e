"""The list of queues, and actions on selected queues."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Self

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin import formats, trends
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import ActionInput
from phpmq_lite.admin.http.input import read_query
from phpmq_lite.admin.http.output import ListPage, PerSecond, ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.source import host_name
from phpmq_lite.admin.messages import bulk
from phpmq_lite.admin.messages.snippets import http_address, publish_snippets, tcp_address
from phpmq_lite.admin.queues import listing
from phpmq_lite.admin.queues.listing import (
    ListedQueue,
    QueuePage,
    QueueQuery,
    make_queue_page,
    read_oldest_ready,
)
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.roles import Role
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.search.language import SearchQuery, SearchTerm, queue_search

endpoints: Final = Endpoints()


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


async def find_queues(call: Call, query: QueueQuery) -> QueuePage:
    """Return the queues that match a query."""
    return make_queue_page(call.queues, await read_oldest_ready(call, call.queues), query)


@endpoints.api("GET /queues", "api-queues", cli="queue list")
async def list_queues(call: Call, query: QueueQuery) -> ListPage[QueueView]:
    """List queues with their current statistics."""
    page, now_ms = await find_queues(call, query), call.now_ms
    items = [QueueView.of_status(q.status, q.oldest_at, now_ms) for q in page.queues]
    return ListPage[QueueView](items=items, next=page.next)


@endpoints.page("/queues", "queues", data=list_queues)
async def show_queues(call: Call, query: QueueQuery) -> web.Response:
    """List queues with their current statistics."""
    listed = await find_queues(call, query)
    names = [q.status.name for q in listed.queues] if query.sort == "name" else []
    return await call.render(
        "queues.html",
        query=query,
        listed=listed,
        figures=read_figures(listed.queues, call.now_ms),
        trends=read_trends(call.context, listed.queues),
        stems=listing.common_prefixes(names),
        total=len(call.queues),
        snippets=first_snippets(call),
    )


def first_snippets(call: Call) -> Any:
    """Return getting-started code with the broker's addresses, or no code once a queue exists."""
    if call.queues:
        return []
    request, context = call.request, call.context
    host, port = tcp_address(call.status.listeners, host_name(request.host))
    base = context.settings.admin.public_url or http_address(
        request.scheme, request.host, context.urls.base_path
    )
    return publish_snippets(host, port, base)


def read_figures(listed: Iterable[ListedQueue], now_ms: int) -> dict[int, dict[str, str]]:
    """Return the values for the table of queues, keyed by queue_id and column."""
    return {q.status.queue_id: listing.queue_figures(q, now_ms) for q in listed}


def read_trends(context: Context, listed: Iterable[ListedQueue]) -> dict[int, str]:
    """Return the data points for each queue's sparkline, keyed by queue_id."""
    return {q.status.queue_id: trends.read_spark(context, q.status.queue_id) for q in listed}


# -- live updates


async def read_live_list(
    call: Call, ids: Collection[int], query: QueueQuery
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the totals over all queues, and the live values of a list that shows these ids."""
    status, now_ms, listed_ids = call.status, call.now_ms, frozenset(ids)
    ages = await read_oldest_ready(call, status.queues)
    texts: dict[str, str] = {}
    points: dict[str, str] = {}
    for queue in status.queues:
        if queue.queue_id in listed_ids:
            row = ListedQueue(queue, ages.get(queue.queue_id))
            figures = listing.queue_figures(row, now_ms)
            texts |= {f"{queue.queue_id}.{key}": value for key, value in figures.items()}
            points[f"{queue.queue_id}.in"] = trends.read_spark(call.context, queue.queue_id)
    tiles = listing.overview_tiles(status, ages, now_ms)
    listed = make_queue_page(status.queues, ages, query)
    return tiles, {
        "shown": texts,
        "points": points,
        "new": sum(queue.status.queue_id not in ids for queue in listed.queues),
        "says": f"Ready {tiles['total.ready']}, dispatched {tiles['total.dispatched']}",
    }


async def live_queues(call: Call, _argument: str, ids: tuple[int, ...]) -> dict[str, Any]:
    """Return live values for the queue list; ``ids`` are the ids of the queues shown."""
    _, listed = await read_live_list(call, ids, read_query(call.request, QueueQuery))
    return listed


_TURNS: Final = {
    "pause-delivery": ("delivery", True),
    "resume-delivery": ("delivery", False),
    "pause-publishing": ("publishing", True),
    "resume-publishing": ("publishing", False),
}
_ACTIONS: Final = (*_TURNS, "purge", "remove")


class TickedQueuesInput(ActionInput):
    """An action on the queues that are ticked in the list."""

    action: str = ""
    queue: list[str] = Field([])


@endpoints.action("/queues/act", "queues-act", Role.OPERATOR, "queue.act")
async def act_on_ticked(call: Call, form: TickedQueuesInput) -> Done[None]:
    """Apply an action to the queues selected in the list."""
    action = form.action
    if action not in _ACTIONS:
        raise Problem(422, "invalid", "Unknown action.", field="action", bound=", ".join(_ACTIONS))
    names = [name for name in form.queue if call.find_queue(name) is not None]
    if not names:
        raise Problem(
            422, "invalid", "Select at least one queue.", field="queue", bound="at least one queue"
        )
    to = call.back(call.url("queues"))
    target = names[0] if len(names) == 1 else json.dumps(names, ensure_ascii=False)[:1_000]
    entry = call.audit(target)
    entry.action = "selection.make" if action == "purge" else f"queue.{action}"
    if action == "purge":  # a purge must be previewed first
        terms = (term for name in names for term in queue_search(name).terms)
        ready = SearchQuery((*terms, SearchTerm("state", "ready")))
        selection = await bulk.freeze_selection(call, ready)
        raise call.redirect("selection", token=selection.token, action="delete", next=to)
    if action == "remove":
        return Done(None, await _remove(call, names), to)
    side, is_paused = _TURNS[action]
    await call.run_on_each(queue_operations.pause, names, side, is_paused)
    count = formats.count_of(len(names), "queue", "queues")
    return Done(None, f"{'Paused' if is_paused else 'Resumed'} {side} for {count}.", to)


async def _remove(call: Call, names: Sequence[str]) -> str:
    """Remove the empty queues; return how many were removed, and why the others were kept."""
    done, refused = 0, []
    for name in names:
        try:
            await call.run(queue_operations.remove_queue, name)
            done += 1
        except RefusedError as error:
            refused.append(str(error))
    if not done:
        raise RefusedError("nothing_removed", "; ".join(refused))
    text = f"{formats.count_of(done, 'queue', 'queues')} removed."
    return f"{text} {'; '.join(refused)}." if refused else text
