"""Levels of monitoring checks, even if the broker does not answer."""

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
    for name in ("backlog", "age", "dead-letters", "disk", "backup", "consumers"):
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
