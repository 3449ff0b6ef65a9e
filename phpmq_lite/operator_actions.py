"""The operator actions on messages: one row each, from which all other parts derive theirs.

The broker reads ``takes`` and ``needs_body``; the pages, the API, the undo and the command line
read the rest.  A new action is a row here and a transition in
``broker/operator/message_actions.py``.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Self

from phpmq_lite.model import ALIVE, STATE_NAMES, State


class Action(StrEnum):
    """An action that operators can apply to messages."""

    DELIVER = "deliver"
    REQUEUE = "requeue"
    RESCHEDULE = "reschedule"
    RELEASE = "release"
    MOVE = "move"
    REDRIVE = "redrive"
    RESTORE = "restore"
    DELETE = "delete"
    ERASE = "erase"
    PLACE = "place"
    TAKE_BACK = "take_back"


class SkipReason(StrEnum):
    """Why a message is skipped: its value in the API, and the wording for several and for one."""

    many: str
    sentence: str
    is_gone: bool  # whether the message or its body no longer exists

    def __new__(cls, value: str, many: str = "", sentence: str = "", is_gone: bool = False) -> Self:
        """Create a member; by default, the value is the wording."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.many, member.sentence = many or value, sentence or f"{value.capitalize()}."
        member.is_gone = is_gone
        return member

    # fmt: off
    GONE = (
        "gone", "already settled",
        "It has already been settled, so there is nothing to act on.", True,
    )
    CONSUMED = "consumed", "already consumed", "Its message has already been consumed."
    DISPATCHED = (
        "dispatched", "held by a consumer",
        "A consumer holds it. Release the message first, or wait until it returns.",
    )
    NOT_DISPATCHED = (
        "not dispatched", "not held by a consumer",
        "No consumer holds it, so there is nothing to release.",
    )
    NOT_SCHEDULED = (
        "not scheduled", "not scheduled", "It is not scheduled, so it can be delivered already.",
    )
    UNIQUE_KEY_TAKEN = (
        "unique_key_taken", "whose unique key another message has",
        "Its queue already has a live message with its unique key.",
    )
    NOT_A_RECORD = (
        "not a record", "not a dead-letter record",
        "It is not a dead-letter record, so its original queue is unknown. Enter a target queue.",
    )
    NOT_DELETED = (
        "not deleted", "not deleted", "It was not deleted, so there is nothing to restore.",
    )
    NOT_SETTLED = (
        "not settled", "not settled yet", "It is still live. Only settled messages can be erased.",
    )
    DEADLINE_PASSED = (
        "deadline passed", "past their deadline; enter a new time to live",
        "Its deadline has passed. Enter a new time to live.",
    )
    PAUSED = "paused", "publishing is paused", "Publishing to that queue is paused."
    QUEUE_FULL = "queue full", "the queue is full", "That queue has reached its limit."
    DISK_FULL = "disk full", "not stored: the disk is full", "The disk is full."
    DATABASE_FULL = (
        "database full", "not stored: the database is full",
        "The database has reached storage.max_bytes.",
    )
    RECORDS_PAUSED = "dead-letter queue paused"
    RECORDS_FULL = "dead-letter queue queue full"
    RECORDS_DISK_FULL = "dead-letter queue disk full"
    RECORDS_DATABASE_FULL = "dead-letter queue database full"
    RESTORED_ALREADY = "restored already", "already restored", "It has already been restored."
    FOREIGN_QUEUE = (
        "foreign queue", "in a queue you have no access to", "You have no access to its queue.",
    )
    BODY_GONE = "body gone", "without a body", "Its body is no longer stored.", True
    DAMAGED = "damaged", "", "Its body is damaged: the checksum does not match."
    QUEUE_GONE = "queue gone", "whose queue no longer exists", "Its target queue no longer exists."
    THERE_ALREADY = (
        "there already", "already at its destination", "It is already at its destination.",
    )
    NO_PLACE = "no place", "whose previous position is unknown", "Its previous position is unknown."
    # fmt: on


class ActionDefinition(NamedTuple):
    """An action: what it takes and does, and how people see it."""

    verb: str
    participle: str  # as in "2 messages requeued"
    takes: frozenset[State]  # states of messages that the core accepts; it skips the others
    refusal: SkipReason  # of a message in another state
    suits: frozenset[State] = frozenset()  # states for which lists offer the action
    opposite: Action | None = None  # action that undoes this one
    options: tuple[str, ...] = ()  # which of ttl_s, time, target, create and dispatched it has
    needs_body: bool = False  # whether the core reads the body
    needs_admin: bool = False  # if so, a reason and the typed message number are required as well
    is_danger: bool = False
    is_asking: bool = True  # whether the button opens the confirmation page
    icon: str = ""
    key: str = ""  # on the keyboard
    keeps: str = ""  # what an empty time to live means for one message
    keeps_many: str = ""  # the same for a selection
    summary: str = ""  # in the API reference
    text: str = ""  # on the confirmation page of one message
    text_many: str = ""  # on the page of a selection
    cli: str = ""  # help of the command; no command if empty
    phrase: str = ""  # the verb with {} for its object, if the object does not just follow

    def with_object(self, text: str) -> str:
        """Return the verb with its object, as in "Requeue 12 messages"."""
        return (self.phrase or f"{self.verb} {{}}").format(text)


ACTIONS: Final[Mapping[Action, ActionDefinition]] = {  # least destructive first
    Action.DELIVER: ActionDefinition(
        "Deliver now", "made ready", frozenset({State.SCHEDULED}), SkipReason.NOT_SCHEDULED,
        frozenset({State.SCHEDULED}), Action.PLACE, is_asking=False, icon="play", key="d",
        summary="Let a scheduled message become ready now, at the end of its queue.",
        text="The message becomes ready now, at the end of its queue. Its time to live begins.",
        text_many="Each scheduled message becomes ready now, at the end of its queue.",
        cli="Let scheduled messages become ready now.",
        phrase="Deliver {} now",
    ),
    Action.RESCHEDULE: ActionDefinition(
        "Change time", "rescheduled", ALIVE - {State.DISPATCHED}, SkipReason.DISPATCHED,
        ALIVE - {State.DISPATCHED}, Action.PLACE, ("time",), icon="clock", key="c",
        summary="Set the time when a message becomes ready, which no consumer holds.",
        text="Until this time, no consumer receives the message. It then becomes ready at the end "
        "of its queue, and its time to live continues.",
        text_many="Each message becomes ready at this time, at the end of its queue. Messages held "
        "by consumers are skipped.",
        cli="Set the time when messages become ready.",
        phrase="Change time of {}",
    ),
    Action.REQUEUE: ActionDefinition(
        "Requeue", "requeued", ALIVE, SkipReason.GONE, ALIVE - {State.SCHEDULED}, Action.PLACE,
        ("ttl_s", "time"), is_asking=False, icon="requeue", key="r",
        keeps="the deadline stays the same", keeps_many="the deadlines stay the same",
        summary="Move a message to the end of its queue. The message keeps its id.",
        text="The message moves to the end of its queue and keeps its id. If a consumer holds it, "
        "that consumer's acknowledgement is ignored once another consumer holds the message.",
        text_many="Each message moves to the end of its queue and keeps its id, including messages "
        "held by consumers.",
        cli="Move messages to the end of their queue.",
    ),
    Action.RELEASE: ActionDefinition(
        "Release", "released", frozenset({State.DISPATCHED}), SkipReason.NOT_DISPATCHED,
        frozenset({State.DISPATCHED}), None, ("time",), is_asking=False, icon="back",
        summary="Return a dispatched message to its position in its queue.",
        text="The message returns to its position in the queue. The current consumer can still "
        "acknowledge the message until another consumer holds it.",
        text_many="Each message returns to its position in the queue. The current consumer can "
        "still acknowledge it until another consumer receives it. This action cannot be undone.",
        cli="Return dispatched messages to their place in the queue.",
    ),
    Action.MOVE: ActionDefinition(
        "Move", "moved", ALIVE, SkipReason.GONE, ALIVE - {State.DISPATCHED}, Action.PLACE,
        ("target", "create"), icon="move",
        summary="Move a message to the end of another queue, which no consumer holds.",
        text="The message moves to the end of the target queue and keeps its id and deadline. If "
        "it is scheduled, it stays scheduled.",
        text_many="Each message moves to the end of the target queue and keeps its id and "
        "deadline; scheduled ones stay scheduled. Messages held by consumers are skipped.",
        cli="Move messages to the end of QUEUE.",
    ),
    Action.REDRIVE: ActionDefinition(
        "Redrive", "redriven", ALIVE, SkipReason.GONE, ALIVE - {State.DISPATCHED},
        Action.TAKE_BACK, ("target", "ttl_s", "time"), needs_body=True, icon="back",
        keeps="the queue's default", keeps_many="the queue's default",
        summary="Republish a dead-letter record as a new message to the queue where it was "
        "dead-lettered.",
        text="The message is republished at the end of the queue where it was dead-lettered, and "
        "the dead-letter record is deleted.",
        text_many="Each dead-letter record is republished at the end of the queue where it was "
        "dead-lettered, and the record is then deleted. Other messages are skipped.",
    ),
    Action.RESTORE: ActionDefinition(
        "Restore", "restored", frozenset({State.DELETED}), SkipReason.NOT_DELETED,
        frozenset({State.DELETED}), Action.DELETE, ("ttl_s",), needs_body=True, icon="back",
        keeps="the previous deadline", keeps_many="messages past their deadline stay deleted",
        summary="Restore a deleted message to its original position as a new message.",
        text="The message returns to its original position as a new message. The deleted message "
        "stays in the history.",
        text_many="Each message returns to its original position as a new message.",
        cli="Restore deleted messages to their places, as new messages.",
    ),
    Action.DELETE: ActionDefinition(
        "Delete", "deleted", ALIVE, SkipReason.GONE, ALIVE, Action.RESTORE, ("dispatched",),
        is_danger=True, icon="delete", key="#",
        summary="Settle a message as deleted.",
        text="The message is marked as deleted and kept in the history for the retention period. "
        "Undo restores it to its original position as a new message.",
        text_many="The messages are marked as deleted and kept in the history for the retention "
        "period. Undo restores them.",
        cli="Delete messages. They remain in the history, so `message restore` can restore them.",
    ),
    Action.ERASE: ActionDefinition(
        "Erase", "erased", frozenset(State) - ALIVE, SkipReason.NOT_SETTLED, needs_admin=True,
        is_danger=True, icon="delete",
        summary="Permanently erase the data of a settled message, but keep the message's row.",
        text="The body, trace, group, keys and reported errors are erased permanently; the "
        "message's row stays in the history. Use this for secrets that were sent by mistake. They "
        "cannot be restored, but earlier backups still contain them.",
    ),
    # The following only undo other actions.
    Action.PLACE: ActionDefinition(
        "Put back", "put back", frozenset({State.READY}), SkipReason.DISPATCHED
    ),
    Action.TAKE_BACK: ActionDefinition(
        "Take back", "taken back", frozenset({State.DELETED}), SkipReason.NOT_DELETED,
        needs_body=True,
    ),
}  # fmt: skip
ON_ONE: Final = tuple(action for action, row in ACTIONS.items() if row.summary)
ON_MANY: Final = tuple(action for action, row in ACTIONS.items() if row.suits)


def suiting_actions(states: set[str], *, may_redrive: bool) -> list[Action]:
    """Return the actions that lists offer for messages in these states, in order."""
    return [
        action
        for action in ON_MANY
        if {STATE_NAMES[state] for state in ACTIONS[action].suits} & states
        and (may_redrive or action is not Action.REDRIVE)
    ]
