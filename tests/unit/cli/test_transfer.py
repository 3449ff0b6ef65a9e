"""What an import takes from its lines, before it stores anything."""

import io
import json

import pytest

from phpmq_lite.cli import transfer
from phpmq_lite.cli.main import CommandError


def read(text: str, queue: str | None = None) -> list[dict[str, object]]:
    return list(transfer._messages(io.StringIO(text), queue))


def test_export_is_read_back_without_its_last_line() -> None:
    line = json.dumps({"queue": "a", "content": "x", "encoding": "utf-8", "id": "0", "state": "x"})
    assert read(f'{line}\n\n{{"complete": true, "count": 1}}\n') == [
        {"content": "x", "encoding": "utf-8", "queue": "a"}
    ]


def test_queue_of_the_command_line_wins() -> None:
    assert read('{"queue": "a", "content": ""}', "b") == [{"content": "", "queue": "b"}]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{}\n", "line 1 has no content"),
        ('{"content": "x"}', "line 1 has no content, or names no queue"),
        ('{"content": 1, "queue": "a"}', "line 1 has no content"),
        ('{"content": "x", "queue": "a"}\n[1]', "line 2 is no JSON object"),
        ("\n{", "line 2 is not JSON"),
    ],
)
def test_line_that_is_no_message_is_named(text: str, wrong: str) -> None:
    with pytest.raises(CommandError, match=wrong):
        read(text)


def test_requests_stay_small_whatever_the_bodies_are() -> None:
    big = [{"content": "x" * 700_000} for _ in range(3)]
    assert [len(part) for part in transfer._cut(big)] == [1, 1, 1]
    small = [{"content": "x"} for _ in range(3)]
    assert list(transfer._cut(small)) == [small]
