"""``config``: what is in force, and why."""

import json
from pathlib import Path

from click.testing import CliRunner

from phpmq_lite.cli.main import root_command
from phpmq_lite.settings import SETTINGS


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
