"""Texts about the results of actions."""

from collections.abc import Mapping
from typing import NoReturn

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.operator_actions import ACTIONS, SKIP_REASONS, Action, SkipReason


def describe_result(action: Action, done: int, skipped: Mapping[str, int]) -> str:
    """Describe how many messages were changed, and how many were skipped for each reason."""
    text = f"{formats.count_messages(done)} {ACTIONS[action].done}."
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
    return SKIP_REASONS[reason].many if reason in SKIP_REASONS else reason


def refuse_skipped(action: Action, reason: str = "gone") -> NoReturn:
    """Refuse an action that skipped its only message.

    Raises:
        Problem: 410 if the message is settled, else 409, with the reason.
    """
    definition = SKIP_REASONS.get(reason, SkipReason(reason, f"{reason.capitalize()}."))
    raise Problem(
        410 if definition.is_gone else 409,
        reason.replace(" ", "_"),
        f"The message was not {ACTIONS[action].done}. {definition.one}",
    )
