"""Selections and undo records: whose they are, how long they last, and what undo does."""

from collections import Counter
from dataclasses import replace

import pytest

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.owned_stores import (
    SELECTION_MS,
    UNDO_MS,
    SelectionStore,
    UndoRecord,
    UndoStore,
    make_publish_undo,
    make_undo,
)
from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome
from phpmq_lite.broker.transitions import MessagePlace
from phpmq_lite.operator_actions import Action, SkipReason
from tests.unit.admin.messages.made import frozen, new_id


def test_selection_is_found_by_its_token() -> None:
    selections = SelectionStore()
    made = selections.add("queue:orders", frozen(3), "anna", 1_000)
    assert selections.find(made.token, "anna", 1_000 + SELECTION_MS - 1) is made
    assert made.count == 3


@pytest.mark.parametrize(("owner", "at_ms"), [("bert", 1_000), ("anna", 1_000 + SELECTION_MS)])
def test_selection_is_gone_for_others_and_after_ten_minutes(owner: str, at_ms: int) -> None:
    selections = SelectionStore()
    made = selections.add("", frozen(), "anna", 1_000)
    with pytest.raises(Problem) as caught:
        selections.find(made.token, owner, at_ms)
    assert (caught.value.status, caught.value.code) == (410, "selection_expired")


def test_oldest_selections_are_dropped_to_make_room() -> None:
    selections = SelectionStore(limit_bytes=100)
    tokens = [selections.add("", frozen(5), "anna", 1).token for _ in range(3)]
    with pytest.raises(Problem):
        selections.find(tokens[0], "anna", 1)
    assert [selections.find(token, "anna", 1).count for token in tokens[1:]] == [5, 5]


def test_newest_selection_stays_whatever_its_size() -> None:
    selections = SelectionStore(limit_bytes=8)
    made = selections.add("", frozen(1_000), "anna", 1)
    assert selections.find(made.token, "anna", 1) is made


def test_old_selections_are_dropped_by_the_next() -> None:
    selections = SelectionStore()
    selections.add("", frozen(), "anna", 0)
    selections.add("", frozen(), "anna", SELECTION_MS)
    assert len(selections) == 1


def test_selections_of_one_user_do_not_push_out_those_of_another() -> None:
    selections = SelectionStore(limit_bytes=100)
    kept = selections.add("", frozen(5), "bert", 1)
    for _ in range(10):
        newest = selections.add("", frozen(5), "anna", 1)
    assert selections.find(kept.token, "bert", 1) is kept
    assert selections.find(newest.token, "anna", 1) is newest
    assert (selections.bytes, selections.dropped) == (80, 9)


def undo(action: Action, *outcomes: ActionOutcome) -> UndoRecord:
    made = make_undo(action, "anna", "orders")
    assert made is not None
    for outcome in outcomes:
        made.note(outcome)
    return made


def test_delete_is_undone_by_restoring_the_same_messages() -> None:
    made = undo(Action.DELETE, ActionOutcome([3, 1]), ActionOutcome([2]))
    assert (made.action, list(made.seqs)) == (Action.RESTORE, [3, 1, 2])
    assert made.complete(ActionOptions(), 0, 3) == ActionOptions()


@pytest.mark.parametrize("action", [Action.REQUEUE, Action.MOVE])
def test_requeue_and_move_are_undone_by_their_old_positions(action: Action) -> None:
    first = ActionOutcome([1, 2], places={1: MessagePlace(5, 10), 2: MessagePlace(6, 20)})
    made = undo(action, first, ActionOutcome([3], places={3: MessagePlace(5, -30)}))
    assert made.action is Action.PLACE
    options = ActionOptions(ttl_s=5)
    assert made.complete(options, 0, 2) == replace(
        options, places={1: MessagePlace(5, 10), 2: MessagePlace(6, 20)}
    )
    assert made.complete(options, 2, 500) == replace(options, places={3: MessagePlace(5, -30)})


def test_token_can_be_an_argument_of_a_command() -> None:
    stored = UndoStore()
    for seq in range(1_000):  # of 64 characters, one token in 64 would begin with a hyphen
        token = stored.add(undo(Action.DELETE, ActionOutcome([seq])), 1)
        assert token is not None
        assert token[0] != "-"


RESTORED = ActionOutcome([1, 2], {1: new_id(1), 2: new_id(2)}, Counter({SkipReason.GONE: 1}))


def test_restore_is_undone_by_deleting_the_new_messages() -> None:
    made = undo(Action.RESTORE, RESTORED)
    assert (made.action, list(made.seqs)) == (Action.DELETE, [1_001, 1_002])


def test_redrive_is_undone_by_taking_the_messages_back() -> None:
    made = undo(Action.REDRIVE, RESTORED, ActionOutcome([3], {3: new_id(3)}))
    assert (made.action, list(made.seqs)) == (Action.TAKE_BACK, [1, 2, 3])
    assert made.complete(ActionOptions(), 1, 500).redriven == {2: 1_002, 3: 1_003}


def test_publish_is_undone_by_deleting() -> None:
    made = make_publish_undo([new_id(1)], "anna", "orders")
    assert (made.action, list(made.seqs)) == (Action.DELETE, [1_001])


@pytest.mark.parametrize("action", [Action.RELEASE, Action.ERASE, Action.PLACE])
def test_some_actions_cannot_be_undone(action: Action) -> None:
    assert make_undo(action, "anna", "orders") is None
    assert UndoStore().add(None, 0) is None


def test_action_without_effect_has_no_undo() -> None:
    undos = UndoStore()
    assert undos.add(undo(Action.DELETE), 0) is None
    assert len(undos) == 0


def test_undo_is_found_by_its_owner_until_it_was_used() -> None:
    undos = UndoStore()
    made = undo(Action.DELETE, ActionOutcome([1]))
    token = undos.add(made, 0)
    assert token is not None
    assert undos.find(token, "anna", UNDO_MS - 1) is made
    for owner, at_ms in (("bert", 0), ("anna", UNDO_MS)):
        with pytest.raises(Problem, match="undone"):
            undos.find(token, owner, at_ms)
    undos.take(token)
    undos.take(token)
    with pytest.raises(Problem) as caught:
        undos.find(token, "anna", 0)
    assert caught.value.status == 410


def test_oldest_undo_is_dropped_to_make_room() -> None:
    undos = UndoStore(limit_bytes=20)
    tokens = [undos.add(undo(Action.DELETE, ActionOutcome([1, 2])), 0) for _ in range(2)]
    assert tokens[1] is not None
    assert list(undos.find(tokens[1], "anna", 0).seqs) == [1, 2]
    assert len(undos) == 1


def test_undos_of_one_user_do_not_push_out_those_of_another() -> None:
    undos = UndoStore(limit_bytes=40)
    theirs = undo(Action.DELETE, ActionOutcome([1, 2]))
    theirs.owner = "bert"
    kept = undos.add(theirs, 0)
    for _ in range(5):
        undos.add(undo(Action.DELETE, ActionOutcome([1, 2])), 0)
    assert kept is not None
    assert undos.find(kept, "bert", 0) is theirs
    assert len(undos) == 2
