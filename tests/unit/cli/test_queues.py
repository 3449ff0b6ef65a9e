"""Typed values of queue settings."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
import pytest
import rich.live

from phpmq_lite.cli.admin_client import AdminClient, BrokerUnavailableError
from phpmq_lite.cli.queues import _parse_value, _show_live, queue_path
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
        typed = {bool: "true", int: "1", float: "0.5", str: "1"}[type(default)]
        assert type(_parse_value(name, typed)) is type(default), name


def test_path_has_the_name_as_one_segment() -> None:
    assert queue_path("a/b", "pause") == "/queues/a%2Fb/pause"


def test_top_shows_that_the_broker_is_away_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    replies: Iterator[Any] = iter([0, BrokerUnavailableError("no broker answers"), 1])
    captions: list[str | None] = []

    class Screen:
        def __init__(self, *_table: object, **_options: object) -> None:
            pass

        def __enter__(self) -> "Screen":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, table: Any, *, refresh: bool) -> None:
            captions.append(table.caption)

    def get(_admin: AdminClient, _path: str) -> dict[str, int]:
        if isinstance(reply := next(replies), Exception):
            raise reply
        names = ("ready", "dispatched", "dead", "published_per_s", "acked_per_s")
        return dict.fromkeys(names, reply)

    def sleep(_seconds: float) -> None:
        if len(captions) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(AdminClient, "get", get)
    monkeypatch.setattr(AdminClient, "list", lambda *_arguments, **_query: iter(()))
    monkeypatch.setattr(rich.live, "Live", Screen)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        _show_live(AdminClient(None), 1.0)
    assert captions == ["no broker answers; trying again", None]
