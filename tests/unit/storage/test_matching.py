"""Text and patterns in large bodies match as in SQLite, and each piece is read once."""

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.storage.search.language import as_glob
from phpmq_lite.storage.sqlite import read_connections
from phpmq_lite.storage.sqlite.read_connections import PIECE, has_text, matches_glob

TEXTS = st.text("ab\u00e9[?*", max_size=12)


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """Use pieces of three characters, so that matches cross their borders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_connections, "PIECE", 3)
        yield


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    yield made
    made.close()


def unchecked() -> None:
    """Never stop a search."""


@given(content=TEXTS, text=TEXTS)
def test_text_is_found_at_any_position(content: str, text: str) -> None:
    assert has_text(content.encode(), text.encode(), unchecked) == (text in content)


@given(content=TEXTS, pattern=TEXTS)
def test_pattern_matches_the_same_texts_as_in_sqlite(
    sqlite: sqlite3.Connection, content: str, pattern: str
) -> None:
    glob = as_glob(pattern)
    [(expected,)] = sqlite.execute("SELECT ? GLOB ?", (content, glob))
    assert matches_glob(content.encode(), glob, unchecked) == bool(expected)


@pytest.mark.parametrize(
    "glob",
    ["*" + "a" * 1_900 + "b", "*" + "a" * 1_900 + "b*", "*" + "a?" * 900 + "b*", "*a" * 7 + "*b*",
     "*" + "a" * 500 + "*" + "a" * 500 + "b*"],
)  # fmt: skip
def test_work_grows_with_the_body_and_not_with_the_pattern(
    glob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is read once for each part, after a check of the time."""
    monkeypatch.setattr(read_connections, "PIECE", PIECE)
    pieces, parts = 4, glob.count("*")
    checks: list[None] = []
    content = b"a" * (pieces * PIECE)
    assert not matches_glob(content, glob, lambda: checks.append(None))
    assert len(checks) <= 1 + pieces * parts
    assert not has_text(content, glob.encode(), lambda: checks.append(None))


@pytest.mark.parametrize("glob", ["*aab*", "*a?b*"])
def test_search_in_a_body_ends_when_its_time_is_over(glob: str) -> None:
    class TimeIsOverError(Exception):
        pass

    def check() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise TimeIsOverError

    calls: list[None] = []
    with pytest.raises(TimeIsOverError):
        matches_glob(b"a" * 100, glob, check)
    calls.clear()
    with pytest.raises(TimeIsOverError):
        has_text(b"a" * 100, b"b", check)
