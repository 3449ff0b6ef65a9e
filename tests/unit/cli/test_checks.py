"""Levels of monitoring checks, even if the broker does not answer."""

import time
from typing import Any

import pytest
from click.testing import CliRunner

from phpmq_lite.cli import status
from phpmq_lite.cli.admin_client import AdminClient, read_response
from phpmq_lite.cli.main import root_command


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (0, status.OK),
        (9, status.OK),
        (10, status.WARNING),
        (99, status.WARNING),
        (100, status.CRITICAL),
    ],
)
def test_level_rises_at_each_bound(value: int, level: int) -> None:
    assert status.level_of(value, 10, 100) == level


@pytest.mark.parametrize("where", [["--data", "/no/such/folder"], ["--url", "http://127.0.0.1:9"]])
def test_broker_that_does_not_answer_is_critical_to_check_ready_alone(where: list[str]) -> None:
    result = CliRunner().invoke(root_command, ["check", "ready", *where])
    words = "CRITICAL: the broker does not accept messages: no broker answers on "
    assert (result.exit_code, result.stdout[: len(words)]) == (status.CRITICAL, words)
    for name in ("backlog", "age", "dead-letters", "disk", "backup", "consumers", "pipeline"):
        queue = ["q"] if name == "consumers" else []
        result = CliRunner().invoke(root_command, ["check", name, *queue, *where])
        assert result.exit_code == status.UNKNOWN
        assert result.stdout.startswith("UNKNOWN: no broker answers on ")


@pytest.mark.parametrize(("status", "code"), [(503, status.CRITICAL), (401, status.UNKNOWN)])
def test_ready_by_http_status(monkeypatch: pytest.MonkeyPatch, status: int, code: int) -> None:
    monkeypatch.setattr(AdminClient, "get", lambda *_: read_response(status, b"{}"))
    result = CliRunner().invoke(root_command, ["check", "ready", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == code


@pytest.mark.parametrize(
    "arguments", [["ready", "--wrong"], ["--wrong"], ["wrong"], ["backlog", "-w", "many"], []]
)
def test_wrong_use_is_unknown(arguments: list[str]) -> None:
    result = CliRunner().invoke(root_command, ["check", *arguments])
    assert result.exit_code == status.UNKNOWN
    assert "Usage" in result.stderr


def test_wrong_setting_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPMQ_LIMITS__CREDIT", "x")
    result = CliRunner().invoke(root_command, ["check", "ready"])
    assert (result.exit_code, result.stdout[:9]) == (status.UNKNOWN, "UNKNOWN: ")


NOW_S = 1_800_000_000.0


def _made(name: str, age_s: float) -> dict[str, Any]:
    return {"id": name, "made_at": int((NOW_S - age_s) * 1_000)}


AHEAD = _made("x", -9_000)
DATED = "these are dated in the future: x"


@pytest.mark.parametrize(
    ("items", "level", "text"),
    [
        ([], status.CRITICAL, "there are no backups"),
        ([_made("a", 5)], status.OK, "a is 5 s old"),
        ([_made("a", -30)], status.OK, "a is 0 s old"),  # clocks may differ
        ([_made("b", 5), _made("a", 60)], status.OK, "b is 5 s old"),
        ([_made("a", 99)], status.CRITICAL, "a is 99 s old"),
        ([AHEAD], status.WARNING, f"the age of the newest backup is unknown; {DATED}"),
        ([AHEAD, _made("a", 5)], status.WARNING, f"a is 5 s old; {DATED}"),
        ([AHEAD, _made("a", 99)], status.CRITICAL, f"a is 99 s old; {DATED}"),
    ],
)
def test_future_backup_is_not_fresh(items: list[dict[str, Any]], level: int, text: str) -> None:
    assert status.check_newest_backup(items, NOW_S, 10, 90) == (level, text)


def _reader(name: str, left_s: float | None, silent_s: float = 0, **more: Any) -> dict[str, Any]:
    figures = {"behind": 0 if left_s is None else 1_200, "behind_bytes": 2_048, "is_reached": False}
    seen_at = round((time.time() - silent_s) * 1_000)
    return {"reader": name, "reached_in_s": left_s, "seen_at": seen_at} | figures | more


BEHIND = "archive-1 is 1,200 rows (2 KiB) behind"
DAY_S = 86_400


@pytest.mark.parametrize(
    ("readers", "level", "text"),
    [
        ([_reader("archive-1", 6 * DAY_S)], 0, f"{BEHIND}; retention reaches it in 6 d"),
        ([_reader("archive-1", DAY_S)], 1, f"{BEHIND}; retention reaches it in 1 d"),
        ([_reader("archive-1", 7_200)], 2, f"{BEHIND}; retention reaches it in 2 h"),
        ([_reader("archive-1", 0, is_reached=True)], 2,
         f"{BEHIND}; retention has removed rows that it has not read"),
        ([_reader("archive-1", 6 * DAY_S, 2 * DAY_S)], 1,
         f"{BEHIND}; retention reaches it in 6 d; it has not reported for 2 d"),
        ([_reader("archive-1", None, 99 * DAY_S)], 0, "archive-1 has read everything"),
        ([_reader("a", None), _reader("archive-1", 60), _reader("b", 9_000)], 2,
         f"{BEHIND}; retention reaches it in 1 min"),
        ([_reader("a\x1b[2J", None)], 0, "a\\x1b[2J has read everything"),
        ([], 3, "no reader has reported"),
    ],
)  # fmt: skip
def test_pipeline_level_is_that_of_the_reader_that_retention_reaches_first(
    monkeypatch: pytest.MonkeyPatch, readers: list[dict[str, Any]], level: int, text: str
) -> None:
    monkeypatch.setattr(AdminClient, "list", lambda *_: iter(readers))
    result = CliRunner().invoke(root_command, ["check", "pipeline", "--url", "http://127.0.0.1:9"])
    assert (result.exit_code, result.stdout) == (level, f"{status.WORDS[level]}: {text}\n")


def test_pipeline_checks_the_reader_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = [_reader("archive-1", 60), _reader("archive-2", 5 * DAY_S, 3_600)]
    monkeypatch.setattr(AdminClient, "list", lambda *_: iter(readers))
    begin = ["check", "pipeline", "--url", "http://127.0.0.1:9"]
    given = ["archive-2", "-w", "8d", "-c", "6d"], ["archive-2"], ["archive-2", "--silent", "59m"]
    codes = [CliRunner().invoke(root_command, begin + words).exit_code for words in given]
    assert codes == [2, 0, 1]
    result = CliRunner().invoke(root_command, [*begin, "archive"])
    words = "UNKNOWN: no reader archive has reported; these have: archive-1, archive-2\n"
    assert (result.exit_code, result.stdout) == (3, words)
