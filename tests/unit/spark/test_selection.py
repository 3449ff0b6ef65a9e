"""Selections of archives: which is certainly wider than which."""

import json

import pytest

from phpmq_lite.spark.selection import ArchiveSelection

S = ArchiveSelection


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (S(), S(allowed=("a",)), True),
        (S(allowed=("a",)), S(), False),
        (S(allowed=("a", "b")), S(allowed=("a",)), True),
        (S(allowed=("a*",)), S(allowed=("ab", "a?c*")), True),
        (S(allowed=("a?",)), S(allowed=("a*",)), False),  # the text matches, the names do not
        (S(allowed=("*]",)), S(allowed=("[a]",)), False),
        (S(allowed=("*",)), S(allowed=("[a]",)), True),
        (S(queues=("a", "b")), S(queues=("a",)), True),
        (S(queues=("a",)), S(queue_pattern="a"), False),
        (S(queue_pattern="a*"), S(queue_pattern="ab*"), True),
        (S(queue_pattern="a*"), S(queues=("ab",)), False),
        (S(outcomes=("dead", "acked")), S(outcomes=("dead",)), True),
        (S(outcomes=("acked", "expired", "dead", "deleted")), S(), True),
        (S(outcomes=("dead",)), S(), False),
    ],
)
def test_wider_selection(wide: ArchiveSelection, narrow: ArchiveSelection, expected: bool) -> None:
    assert wide.contains(narrow) == expected
    assert wide.contains(wide)
    assert ArchiveSelection.parse(json.dumps(wide.document())) == wide


def test_queue_must_match_every_part() -> None:
    selection = S(queues=("ab", "b"), queue_pattern="a*", allowed=("*b",))
    assert [name for name in ("ab", "b", "a", "axb") if selection.has_queue(name)] == ["ab"]
    assert not selection.is_everything
    assert S().is_everything
