"""The API call that waits for a message, so that clients need not poll."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.context import context_of, forget_status
from phpmq_lite.admin.http import responses
from phpmq_lite.admin.http.fields import read_query
from phpmq_lite.admin.http.permissions import allowed_queues
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.responses import json_response
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.messages import search_query as queries
from phpmq_lite.admin.messages.listing import MessageView
from phpmq_lite.admin.system.live import WAITS, LiveFeeds
from phpmq_lite.model import Batch, has_room
from phpmq_lite.storage.read.activity import RecentActivity
from phpmq_lite.storage.read.messages import MessageRow
from phpmq_lite.storage.read.read_pool import Readers, read_owner
from phpmq_lite.storage.read.search import Search
from phpmq_lite.storage.read.search_plan import SearchQuery

_APART_S: Final = 0.02  # minimum time between two reads by the same waiting request
_LOOKS_PER_S: Final = 200  # maximum number of reads per second for all waits combined
_SCOPE: Final = "wait"

WaitCondition = Literal["published", "settled"]
TapBatches = Callable[[Callable[[Batch], None]], Callable[[], None]]


@dataclass(slots=True, frozen=True)
class WaitPosition:
    """A point in time: the last assigned seq and the last offset in the history."""

    seq: int
    offset: int

    @classmethod
    async def now(cls, readers: Readers) -> Self:
        """Return the current position, which follows everything stored so far."""
        return cls(*await RecentActivity(readers).ends())

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Parse a cursor; return None if there is no cursor.

        Raises:
            Problem: 422 if the cursor is malformed.
        """
        place = responses.pair_in(responses.decode_cursor(_SCOPE, text))
        return None if place is None else cls(*place)

    def after(self, ids: Iterable[str]) -> "WaitPosition":
        """Return the position right after these messages were published."""
        return replace(self, seq=max((int(one[:16], 16) for one in ids), default=self.seq))

    @property
    def text(self) -> str:
        """The position as an opaque cursor string."""
        return responses.encode_cursor(_SCOPE, "after", [self.seq, self.offset])


@dataclass(slots=True)
class MessageWait:
    """A wait for a message: the condition, the position reached, and the queues to read."""

    query: SearchQuery
    until: WaitCondition
    mark: WaitPosition
    queues: Callable[[], frozenset[int] | None]  # ids of visible queues, computed before each read
    search: Search
    tails: RecentActivity
    is_over: Callable[[], bool]
    apart_s: Callable[[], float] = lambda: _APART_S  # returns the seconds between two reads

    async def first(self, woken: asyncio.Event, timeout_s: float) -> MessageRow | None:
        """Return the first match, or None on timeout; move ``mark`` past the messages read.

        Read at least once, and stop early only if ``is_over`` returns True.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        while True:
            woken.clear()  # before the read, so that a message stored during the read sets it again
            found = await self._read_match(ends_at)
            if found is not None or self.is_over():
                return found
            try:
                async with asyncio.timeout_at(ends_at):
                    await asyncio.sleep(self.apart_s())
                    await woken.wait()
            except TimeoutError:
                return await self._read_match(ends_at) if woken.is_set() else None

    async def _read_match(self, ends_at: float) -> MessageRow | None:
        """Read slices until one contains a match or none is left; after ``ends_at``, only one."""
        while places := await self._next():
            rows = await self.search.matches(self.query, list(places), self.queues())
            if rows:
                found = min(rows, key=lambda row: places[row.seq])
                self._go_to(places[found.seq])
                return found
            self._go_to(max(places.values()))
            if asyncio.get_running_loop().time() > ends_at:
                return None
        return None

    async def _next(self) -> dict[int, int]:
        """Return the next messages as a mapping of seq to position (a seq or a history offset)."""
        if self.until == "published":
            return {seq: seq for seq in await self.tails.published_after(self.mark.seq)}
        settled = await self.tails.settled_after(self.mark.offset)
        return {seq: offset for offset, seq in settled}

    def _go_to(self, place: int) -> None:
        if self.until == "published":
            self.mark = replace(self.mark, seq=place)
        else:
            self.mark = replace(self.mark, offset=place)


def read_interval_s(hub: LiveFeeds) -> float:
    """Return the seconds to wait between two reads; more waits mean a longer interval."""
    return max(_APART_S, len(hub.waits) / _LOOKS_PER_S)


@asynccontextmanager
async def commit_event(hub: LiveFeeds, tap: TapBatches) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set by commits with new or settled messages, and at shutdown.

    Raises:
        Problem: 429 if too many requests are waiting.
    """
    owner, owners = read_owner.get(), Counter(hub.waits.values())
    if not has_room(owners[owner], owners.total(), 1, WAITS):
        hub.waits_refused += 1
        raise Problem(
            429, "too_many_waits",
            f"{owners.total()} requests are already waiting, {owners[owner]} of them yours. Try"
            " again in a moment.",
            bound=f"{WAITS} at a time, plus a quarter for users with few waits",
            headers={"Retry-After": "5"},
        )  # fmt: skip
    woken = asyncio.Event()

    def look(batch: Batch) -> None:
        if batch.created or batch.copied or batch.settled:
            woken.set()

    hub.waits[woken] = owner
    try:
        remove = tap(look)
        try:
            yield woken
        finally:
            remove()
    finally:
        del hub.waits[woken]


LONGEST_S: Final = 60.0
CURSOR: Final = "X-Cursor"


class WaitQuery(BaseModel):
    """The messages to wait for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    q: str = Field("", max_length=2_000, description="search, or empty for any message")
    after: str | None = Field(
        None,
        max_length=200,
        description="cursor from a publish response or an X-Cursor header; empty to wait only for "
        "new messages",
    )
    until: WaitCondition = Field("published", description="what to wait for: published or settled")
    timeout: float = Field(0.0, ge=0, le=LONGEST_S, description="seconds to wait; 0 to check once")


async def wait_for_message(request: web.Request) -> web.StreamResponse:
    """Wait for the first matching message after a cursor; respond with 204 on timeout.

    Either way, the header ``X-Cursor`` contains the cursor to continue from.
    """
    context, asked = context_of(request), read_query(request, WaitQuery)
    query, after = queries.parse_search(asked.q), WaitPosition.read(asked.after)
    async with commit_event(context.live, context.engine.tap) as woken:
        mark = after or await WaitPosition.now(context.readers)
        waiting = MessageWait(
            query,
            asked.until,
            mark,
            lambda: _queues(request),
            context.search,
            RecentActivity(context.readers),
            lambda: context.live.is_closed or request.transport is None,
            lambda: read_interval_s(context.live),
        )
        found = await waiting.first(woken, asked.timeout)
    headers = {CURSOR: waiting.mark.text}
    if found is None:
        return web.Response(status=204, headers=headers)
    answer = json_response(MessageView.of_row(found))
    answer.headers.update(headers)
    return answer


def _queues(request: web.Request) -> frozenset[int] | None:
    forget_status(request)  # a queue may have been created since the last read
    return allowed_queues(request)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/wait", Role.VIEWER, "api-wait", wait_for_message, query=WaitQuery,
        gives=MessageView, cli="message wait",
    ),
)  # fmt: skip
