"""Settings on the command line."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from phpmq_lite.cli.parameters import (
    SettingsArguments,
    collect_setting_flags,
    data_option,
    listener_options,
    settings_options,
    startup_override_options,
)


def given_by(*arguments: str) -> SettingsArguments:
    got: list[SettingsArguments] = []

    @click.command()
    @data_option
    @listener_options
    @startup_override_options
    @settings_options
    def command(settings_args: SettingsArguments) -> None:
        got.append(settings_args)

    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return got[0]


def test_nothing_given_is_nothing() -> None:
    assert given_by() == SettingsArguments({}, None)
    assert not given_by().names_broker


@pytest.mark.parametrize(
    ("arguments", "is_named"),
    [
        (["--data", "x"], True),
        (["--listen", "a:1"], True),
        (["--set", "data=x"], True),
        (["--set", "admin.listen=a:1"], True),
        (["--config", __file__], True),
        (["--set", "log.level=debug"], False),
    ],
)
def test_only_flags_that_name_a_broker_do(arguments: list[str], is_named: bool) -> None:
    assert given_by(*arguments).names_broker == is_named


def test_flags_are_settings_by_their_names() -> None:
    given = given_by("--data", "x", "--listen", "a:1", "--listen", "b:2", "--accept-loss")
    assert given.values == {
        "data": Path("x"),
        "tcp.listen": ["a:1", "b:2"],
        "storage.accept_loss": True,
    }
    assert given.data == Path("x")


def test_flag_of_its_own_wins_over_set() -> None:
    given = given_by("--set", "admin.listen=none", "--set", "limits.credit=5", "--admin", "a:1")
    settings = given.load().settings
    assert settings.admin.listen == ["a:1"]
    assert settings.limits.credit == 5


def test_missing_flags_have_their_defaults() -> None:
    effective = given_by("--listen", "a:1").load()
    assert effective.settings.admin.listen == ["127.0.0.1:9101"]
    assert effective.sources["data"] == "default"


def test_instead_counts_above_all() -> None:
    assert given_by("--data", "x").load(data=Path("y")).settings.data == Path("y")
    assert given_by().load(data=None).settings.data == Path("phpmq-data")


def test_parameter_of_the_command_is_left_to_it() -> None:
    @click.command()
    @click.option("--data")
    @collect_setting_flags
    def command(data: str, settings_args: SettingsArguments) -> None:
        click.echo(f"{data} {settings_args.values}")

    assert CliRunner().invoke(command, ["--data", "content"]).output == "content {}\n"


def test_warnings_go_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHPMQ_PORT", "1")
    SettingsArguments({}).load()
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "warning: PHPMQ_PORT in the environment" in seen.err
