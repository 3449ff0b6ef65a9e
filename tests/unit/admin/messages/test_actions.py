"""Results of actions, in plain words."""

from collections import Counter

import pytest

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages import actions
from phpmq_lite.broker.operator.message_actions import ACT
from phpmq_lite.operator_actions import ACTIONS, Action, SkipReason


def test_result_counts_messages_and_reasons_for_skipping() -> None:
    skipped = Counter({SkipReason.DISPATCHED: 3, SkipReason.DAMAGED: 1})
    text = actions.describe_result(Action.DELETE, 12_408, skipped)
    assert text == "12,408 messages deleted. Skipped: 3 held by a consumer; 1 damaged."
    assert actions.describe_result(Action.MOVE, 1, {}) == "1 message moved."


@pytest.mark.parametrize(
    ("reason", "status"),
    [(SkipReason.GONE, 410), (SkipReason.DISPATCHED, 409), (SkipReason.DEADLINE_PASSED, 409)],
)
def test_skipped_message_is_refused_with_its_reason(reason: SkipReason, status: int) -> None:
    with pytest.raises(Problem) as caught:
        actions.refuse_skipped(Action.RESTORE, reason)
    assert (caught.value.status, caught.value.code) == (status, reason.replace(" ", "_"))
    assert "was not restored" in caught.value.detail


def test_every_action_has_its_texts() -> None:
    assert set(ACTIONS) == set(ACT) == set(Action)
