"""Doctor checks of the settings."""

from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.cli.doctor import installation
from phpmq_lite.cli.doctor.findings import WARN, Finding
from phpmq_lite.cli.parameters import SettingsArguments
from phpmq_lite.settings import Settings


def test_defaults_go_well_together() -> None:
    assert list(installation.conflicting_settings(Settings())) == []


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"limits": {"memory": "128 MiB"}}, ["limits.memory", "limits.body_cache"]),
        ({"history": {"bytes": "10 GiB"}}, ["history.bytes is 10 GiB", "storage.max_bytes 10 GiB"]),
        ({"limits": {"unstored_total": "4 MiB"}}, ["limits.unstored_total", "limits.max_content"]),
        ({"queues": {"schema_mode": "warn"}}, ["queues.schema_mode is warn", "envelopes.schemas"]),
        ({"admin": {"hsts": True}}, ["admin.hsts"]),
        ({"storage": {"accept_loss": True}}, ["storage.accept_loss"]),
    ],
)
def test_settings_that_clash_are_named(sections: dict[str, Any], named: list[str]) -> None:
    (found,) = installation.conflicting_settings(Settings(**sections))
    assert found.state == WARN
    assert [name for name in named if name not in found.text] == []
    assert found.hint


def test_database_without_a_limit_takes_any_history() -> None:
    settings = Settings.model_validate({"storage": {"max_bytes": 0}, "history": {"bytes": "1 TiB"}})
    assert list(installation.conflicting_settings(settings)) == []


def read(values: dict[str, object], file: Path | None = None) -> list[Finding]:
    return installation.read_settings(SettingsArguments(values, file))[1]


def test_file_is_named_or_init_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mq.toml"
    file.write_text("[limits]\ncredit = 5\n")
    assert read({}, file)[0].text == f"{file}, 1 set, all others at their defaults"
    assert "phpmq-lite config init" in read({})[0].hint
