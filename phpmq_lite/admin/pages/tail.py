"""The tail of a queue: what happens to its messages, as it happens."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, field_validator

from phpmq_lite.admin import tails, views
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.pauses import gather_slowly
from phpmq_lite.admin.problems import not_found
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import find_queue, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.streams import STREAMS
from phpmq_lite.admin.tails import Happening, Tail
from phpmq_lite.admin.viewers import FEED, feed_key
from phpmq_lite.model import State
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.activity import MessageEvent, MessagePlace, RecentActivity
from phpmq_lite.storage.read.messages import MessageRow

SHOWN: Final = 100  # of the past
_LATEST: Final = 1 << 62
_SETTLED: Final = {
    State.ACKED: "ack", State.EXPIRED: "expire", State.DEAD: "dead", State.DELETED: "delete",
}  # fmt: skip


class TailQuery(BaseModel):
    """What to show: some kinds only, and a text anywhere in a row."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: tuple[str, ...] = ()
    q: str = Field("", max_length=200)

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in tails.KINDS:
                raise ValueError(f"{kind[:40]!r} is none of {', '.join(tails.KINDS)}")
        return kinds


def _query_of(request: web.Request) -> TailQuery:
    """Read the filter; a kind may be there several times, or several with commas."""
    kinds = [kind for text in request.query.getall("kind", []) for kind in text.split(",") if kind]
    return TailQuery(kind=tuple(dict.fromkeys(kinds)), q=request.query.get("q", ""))


async def tail(request: web.Request) -> web.StreamResponse:
    """What happened to the messages of a queue lately, and what happens now."""
    queue, query = queue_of(request), _query_of(request)
    request[FEED] = feed_key(request, f"tail:{queue.name}")
    if len(context_of(request).live.kept) < STREAMS:
        _tail_of(request, queue).listen()  # so that nothing is missed until the stream is there
    rows = await _rows(request, await _past(context_of(request), queue))
    kinds = frozenset(query.kind)
    return await page(
        request,
        "tail.html",
        queue=queue,
        query=query,
        kinds=tails.KINDS,
        again=request.path_qs,
        rows=[row for row in rows if tails.is_wanted(row, kinds, query.q)][:SHOWN],
    )


async def live_tail(request: web.Request, argument: str, _ids: tuple[int, ...]) -> dict[str, Any]:
    """Give what happened to a queue's messages since the last evaluation of this feed."""
    queue, query = find_queue(request, argument), _query_of(request)
    if queue is None:
        raise not_found("queue", argument)
    happenings, missed = await _tail_of(request, queue).take()
    kinds = frozenset(query.kind)
    rows = [row for row in await _rows(request, happenings) if tails.is_wanted(row, kinds, query.q)]
    shown = rows[-tails.ROWS_PER_S :]
    return {"rows": shown, "missed": missed + len(rows) - len(shown)}


def _tail_of(request: web.Request, queue: QueueStatus) -> Tail:
    """Give the tail of a feed; one that stopped is made anew."""
    context, key = context_of(request), request[FEED]
    kept = context.live.kept
    known = kept.get(key)
    if isinstance(known, Tail) and known.queue_id == queue.queue_id:
        return known
    if known is not None:  # the queue was removed and made again
        known.stop()
    made = kept[key] = Tail(
        queue.queue_id,
        queue.name,
        context.engine.tap,
        RecentActivity(context.readers),
        on_stop=lambda: kept.pop(key, None),
    )
    return made


async def _rows(request: web.Request, happenings: Iterable[Happening]) -> list[dict[str, Any]]:
    urls = context_of(request).urls
    names = {
        client.client: views.client_name(client.client, client.kind, client.address)
        for client in status_of(request).clients
    }
    rows = (
        tails.row_of(happening, names, lambda id_: urls.to("message", id=id_))
        for happening in happenings
    )
    return await gather_slowly(rows, context_of(request).engine.pause)


# -- the past, from the database


async def _past(context: Context, queue: QueueStatus) -> list[Happening]:
    """Give what can be known of the last turns of a queue's messages, the newest first."""
    alive, history, turns = await asyncio.gather(
        context.reader.messages(queue.queue_id, before=_LATEST, limit=SHOWN),
        context.reader.history(queue_id=queue.queue_id, limit=SHOWN),
        RecentActivity(context.readers).recent_events(queue.queue_id, SHOWN),
    )
    dead = {row.seq for row in history.rows if row.state == State.DEAD}
    found = [
        *(one for row in (*alive, *history.rows) for one in _of_row(row)),
        *(_of_turn(turn, queue.queue_id) for turn in turns
          if turn.kind != "dead_letter" or turn.seq not in dead),
    ]  # fmt: skip
    return sorted(found, key=lambda happening: -happening.at_ms)


def _of_row(row: MessageRow) -> list[Happening]:
    place = MessagePlace(row.seq, row.token, row.queue_id, row.size, row.preview)
    made = [Happening("publish", row.published_at, row.seq, "", row.publisher, place)]
    if row.last_dispatched_at is not None:
        detail = f"delivery {row.deliveries}" if row.deliveries > 1 else ""
        made.insert(
            0,
            Happening("dispatch", row.last_dispatched_at, row.seq, detail, row.consumer, place),
        )
    if row.settled_at is not None:
        kind = _SETTLED.get(State(row.state), "settled")
        made.insert(0, Happening(kind, row.settled_at, row.seq, row.reason or "", None, place))
    return made


def _of_turn(turn: MessageEvent, queue_id: int) -> Happening:
    place = MessagePlace(turn.seq, turn.token, queue_id, 0, None)
    return Happening(turn.kind, turn.at_ms, turn.seq, turn.detail or "", None, place)


ROUTES: Final = (Route("GET", "/queues/{q}/tail", Role.VIEWER, "tail", tail),)
