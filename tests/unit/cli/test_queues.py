"""Typed values of queue settings."""

from dataclasses import asdict

import click
import pytest

from phpmq_lite.cli.queues import _parse_value, queue_path
from phpmq_lite.queue_settings import QueueSettings


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("note", "", None),
        ("pinned", "", None),
        ("pinned", "true", True),
        ("delivery_paused", "false", False),
        ("max_messages", "20", 20),
        ("max_messages", "-1", -1),
        ("on_expire", "dead_letter", "dead_letter"),
        ("note", "42", "42"),
        ("owner", "true", "true"),
        ("dead_letter_queue", "7", "7"),
        ("pinned", "1", "1"),
        ("max_messages", "many", "many"),
        ("colour", "7", "7"),
    ],
)
def test_parse_value_is_read_as_its_setting_has_it(name: str, text: str, value: object) -> None:
    found = _parse_value(name, text)
    assert (found, type(found)) == (value, type(value))


def test_number_of_many_digits_is_a_wrong_use() -> None:
    with pytest.raises(click.UsageError, match=r"number exceeds the limit of 20 digits$"):
        _parse_value("max_messages", "9" * 5_000)


def test_each_setting_of_a_queue_has_a_kind_that_can_be_typed() -> None:
    for name, default in asdict(QueueSettings()).items():
        typed = {bool: "true", int: "1", str: "1"}[type(default)]
        assert type(_parse_value(name, typed)) is type(default), name


def test_path_has_the_name_as_one_segment() -> None:
    assert queue_path("a/b", "pause") == "/queues/a%2Fb/pause"
