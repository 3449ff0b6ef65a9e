"""The tail of a queue: what happens to its messages, as it happens.

A tail listens to the engine while somebody looks, and for some seconds more; else it costs
nothing.  It notes what a batch says, and finds out the rest a second later, outside the batch.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from phpmq_lite.admin import bodies, formats
from phpmq_lite.admin.streams import Kept
from phpmq_lite.broker.lifecycle import Event
from phpmq_lite.model import Batch, Message, State
from phpmq_lite.pipeline_rows import CopiedRows
from phpmq_lite.storage.read.activity import MessagePlace, RecentActivity
from phpmq_lite.storage.read.messages import wire_id

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
_WAYS: Final = {Event.FORWARD, Event.MOVE, Event.PLACE}  # detail: "orders to mail"


@dataclass(slots=True, frozen=True)
class Happening:
    """One thing that happened to one message; ``place`` None: not found out yet."""

    kind: str
    at_ms: int  # Unix ms
    seq: int
    detail: str = ""
    client: int | None = None
    place: MessagePlace | None = None


class Tail(Kept):
    """What happens to the messages of one queue.  ``take`` about once a second.

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
        self._pending: deque[Happening] = deque()
        self._overrun = 0  # happenings that found no room
        self._known: OrderedDict[int, MessagePlace | None] = OrderedDict()  # None: of another queue
        self._remove: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_listening(self) -> bool:
        """Tell whether it listens to the engine."""
        return self._remove is not None

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
                self._add(Happening("publish", message.published_at, message.seq, "",
                                    message.publisher, place))  # fmt: skip
        for copied in batch.copied:
            self._note_copied(copied, batch.wall_ms)
        for message in batch.dispatched:
            place = self._of(message)
            if place is not None:
                at_ms = message.last_dispatched_at or batch.wall_ms
                self._add(Happening("dispatch", at_ms, message.seq, _delivery(message),
                                    message.consumer, place))  # fmt: skip
        for message in batch.changed.values():
            self._of(message)  # where it is now: its events come next
        dead = {seq for (outcome, _), seqs in batch.settled.items() if outcome == State.DEAD
                for seq in seqs}  # fmt: skip
        for happening in _turns(batch.events):
            if happening.kind != Event.DEAD_LETTER or happening.seq not in dead:
                self._add_if_ours(happening)
        for (outcome, reason), seqs in batch.settled.items():
            if reason not in _TOLD_TWICE or outcome != State.DELETED:
                kind = _OUTCOMES.get(outcome, "settled")
                for seq in seqs:
                    self._add_if_ours(Happening(kind, batch.wall_ms, seq, reason or ""))

    def _note_copied(self, copied: CopiedRows, at_ms: int) -> None:
        """Count what Spark published, and look up the last ones: nothing else is known of them."""
        count = copied.counts.get(self.queue_id, 0)
        self._overrun += count  # those that are found are taken off
        if count:
            for seq in range(max(copied.first, copied.end - ROWS_PER_S), copied.end):
                if len(self._pending) < PENDING:
                    self._pending.append(Happening("publish", at_ms, seq, "", copied.publisher))

    def _of(self, message: Message) -> MessagePlace | None:
        """Say where a message is, None for another queue; what is new is learnt."""
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

    def _add_if_ours(self, happening: Happening) -> None:
        if happening.kind in _WAYS:
            start, end = self._ways
            if happening.detail.startswith(start) or happening.detail.endswith(end):
                self._add(happening)
        elif happening.seq not in self._known:
            self._add(happening)
        elif (place := self._known[happening.seq]) is not None:
            self._add(replace(happening, place=place))

    def _add(self, happening: Happening) -> None:
        if len(self._pending) < PENDING:
            self._pending.append(happening)
        else:
            self._overrun += 1

    def _learn(self, seq: int, place: MessagePlace | None) -> None:
        self._known[seq] = place
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    # -- when somebody looks

    async def take(self) -> tuple[list[Happening], int]:
        """Give what happened since the last call, in order, and how much more there was."""
        self.listen()
        pending, self._pending = self._pending, deque()
        missed, self._overrun = self._overrun, 0
        asked = list(dict.fromkeys(h.seq for h in pending if h.place is None))
        found = await self._tails.places(asked[:LOOKED_UP]) if asked else {}
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


def _place(message: Message, body: bytes | None) -> MessagePlace:
    content = None if body is None else bytes(body[:PREVIEW_BYTES])
    return MessagePlace(message.seq, message.token, message.queue_id, message.size, content)


def _delivery(message: Message) -> str:
    return f"delivery {message.deliveries}" if message.deliveries > 1 else ""


def _turns(events: list[Any]) -> Iterator[Happening]:
    """Read the flat list of a batch: seq, at_ms, kind, detail."""
    for at in range(0, len(events), 4):
        seq, at_ms, kind, detail = events[at : at + 4]
        yield Happening(str(kind), at_ms, seq, detail or "")


# -- what is shown of them


def row_of(
    happening: Happening, names: Mapping[int, str], link: Callable[[str], str]
) -> dict[str, Any]:
    """Make a row of the page: texts without anything hidden; ``names`` of clients by number.

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
            "size": formats.size(place.size),
            "preview": "".join(
                piece.text for piece in bodies.preview_envelope(place.preview, place.size)
            ),
        }
    return row


def _clock(at_ms: int) -> str:
    """Write the time of day (UTC); the title of the page's ``<time>`` has the date."""
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return at.strftime("%H:%M:%S.") + f"{at_ms % 1_000:03}"


def _text(happening: Happening, names: Mapping[int, str]) -> str:
    words = []
    if happening.client is not None:
        who = names.get(happening.client, f"client {happening.client}")
        words.append(f"{'by' if happening.kind == 'publish' else 'to'} {who}")
    if happening.detail:
        words.append(formats.visible(happening.detail))
    return ", ".join(words)


def is_wanted(row: Mapping[str, Any], kinds: frozenset[str], text: str) -> bool:
    """Tell whether a row passes a filter: one of the kinds, and the text anywhere in it."""
    if kinds and row["kind"] not in kinds:
        return False
    if not text:
        return True
    wanted = text.casefold()
    shown = (row.get(key, "") for key in ("message", "seq", "text", "preview"))
    return any(wanted in value.casefold() for value in shown)
