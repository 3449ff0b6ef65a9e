"""Values of settings as they are typed."""

import pytest

from phpmq_lite.cli.queue import _value, path_of


@pytest.mark.parametrize(
    ("text", "value"),
    [("", None), ("true", True), ("false", False), ("20", 20), ("-1", -1), ("dead_letter",) * 2],
)
def test_value_is_read_as_what_it_looks_like(text: str, value: object) -> None:
    assert _value(text) == value


def test_path_has_the_name_as_one_segment() -> None:
    assert path_of("a/b", "pause") == "/queues/a%2Fb/pause"
