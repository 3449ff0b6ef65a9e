"""Search patterns: the prefix shared by everything that a pattern matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.storage.read.search_plan import escape_pattern, literal_prefix, prefix_end


@pytest.mark.parametrize(
    ("pattern", "start"),
    [("abc", "abc"), ("abc*", "abc"), ("a?c", "a"), ("*", ""), ("", ""), (r"a\*b*", "a*b"),
     (r"a\\*", "a\\"), ("a[b]*", "a[b]"), ("é\n*", "é\n")],
)  # fmt: skip
def test_pattern_begins_with_the_text_ahead_of_its_first_mark(pattern: str, start: str) -> None:
    assert literal_prefix(pattern) == start


@given(st.text(), st.text())
def test_range_has_all_that_begins_with_a_text_and_nothing_else(start: str, other: str) -> None:
    """SQLite compares the bytes of UTF-8."""
    assert literal_prefix(escape_pattern(start)) == start
    end = prefix_end(start)
    if end is None:
        assert not start.strip("\U0010ffff")
        return
    for text in (start, start + other, start + "\U0010ffff", other):
        is_inside = start.encode() <= text.encode() < end.encode()
        assert is_inside == text.startswith(start)
