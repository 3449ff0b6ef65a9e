"""Message ids as the admin interface parses them."""

import pytest

from phpmq_lite.storage.read.messages import is_message_id, wire_id


def test_id_is_sixteen_digits_each() -> None:
    assert wire_id(1, (1 << 63) - 1) == "0000000000000001" + "7fffffffffffffff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0" * 32, True), ("f" * 32, True), ("F" * 32, False), ("0" * 31, False), ("é" * 32, False),
     ("0" * 31 + "_", False), (" " * 32, False)],
)  # fmt: skip
def test_id_is_lower_case_hex(text: str, expected: bool) -> None:
    assert is_message_id(text) is expected
