"""Cursors, which are read only for their own list."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.problems import Problem


def test_cursor_is_decoded_for_its_own_list_only() -> None:
    text = cursors.encode_cursor("queues a", "after", [3.5, "orders"])
    assert cursors.decode_cursor("queues a", text) == ("after", [3.5, "orders"])
    with pytest.raises(Problem, match="another list"):
        cursors.decode_cursor("queues b", text)


def test_missing_cursor_is_none() -> None:
    assert cursors.decode_cursor("queues", None) is None
    assert cursors.position_in(None) == {}


@given(st.text(min_size=1))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        cursors.decode_cursor("x", text)
    assert (caught.value.status, caught.value.code) == (422, "bad_cursor")


def test_numbered_list_takes_numbers_only() -> None:
    for place in (7, -7):  # positions before those of the default priority are negative
        assert cursors.position_in(cursors.ListCursor("before", place)) == {"before": place}
    invalid: list[Any] = [[1, "a"], -1 << 63, 1 << 63]
    for value in invalid:
        with pytest.raises(Problem):
            cursors.position_in(cursors.ListCursor("after", value))
