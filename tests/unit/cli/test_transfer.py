"""Lines that an import accepts, before it stores anything."""

import io
import json

import pytest

from phpmq_lite.admin.views.bodies import from_content
from phpmq_lite.cli import transfer
from phpmq_lite.cli.errors import CommandError


def read(text: str, queue: str | None = None) -> list[dict[str, object]]:
    return [m for _, m in transfer._read_messages(io.BytesIO(text.encode("latin-1")), queue)]


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
        ("{}\n", "line 1 needs the strings"),
        ('{"content": "x"}', "line 1 needs the strings content and queue"),
        ('{"content": 1, "queue": "a"}', "line 1 needs the strings"),
        ('{"content": "x", "queue": "a"}\n[1]', "line 2 is not a JSON object"),
        ("\n{", "line 2 is not valid JSON"),
        (
            '{"content": "x", "queue": "a"}\n{"ü"',
            "line 2 is not valid UTF-8 at byte 3; is the file truncated",
        ),
        ('{"queue": "a", "content": null}', "line 1 needs the strings"),
        ('{"queue": "a", "id": "0"}', "line 1 needs the strings"),
    ],
)
def test_invalid_line_is_named(text: str, wrong: str) -> None:
    with pytest.raises(CommandError, match=wrong):
        read(text)


def test_exported_line_without_content_is_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = '{"id": "0", "queue": "a", "content": null, "encoding": "utf-8"}'
    kept = '{"id": "1", "queue": "a", "content": "x"}'
    assert read(f'{gone}\n{kept}\n{gone}\n{{"complete": true}}') == [{"content": "x", "queue": "a"}]
    told = capsys.readouterr().err
    assert told == "2 messages skipped: the export lacks their content\n"


def test_requests_stay_small_whatever_the_bodies_are() -> None:
    big = [{"content": "x" * 700_000} for _ in range(3)]
    assert [len(part) for part in transfer._batches(big)] == [1, 1, 1]
    small = [{"content": "x"} for _ in range(501)]
    assert [len(part) for part in transfer._batches(small)] == [500, 1]
    cyrillic = [{"content": "я" * 2_000} for _ in range(600)]
    parts = list(transfer._batches(cyrillic))
    assert sum(map(len, parts)) == 600
    assert max(len(transfer._request_body(part)) for part in parts) <= 1 << 20
    assert list(transfer._batches([])) == []


@pytest.mark.parametrize("mark", ["\0", '"', "\\", "\n", "ä", "я", "€", "😀", "x"])
def test_line_is_no_longer_than_its_content_in_base64(mark: str) -> None:
    content = mark * 30_000
    message = {"content": content, "queue": "a", "encoding": "utf-8", "ttl_s": 0}
    line = transfer._encode(message)
    assert len(line) <= len(content.encode()) * 4 // 3 + 200
    sent = json.loads(line)
    assert from_content(sent["content"], sent["encoding"]) == content.encode()
    assert (sent["queue"], sent["ttl_s"]) == ("a", 0)
