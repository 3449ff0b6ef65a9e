"""The checks of the settings."""

from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.cli.doctor import settings as setting_checks
from phpmq_lite.cli.doctor.findings import BAD, WARN
from phpmq_lite.errors import SettingsError
from phpmq_lite.settings import Settings


def test_defaults_go_well_together() -> None:
    assert list(setting_checks.conflicting_settings(Settings())) == []


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
    (found,) = setting_checks.conflicting_settings(Settings(**sections))
    assert found.state == WARN
    assert [name for name in named if name not in found.found] == []
    assert found.hint


def test_database_without_a_limit_takes_any_history() -> None:
    settings = Settings.model_validate({"storage": {"max_bytes": 0}, "history": {"bytes": "1 TiB"}})
    assert list(setting_checks.conflicting_settings(settings)) == []


def test_refusal_says_that_the_rest_is_about_the_defaults() -> None:
    found = setting_checks.invalid_settings_finding(SettingsError("limits.credit is 'x'"))
    assert (found.state, found.found) == (BAD, "limits.credit is 'x'")
    assert "the other checks use the defaults" in found.hint


def test_file_is_named_and_without_one_init() -> None:
    assert setting_checks.settings_source_finding(Path("/etc/mq.toml"), 3).found == (
        "/etc/mq.toml, 3 set, the others at their defaults"
    )
    assert "phpmq-lite config init" in setting_checks.settings_source_finding(None, 0).hint


def test_stranger_of_the_environment_is_told() -> None:
    (found,) = setting_checks.unknown_variable_findings(
        ["PHPMQ_PORT in the environment is not a setting"]
    )
    assert (found.state, found.found[:10]) == (WARN, "PHPMQ_PORT")
