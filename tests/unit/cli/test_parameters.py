"""Parameters that several commands share."""

import click
import pytest
from click.testing import CliRunner

from phpmq_lite.cli import output, parameters


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), ("15m", 900), ("1 h", 3600), ("1d", 86_400)],
)
def test_duration_is_given_in_seconds(text: str, seconds: int) -> None:
    assert parameters.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "1.5h", "1y", "1h30m", "9" * 16, "١"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        parameters.duration(text)


def test_assignment_is_cut_at_the_first_sign() -> None:
    assert parameters.assignment("admin.base_path=/a=b") == ("admin.base_path", "/a=b")


@pytest.mark.parametrize("text", ["", "=1", "limits.credit"])
def test_assignment_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        parameters.assignment(text)


@click.command()
@click.option("--yes", is_flag=True)
def destroy(yes: bool) -> None:
    output.confirm("Really?", is_yes=yes)


def test_destroying_without_a_terminal_needs_yes() -> None:
    assert CliRunner().invoke(destroy, []).exit_code == 2
    assert CliRunner().invoke(destroy, ["--yes"]).exit_code == 0


def test_terminal_is_asked_before_something_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert CliRunner().invoke(destroy, [], input="n\n").exit_code == 1
    assert CliRunner().invoke(destroy, [], input="y\n").exit_code == 0


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 messages"), (1, "1 message"), (2_000, "2,000 messages")]
)
def test_messages_are_counted_in_words(count: int, words: str) -> None:
    assert output.format_message_count(count) == words
