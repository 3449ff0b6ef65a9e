"""Frozen selections: found by token, only by their owner, for ten minutes."""

import pytest

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.owned_stores import SELECTION_MS, SelectionStore
from tests.unit.admin.messages.made import frozen


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
