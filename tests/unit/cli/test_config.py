"""The ``config`` commands."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phpmq_lite import settings
from phpmq_lite.cli.main import root_command
from phpmq_lite.settings import SETTINGS
from phpmq_lite.settings.reference import config_file


def test_show_names_value_and_source_of_every_setting(tmp_path: Path) -> None:
    path = tmp_path / "mq.toml"
    path.write_text("[limits]\ncredit = 5\n")
    result = CliRunner().invoke(
        root_command,
        ["config", "show", "--config", str(path), "--set", "limits.held=7", "-o", "json"],
        env={"PHPMQ_LIMITS__MAX_CONTENT": "1 MiB"},
    )
    rows = {row["setting"]: row for row in json.loads(result.stdout)}
    assert rows.keys() == SETTINGS.keys()
    assert (rows["limits.credit"]["value"], rows["limits.credit"]["source"]) == (5, f"file {path}")
    assert (rows["limits.held"]["value"], rows["limits.held"]["source"]) == (7, "flag")
    assert rows["limits.max_content"] == {
        "setting": "limits.max_content",
        "value": 1 << 20,
        "text": "1 MiB",
        "source": "environment PHPMQ_LIMITS__MAX_CONTENT",
    }


def test_show_refuses_a_wrong_file_with_78(tmp_path: Path) -> None:
    path = tmp_path / "mq.toml"
    path.write_text("[limits]\ncredits = 5\n")
    result = CliRunner().invoke(root_command, ["config", "show", "--config", str(path)])
    assert result.exit_code == 78
    assert result.stderr == (
        f"Error: limits.credits in {path} is not a setting. Did you mean limits.credit?\n"
        "See: phpmq-lite docs reference/settings\n"
    )


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PHPMQ_"):
            monkeypatch.delenv(name)


def init(*arguments: str) -> Result:
    return CliRunner().invoke(root_command, ["config", "init", *arguments], catch_exceptions=False)


def test_file_is_written_here_and_the_next_steps_are_printed() -> None:
    done = init()
    assert (done.exit_code, done.stdout) == (0, "")
    steps = "wrote config.toml; next steps:\n  phpmq-lite doctor\n  phpmq-lite serve\n"
    assert done.stderr == steps
    assert Path("config.toml").read_text() == config_file()


@pytest.mark.parametrize(("place", "path"), [("etc", "etc/config.toml"), ("a b.toml", "a b.toml")])
def test_place_is_a_folder_or_a_file(place: str, path: str) -> None:
    done = init(place)
    assert Path(path).is_file()
    assert f"serve --config {path if ' ' not in path else repr(path)}\n" in done.stderr


def test_system_file_needs_no_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "SYSTEM_FILE", tmp_path / "etc" / "config.toml")
    assert init("etc").stderr.endswith("  phpmq-lite serve\n")


def test_dash_is_standard_output() -> None:
    done = init("-")
    assert (done.stdout, done.stderr) == (config_file(), "")
    assert list(Path().iterdir()) == []


def test_file_that_is_there_stays_unless_forced() -> None:
    Path("config.toml").write_text("# mine\n")
    done = init()
    assert (done.exit_code, done.stderr) == (
        4,
        "Error: config.toml already exists; use --force to overwrite it\n",
    )
    assert Path("config.toml").read_text() == "# mine\n"
    assert init("--force").exit_code == 0
    assert Path("config.toml").read_text() == config_file()


def test_flags_count_in_the_file(tmp_path: Path) -> None:
    init("--data", "d", "--listen", "127.0.0.1:9000", "--listen", "unix:/run/mq", "--admin", "none")
    told = settings.load(config=Path("config.toml")).settings
    assert told.data == tmp_path / "d"
    assert told.tcp.listen == ["127.0.0.1:9000", "unix:/run/mq"]
    assert told.admin.listen == ["none"]


def test_address_that_is_none_is_refused_before_anything_is_written() -> None:
    done = init("--listen", "9100")
    assert done.exit_code == 78
    assert done.stderr.startswith("Error: tcp.listen: '9100' is not HOST:PORT")
    assert not Path("config.toml").exists()


def test_settings_that_serve_would_refuse_are_reported() -> None:
    done = init("--listen", "0.0.0.0:9100")
    assert done.exit_code == 0
    words = "Before you start the broker: tcp.listen 0.0.0.0:9100 reaches beyond this machine"
    assert words in done.stderr
