"""Commits of typed tables: complete or absent, wherever the process ends."""

from contextlib import suppress
from pathlib import Path

import pytest

from phpmq_lite.envelopes.payload_shape import Shape
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.table_store import (
    TableChanges,
    TablesState,
    TypedTable,
    commit_changes,
    finish_commit,
    read_state,
)

TABLE = TypedTable(folder="a", shape=Shape(kinds=("object",), is_open=True))


class EndedError(Exception):
    """The process has ended."""


class Ending(LocalResultsFolder):
    """Files of a process that ends before the n-th change of them."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self.changes = changes

    def _count(self) -> None:
        self.changes -= 1
        if self.changes < 0:
            raise EndedError

    def write(self, path: str, text: str) -> None:
        self._count()
        super().write(path, text)

    def move(self, source: str, target: str) -> None:
        self._count()
        super().move(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


def put(files: LocalResultsFolder, folder: str, *names: str) -> None:
    for name in names:
        files.write(f"{folder}/part-{name}.parquet", name)


def contents(out: Path, folder: str) -> list[str]:
    return sorted(file.read_text() for file in (out / folder).glob("*.parquet"))


def run(files: LocalResultsFolder, offset: int, *names: str, merges: bool = False) -> None:
    """Do what a run does, with texts for rows; ``merges`` replaces the earlier files."""
    state = read_state(files, "urn")
    finish_commit(files, "urn", state)
    state = state or TablesState(archive_id="x")
    if state.offset >= offset:
        return
    changes = TableChanges(files, "urn", state)
    staged = LocalResultsFolder(files._root)
    put(staged, changes.staged("a", "new"), *names)
    put(staged, changes.staged("a", "rejects"), "reject")
    if merges:
        before = files.data_files("tables/a")
        put(staged, changes.staged("a", "old"), "+".join(filter(None, map(files.read, before))))
        changes.removes += before
    changes.add("a", TABLE)
    commit_changes(changes, offset, "{}")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    run(LocalResultsFolder(tmp_path), 2, "1", "2")
    return tmp_path


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("changes", range(10))
def test_commit_is_complete_or_absent(out: Path, changes: int, merges: bool) -> None:
    ending = Ending(out, changes)
    with suppress(EndedError):
        run(ending, 4, "3", "4", merges=merges)
    assert (ending.changes < 0) == (changes < (9 if merges else 6))
    run(LocalResultsFolder(out), 4, "3", "4", merges=merges)
    expected = ["1+2", "3", "4"] if merges else ["1", "2", "3", "4"]
    assert contents(out, "tables/a") == expected
    assert contents(out, "rejects/a") == ["reject", "reject"]
    assert not (out / "tables/_staged/urn").exists()


def test_two_versions_of_the_state_are_kept(out: Path) -> None:
    files = LocalResultsFolder(out)
    for offset in range(3, 8):
        run(files, offset, str(offset))
    names = ["00000005.json", "00000006.json"]
    assert files.names("tables/_state/urn") == names
    state = read_state(files, "urn")
    assert state is not None
    assert (state.number, state.offset, state.tables) == (6, 7, {"a": TABLE})
    assert read_state(files, "queue") is None


def test_dropped_table_leaves_with_its_rejects(out: Path) -> None:
    files = LocalResultsFolder(out)
    state = read_state(files, "urn")
    assert state is not None
    changes = TableChanges(files, "urn", state)
    changes.drop("a")
    state = commit_changes(changes, 2, "{}")
    assert state.tables == {}
    assert contents(out, "tables/a") == contents(out, "rejects/a") == []
