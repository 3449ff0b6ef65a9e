"""Contexts: kept in a file of this user, and used by the commands."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli import contexts
from phpmq_lite.cli.main import commands


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["context", *arguments], catch_exceptions=False)


def test_first_context_is_in_use_until_another_is_chosen() -> None:
    run("add", "here", "--data", "/var/lib/phpmq")
    run("add", "there", "--node", "https://mq.example")
    assert contexts.current() == contexts.Context("here", data=Path("/var/lib/phpmq"))
    run("use", "there")
    rows = [json.loads(line) for line in run("ls", "-o", "jsonl").stdout.splitlines()]
    assert [(row["name"], row["in_use"]) for row in rows] == [("here", False), ("there", True)]
    run("rm", "there")
    assert contexts.current() is None


def test_file_of_contexts_is_for_its_owner_only() -> None:
    run("add", "here", "--data", "/tmp")
    assert contexts.file().stat().st_mode & 0o077 == 0


def test_unknown_context_is_not_found() -> None:
    result = run("use", "nowhere")
    assert (result.exit_code, result.stderr) == (3, "Error: there is no context 'nowhere'\n")


def test_damaged_file_is_named() -> None:
    contexts.file().parent.mkdir(parents=True)
    contexts.file().write_text("[]")
    result = run("ls")
    assert result.exit_code == 1
    assert "contexts.json cannot be read" in result.stderr


def test_command_goes_to_the_broker_of_the_context() -> None:
    run("add", "there", "--node", "http://127.0.0.1:9")
    result = CliRunner().invoke(commands, ["queues"])
    assert "no broker answers on http://127.0.0.1:9" in result.stderr


def test_token_file_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("phpmq_x")
    path.chmod(0o644)
    arguments = ["queues", "--node", "http://127.0.0.1:9", "--token-file", str(path)]
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 4
    assert "can be read by others" in result.stderr
