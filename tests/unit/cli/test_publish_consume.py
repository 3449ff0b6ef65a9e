"""``publish``, ``consume`` and signals."""

import io
import signal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.cli import publish_consume as module
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.main import root_command
from phpmq_lite.cli.output import escape_content
from phpmq_lite.cli.signals import StopRequest


class Pipe(io.BytesIO):
    """Returns its content in pieces of a fixed size, as a pipe does."""

    def __init__(self, content: bytes, piece: int) -> None:
        super().__init__(content)
        self._piece = piece

    def read1(self, _size: int | None = -1, /) -> bytes:
        return super().read1(self._piece)


@given(data=st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\n")), piece=st.integers(1, 9))
def test_lines_are_the_same_however_a_pipe_cuts_them(data: bytes, piece: int) -> None:
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    groups = module.read_lines(Pipe(data, piece))
    assert [line for group in groups for line in group] == expected


def test_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_BYTES", 10)
    with pytest.raises(CommandError, match="a line exceeds the limit of 10 bytes"):
        list(module.read_lines(Pipe(b"x" * 30, 4)))


@pytest.mark.parametrize("count", [1, 1_000, 2_001])
def test_copies_are_as_many_as_asked_for(count: int) -> None:
    groups = list(module.repeat_content(b"x", count))
    assert sum(map(len, groups)) == count
    assert max(map(len, groups)) <= 1_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "q", "--body", "x", "file"],
        ["publish", "q", "--lines", "--count", "2"],
        ["publish", "q", "--count", "0"],
        ["publish", "q", "--ttl", "soon"],
        ["publish", "q", "--body", "x", "--url", "phpmq://nonsense:port"],
        ["consume", "q", "--exec", "true", "--no-ack"],
        ["consume", "q", "--exec", "'"],
        ["consume", "q", "--exec", ""],
        ["consume", "q", "-n", "0"],
    ],
)
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(root_command, arguments).exit_code == 2


def test_nothing_to_publish_is_a_wrong_use_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_terminal", lambda: True)
    result = CliRunner().invoke(root_command, ["publish", "q"])
    assert result.exit_code == 2
    assert "nothing to publish" in result.stderr


def test_missing_file_is_named() -> None:
    result = CliRunner().invoke(root_command, ["publish", "q", "/no/such"])
    assert (result.exit_code, result.stderr) == (1, "Error: /no/such: No such file or directory\n")


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
