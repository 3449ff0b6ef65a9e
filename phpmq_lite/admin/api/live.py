"""What changes, as a stream of events or by polling: the same data."""

import json
from typing import Any, Final

from aiohttp import web
from aiohttp_sse import EventSourceResponse
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.live import evaluation
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.streams import Stream, Update, read_seen
from phpmq_lite.admin.viewers import FEED, feed_key, is_alive, session_of

PING_S: Final = 15.0
SEND_S: Final = 30.0  # for a browser to take an event
RETRY_MS: Final = 3_000


class LiveQuery(BaseModel):
    """What to look at; the filter of the page comes along as it stands in its URL."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    topic: str = Field(min_length=1, max_length=300)  # queues, queue:NAME, tail:NAME, …
    ids: str = Field("", pattern=r"^[0-9]{0,18}(,[0-9]{1,18})*$", max_length=4_000)  # rows on show

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rows, in order."""
        return tuple(sorted({int(number) for number in self.ids.split(",") if number}))


class PollQuery(LiveQuery):
    """What to look at, and since when."""

    after: str = Field("", max_length=100)  # the last id; none: all of it


class LiveOut(BaseModel):
    """What changed; members in which nothing changed are left out."""

    id: str  # for ``after``, or Last-Event-ID
    shown: dict[str, str | None] | None = None  # texts by field; null: the row is gone
    points: dict[str, str | None] | None = None  # of small charts, by field
    new: int | None = None  # rows that the page does not have
    says: str | None = None  # for screen readers
    rows: list[dict[str, Any]] | None = None  # tail and client: new rows, the oldest first
    missed: int | None = None  # rows ahead of these that were left out


async def events(request: web.Request) -> web.StreamResponse:
    """Stream what changes as server-sent events, at most one a second; 204: poll instead."""
    context, asked = context_of(request), query_of(request, LiveQuery)
    evaluate = evaluation(request, asked.topic, asked.numbers)
    key = request[FEED] = feed_key(request, asked.topic, asked.numbers)
    seen = read_seen(request.headers.get("Last-Event-ID", ""))
    stream = context.live.open(key, evaluate, session_of(request), seen, is_alive(request))
    if stream is None:
        return web.Response(status=204)
    try:
        return await _send(request, stream)
    finally:
        context.live.leave(key, stream)


async def _send(request: web.Request, stream: Stream) -> web.StreamResponse:
    response = EventSourceResponse(ping_interval=PING_S, send_timeout=SEND_S)
    response.headers["Cache-Control"] = "no-store"
    try:
        await response.prepare(request)
        async with response:
            retry: int | None = RETRY_MS
            while (update := await stream.next()) is not None:
                await response.send(_text(update), id=str(update.seen), retry=retry)
                retry = None
            await response.send(json.dumps({"reason": stream.reason}), event="bye")
    except (ConnectionResetError, TimeoutError):
        pass  # the browser has left, or takes nothing any more
    return response


def _text(update: Update) -> str:
    return json.dumps(update.data, ensure_ascii=False, separators=(",", ":"))


async def live(request: web.Request) -> web.StreamResponse:
    """Give what changed since the last call, for pages without a stream."""
    context, asked = context_of(request), query_of(request, PollQuery)
    evaluate = evaluation(request, asked.topic, asked.numbers)
    key = request[FEED] = feed_key(request, asked.topic, asked.numbers)
    update = await context.live.poll(key, evaluate, read_seen(asked.after))
    return as_json({"id": str(update.seen), **update.data})


ROUTES: Final = (
    Route("GET", "/api/v1/events", Role.VIEWER, "events", events, query=LiveQuery),
    Route("GET", "/api/v1/live", Role.VIEWER, "live", live, query=PollQuery, gives=LiveOut),
)
