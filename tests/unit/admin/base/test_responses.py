"""Cursors: opaque, and valid for their own list only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.base import responses
from phpmq_lite.admin.base.problems import Problem


def test_cursor_comes_back() -> None:
    text = responses.encode_cursor("queues a", "after", [3.5, "orders"])
    assert responses.decode_cursor("queues a", text) == ("after", [3.5, "orders"])


def test_no_cursor_is_none() -> None:
    assert responses.decode_cursor("queues", None) is None
    assert responses.position_in(None) == {}


def test_cursor_of_another_filter_is_refused() -> None:
    text = responses.encode_cursor("messages 1 ready", "after", 5)
    with pytest.raises(Problem, match="another list"):
        responses.decode_cursor("messages 1 None", text)


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    if text:
        with pytest.raises(Problem) as caught:
            responses.decode_cursor("x", text)
        assert (caught.value.status, caught.value.code) == (422, "bad_cursor")


def test_numbered_list_takes_numbers_only() -> None:
    assert responses.position_in(responses.ListCursor("before", 7)) == {"before": 7}
    for place in ([1, "a"], -1, 1 << 63):
        with pytest.raises(Problem):
            responses.position_in(responses.ListCursor("after", place))  # type: ignore[arg-type]
