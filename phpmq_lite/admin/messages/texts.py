"""Texts about the results of actions."""

from collections.abc import Mapping
from typing import NoReturn

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.operator_actions import ACTIONS, Action, SkipReason


def describe_result(action: Action, done: int, skipped: Mapping[SkipReason, int]) -> str:
    """Describe how many messages were changed, and how many were skipped for each reason."""
    text = f"{formats.count_messages(done)} {ACTIONS[action].participle}."
    return f"{text} {describe_skipped(skipped)}" if skipped else text


def describe_skipped(skipped: Mapping[SkipReason, int]) -> str:
    """Describe how many messages were skipped for each reason."""
    reasons = "; ".join(
        f"{formats.format_number(count)} {reason.many}" for reason, count in skipped.items()
    )
    return f"Skipped: {reasons}." if reasons else ""


def refuse_skipped(action: Action, reason: SkipReason = SkipReason.GONE) -> NoReturn:
    """Refuse an action that skipped its only message.

    Raises:
        Problem: 410 if the message is settled, else 409, with the reason.
    """
    raise Problem(
        410 if reason.is_gone else 409,
        reason.replace(" ", "_"),
        f"The message was not {ACTIONS[action].participle}. {reason.sentence}",
    )
