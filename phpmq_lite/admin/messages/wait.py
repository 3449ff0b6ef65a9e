"""The API call that waits for a message, so that clients need not poll."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.live_feeds import WAITS, LiveFeeds
from phpmq_lite.admin.http.output import json_response
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.listing import MessageView
from phpmq_lite.model import Batch, has_room
from phpmq_lite.storage.read.activity import RecentActivity
from phpmq_lite.storage.read.messages import MessageRow, seq_of
from phpmq_lite.storage.read.read_pool import Readers, read_owner
from phpmq_lite.storage.search.language import SearchQuery, parse_search
from phpmq_lite.storage.search.reader import Search

_APART_S: Final = 0.02  # minimum time between two reads by the same waiting request
_LOOKS_PER_S: Final = 200  # maximum number of reads per second for all waits combined
_SCOPE: Final = "wait"

LONGEST_S: Final = 60.0
CURSOR: Final = "X-Cursor"
endpoints: Final = Endpoints()

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
        """Parse a cursor, None if empty; raise a 422 ``Problem`` if it is malformed."""
        place = cursors.pair_in(cursors.decode_cursor(_SCOPE, text))
        return None if place is None else cls(*place)

    def after(self, ids: Iterable[str]) -> "WaitPosition":
        """Return the position right after these messages were published."""
        return replace(self, seq=max(map(seq_of, ids), default=self.seq))

    @property
    def text(self) -> str:
        """The position as an opaque cursor string."""
        return cursors.encode_cursor(_SCOPE, "after", [self.seq, self.offset])


@dataclass(slots=True)
class MessageWait:
    """A wait for a message: the condition, the position reached, and the queues to read."""

    query: SearchQuery
    until: WaitCondition
    position: WaitPosition
    queues: Callable[[], frozenset[int] | None]  # ids of visible queues, computed before each read
    search: Search
    tails: RecentActivity
    is_over: Callable[[], bool]
    apart_s: Callable[[], float] = lambda: _APART_S  # returns the seconds between two reads

    async def first(self, woken: asyncio.Event, timeout_s: float) -> MessageRow | None:
        """Return the first match, or None on timeout; move ``position`` past the messages read.

        Read at least once, and stop early only if ``is_over`` returns True.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        while True:
            woken.clear()  # before the read, so that a message stored during the read sets it again
            row = await self._read_match(ends_at)
            if row is not None or self.is_over():
                return row
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
                first = min(rows, key=lambda row: places[row.seq])
                self._go_to(places[first.seq])
                return first
            self._go_to(max(places.values()))
            if asyncio.get_running_loop().time() > ends_at:
                return None
        return None

    async def _next(self) -> dict[int, int]:
        """Return the next messages as a mapping of seq to position (a seq or a history offset)."""
        if self.until == "published":
            return {seq: seq for seq in await self.tails.published_after(self.position.seq)}
        settled = await self.tails.settled_after(self.position.offset)
        return {seq: offset for offset, seq in settled}

    def _go_to(self, place: int) -> None:
        if self.until == "published":
            self.position = replace(self.position, seq=place)
        else:
            self.position = replace(self.position, offset=place)


@asynccontextmanager
async def commit_event(live: LiveFeeds, tap: TapBatches) -> AsyncIterator[asyncio.Event]:
    """Yield an event that commits and a shutdown set; raise a 429 ``Problem`` if many wait."""
    owner, owners = read_owner.get(), Counter(live.waits.values())
    if not has_room(owners[owner], owners.total(), 1, WAITS):
        live.waits_refused += 1
        raise Problem(
            429,
            "too_many_waits",
            f"{owners.total()} requests are already waiting, {owners[owner]} of them yours. Try "
            "again in a moment.",
            bound=f"{WAITS} at a time, plus a quarter for users with few waits",
            headers={"Retry-After": "5"},
        )
    woken = asyncio.Event()

    def look(batch: Batch) -> None:
        if batch.created or batch.copied or batch.settled:
            woken.set()

    live.waits[woken] = owner
    try:
        remove = tap(look)
        try:
            yield woken
        finally:
            remove()
    finally:
        del live.waits[woken]


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


@endpoints.api(
    "GET /wait",
    "api-wait",
    gives=MessageView,
    others={204: "there is none in time"},
    cli="message wait",
)
async def wait_for_message(call: Call, query: WaitQuery) -> web.Response:
    """Wait for the first matching message after a cursor.

    Either way, the header ``X-Cursor`` contains the cursor to continue from.
    """
    context, live = call.context, call.context.live
    search, after = parse_search(query.q), WaitPosition.read(query.after)
    async with commit_event(live, context.broker.tap) as woken:
        wait = MessageWait(
            search,
            query.until,
            after or await WaitPosition.now(context.readers),
            lambda: _allowed_now(call),
            context.search,
            RecentActivity(context.readers),
            lambda: live.is_closed or call.request.transport is None,
            lambda: max(_APART_S, len(live.waits) / _LOOKS_PER_S),
        )
        row = await wait.first(woken, query.timeout)
    headers = {CURSOR: wait.position.text}
    if row is None:
        return web.Response(status=204, headers=headers)
    response = json_response(MessageView.of_row(row))
    response.headers.update(headers)
    return response


def _allowed_now(call: Call) -> frozenset[int] | None:
    call.forget_status()  # a queue may have been created since the last read
    return call.allowed
