"""``publish``: how contents are cut, and which uses are wrong."""

import io

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.cli import publish_consume as module
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.main import root_command


class Pipe(io.BytesIO):
    """Gives what it has in pieces of a fixed size, as a pipe does."""

    def __init__(self, content: bytes, piece: int) -> None:
        super().__init__(content)
        self._piece = piece

    def read1(self, _size: int | None = -1, /) -> bytes:
        return super().read1(self._piece)


@given(
    content=st.binary(max_size=60).map(lambda b: b.replace(b"x", b"\n")), piece=st.integers(1, 9)
)
def test_lines_are_the_same_however_a_pipe_cuts_them(content: bytes, piece: int) -> None:
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    groups = module.read_lines(Pipe(content, piece))
    assert [line for group in groups for line in group] == expected


def test_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_BYTES", 10)
    with pytest.raises(CommandError, match="a line is longer than 10 bytes"):
        list(module.read_lines(Pipe(b"x" * 30, 4)))


@pytest.mark.parametrize("count", [1, 1_000, 2_001])
def test_copies_are_as_many_as_asked_for(count: int) -> None:
    groups = list(module.copies(b"x", count))
    assert sum(map(len, groups)) == count
    assert max(map(len, groups)) <= 1_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["--body", "x", "file"],
        ["--lines", "--count", "2"],
        ["--count", "0"],
        ["--ttl", "soon"],
        ["--body", "x", "--url", "phpmq://nonsense:port"],
    ],
)
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(root_command, ["publish", "q", *arguments]).exit_code == 2


def test_nothing_to_publish_is_a_wrong_use_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_terminal", lambda: True)
    result = CliRunner().invoke(root_command, ["publish", "q"])
    assert result.exit_code == 2
    assert "nothing to publish" in result.stderr


def test_missing_file_is_named() -> None:
    result = CliRunner().invoke(root_command, ["publish", "q", "/no/such"])
    assert (result.exit_code, result.stderr) == (1, "Error: /no/such: No such file or directory\n")
