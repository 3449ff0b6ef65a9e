"""``consume``: what is shown, and when a signal is heard."""

import signal

import pytest
from click.testing import CliRunner

from phpmq_lite.cli.main import root_command
from phpmq_lite.cli.output import escape_content
from phpmq_lite.cli.signals import StopRequest


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"a\nb", b"a\nb"),
        ("größe".encode(), "größe".encode()),
        (b"\x1b[2J\xff", b"\\x1b[2J\\xff"),
        ("a\u202eb\x9b".encode(), b"a\\u202eb\\x9b"),
    ],
)
def test_content_cannot_command_the_terminal(body: bytes, expected: bytes) -> None:
    assert escape_content(body) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_breaks_the_waiting(number: signal.Signals) -> None:
    reached = []

    def waiting() -> str:
        signal.raise_signal(number)
        reached.append("the end of the wait")
        return "an answer"

    with StopRequest() as stop:
        assert stop.interruptible(waiting) is None
    assert stop.is_requested
    assert reached == []


def test_signal_just_before_the_waiting_is_not_lost() -> None:
    reached = []
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.interruptible(lambda: reached.append("the wait")) is None
    assert reached == []


def test_signal_within_a_message_waits_for_its_end() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested


def test_second_signal_is_obeyed_at_once() -> None:
    with StopRequest():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest():
        pass
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "arguments",
    [["--exec", "true", "--no-ack"], ["--exec", "'"], ["--exec", ""], ["-n", "0"]],
)
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(root_command, ["consume", "q", *arguments]).exit_code == 2
