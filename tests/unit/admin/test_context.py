"""Glob patterns that limit a user to queues."""

import pytest

from phpmq_lite.admin.context import is_match


@pytest.mark.parametrize(
    ("name", "globs", "is_seen"),
    [
        ("orders", ["orders"], True),
        ("orders.dlq", ["orders"], False),
        ("orders.dlq", ["orders*"], True),
        ("Orders", ["orders"], False),
        ("a\nb", ["a*"], True),
        ("mail", ["orders*", "m??l"], True),
        ("mail", [], False),
        ("a[b", ["a[b"], True),
        ("a" * 200 + "!", ["*a*a*a*a*a*a*a*a*b"], False),
    ],
)
def test_whole_name_has_to_fit(name: str, globs: list[str], is_seen: bool) -> None:
    assert is_match(name, globs) is is_seen
