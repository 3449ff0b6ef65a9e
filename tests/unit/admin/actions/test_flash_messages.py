"""Results of actions, in plain words."""

from collections import Counter

import pytest

from phpmq_lite.admin.actions import flash_messages
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.broker.operator.message_actions import Action, ActionOutcome


def test_note_says_how_many_and_why_not_the_others() -> None:
    text = flash_messages.describe_result(
        Action.DELETE, 12_408, Counter({"dispatched": 3, "odd": 1})
    )
    assert text == "12,408 messages deleted. Skipped: 3 held by a consumer; 1 odd."
    assert flash_messages.describe_result(Action.MOVE, 1, {}) == "1 message moved."


@pytest.mark.parametrize(
    ("reason", "status"), [("gone", 410), ("dispatched", 409), ("deadline passed", 409), ("x", 409)]
)
def test_message_passed_over_is_a_refusal_with_its_reason(reason: str, status: int) -> None:
    with pytest.raises(Problem) as caught:
        flash_messages.check_done(ActionOutcome(skipped=Counter([reason])), Action.RESTORE)
    assert (caught.value.status, caught.value.code) == (status, reason.replace(" ", "_"))
    assert "was not restored" in caught.value.detail


def test_done_is_no_refusal() -> None:
    flash_messages.check_done(ActionOutcome([1]), Action.DELETE)


def test_every_action_has_its_words() -> None:
    assert set(flash_messages.DONE) == set(flash_messages.VERBS) == set(Action)
