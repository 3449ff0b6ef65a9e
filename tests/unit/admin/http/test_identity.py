"""Glob patterns that limit a user to queues."""

import pytest

from phpmq_lite.admin.http.identity import Identity
from phpmq_lite.roles import Role


@pytest.mark.parametrize(
    ("name", "globs", "is_seen"),
    [
        ("orders", ["orders"], True),
        ("orders.dlq", ["orders"], False),
        ("orders.dlq", ["orders*"], True),
        ("Orders", ["orders"], False),
        ("a\nb", ["a*"], True),
        ("mail", ["orders*", "m??l"], True),
        ("mail", [], True),  # no globs: all queues
        ("a[b", ["a[b"], True),
        ("a" * 200 + "!", ["*a*a*a*a*a*a*a*a*b"], False),
    ],
)
def test_whole_name_has_to_fit(name: str, globs: list[str], is_seen: bool) -> None:
    identity = Identity("anna", Role.VIEWER, "user", tuple(globs))
    assert identity.may_use(name) is is_seen
