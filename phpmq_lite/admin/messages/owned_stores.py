"""Frozen selections of messages and undo records, which their owners use by a token."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import ClassVar, Final, Generic, TypeVar

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.operator_actions import ACTIONS, Action
from phpmq_lite.storage.read.messages import seq_of
from phpmq_lite.storage.search.reader import FrozenSelection

SELECTION_MS: Final = 600_000
UNDO_MS: Final = 3_600_000
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 32 << 20  # maximum total size of all selections, and also of all undo records


T = TypeVar("T", "MessageSelection", "UndoRecord")


class OwnedStore(Generic[T]):
    """Stores items by token, oldest first; an item normally remains until it expires.

    Above ``limit_bytes``, the oldest item of the user with the most bytes is dropped; the newest
    item is stored regardless of its size.
    """

    _expired: ClassVar[tuple[str, str, bool]]  # code, detail, says_unchanged of the 410 response

    def __init__(self, limit_bytes: int = BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._items: OrderedDict[str, T] = OrderedDict()
        self.bytes = 0  # total size of the items
        self.dropped = 0  # number of items dropped to make room

    def __len__(self) -> int:
        return len(self._items)

    def _store(self, token: str, item: T, now_ms: int) -> None:
        self._items[token] = item
        self.bytes += item.size
        for late in [key for key, record in self._items.items() if record.expires_at <= now_ms]:
            self._drop(late)
        while self.bytes > self._limit_bytes and len(self._items) > 1:
            sizes: Counter[str] = Counter()
            for record in self._items.values():
                sizes[record.owner] += record.size
            others = [(key, record.owner) for key, record in self._items.items() if key != token]
            largest = max((owner for _, owner in others), key=lambda owner: sizes[owner])
            self.dropped += 1
            self._drop(next(key for key, owner in others if owner == largest))

    def find(self, token: str, owner: str, now_ms: int) -> T:
        """Return the owner's item with a token; raise a 410 ``Problem`` if it has expired."""
        record = self._items.get(token)
        if record is None or record.owner != owner or record.expires_at <= now_ms:
            code, detail, says_unchanged = self._expired
            raise Problem(410, code, detail, field="token", says_unchanged=says_unchanged)
        return record

    def _drop(self, token: str) -> None:
        self.bytes -= self._items.pop(token).size


@dataclass(slots=True, frozen=True)
class MessageSelection:
    """The messages that the search ``query`` selected for an action."""

    token: str
    query: str
    frozen: FrozenSelection
    owner: str
    expires_at: int  # Unix ms

    @property
    def count(self) -> int:
        return len(self.frozen.seqs)

    @property
    def size(self) -> int:
        """The selection's size in bytes."""
        return len(self.frozen.seqs) * self.frozen.seqs.itemsize


class SelectionStore(OwnedStore[MessageSelection]):
    """Stores selections by token for ten minutes."""

    _expired = (
        "selection_expired",
        "This selection has expired or belongs to another user. Selections expire after ten "
        "minutes. Nothing was changed. Select the messages again.",
        True,
    )

    def add(self, query: str, frozen: FrozenSelection, owner: str, now_ms: int) -> MessageSelection:
        """Store a selection for ten minutes."""
        selection = MessageSelection(token_hex(16), query, frozen, owner, now_ms + SELECTION_MS)
        self._store(selection.token, selection, now_ms)
        return selection


@dataclass(slots=True)
class UndoRecord:
    """An undo action and its messages in order.

    With their old positions for PLACE, or what was made from them for TAKE_BACK.
    """

    action: Action
    owner: str
    target: str  # target shown in the audit log
    seqs: "array[int]" = field(default_factory=lambda: array("Q"))
    queue_ids: "array[int]" = field(default_factory=lambda: array("q"))
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    # due_ms and deliver_at of each; 0 is none
    times: "array[int]" = field(default_factory=lambda: array("q"))
    created: "array[int]" = field(default_factory=lambda: array("Q"))
    expires_at: int = 0  # in Unix ms; set when the record is stored

    @property
    def size(self) -> int:
        """The record's size in bytes."""
        arrays = (self.seqs, self.queue_ids, self.positions, self.times, self.created)
        return 8 * sum(map(len, arrays))

    def note(self, outcome: ActionOutcome) -> None:
        """Add the messages that a slice changed or created."""
        if self.action is Action.DELETE:  # undo deletes the messages that the action created
            self.seqs.extend(map(seq_of, outcome.new_ids.values()))
            return
        self.seqs.extend(outcome.changed)
        if self.action is Action.TAKE_BACK:
            self.created.extend(seq_of(outcome.new_ids[seq]) for seq in outcome.changed)
        if self.action is Action.PLACE:
            for seq in outcome.changed:
                place = outcome.places[seq]
                self.queue_ids.append(place.queue_id)
                self.positions.append(place.position)
                self.times.extend((place.due_ms or 0, place.deliver_at or 0))

    def complete(self, options: ActionOptions, start: int, end: int) -> ActionOptions:
        """Return the options with what is known of the messages in a slice."""
        part, seqs = slice(start, end), self.seqs[start:end]
        times = (time or None for time in self.times[2 * start : 2 * end])
        places = map(MessagePlace, self.queue_ids[part], self.positions[part], times, times)
        return replace(
            options,
            places=dict(zip(seqs, places, strict=False)),
            redriven=dict(zip(seqs, self.created[part], strict=False)),
        )


def make_undo(action: Action, owner: str, target: str) -> UndoRecord | None:
    """Return an empty undo record for an action, or None if the action cannot be undone."""
    opposite = ACTIONS[action].opposite
    return None if opposite is None else UndoRecord(opposite, owner, target)


def make_publish_undo(ids: Sequence[str], owner: str, target: str) -> UndoRecord:
    """Return an undo record that deletes the published messages."""
    return UndoRecord(Action.DELETE, owner, target, array("Q", map(seq_of, ids)))


class UndoStore(OwnedStore[UndoRecord]):
    """Stores undo records by token for an hour.

    Even after a record is dropped or the broker restarts, deleted messages can be restored one by
    one or by a search.
    """

    _expired = (
        "undo_expired",
        "This action can no longer be undone with one click: it was already undone, an hour has "
        "passed, or the broker was restarted. Deleted messages can still be restored from the "
        "trash until retention removes them.",
        False,
    )

    def add(self, undo: UndoRecord | None, now_ms: int) -> str | None:
        """Store a record and return its token, or return None if there is nothing to undo.

        Tokens are arguments of commands, so none begins with a hyphen.
        """
        if undo is None or not undo.seqs:
            return None
        token = token_hex(16)
        undo.expires_at = now_ms + UNDO_MS
        self._store(token, undo, now_ms)
        return token

    def take(self, token: str) -> None:
        """Remove an undo record whose token has been used."""
        if token in self._items:
            self._drop(token)
