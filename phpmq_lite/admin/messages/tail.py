"""Live tail of a queue's message events."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import Field, field_validator

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints, From, Queue
from phpmq_lite.admin.http.fields import QueryModel
from phpmq_lite.admin.http.live_feeds import STREAMS, FeedState, LiveValues
from phpmq_lite.admin.http.templates import collect_in_slices
from phpmq_lite.admin.messages import bodies
from phpmq_lite.admin.messages.message_life import Retry
from phpmq_lite.broker.state_table import FAILURE_EVENT, StateEvent
from phpmq_lite.model import OUTCOMES, Batch, CopiedRows, Message, State
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.activity import MessagePreview, RecentActivity
from phpmq_lite.storage.read.messages import EventRow, MessageRow, wire_id

ROWS_PER_S: Final = 100  # maximum number of rows shown per second
LOOKUPS_MAX: Final = 1_000  # maximum number of messages looked up in the database per second
PENDING_MAX: Final = 5_000  # maximum number of events kept between two reads
PREVIEWS_MAX: Final = 20_000  # maximum number of cached message previews
IDLE_S: Final = 15.0  # a tail stops if its events are not read for this long
PREVIEW_BYTES: Final = 480

endpoints: Final = Endpoints()

KINDS: Final = (
    "publish", "dispatch", "ack", "requeue", "return", "release", "move", "forward", "dead",
    "expire", "delete", "restore", "redrive", "retry", "failure", "schedule",
)  # fmt: skip
_OUTCOMES: Final[dict[int, str]] = {row.state: row.event for row in OUTCOMES.values()}
_OWN_EVENT: Final = {"redriven"}  # deletion reasons that have their own event kind
_MOVES: Final = {StateEvent.FORWARD, StateEvent.MOVE, StateEvent.PLACE}  # in ``Batch.moved``


@dataclass(slots=True, frozen=True)
class TailEvent:
    """A message event; ``preview`` is None if the preview must be read from the database."""

    kind: str
    at_ms: int  # Unix ms
    seq: int
    detail: str = ""
    client: int | None = None
    preview: MessagePreview | None = None


class QueueTail(FeedState):
    """Collects one queue's message events; ``take_events`` should be called about once per second.

    ``tap(function)`` makes the engine call ``function`` with every batch after its commit, and
    returns a function that stops these calls.
    """

    def __init__(
        self,
        queue_id: int,
        tap: Callable[[Callable[[Batch], None]], Callable[[], None]],
        activity: RecentActivity,
        on_stop: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_stop = on_stop
        self.queue_id = queue_id
        self._tap = tap
        self._activity = activity
        self._pending: deque[TailEvent] = deque()
        self._dropped = 0  # number of events dropped because ``PENDING_MAX`` was reached
        # Previews are keyed by seq; None means that the message is in another queue.
        self._previews: OrderedDict[int, MessagePreview | None] = OrderedDict()
        self._remove: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """Start or continue collecting events, until ``IDLE_S`` seconds after the last call."""
        if self._remove is None:
            self._remove = self._tap(self.record_batch)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.stop)

    def stop(self) -> None:
        """Stop collecting, and discard events that have not been taken."""
        if self._remove is not None:
            self._remove()
            self._remove = None
            self._on_stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending.clear()
        self._previews.clear()
        self._dropped = 0

    # -- called by the engine after each commit

    def record_batch(self, batch: Batch) -> None:
        """Collect a batch's events without reading the database."""
        for message, content in zip(batch.created, batch.bodies, strict=True):
            is_ours = message.queue_id == self.queue_id
            preview = _make_preview(message, content) if is_ours else None
            self._remember(message.seq, preview)
            if preview is not None:
                at_ms, client = message.published_at, message.publisher
                self._add(TailEvent("publish", at_ms, message.seq, "", client, preview))
        for copied in batch.copied:
            self._record_copied(copied, batch.wall_ms)
        for message in batch.dispatched:
            preview = self._preview_of(message)
            if preview is not None:
                at_ms, client = message.last_dispatched_at or batch.wall_ms, message.consumer
                detail = _delivery(message.deliveries)
                self._add(TailEvent("dispatch", at_ms, message.seq, detail, client, preview))
        for message in batch.changed.values():
            self._preview_of(message)  # so that _add_if_ours() knows the message's queue
        dead = {
            seq
            for (outcome, _), seqs in batch.settled.items()
            if outcome == State.DEAD
            for seq in seqs
        }
        moves = iter(batch.moved)
        for seq, at_ms, kind, text in batch.iter_events():
            event = TailEvent(str(kind), at_ms, seq, text or "")
            if event.kind in _MOVES:
                moved = next(moves)
                if self.queue_id in (moved.from_id, moved.to_id):
                    self._add(event)
            elif event.kind != StateEvent.DEAD_LETTER or event.seq not in dead:
                self._add_if_ours(event)
        for (outcome, reason), seqs in batch.settled.items():
            if reason not in _OWN_EVENT or outcome != State.DELETED:
                kind = _OUTCOMES.get(outcome, "settled")
                for seq in seqs:
                    self._add_if_ours(TailEvent(kind, batch.wall_ms, seq, reason or ""))

    def _record_copied(self, copied: CopiedRows, at_ms: int) -> None:
        """Count messages published by Spark; ``take_events`` looks up the newest ones later."""
        count = copied.counts.get(self.queue_id, 0)
        self._dropped += count  # take_events() subtracts the rows it finds in the database
        if count:
            for seq in range(max(copied.first, copied.end - ROWS_PER_S), copied.end):
                if len(self._pending) < PENDING_MAX:
                    self._pending.append(TailEvent("publish", at_ms, seq, "", copied.publisher))

    def _preview_of(self, message: Message) -> MessagePreview | None:
        """Return and cache a message's preview, or None if the message is in another queue."""
        if message.queue_id != self.queue_id:
            self._remember(message.seq, None)
            return None
        preview = self._previews.get(message.seq)
        if preview is None:
            preview = _make_preview(message, message.body)
            if message.body is not None:
                self._remember(message.seq, preview)
            else:
                self._previews.pop(message.seq, None)  # read the preview again at the next event
        return preview

    def _add_if_ours(self, event: TailEvent) -> None:
        if event.seq not in self._previews:
            self._add(event)
        elif (preview := self._previews[event.seq]) is not None:
            self._add(replace(event, preview=preview))

    def _add(self, event: TailEvent) -> None:
        if len(self._pending) < PENDING_MAX:
            self._pending.append(event)
        else:
            self._dropped += 1

    def _remember(self, seq: int, preview: MessagePreview | None) -> None:
        self._previews[seq] = preview
        if len(self._previews) > PREVIEWS_MAX:
            self._previews.popitem(last=False)

    # -- called by the feed

    async def take_events(self) -> tuple[list[TailEvent], int]:
        """Return a pair: the events since the last call, in order, and how many were dropped."""
        self.listen()
        pending, self._pending = self._pending, deque()
        missed, self._dropped = self._dropped, 0
        seqs = list(dict.fromkeys(event.seq for event in pending if event.preview is None))
        previews = await self._activity.previews(seqs[:LOOKUPS_MAX]) if seqs else {}
        events = []
        for event in pending:
            preview = event.preview or previews.get(event.seq)
            is_counted = event.kind == "publish" and event.preview is None
            if preview is None:
                missed += len(seqs) > LOOKUPS_MAX and not is_counted
            elif preview.queue_id == self.queue_id or event.kind in _MOVES:
                events.append(replace(event, preview=preview))
                missed -= is_counted
        for seq, preview in previews.items():
            self._remember(seq, preview if preview.queue_id == self.queue_id else None)
        return events, missed


def _make_preview(message: Message, body: bytes | None) -> MessagePreview:
    content = None if body is None else bytes(body[:PREVIEW_BYTES])
    return MessagePreview(message.seq, message.token, message.queue_id, message.size, content)


def _delivery(deliveries: int) -> str:
    return f"delivery {deliveries}" if deliveries > 1 else ""


# -- rows on the page


def tail_row(
    event: TailEvent, names: Mapping[int, str], link: Callable[[str], str]
) -> dict[str, Any]:
    """Return an event's row with hidden characters escaped; ``names`` maps client numbers to names.

    A row's id is the same whether the event comes from a batch or from the database.
    """
    preview = event.preview
    at = datetime.fromtimestamp(event.at_ms / 1_000, UTC)  # the page shows the date as a tooltip
    row: dict[str, Any] = {
        "id": f"{event.kind}.{event.seq}.{event.at_ms}",
        "kind": event.kind.replace("_", "-"),
        "at": event.at_ms,
        "clock": at.strftime("%H:%M:%S.") + f"{event.at_ms % 1_000:03}",
        "seq": f"#{event.seq}",
        "text": _text(event, names),
    }
    if preview is not None:
        message_id = wire_id(preview.seq, preview.token)
        row |= {
            "message": message_id,
            "link": link(message_id),
            "size": formats.format_size(preview.size),
            "preview": "".join(
                piece.text for piece in bodies.preview_envelope(preview.preview, preview.size)
            ),
        }
    return row


def _text(event: TailEvent, names: Mapping[int, str]) -> str:
    words = []
    if event.client is not None:
        name = names.get(event.client, f"client {event.client}")
        words.append(f"{'by' if event.kind == 'publish' else 'to'} {name}")
    detail = event.detail
    if event.kind in (StateEvent.RETRY, FAILURE_EVENT):
        retry = Retry.of(EventRow(event.at_ms, event.kind, detail))
        is_retry = event.kind == StateEvent.RETRY
        detail = ": ".join(filter(None, (retry.summary if is_retry else "", retry.error)))
    if detail:
        words.append(formats.escape_hidden(detail))
    return ", ".join(words)


def is_match(row: Mapping[str, Any], kinds: frozenset[str], text: str) -> bool:
    """Return whether a row matches the filter; an empty ``kinds`` or ``text`` matches every row."""
    if kinds and row["kind"] not in kinds:
        return False
    values = (row.get(key, "") for key in ("message", "seq", "text", "preview"))
    return any(text.casefold() in value.casefold() for value in values)


ROWS_SHOWN: Final = 100  # maximum number of stored events on the page
_LATEST: Final = 1 << 62


class TailPageQuery(QueryModel):
    """Filter for events by their kind and by text in their rows."""

    kind: tuple[str, ...] = ()
    q: str = Field("", max_length=200)

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"{kind[:40]!r} is not one of {', '.join(KINDS)}")
        return kinds


def _read_query(call: Call) -> TailPageQuery:
    """Read the filter; ``kind`` can be repeated and can be a comma-separated list."""
    query = call.request.query
    kinds = [kind for text in query.getall("kind", []) for kind in text.split(",") if kind]
    return TailPageQuery(kind=tuple(dict.fromkeys(kinds)), q=query.get("q", ""))


@endpoints.page("/queues/{q}/tail", "tail")
async def show_tail(
    call: Call, queue: Queue, query: Annotated[TailPageQuery, From(_read_query)]
) -> web.Response:
    """Show the most recent events for the messages in a queue, then stream live updates."""
    request, live = call.request, call.context.live
    key = call.feed = call.feed_key(f"tail:{queue.name}")
    live.drop_unwatched(key)  # its rows are older than this page, which reads them all
    if len(live.states) < STREAMS:
        _tail_of(call, queue).listen()  # so that no event is missed until the stream opens
    rows = await _rows(call, await _stored_events(call.context, queue), query)
    return await call.render(
        "tail.html",
        queue=queue,
        query=query,
        kinds=KINDS,
        refresh=request.path_qs,
        rows=rows[:ROWS_SHOWN],
    )


async def live_tail(call: Call, argument: str, _ids: tuple[int, ...]) -> LiveValues:
    """Return the message events in a queue since the feed was last evaluated."""
    events, missed = await _tail_of(call, call.queue(argument)).take_events()
    rows = await _rows(call, events, _read_query(call))
    newest = rows[-ROWS_PER_S:]
    return LiveValues(rows=newest, missed=missed + len(rows) - len(newest))


def _tail_of(call: Call, queue: QueueStatus) -> QueueTail:
    """Return a feed's tail, creating a new tail if none is running."""
    context, key = call.context, call.feed
    live = context.live
    tail = live.states.get(key)
    if isinstance(tail, QueueTail) and tail.queue_id == queue.queue_id:
        return tail
    if tail is not None:  # the queue has been removed and recreated
        tail.stop()
    new_tail = live.states[key] = QueueTail(
        queue.queue_id,
        context.broker.tap,
        RecentActivity(context.readers),
        on_stop=lambda: live.drop_unwatched(key),
    )
    return new_tail


async def _rows(
    call: Call, events: Iterable[TailEvent], query: TailPageQuery
) -> list[dict[str, Any]]:
    names = {
        client.client: formats.client_name(client.client, client.kind, client.address)
        for client in call.status.clients
    }
    rows = (tail_row(event, names, lambda id_: call.url("message", id=id_)) for event in events)
    kinds = frozenset(query.kind)
    return [
        row
        for row in await collect_in_slices(rows, call.context.broker.pause)
        if is_match(row, kinds, query.q)
    ]


# -- events in the database


async def _stored_events(context: Context, queue: QueueStatus) -> list[TailEvent]:
    """Return the most recent events stored for the messages in a queue, newest first."""
    alive, history, stored = await asyncio.gather(
        context.reader.messages(queue.queue_id, before=_LATEST, limit=ROWS_SHOWN),
        context.reader.history(queue_id=queue.queue_id, limit=ROWS_SHOWN),
        RecentActivity(context.readers).recent_events(queue.queue_id, ROWS_SHOWN),
    )
    dead = {row.seq for row in history.rows if row.state == State.DEAD}
    events = [event for row in (*alive, *history.rows) for event in _events_of_row(row)]
    for row in stored:
        if row.kind != StateEvent.DEAD_LETTER or row.seq not in dead:
            preview = MessagePreview(row.seq, row.token, queue.queue_id, 0, None)
            events.append(TailEvent(row.kind, row.at_ms, row.seq, row.detail or "", None, preview))
    return sorted(events, key=lambda event: (-event.at_ms, -event.seq))


def _events_of_row(row: MessageRow) -> list[TailEvent]:
    preview = MessagePreview(row.seq, row.token, row.queue_id, row.size, row.preview)
    events = [TailEvent("publish", row.published_at, row.seq, "", row.publisher, preview)]
    if (at_ms := row.last_dispatched_at) is not None:
        detail = _delivery(row.deliveries)
        events.append(TailEvent("dispatch", at_ms, row.seq, detail, row.consumer, preview))
    if row.settled_at is not None:
        kind = _OUTCOMES.get(row.state, "settled")
        events.append(TailEvent(kind, row.settled_at, row.seq, row.reason or "", None, preview))
    return events[::-1]
