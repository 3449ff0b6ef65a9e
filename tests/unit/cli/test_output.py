"""Lists on standard output, in each format."""

import csv
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from click import unstyle

from phpmq_lite.cli.accounts import TOKEN_COLUMNS, USER_COLUMNS
from phpmq_lite.cli.messages import CAUSE_COLUMNS, DEAD_LETTER_COLUMNS, MESSAGE_COLUMNS
from phpmq_lite.cli.output import Column, ColumnOverflow, write_record, write_rows
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.cli.queues import QUEUE_COLUMNS
from phpmq_lite.text_files import csv_line

Write = Callable[..., tuple[str, str]]
OnTerminal = Callable[..., list[str]]

COLUMNS = [Column("name", "QUEUE"), Column("ready", "READY", is_number=True)]
ROWS: list[dict[str, Any]] = [
    {"name": "orders", "ready": 12_408, "more": [1]},
    {"name": "=cmd\x1b[2J", "ready": None, "more": []},
]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Write:
    def run(rows: list[dict[str, Any]], style: str | None) -> tuple[str, str]:
        write_rows(rows, COLUMNS, style, "nothing here")
        seen = capsys.readouterr()
        return seen.out, seen.err

    return run


def test_json_has_every_key(written: Write) -> None:
    assert json.loads(written(ROWS, "json")[0]) == ROWS


def test_lines_are_written_when_there_is_no_terminal(written: Write) -> None:
    out, _ = written(ROWS, None)
    assert [json.loads(line) for line in out.splitlines()] == ROWS
    assert "\x1b" not in out


def test_csv_has_the_columns_and_no_formula(written: Write) -> None:
    assert written(ROWS, "csv")[0] == "name,ready\norders,12408\n'=cmd\x1b[2J,\n"


@pytest.mark.parametrize("sign", "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
def test_csv_cell_is_no_formula_in_any_export(written: Write, sign: str) -> None:
    cell = f"{sign}cmd"
    out, _ = written([{"name": cell, "ready": 1}], "csv")
    assert list(csv.reader(io.StringIO(out, newline="")))[1] == [f"'{cell}", "1"]
    line = csv_line([cell, 1])  # of the API and the pages
    assert list(csv.reader(io.StringIO(line, newline=""))) == [[f"'{cell}", "1"]]


def test_table_aligns_numbers_and_escapes(written: Write) -> None:
    lines = [line.rstrip() for line in written(ROWS, "table")[0].splitlines()]
    assert lines == ["QUEUE         READY", "orders       12,408", "=cmd\\x1b[2J       –"]


def test_empty_table_has_a_note_on_standard_error(written: Write) -> None:
    assert written([], "table") == ("", "nothing here\n")


@pytest.mark.parametrize(("style", "expected"), [("json", "[]\n"), ("jsonl", "")])
def test_empty_list_is_empty_for_programs(written: Write, style: str, expected: str) -> None:
    assert written([], style) == (expected, "")


ONE = {"name": "mail", "rate": 0.5, "at": None, "settings": {"pinned": True, "note": "größer"}}


def test_record_has_a_line_for_each_member(capsys: pytest.CaptureFixture[str]) -> None:
    write_record(ONE, "table")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["WHAT", "VALUE"],
        ["name", "mail"],
        ["rate", "0.5"],
        ["at", "–"],
        ["settings.pinned", "true"],
        ["settings.note", "größer"],
    ]


def test_record_is_an_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    write_record(ONE, None)
    line = capsys.readouterr().out
    assert json.loads(line) == ONE
    assert line.count("\n") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Return a function that writes a list to a terminal of a given width."""

    def run(
        width: int, rows: list[dict[str, Any]] | None = None, columns: list[Column] | None = None
    ) -> list[str]:
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        for name, value in (("TERM", "xterm"), ("COLUMNS", str(width))):
            monkeypatch.setenv(name, value)
        write_rows(rows or FOUND, columns or WIDE, None, "")
        return [unstyle(line).rstrip() for line in terminal.getvalue().splitlines()]

    return run


WIDE = [
    Column("id", "ID", fit=ColumnOverflow.WHOLE),
    Column("queue", "QUEUE"),
    Column("size", "SIZE", is_number=True, fit=ColumnOverflow.SPARE),
    Column("reason", "REASON", fit=ColumnOverflow.SPARE),
    Column("preview", "BODY", fit=ColumnOverflow.REST),
]
FOUND = [{"id": "0" * 32, "queue": "orders", "size": 7, "reason": "ttl", "preview": "word " * 40}]


def test_terminal_shows_ids_whole_and_a_line_for_each(on_terminal: OnTerminal) -> None:
    head, line = on_terminal(80)
    assert head.split() == ["ID", "QUEUE", "SIZE", "REASON", "BODY"]
    assert line.startswith(f"{'0' * 32}  orders     7  ttl     word word")
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("width", "spare"), [(72, ["SIZE", "REASON"]), (71, ["REASON"]), (66, ["REASON"]), (65, [])]
)
def test_optional_columns_are_hidden(on_terminal: OnTerminal, width: int, spare: list[str]) -> None:
    head, line = on_terminal(width)
    assert head.split() == ["ID", "QUEUE", *spare, "BODY"]
    assert "0" * 32 in line


def test_terminal_breaks_long_texts_and_no_numbers(on_terminal: OnTerminal) -> None:
    name = "orders.retry." * 8
    found = [{"id": "0" * 32, "queue": name, "size": 1_234_567, "preview": ""}]
    columns = [WIDE[0], WIDE[1], Column("size", "SIZE", is_number=True)]
    lines = on_terminal(60, found, columns)
    assert "".join(line[34:49].strip() for line in lines[1:]) == name
    assert "1,234,567" in lines[1]


NAME = "billing.invoices.reminders"  # 26 letters
MESSAGE = {
    "id": "0" * 32, "queue": NAME, "state": "ready", "deliveries": 1, "size": 142,
    "preview": 'urn:babel:invoices:reminded {"invoice": 1042, "days": 14}',
}  # fmt: skip
LONG_CAUSE = "data.total: 12 is not a number between 0 and 10 (schema of version 2)"
URN = "urn:babel:invoices:reminded"
TABLES = {
    "messages": (MESSAGE_COLUMNS, MESSAGE),
    "queues": (
        QUEUE_COLUMNS,
        dict.fromkeys([one.key for one in QUEUE_COLUMNS], 12_345) | {"name": NAME},
    ),
    "dead": (
        DEAD_LETTER_COLUMNS,
        {"queue": f"{NAME}.dlq", "origin": NAME, "reason": "max_deliveries", "count": 35},
    ),
    "causes": (
        CAUSE_COLUMNS,
        {"count": 35, "origin": NAME, "urn": URN, "reason": "schema_invalid", "cause": LONG_CAUSE},
    ),
    "users": (
        USER_COLUMNS,
        {"name": NAME, "role": "operator", "queues": f"{NAME}, mail.*",
         "created_at": "2026-11-29 14:00:00", "last_login_at": "2026-11-29 14:00:00"},
    ),
    "tokens": (
        TOKEN_COLUMNS,
        {"name": NAME, "role": "operator", "queues": "all", "created_by": NAME,
         "expires_at": "2026-11-29 14:00:00", "last_used_at": "2026-11-29 14:00:00"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", TABLES)
def test_table_keeps_names_whole_when_a_terminal_is_narrow(
    on_terminal: OnTerminal, kind: str, width: int
) -> None:
    columns, row = TABLES[kind]
    lines = on_terminal(width, [row, row], list(columns))
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if NAME in line]) >= 2
    assert len(lines) <= (9 if kind == "causes" else 5)


@pytest.mark.parametrize("width", [80, 120])
def test_message_list_shows_urn_and_data(on_terminal: OnTerminal, width: int) -> None:
    short = MESSAGE | {"queue": "orders", "preview": "hello"}
    lines = on_terminal(width, [MESSAGE, short], list(MESSAGE_COLUMNS))
    assert any(str(MESSAGE["preview"]) in line for line in lines)
    assert on_terminal(width, [short], list(MESSAGE_COLUMNS))[1].endswith("hello")


@pytest.mark.parametrize("total", [5_000, None])
def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("publishing", total) as advance:
        advance(5_000)
    assert "5000/" in terminal.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_hidden_elsewhere(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("publishing", 10 if is_terminal else 5_000) as advance:
        advance(10)
    assert stream.getvalue() == ""
