"""Flash messages, which report the result of an action on the next page."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from phpmq_lite.admin.auth.sessions import FlashMessage as FlashMessage
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
    Action.TAKE_BACK: "taken back",
}
VERBS: Final = {action: action.replace("_", " ").capitalize() for action in Action} | {
    Action.PLACE: "Put back"
}

# maps a skip reason to its wording for several messages and its wording for a single message
REASONS: Final[dict[str, tuple[str, str]]] = {
    "gone": ("already settled", "It has already been settled, so there is nothing to act on."),
    "consumed": ("already consumed", "Its message has already been consumed."),
    "dispatched": (
        "held by a consumer",
        "A consumer holds it. Release the message first, or wait until it returns.",
    ),
    "not dispatched": (
        "not held by a consumer", "No consumer holds it, so there is nothing to release."
    ),
    "not a record": (
        "not a dead-letter record",
        "It is not a dead-letter record, so its original queue is unknown. Enter a target queue.",
    ),
    "not deleted": ("not deleted", "It was not deleted, so there is nothing to restore."),
    "not settled": (
        "not settled yet", "It is still live. Only settled messages can be erased."
    ),
    "deadline passed": (
        "past their deadline; enter a new time to live",
        "Its deadline has passed. Enter a new time to live.",
    ),
    "paused": ("publishing is paused", "Publishing to that queue is paused."),
    "queue full": ("the queue is full", "That queue has reached its limit."),
    "disk full": ("not stored: the disk is full", "The disk is full."),
    "database full": (
        "not stored: the database is full", "The database has reached storage.max_bytes."
    ),
    "restored already": ("already restored", "It has already been restored."),
    "foreign queue": ("in a queue you have no access to", "You have no access to its queue."),
    "body gone": ("without a body", "Its body is no longer stored."),
    "damaged": ("damaged", "Its body is damaged: the checksum does not match."),
    "queue gone": ("whose queue no longer exists", "Its target queue no longer exists."),
    "there already": ("already at its destination", "It is already at its destination."),
    "no place": ("whose previous position is unknown", "Its previous position is unknown."),
}  # fmt: skip


def describe_result(action: Action, done: int, skipped: Mapping[str, int]) -> str:
    """Describe how many messages were changed, and how many were skipped for each reason."""
    text = f"{count_messages(done)} {DONE[action]}."
    return f"{text} {describe_skipped(skipped)}" if skipped else text


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Describe how many messages were skipped for each reason."""
    reasons = "; ".join(
        f"{formats.format_number(count)} {describe_reason(reason)}"
        for reason, count in skipped.items()
    )
    return f"Skipped: {reasons}." if reasons else ""


def describe_reason(reason: str) -> str:
    """Return the wording of a skip reason that applies to several messages."""
    return REASONS[reason][0] if reason in REASONS else reason


def check_done(outcome: ActionOutcome, action: Action) -> None:
    """Raise a ``Problem`` if an action skipped its only message.

    Raises:
        Problem: 410 if the message is settled, else 409, with the reason.
    """
    if outcome.done:
        return
    reason = next(iter(outcome.skipped), "gone")
    detail = REASONS[reason][1] if reason in REASONS else f"{reason.capitalize()}."
    raise Problem(
        410 if reason in ("gone", "body gone") else 409,
        reason.replace(" ", "_"),
        f"The message was not {DONE[action]}. {detail}",
    )


def store_message(request: web.Request, message: FlashMessage | str) -> None:
    """Store a message to show on the session's next page."""
    context_of(request).sessions.store_message(request, message)
