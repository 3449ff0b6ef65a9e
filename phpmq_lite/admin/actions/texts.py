"""Result messages of actions, and the message for the next page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.formats import count_messages
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.broker.operator.message_actions import Action, ActionOutcome

DONE: Final = {
    Action.REQUEUE: "requeued",
    Action.RELEASE: "released",
    Action.MOVE: "moved",
    Action.DELETE: "deleted",
    Action.REDRIVE: "redriven",
    Action.RESTORE: "restored",
    Action.ERASE: "erased",
    Action.PLACE: "put back",
}
VERBS: Final = {
    Action.REQUEUE: "Requeue",
    Action.RELEASE: "Release",
    Action.MOVE: "Move",
    Action.DELETE: "Delete",
    Action.REDRIVE: "Redrive",
    Action.RESTORE: "Restore",
    Action.ERASE: "Erase",
    Action.PLACE: "Put back",
}

# Why a message was passed over: what to say of several, and of one.
REASONS: Final[dict[str, tuple[str, str]]] = {
    "gone": ("settled meanwhile", "It is settled meanwhile, so there is nothing to act on."),
    "dispatched": (
        "held by a consumer",
        "A consumer holds it. Wait until it comes back, or release it first.",
    ),
    "not dispatched": ("held by nobody", "No consumer holds it, so there is nothing to release."),
    "not a record": (
        "no dead-letter record",
        "It is no dead-letter record, so nobody knows where it came from; name a queue to send "
        "it to.",
    ),
    "not deleted": ("not deleted", "It was not deleted, so there is nothing to restore."),
    "not settled": ("not settled yet", "It is still alive; only what is settled can be erased."),
    "deadline passed": (
        "past their deadline; a new time to live is needed",
        "Its deadline has passed. Give it a new time to live.",
    ),
    "paused": ("publishing is paused", "Publishing to that queue is paused."),
    "queue full": ("the queue is full", "That queue has reached its limit."),
    "restored already": ("restored already", "It was restored already."),
    "foreign queue": ("in a queue that is not yours", "Its queue is not among those you may use."),
    "body gone": ("without a body", "Its body is not stored any more."),
    "damaged": ("damaged", "Its body is damaged: the stored checksum differs."),
    "queue gone": ("whose queue is gone", "The queue that it would go to is not there any more."),
    "there already": ("there already", "It is there already."),
    "no place": ("whose old place is not known", "Its old place is not known any more."),
}
_GONE: Final = frozenset({"gone", "body gone"})


def describe_result(action: Action, done: int, skipped: Mapping[str, int]) -> str:
    """Say what was done to how many, and why not to the others."""
    text = f"{count_messages(done)} {DONE[action]}."
    return f"{text} {describe_skipped(skipped)}" if skipped else text


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Say how many were passed over, by reason."""
    reasons = "; ".join(
        f"{formats.format_number(count)} {describe_reason(reason)}"
        for reason, count in skipped.items()
    )
    return f"Passed over: {reasons}." if reasons else ""


def describe_reason(reason: str) -> str:
    """Say why several messages were passed over."""
    return REASONS[reason][0] if reason in REASONS else reason


def check_done(outcome: ActionOutcome, action: Action) -> None:
    """Refuse where the one message that was meant was passed over.

    Raises:
        Problem: 410 where it is settled or gone, else 409, with the reason.
    """
    if outcome.done:
        return
    reason = next(iter(outcome.skipped), "gone")
    detail = REASONS[reason][1] if reason in REASONS else f"{reason.capitalize()}."
    raise Problem(
        410 if reason in _GONE else 409,
        reason.replace(" ", "_"),
        f"The message was not {DONE[action]}. {detail}",
    )


@dataclass(slots=True, frozen=True)
class FlashMessage:
    """A sentence; ``undo`` is a token, ``link`` a URL of ours with its words."""

    text: str
    undo: str | None = None
    link: tuple[str, str] | None = None


def leave_message(request: web.Request, note: FlashMessage) -> None:
    """Leave a note for the next page of this session."""
    sessions = context_of(request).sessions
    sessions.note(request, note.text, undo=note.undo, link=note.link)
