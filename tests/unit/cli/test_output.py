"""Lists on standard output, in each format."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from phpmq_lite.cli.output import Column, write

COLUMNS = [Column("name", "QUEUE"), Column("ready", "READY", is_number=True)]
ROWS: list[dict[str, Any]] = [
    {"name": "orders", "ready": 12_408, "more": [1]},
    {"name": "=cmd\x1b[2J", "ready": None, "more": []},
]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def run(rows: list[dict[str, Any]], style: str | None) -> tuple[str, str]:
        write(rows, COLUMNS, style, "nothing here")
        seen = capsys.readouterr()
        return seen.out, seen.err

    return run


def test_json_has_every_key(written: Callable[..., tuple[str, str]]) -> None:
    assert json.loads(written(ROWS, "json")[0]) == ROWS


def test_lines_are_written_when_there_is_no_terminal(
    written: Callable[..., tuple[str, str]],
) -> None:
    out, _ = written(ROWS, None)
    assert [json.loads(line) for line in out.splitlines()] == ROWS
    assert "\x1b" not in out


def test_csv_has_the_columns_and_no_formula(written: Callable[..., tuple[str, str]]) -> None:
    assert written(ROWS, "csv")[0] == "name,ready\norders,12408\n'=cmd\x1b[2J,\n"


def test_table_aligns_numbers_and_escapes(written: Callable[..., tuple[str, str]]) -> None:
    lines = [line.rstrip() for line in written(ROWS, "table")[0].splitlines()]
    assert lines == [
        "QUEUE         READY",
        "orders       12,408",
        "=cmd\\x1b[2J       –",
    ]


def test_empty_table_says_so_on_standard_error(written: Callable[..., tuple[str, str]]) -> None:
    assert written([], "table") == ("", "nothing here\n")


@pytest.mark.parametrize(("style", "expected"), [("json", "[]\n"), ("jsonl", "")])
def test_empty_list_is_empty_for_programs(
    written: Callable[..., tuple[str, str]], style: str, expected: str
) -> None:
    assert written([], style) == (expected, "")
