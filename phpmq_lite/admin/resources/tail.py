"""The tail of a queue: its events as they happen."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web
from pydantic import Field, field_validator

from phpmq_lite.admin.auth.permissions import find_queue, require_queue
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import Context, context_of, status_of
from phpmq_lite.admin.base.input import QueryModel
from phpmq_lite.admin.base.problems import not_found
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.monitoring.feed_viewers import FEED, feed_key
from phpmq_lite.admin.monitoring.live_feeds import STREAMS, FeedState
from phpmq_lite.admin.views import bodies
from phpmq_lite.admin.views.rendering import collect_in_slices, render_page
from phpmq_lite.broker.state_table import StateEvent
from phpmq_lite.model import Batch, CopiedRows, Message, State
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.activity import MessageEvent, MessagePreview, RecentActivity
from phpmq_lite.storage.read.messages import MessageRow, wire_id

ROWS_PER_S: Final = 100  # shown of a second
LOOKED_UP: Final = 1_000  # messages a second whose queue is found out by a read
PENDING: Final = 5_000  # happenings kept between two looks
KNOWN: Final = 20_000  # messages whose queue is remembered
IDLE_S: Final = 15.0  # without a look it stops listening
PREVIEW_BYTES: Final = 480

KINDS: Final = (
    "publish", "dispatch", "ack", "requeue", "return", "release", "move", "forward", "dead",
    "expire", "delete", "restore", "redrive",
)  # fmt: skip
_OUTCOMES: Final[dict[int, str]] = {
    State.ACKED: "ack",
    State.EXPIRED: "expire",
    State.DEAD: "dead",
    State.DELETED: "delete",
}
_TOLD_TWICE: Final = {"redriven"}  # reasons of a deletion that an event tells too
_WAYS: Final = {StateEvent.FORWARD, StateEvent.MOVE, StateEvent.PLACE}  # detail: "orders to mail"


@dataclass(slots=True, frozen=True)
class TailEvent:
    """One event of a message; ``place`` None: not known yet."""

    kind: str
    at_ms: int  # Unix ms
    seq: int
    detail: str = ""
    client: int | None = None
    place: MessagePreview | None = None


class QueueTail(FeedState):
    """The events of one queue's messages.  Call ``take`` about once a second.

    ``tap`` has a function called with every batch after its commit, and gives what ends that.
    """

    def __init__(
        self,
        queue_id: int,
        name: str,
        tap: Callable[[Callable[[Batch], None]], Callable[[], None]],
        tails: RecentActivity,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_stop = on_stop
        self.queue_id = queue_id
        self._ways = (f"{name} to ", f" to {name}")
        self._tap = tap
        self._tails = tails
        self._pending: deque[TailEvent] = deque()
        self._overrun = 0  # happenings that found no room
        self._known: OrderedDict[int, MessagePreview | None] = OrderedDict()  # None: other queue
        self._remove: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """Listen from now on; to be called again within ``IDLE_S``, or it stops."""
        if self._remove is None:
            self._remove = self._tap(self.note)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.stop)

    def stop(self) -> None:
        """Listen no more; what was not taken is forgotten."""
        if self._remove is not None:
            self._remove()
            self._remove = None
            self._on_stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending.clear()
        self._known.clear()
        self._overrun = 0

    # -- in the engine's loop, after a commit

    def note(self, batch: Batch) -> None:
        """Write down what a batch did; nothing is read here."""
        contents = batch.bodies
        for at, message in enumerate(batch.created):
            is_ours = message.queue_id == self.queue_id
            place = _place(message, contents[2 * at + 1]) if is_ours else None
            self._learn(message.seq, place)
            if place is not None:
                self._add(TailEvent("publish", message.published_at, message.seq, "",
                                    message.publisher, place))  # fmt: skip
        for copied in batch.copied:
            self._note_copied(copied, batch.wall_ms)
        for message in batch.dispatched:
            place = self._of(message)
            if place is not None:
                at_ms = message.last_dispatched_at or batch.wall_ms
                self._add(TailEvent("dispatch", at_ms, message.seq, _delivery(message),
                                    message.consumer, place))  # fmt: skip
        for message in batch.changed.values():
            self._of(message)  # where it is now: its events come next
        dead = {seq for (outcome, _), seqs in batch.settled.items() if outcome == State.DEAD
                for seq in seqs}  # fmt: skip
        for happening in _read_events(batch.events):
            if happening.kind != StateEvent.DEAD_LETTER or happening.seq not in dead:
                self._add_if_ours(happening)
        for (outcome, reason), seqs in batch.settled.items():
            if reason not in _TOLD_TWICE or outcome != State.DELETED:
                kind = _OUTCOMES.get(outcome, "settled")
                for seq in seqs:
                    self._add_if_ours(TailEvent(kind, batch.wall_ms, seq, reason or ""))

    def _note_copied(self, copied: CopiedRows, at_ms: int) -> None:
        """Count what Spark published, and look up the last ones: nothing else is known of them."""
        count = copied.counts.get(self.queue_id, 0)
        self._overrun += count  # those that are found are taken off
        if count:
            for seq in range(max(copied.first, copied.end - ROWS_PER_S), copied.end):
                if len(self._pending) < PENDING:
                    self._pending.append(TailEvent("publish", at_ms, seq, "", copied.publisher))

    def _of(self, message: Message) -> MessagePreview | None:
        """Return the place of a message, None if it is in another queue; remember new messages."""
        if message.queue_id != self.queue_id:
            self._learn(message.seq, None)
            return None
        place = self._known.get(message.seq)
        if place is None:
            place = _place(message, message.body)
            if message.body is not None:
                self._learn(message.seq, place)
            else:
                self._known.pop(message.seq, None)  # its content is looked up with its next turn
        return place

    def _add_if_ours(self, happening: TailEvent) -> None:
        if happening.kind in _WAYS:
            start, end = self._ways
            if happening.detail.startswith(start) or happening.detail.endswith(end):
                self._add(happening)
        elif happening.seq not in self._known:
            self._add(happening)
        elif (place := self._known[happening.seq]) is not None:
            self._add(replace(happening, place=place))

    def _add(self, happening: TailEvent) -> None:
        if len(self._pending) < PENDING:
            self._pending.append(happening)
        else:
            self._overrun += 1

    def _learn(self, seq: int, place: MessagePreview | None) -> None:
        self._known[seq] = place
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    # -- reading

    async def take(self) -> tuple[list[TailEvent], int]:
        """Return the events since the last call, in order, and how many were dropped."""
        self.listen()
        pending, self._pending = self._pending, deque()
        missed, self._overrun = self._overrun, 0
        asked = list(dict.fromkeys(h.seq for h in pending if h.place is None))
        found = await self._tails.previews(asked[:LOOKED_UP]) if asked else {}
        given = []
        for happening in pending:
            place = happening.place or found.get(happening.seq)
            is_counted = happening.kind == "publish" and happening.place is None
            if place is None:
                missed += len(asked) > LOOKED_UP and not is_counted
            elif place.queue_id == self.queue_id or happening.kind in _WAYS:
                given.append(replace(happening, place=place))
                missed -= is_counted
        for seq, place in found.items():
            self._learn(seq, place if place.queue_id == self.queue_id else None)
        return given, missed


def _place(message: Message, body: bytes | None) -> MessagePreview:
    content = None if body is None else bytes(body[:PREVIEW_BYTES])
    return MessagePreview(message.seq, message.token, message.queue_id, message.size, content)


def _delivery(message: Message) -> str:
    return f"delivery {message.deliveries}" if message.deliveries > 1 else ""


def _read_events(events: list[Any]) -> Iterator[TailEvent]:
    """Read the flat list of a batch: seq, at_ms, kind, detail."""
    for at in range(0, len(events), 4):
        seq, at_ms, kind, detail = events[at : at + 4]
        yield TailEvent(str(kind), at_ms, seq, detail or "")


# -- what is shown of them


def tail_row(
    happening: TailEvent, names: Mapping[int, str], link: Callable[[str], str]
) -> dict[str, Any]:
    """Return a row of the page, with hidden characters escaped; ``names``: of clients by number.

    The id is the same whether it comes from a batch or from the database.
    """
    place = happening.place
    row: dict[str, Any] = {
        "id": f"{happening.kind}.{happening.seq}.{happening.at_ms}",
        "kind": happening.kind.replace("_", "-"),
        "at": happening.at_ms,
        "clock": _clock(happening.at_ms),
        "seq": f"#{happening.seq}",
        "text": _text(happening, names),
    }
    if place is not None:
        message_id = wire_id(place.seq, place.token)
        row |= {
            "message": message_id,
            "link": link(message_id),
            "size": formats.format_size(place.size),
            "preview": "".join(
                piece.text for piece in bodies.preview_envelope(place.preview, place.size)
            ),
        }
    return row


def _clock(at_ms: int) -> str:
    """Write the time of day (UTC); the title of the page's ``<time>`` has the date."""
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return at.strftime("%H:%M:%S.") + f"{at_ms % 1_000:03}"


def _text(happening: TailEvent, names: Mapping[int, str]) -> str:
    words = []
    if happening.client is not None:
        who = names.get(happening.client, f"client {happening.client}")
        words.append(f"{'by' if happening.kind == 'publish' else 'to'} {who}")
    if happening.detail:
        words.append(formats.escape_hidden(happening.detail))
    return ", ".join(words)


def is_wanted(row: Mapping[str, Any], kinds: frozenset[str], text: str) -> bool:
    """Return whether a row matches a filter: one of the kinds, and the text anywhere in it."""
    if kinds and row["kind"] not in kinds:
        return False
    if not text:
        return True
    wanted = text.casefold()
    shown = (row.get(key, "") for key in ("message", "seq", "text", "preview"))
    return any(wanted in value.casefold() for value in shown)


SHOWN: Final = 100  # of the past
_LATEST: Final = 1 << 62
_SETTLED: Final = {
    State.ACKED: "ack", State.EXPIRED: "expire", State.DEAD: "dead", State.DELETED: "delete",
}  # fmt: skip


class TailPageQuery(QueryModel):
    """Filter of events: kinds, and a text in the row."""

    kind: tuple[str, ...] = ()
    q: str = Field("", max_length=200)

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"{kind[:40]!r} is none of {', '.join(KINDS)}")
        return kinds


def _query_of(request: web.Request) -> TailPageQuery:
    """Read the filter; a kind may be there several times, or several with commas."""
    kinds = [kind for text in request.query.getall("kind", []) for kind in text.split(",") if kind]
    return TailPageQuery(kind=tuple(dict.fromkeys(kinds)), q=request.query.get("q", ""))


async def show_tail(request: web.Request) -> web.StreamResponse:
    """What happened to the messages of a queue lately, and what happens now."""
    queue, query = require_queue(request), _query_of(request)
    request[FEED] = feed_key(request, f"tail:{queue.name}")
    if len(context_of(request).live.states) < STREAMS:
        _tail_of(request, queue).listen()  # so that nothing is missed until the stream is there
    rows = await _rows(request, await _past(context_of(request), queue))
    kinds = frozenset(query.kind)
    return await render_page(
        request,
        "tail.html",
        queue=queue,
        query=query,
        kinds=KINDS,
        again=request.path_qs,
        rows=[row for row in rows if is_wanted(row, kinds, query.q)][:SHOWN],
    )


async def live_tail(request: web.Request, argument: str, _ids: tuple[int, ...]) -> dict[str, Any]:
    """Return the events of a queue's messages since the last evaluation of this feed."""
    queue, query = find_queue(request, argument), _query_of(request)
    if queue is None:
        raise not_found("queue", argument)
    happenings, missed = await _tail_of(request, queue).take()
    kinds = frozenset(query.kind)
    rows = [row for row in await _rows(request, happenings) if is_wanted(row, kinds, query.q)]
    shown = rows[-ROWS_PER_S:]
    return {"rows": shown, "missed": missed + len(rows) - len(shown)}


def _tail_of(request: web.Request, queue: QueueStatus) -> QueueTail:
    """Return the tail of a feed; create a new one if it has stopped."""
    context, key = context_of(request), request[FEED]
    kept = context.live.states
    known = kept.get(key)
    if isinstance(known, QueueTail) and known.queue_id == queue.queue_id:
        return known
    if known is not None:  # the queue was removed and made again
        known.stop()
    made = kept[key] = QueueTail(
        queue.queue_id,
        queue.name,
        context.engine.tap,
        RecentActivity(context.readers),
        on_stop=lambda: kept.pop(key, None),
    )
    return made


async def _rows(request: web.Request, happenings: Iterable[TailEvent]) -> list[dict[str, Any]]:
    urls = context_of(request).urls
    names = {
        client.client: formats.client_name(client.client, client.kind, client.address)
        for client in status_of(request).clients
    }
    rows = (
        tail_row(happening, names, lambda id_: urls.to("message", id=id_))
        for happening in happenings
    )
    return await collect_in_slices(rows, context_of(request).engine.pause)


# -- the past, from the database


async def _past(context: Context, queue: QueueStatus) -> list[TailEvent]:
    """Return the last known events of a queue's messages, newest first."""
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


def _of_row(row: MessageRow) -> list[TailEvent]:
    place = MessagePreview(row.seq, row.token, row.queue_id, row.size, row.preview)
    made = [TailEvent("publish", row.published_at, row.seq, "", row.publisher, place)]
    if row.last_dispatched_at is not None:
        detail = f"delivery {row.deliveries}" if row.deliveries > 1 else ""
        made.insert(
            0,
            TailEvent("dispatch", row.last_dispatched_at, row.seq, detail, row.consumer, place),
        )
    if row.settled_at is not None:
        kind = _SETTLED.get(State(row.state), "settled")
        made.insert(0, TailEvent(kind, row.settled_at, row.seq, row.reason or "", None, place))
    return made


def _of_turn(turn: MessageEvent, queue_id: int) -> TailEvent:
    place = MessagePreview(turn.seq, turn.token, queue_id, 0, None)
    return TailEvent(turn.kind, turn.at_ms, turn.seq, turn.detail or "", None, place)


ROUTES: Final = (Route("GET", "/queues/{q}/tail", Role.VIEWER, "tail", show_tail),)
