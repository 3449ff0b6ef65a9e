"""Lines that an import accepts, before it stores anything."""

import io
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from phpmq_lite.admin.messages.bodies import from_content
from phpmq_lite.cli import transfer
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.main import root_command


def read(text: str, queue: str | None = None, *, settled: bool = False) -> list[dict[str, object]]:
    file, skipped = io.BytesIO(text.encode("latin-1")), transfer.SkippedLines()
    rows = [row for _, row in transfer._read_messages(file, queue, skipped, has_settled=settled)]
    skipped.report()
    return rows


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


def test_exported_line_without_content_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    gone = '{"id": "0", "queue": "a", "content": null, "encoding": "utf-8"}'
    kept = '{"id": "1", "queue": "a", "content": "x"}'
    assert read(f'{gone}\n{kept}\n{gone}\n{{"complete": true}}') == [{"content": "x", "queue": "a"}]
    told = capsys.readouterr().err
    assert told == "2 messages skipped: the export lacks their content\n"


def test_settled_line_is_skipped_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f'{{"queue": "a", "content": "{state}", "state": "{state}"}}'
        for state in ("ready", "acked", "expired", "dead", "deleted")
    ]
    text = "\n".join(lines)
    assert [row["content"] for row in read(text)] == ["ready"]
    assert capsys.readouterr().err == (
        "4 messages skipped: acked, expired, dead or deleted; add --settled to publish again\n"
    )
    assert len(read(text, settled=True)) == 5
    assert capsys.readouterr().err == ""


def test_requests_stay_small_whatever_the_bodies_are() -> None:
    big = [{"content": "x" * 700_000} for _ in range(3)]
    assert [len(part) for part in transfer._batches(enumerate(big))] == [1, 1, 1]
    small = [{"content": "x"} for _ in range(501)]
    assert [len(part) for part in transfer._batches(enumerate(small))] == [500, 1]
    cyrillic = [{"content": "я" * 2_000} for _ in range(600)]
    parts = list(transfer._batches(enumerate(cyrillic)))
    assert sum(map(len, parts)) == 600
    assert max(len(transfer._request_body([line for _, line in part])) for part in parts) <= 1 << 20
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


def import_file(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, refused_from: int = 1_000_000
) -> tuple[str, list[bytes]]:
    """Run ``message import`` with a broker that stores some messages; return its messages."""
    stored: list[bytes] = []

    def send(_admin: object, part: list[bytes]) -> tuple[int, CommandError | None]:
        room = refused_from - len(stored)
        stored.extend(part[:room])
        return min(len(part), room), CommandError("full") if room < len(part) else None

    monkeypatch.setattr(transfer, "_send", send)
    command = ["message", "import", *arguments, "--url", "http://127.0.0.1:9"]
    return CliRunner().invoke(root_command, command).stderr, stored


def test_import_does_not_keep_its_file_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"queue": "a", "content": "x" * 10_000}) + "\n"
    (tmp_path / "file").write_text("\ufeff" + line * 4_000, encoding="utf-8")
    sizes: list[int] = []

    def send(_admin: object, part: list[bytes]) -> tuple[int, None]:
        sizes.append(len(part))
        return len(part), None

    monkeypatch.setattr(transfer, "_send", send)
    command = ["message", "import", str(tmp_path / "file"), "--url", "http://127.0.0.1:9"]
    tracemalloc.start()
    try:
        result = CliRunner().invoke(root_command, command, catch_exceptions=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (result.stderr, sum(sizes)) == ("4,000 messages stored\n", 4_000)
    assert peak < 20 << 20


def test_import_names_the_line_to_continue_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = '{"queue": "a", "content": "x"}\n'
    (tmp_path / "file").write_text("\n" + line * 1_300)
    told, stored = import_file(monkeypatch, str(tmp_path / "file"), refused_from=1_203)
    assert len(stored) == 1_203
    assert "1,203 messages stored; continue with line 1205" in told


def test_import_of_a_pipe_checks_all_lines_first(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    line = b'{"queue": "a", "content": "x"}\n'
    os.write(writer, line * 3)
    os.close(writer)
    told, stored = import_file(monkeypatch, f"/dev/fd/{reader}")
    assert (told, len(stored)) == ("3 messages stored\n", 3)
    os.close(reader)


def test_import_names_a_file_in_another_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text('{"queue": "a", "content": "x"}\n', encoding="utf-16")
    told, stored = import_file(monkeypatch, str(tmp_path / "file"))
    assert (told, stored) == ("Error: file is not UTF-8 but UTF-16\n", [])
