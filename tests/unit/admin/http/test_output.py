"""Cursors: opaque, and valid for their own list only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.http import output
from phpmq_lite.admin.http.problems import Problem


def test_cursor_is_decoded_for_its_own_list_only() -> None:
    text = output.encode_cursor("queues a", "after", [3.5, "orders"])
    assert output.decode_cursor("queues a", text) == ("after", [3.5, "orders"])
    with pytest.raises(Problem, match="another list"):
        output.decode_cursor("queues b", text)


def test_missing_cursor_is_none() -> None:
    assert output.decode_cursor("queues", None) is None
    assert output.position_in(None) == {}


@given(st.text(min_size=1))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        output.decode_cursor("x", text)
    assert (caught.value.status, caught.value.code) == (422, "bad_cursor")


def test_numbered_list_takes_numbers_only() -> None:
    assert output.position_in(output.ListCursor("before", 7)) == {"before": 7}
    for place in ([1, "a"], -1, 1 << 63):
        with pytest.raises(Problem):
            output.position_in(output.ListCursor("after", place))  # type: ignore[arg-type]
