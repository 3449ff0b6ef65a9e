"""Live updates through an event stream or polling."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp_sse import EventSourceResponse
from pydantic import BaseModel, Field

from phpmq_lite.admin.accounts.checks import find_identity, session_key_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import QueryModel
from phpmq_lite.admin.http.live_feeds import (
    CONTROL,
    EvaluateFeed,
    FeedStream,
    LiveValues,
    parse_position,
)
from phpmq_lite.admin.http.output import json_response
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.bulk import live_bulk
from phpmq_lite.admin.messages.tail import live_tail
from phpmq_lite.admin.queues.list import live_queues
from phpmq_lite.admin.queues.queue import live_queue
from phpmq_lite.admin.system.clients import live_client, live_clients
from phpmq_lite.admin.system.overview import live_overview

TopicEvaluator = Callable[[Call, str, tuple[int, ...]], Awaitable[LiveValues]]

# maps a topic name (before any colon) to its evaluator and whether it requires an argument
TOPICS: Final[dict[str, tuple[TopicEvaluator, bool]]] = {
    "overview": (live_overview, False),
    "queues": (live_queues, False),
    "queue": (live_queue, True),
    "clients": (live_clients, False),
    "client": (live_client, True),
    "bulk": (live_bulk, True),
    "tail": (live_tail, True),
}


def evaluation_of(call: Call, topic: str, ids: tuple[int, ...]) -> EvaluateFeed:
    """Return what computes a topic's values; raise a 422 ``Problem`` for unknown topics."""
    name, colon, argument = topic.partition(":")
    evaluator, has_argument = TOPICS.get(name, (None, False))
    if evaluator is None or has_argument is not bool(colon and argument):
        topics = ", ".join(f"{key}:…" if with_ else key for key, (_, with_) in TOPICS.items())
        detail = f"There is no topic {topic!r}."
        raise Problem(422, "unknown_topic", detail, field="topic", bound=topics)

    async def evaluate() -> LiveValues:
        call.forget_status()
        return await evaluator(call, argument, ids)

    return evaluate


endpoints: Final = Endpoints()
PING_S: Final = 15.0
SEND_S: Final = 30.0  # maximum time for a browser to accept an event
RETRY_MS: Final = 3_000


class LiveQuery(QueryModel):
    """The topic to follow, and the numbers of the rows shown on the page."""

    topic: str = Field(
        min_length=1,
        max_length=300,
        description="overview, queues, clients, queue:NAME, client:NUMBER, bulk:JOB or tail:NAME",
    )
    ids: str = Field(
        "",
        pattern=r"^[0-9]{0,18}(,[0-9]{1,18})*$",
        max_length=4_000,
        description="comma-separated numbers of the rows shown on the page",
    )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The row numbers in ascending order."""
        return tuple(sorted({int(number) for number in self.ids.split(",") if number}))


class LivePollQuery(LiveQuery):
    """The topic to follow, and the id of the previous response."""

    after: str = Field("", max_length=100, description="id of the previous response, if any")


class LiveView(BaseModel):
    """The changes since the previous response. Unchanged members are omitted."""

    id: str = Field(description="id to pass as after in the next call, or as Last-Event-ID")
    shown: dict[str, str | None] | None = Field(
        None, description="texts by field; omitted if unchanged"
    )
    points: dict[str, str | None] | None = Field(
        None, description="chart line points by field; omitted if unchanged"
    )
    new: int | None = Field(None, description="number of rows not in ids; omitted if unchanged")
    says: str | None = Field(None, description="text for screen readers; omitted if unchanged")
    rows: list[dict[str, Any]] | None = Field(
        None, description="new rows, oldest first; omitted if there are none"
    )
    missed: int | None = Field(None, description="number of earlier rows skipped; omitted if none")


@endpoints.api("GET /events", "events")
async def stream_events(call: Call, query: LiveQuery) -> web.StreamResponse:
    """Stream changes as server-sent events, at most one per second; on a 204, poll instead."""
    live, request = call.context.live, call.request
    evaluate = evaluation_of(call, query.topic, query.numbers)
    key = call.feed = call.feed_key(query.topic, query.numbers)
    position = parse_position(request.headers.get("Last-Event-ID", ""))
    # The key of the browser session or program toward whose limit a stream counts.
    owner = CONTROL if call.identity.kind == "control" else session_key_of(call)
    stream = live.open(key, evaluate, owner, call.actor, position, partial(_is_alive, call))
    if stream is None:
        return web.Response(status=204)
    try:
        return await _send(request, stream)
    finally:
        live.leave(key, stream)


def _is_alive(call: Call) -> bool:
    """Return whether a stream's peer is still connected and authorized."""
    transport = call.request.transport
    is_connected = transport is not None and not transport.is_closing()
    return is_connected and find_identity(call) == call.identity


async def _send(request: web.Request, stream: FeedStream) -> web.StreamResponse:
    response = EventSourceResponse(ping_interval=PING_S, send_timeout=SEND_S)
    response.headers["Cache-Control"] = "no-store"
    try:
        await response.prepare(request)
        async with response:
            retry: int | None = RETRY_MS
            while (update := await stream.next()) is not None:
                text = json.dumps(update.data, ensure_ascii=False, separators=(",", ":"))
                await response.send(text, id=str(update.position), retry=retry)
                retry = None
            await response.send(json.dumps({"reason": stream.reason}), event="bye")
    except (ConnectionResetError, TimeoutError):
        pass  # the browser has disconnected or stopped reading
    return response


@endpoints.api("GET /live", "live", gives=LiveView)
async def poll_changes(call: Call, query: LivePollQuery) -> web.Response:
    """Return the changes since the previous call, for pages without a stream."""
    evaluate = evaluation_of(call, query.topic, query.numbers)
    key = call.feed = call.feed_key(query.topic, query.numbers)
    update = await call.context.live.poll(key, evaluate, parse_position(query.after))
    return json_response({"id": str(update.position), **update.data})
