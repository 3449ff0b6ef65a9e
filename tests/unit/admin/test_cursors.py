"""Cursors: opaque, and good for their own list only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin import cursors
from phpmq_lite.admin.problems import Problem


def test_cursor_comes_back() -> None:
    text = cursors.encode("queues a", "after", [3.5, "orders"])
    assert cursors.decode("queues a", text) == ("after", [3.5, "orders"])


def test_no_cursor_is_none() -> None:
    assert cursors.decode("queues", None) is None
    assert cursors.position(None) == {}


def test_cursor_of_another_filter_is_refused() -> None:
    text = cursors.encode("messages 1 ready", "after", 5)
    with pytest.raises(Problem, match="another list"):
        cursors.decode("messages 1 None", text)


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    if text:
        with pytest.raises(Problem) as caught:
            cursors.decode("x", text)
        assert (caught.value.status, caught.value.code) == (422, "bad_cursor")


def test_numbered_list_takes_numbers_only() -> None:
    assert cursors.position(cursors.Cursor("before", 7)) == {"before": 7}
    for place in ([1, "a"], -1, 1 << 63):
        with pytest.raises(Problem):
            cursors.position(cursors.Cursor("after", place))  # type: ignore[arg-type]
