"""Search patterns: the prefix shared by everything that a pattern matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.storage.search.language import escape_pattern, literal_prefix, prefix_end


@pytest.mark.parametrize(
    ("pattern", "start"),
    [("abc", "abc"), ("abc*", "abc"), ("a?c", "a"), ("*", ""), ("", ""), (r"a\*b*", "a*b"),
     (r"a\\*", "a\\"), ("a[b]*", "a[b]"), ("é\n*", "é\n")],
)  # fmt: skip
def test_prefix_of_a_pattern_ends_at_its_first_wildcard(pattern: str, start: str) -> None:
    assert literal_prefix(pattern) == start


@given(st.text(), st.text())
def test_range_contains_exactly_the_texts_with_the_prefix(start: str, other: str) -> None:
    """SQLite compares the bytes of UTF-8."""
    assert literal_prefix(escape_pattern(start)) == start
    end = prefix_end(start)
    if end is None:
        assert not start.strip("\U0010ffff")
        return
    for text in (start, start + other, start + "\U0010ffff", other):
        is_inside = start.encode() <= text.encode() < end.encode()
        assert is_inside == text.startswith(start)
