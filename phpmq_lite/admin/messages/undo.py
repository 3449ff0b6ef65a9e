"""Undo records, each of which stores an opposite action and the messages to apply it to."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from secrets import token_urlsafe
from typing import Final

from phpmq_lite.admin.messages.selection_store import OwnedStore
from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.operator_actions import ACTIONS, Action
from phpmq_lite.storage.read.messages import seq_of

LIFE_MS: Final = 3_600_000


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
    created: "array[int]" = field(default_factory=lambda: array("Q"))
    expires_at: int = 0  # in Unix ms; set when the record is stored

    @property
    def size(self) -> int:
        """The record's size in bytes."""
        return 8 * sum(map(len, (self.seqs, self.queue_ids, self.positions, self.created)))

    def note(self, outcome: ActionOutcome) -> None:
        """Add the messages that a slice changed or created."""
        if self.action is Action.DELETE:  # undo deletes the messages that the action created
            self.seqs.extend(map(seq_of, outcome.new_ids.values()))
            return
        self.seqs.extend(outcome.done)
        if self.action is Action.TAKE_BACK:
            self.created.extend(seq_of(outcome.new_ids[seq]) for seq in outcome.done)
        if self.action is Action.PLACE:
            for seq in outcome.done:
                queue_id, position = outcome.places[seq]
                self.queue_ids.append(queue_id)
                self.positions.append(position)

    def complete(self, options: ActionOptions, start: int, end: int) -> ActionOptions:
        """Return the options with what is known of the messages in a slice."""
        part, seqs = slice(start, end), self.seqs[start:end]
        places = zip(self.queue_ids[part], self.positions[part], strict=True)
        return replace(
            options,
            places=dict(zip(seqs, places, strict=False)),
            made=dict(zip(seqs, self.created[part], strict=False)),
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
    )

    def add(self, undo: UndoRecord | None, now_ms: int) -> str | None:
        """Store a record and return its token, or return None if there is nothing to undo."""
        if undo is None or not undo.seqs:
            return None
        token = token_urlsafe(16)
        undo.expires_at = now_ms + LIFE_MS
        self._store(token, undo, now_ms)
        return token

    def take(self, token: str) -> None:
        """Remove an undo record whose token has been used."""
        if token in self._kept:
            self._drop(token)
