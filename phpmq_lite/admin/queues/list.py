"""The list of queues with its filters, order and pages, and actions on selected queues."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin import formats, trends
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import ActionInput, ListQuery
from phpmq_lite.admin.http.input import read_query
from phpmq_lite.admin.http.live_feeds import LiveValues
from phpmq_lite.admin.http.output import ListPage
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.source import host_name
from phpmq_lite.admin.messages import bulk
from phpmq_lite.admin.messages.snippets import http_address, publish_snippets, tcp_address
from phpmq_lite.admin.queues.view import (
    QueueView,
    overview_tiles,
    queue_cells,
    read_oldest_ready_at,
)
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.search.language import WAITING_STATES, SearchQuery, SearchTerm, queue_search

endpoints: Final = Endpoints()


QueueSort = Literal[
    "name", "-name", "ready", "-ready", "scheduled", "-scheduled", "dispatched", "-dispatched",
    "dead", "-dead", "age", "-age", "in", "-in", "out", "-out", "consumers", "-consumers",
    "bytes", "-bytes",
]  # fmt: skip


class QueueQuery(ListQuery):
    """Filters and sort order for a list of queues."""

    q: str = Field("", max_length=LONGEST_NAME, description="part of a queue name, or a glob")
    has: Literal["backlog", "no-consumer", "paused", "dead"] | None = Field(
        None,
        description="only queues that have ready messages, have no consumers, are paused, or "
        "have dead letters",
    )
    sort: QueueSort = Field(
        "name",
        description="sort key, with - for descending; in, out: published, acked per second; "
        "age: oldest ready message",
    )


@dataclass(slots=True, frozen=True)
class ListedQueue:
    """A queue, and the time in Unix ms since which its oldest ready message is ready."""

    status: QueueStatus
    oldest_ready_at: int | None


@dataclass(slots=True, frozen=True)
class QueuePage:
    """One page of the list, with cursors for the next and the previous page."""

    queues: list[ListedQueue]
    matching: int  # number of matching queues on all pages
    next: str | None
    previous: str | None


_KEYS: Final[dict[str, Callable[[ListedQueue], int | float | str]]] = {
    "name": lambda queue: queue.status.name,
    "ready": lambda queue: queue.status.ready,
    "scheduled": lambda queue: queue.status.scheduled,
    "dispatched": lambda queue: queue.status.dispatched,
    "dead": lambda queue: queue.status.dead,
    "age": lambda queue: (
        -queue.oldest_ready_at if queue.oldest_ready_at is not None else -(1 << 62)
    ),
    "in": lambda queue: queue.status.published_per_s,
    "out": lambda queue: queue.status.acked_per_s,
    "consumers": lambda queue: queue.status.consumers,
    "bytes": lambda queue: queue.status.bytes,
}
_HAS: Final[dict[str, Callable[[ListedQueue], bool]]] = {
    "backlog": lambda queue: queue.status.ready > 0,
    "no-consumer": lambda queue: queue.status.consumers == 0,
    "paused": lambda queue: queue.status.delivery_paused or queue.status.publishing_paused,
    "dead": lambda queue: queue.status.dead > 0,
}


def matches_name(name: str, pattern: str) -> bool:
    """Return whether a name matches a glob or, if the pattern has no wildcards, contains it."""
    name, pattern = name.casefold(), pattern.strip().casefold()
    if "*" in pattern or "?" in pattern:
        return fnmatchcase(name, pattern.replace("[", "[[]"))
    return pattern in name


def make_queue_page(
    statuses: Iterable[QueueStatus], oldest_ready_at: Mapping[int, int], query: QueueQuery
) -> QueuePage:
    """Return the requested page; queues with equal values are sorted by name."""
    listed = [ListedQueue(status, oldest_ready_at.get(status.queue_id)) for status in statuses]
    if query.q:
        listed = [queue for queue in listed if matches_name(queue.status.name, query.q)]
    if query.has:
        listed = [queue for queue in listed if _HAS[query.has](queue)]
    key, is_descending = _KEYS[query.sort.removeprefix("-")], query.sort.startswith("-")
    listed.sort(key=lambda queue: queue.status.name)
    listed.sort(key=key, reverse=is_descending)

    scope = f"queues {query.q} {query.has} {query.sort}"
    start, end = 0, query.limit
    cursor = cursors.decode_cursor(scope, query.cursor)
    if cursor is not None:
        is_after = cursor.direction == "after"
        value, name = _place_of(cursor, listed, key)

        def is_ahead(row: ListedQueue) -> bool:
            other: Any = key(row)
            if other == value:
                return row.status.name < name or (is_after and row.status.name == name)
            return bool(other > value) is is_descending

        ahead = sum(map(is_ahead, listed))
        start = ahead if is_after else max(0, ahead - query.limit)
        end = ahead + query.limit if is_after else ahead

    def cursor_at(direction: cursors.ReadDirection, row: ListedQueue) -> str:
        return cursors.encode_cursor(scope, direction, [key(row), row.status.name])

    page = listed[start:end]
    following = cursor_at("after", page[-1]) if page and end < len(listed) else None
    previous = cursor_at("before", page[0]) if page and start else None
    return QueuePage(page, len(listed), following, previous)


def _place_of(
    cursor: cursors.ListCursor,
    listed: Sequence[ListedQueue],
    key: Callable[[ListedQueue], int | float | str],
) -> tuple[Any, str]:
    place = cursor.place
    if isinstance(place, list) and isinstance(place[1], str):
        is_text = isinstance(place[0], str)
        if not listed or is_text == isinstance(key(listed[0]), str):
            return place[0], place[1]
    raise Problem(422, "bad_cursor", "The cursor is malformed.", field="cursor")


def common_prefixes(names: Sequence[str]) -> dict[str, str]:
    """Map each name to the prefix, such as ``orders.``, that it shares with the name above it."""
    prefixes = {}
    for above, name in pairwise(names):
        parts, others = name.split("."), above.split(".")
        alike = 0
        while alike < min(len(parts) - 1, len(others)) and parts[alike] == others[alike] != "":
            alike += 1
        if alike:
            prefixes[name] = ".".join(parts[:alike]) + "."
    return prefixes


# -- the page and the API


async def find_queues(call: Call, query: QueueQuery) -> QueuePage:
    return make_queue_page(call.queues, await read_oldest_ready_at(call, call.queues), query)


@endpoints.api("GET /queues", "api-queues", cli="queue list")
async def list_queues(call: Call, query: QueueQuery) -> ListPage[QueueView]:
    """List queues with their current statistics."""
    page, now_ms = await find_queues(call, query), call.now_ms
    items = [QueueView.of_status(q.status, q.oldest_ready_at, now_ms) for q in page.queues]
    return ListPage[QueueView](items=items, next=page.next)


@endpoints.page("/queues", "queues", data=list_queues)
async def show_queues(call: Call, query: QueueQuery) -> web.Response:
    """List queues with their current statistics."""
    listed = await find_queues(call, query)
    names = [q.status.name for q in listed.queues] if query.sort == "name" else []
    return await call.render(
        "queues.html",
        query=query,
        stems=common_prefixes(names),
        total=len(call.queues),
        **table_values(call, listed),
    )


def table_values(call: Call, listed: QueuePage) -> dict[str, Any]:
    """Return the values for the table of queues; cells and trends are keyed by queue_id."""
    context, now_ms = call.context, call.now_ms
    queues = [(row.status, row.oldest_ready_at) for row in listed.queues]
    return {
        "listed": listed,
        "cells": {queue.queue_id: queue_cells(queue, at_ms, now_ms) for queue, at_ms in queues},
        "trends": {
            queue.queue_id: trends.read_spark(context, queue.queue_id) for queue, _ in queues
        },
        "snippets": _first_snippets(call),
    }


def _first_snippets(call: Call) -> Any:
    """Return getting-started code with the broker's addresses, or no code once a queue exists."""
    if call.queues:
        return []
    request, context = call.request, call.context
    host, port = tcp_address(call.status.listeners, host_name(request.host))
    base = context.settings.admin.public_url or http_address(
        request.scheme, request.host, context.urls.base_path
    )
    return publish_snippets(host, port, base)


# -- live updates


async def read_live_list(
    call: Call, ids: Collection[int], query: QueueQuery
) -> tuple[dict[str, str], LiveValues]:
    """Return the totals over all queues, and the live values of a list that shows these ids."""
    status, now_ms, listed_ids = call.status, call.now_ms, frozenset(ids)
    oldest_ready_at = await read_oldest_ready_at(call, status.queues)
    texts: dict[str, str] = {}
    points: dict[str, str] = {}
    for queue in status.queues:
        if queue.queue_id in listed_ids:
            cells = queue_cells(queue, oldest_ready_at.get(queue.queue_id), now_ms)
            texts |= {f"{queue.queue_id}.{key}": value for key, value in cells.items()}
            points[f"{queue.queue_id}.in"] = trends.read_spark(call.context, queue.queue_id)
    tiles = overview_tiles(status, oldest_ready_at, now_ms)
    listed = make_queue_page(status.queues, oldest_ready_at, query)
    return tiles, LiveValues(
        texts,
        points,
        new=sum(queue.status.queue_id not in ids for queue in listed.queues),
        says=f"Ready {tiles['total.ready']}, dispatched {tiles['total.dispatched']}",
    )


async def live_queues(call: Call, _argument: str, ids: tuple[int, ...]) -> LiveValues:
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
        states = (SearchTerm("state", state) for state in WAITING_STATES)
        selection = await bulk.freeze_selection(call, SearchQuery((*terms, *states)))
        raise call.redirect("selection", token=selection.token, action="delete", next=to)
    if action == "remove":
        return Done(None, await _remove(call, names), to)
    side, is_paused = _TURNS[action]
    await call.run_on_each(queue_operations.pause, names, side, is_paused)
    count = formats.count_of(len(names), "queue", "queues")
    return Done(None, f"{'Paused' if is_paused else 'Resumed'} {side} for {count}.", to)


async def _remove(call: Call, names: Sequence[str]) -> str:
    """Remove the empty queues; return how many were removed, and why the others were kept."""
    removed, refused = 0, []
    for name in names:
        try:
            await call.run(queue_operations.remove_queue, name)
            removed += 1
        except RefusedError as error:
            refused.append(str(error))
    if not removed:
        raise RefusedError("nothing_removed", "; ".join(refused))
    text = f"{formats.count_of(removed, 'queue', 'queues')} removed."
    return f"{text} {'; '.join(refused)}." if refused else text
