"""``token``: output formats of the list, and the lifetime of a new token."""

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.main import root_command

CI = {
    "name": "ci", "role": "viewer", "queues": ["q*", "mail"], "created_by": "anna",
    "created_at": 1_795_400_000_000, "expires_at": 1_795_400_806_000, "last_used_at": None,
}  # fmt: skip
OLD = CI | {"name": "old", "queues": [], "expires_at": None, "last_used_at": 1_795_400_806_999}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(
        root_command, ["token", *arguments, "--url", "http://broker"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdminClient, "list", lambda *_: iter([CI, OLD]))


@pytest.mark.usefixtures("listed")
def test_table_has_globs_in_a_row_and_times_as_people_write_them() -> None:
    rows = run("list", "-o", "table").splitlines()
    assert [row.split() for row in rows] == [
        ["NAME", "ROLE", "QUEUES", "CREATED", "BY", "EXPIRES", "(UTC)", "LAST", "USED", "(UTC)"],
        ["ci", "viewer", "q*,", "mail", "anna", "2026-11-23", "02:26:46", "–"],
        ["old", "viewer", "all", "anna", "–", "2026-11-23", "02:26:46"],
    ]


@pytest.mark.usefixtures("listed")
def test_other_formats_have_the_values_of_the_api() -> None:
    assert json.loads(run("list", "-o", "json")) == [CI, OLD]
    assert '"[""q*"", ""mail""]",anna,1795400806000,' in run("list", "-o", "csv")


def test_token_lives_at_least_as_long_as_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def post(_node: AdminClient, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.update(body)
        return {"token": "secret"}

    monkeypatch.setattr(AdminClient, "post", post)
    monkeypatch.setattr(time, "time", lambda: 1_795_400_805.9441)
    assert run("create", "ci", "--expires", "1s") == "secret\n"
    assert asked["expires_at"] == 1_795_400_806_945
