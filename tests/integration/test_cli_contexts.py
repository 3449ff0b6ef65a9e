"""Contexts: kept in a file of this user, and used by the commands."""

import json
from pathlib import Path

import pytest
from babelqueue import BabelQueue
from click.testing import CliRunner, Result

from phpmq_lite import envelopes
from phpmq_lite.cli import connect, contexts, worker
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


def test_address_without_a_scheme_is_a_wrong_use() -> None:
    for arguments in (
        ["context", "add", "x", "--node", "mq:9601"],
        ["queues", "--node", "mq:9601"],
    ):
        result = CliRunner().invoke(commands, arguments)
        assert result.exit_code == 2
        assert "'mq:9601' has no scheme; write http://mq:9601" in result.stderr
    assert contexts.current() is None


@pytest.mark.parametrize("url", ["ftp://mq", "http://", "http://mq:x", "http://[::1"])
def test_address_of_no_admin_is_a_wrong_use(url: str) -> None:
    result = run("add", "x", "--node", url)
    assert result.exit_code == 2
    assert "write http://HOST:PORT" in result.stderr


def test_context_without_a_scheme_that_is_remembered_is_a_wrong_use() -> None:
    contexts.save("x", {"x": contexts.Context("x", url="mq:9601")})
    result = CliRunner().invoke(commands, ["queues"])
    assert (result.exit_code, "write http://mq:9601" in result.stderr) == (2, True)


@pytest.mark.parametrize("in_use", [False, True])
def test_token_file_does_not_go_with_a_data_folder(tmp_path: Path, in_use: bool) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    if in_use:
        run("add", "here", "--data", str(tmp_path))
    where = [] if in_use else ["--data", str(tmp_path)]
    result = CliRunner().invoke(commands, ["queues", "--token-file", str(path), *where])
    assert result.exit_code == 2
    assert "--token-file goes with --node" in result.stderr


def test_token_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("phpmq_x", encoding="utf-16")
    path.chmod(0o600)
    arguments = ["queues", "--node", "http://127.0.0.1:9", "--token-file", str(path)]
    result = CliRunner().invoke(commands, arguments)
    assert (result.exit_code, result.stderr) == (
        1, f"Error: {path} is not UTF-8; a token is plain text\n"
    )  # fmt: skip


def test_token_file_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("phpmq_x")
    path.chmod(0o644)
    arguments = ["queues", "--node", "http://127.0.0.1:9", "--token-file", str(path)]
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 4
    assert "can be read by others" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "q", "--data", "x"],
        ["consume", "q", "-n", "1"],
        ["worker", "--app", "some:app"],
        ["outbox", "relay", "--once", "--database", "app.db"],
    ],
)
def test_command_that_speaks_phpmq_goes_to_the_broker_of_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.db").touch()
    given: list[str] = []
    monkeypatch.setattr(connect, "_client", lambda address, *_, **__: given.append(address))
    monkeypatch.setattr(worker, "load_app", lambda _: BabelQueue("memory://", queue="q"))
    for flags, expected in (([], "mq.example:9100"), (["--connect", "other:1"], "other:1")):
        run("add", "prod", "--node", "https://mq.example", "--connect", "mq.example")
        CliRunner().invoke(commands, [*arguments, *flags])
        assert given.pop() == expected


def test_app_of_a_worker_that_has_an_address_needs_none_of_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"unix:{tmp_path}/no.sock"
    monkeypatch.setattr(worker, "load_app", lambda _: envelopes.connect(where, queue="q"))
    run("add", "prod", "--node", "https://mq.example")
    result = CliRunner().invoke(commands, ["worker", "--app", "some:app", "--max-runtime", "1s"])
    assert "context prod" not in result.stderr
    assert where in result.stderr


@pytest.mark.parametrize("flags", [["--node", "https://mq.example"], ["--data", "/var/lib/mq"]])
def test_context_without_an_address_of_phpmq_has_publish_refuse(flags: list[str]) -> None:
    run("add", "prod", *flags)
    publish = ["publish", "q", "--data", "x"]
    for more in ([], ["--set", "limits.max_content=10"]):
        result = CliRunner().invoke(commands, [*publish, *more])
        assert (result.exit_code, result.stderr) == (
            1,
            "Error: context prod is in use, and does not say where its broker speaks PHPMQ: "
            "say --connect here, or add the context again with --connect\n",
        )


def test_flags_that_name_a_broker_win_over_the_context(tmp_path: Path) -> None:
    run("add", "prod", "--node", "https://mq.example", "--connect", "mq.example:9100")
    where = f"unix:{tmp_path}/no.sock"
    config = tmp_path / "settings.toml"
    config.write_text(f'[tcp]\nlisten = ["{where}"]\n')
    flags = (["--connect", where], ["--set", f"tcp.listen={where}"], ["--config", str(config)])
    for more in flags:
        result = CliRunner().invoke(commands, ["publish", "q", "--data", "x", *more])
        assert f"cannot connect to {where}" in result.stderr


def test_address_of_a_context_is_checked_and_whole(tmp_path: Path) -> None:
    assert "is no address" in run("add", "x", "--data", "/d", "--connect", "a:b").stderr
    run("add", "x", "--data", "/d", "--connect", "unix:mq.sock")
    run("add", "y", "--data", "/d", "--connect", "[::1]")
    rows = [json.loads(line) for line in run("ls", "-o", "jsonl").stdout.splitlines()]
    assert [row["connect"] for row in rows] == [f"unix:{Path.cwd()}/mq.sock", "[::1]:9100"]
