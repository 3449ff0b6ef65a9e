"""Commits of typed tables: complete or absent, wherever the process ends."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from phpmq_lite.envelopes.payload_shape import Shape
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.table_store import (
    TableChanges,
    TablesState,
    TypedTable,
    read_state,
    repair_tables,
    staged,
)
from tests.support.crashing_folder import CrashError, CrashingFolder

TABLE = TypedTable(folder="a", shape=Shape(kinds=("object",), is_open=True))


def put(files: LocalResultsFolder, folder: str, *names: str) -> None:
    for name in names:
        files.write(f"{folder}/part-{name}.parquet", name)


def contents(out: Path, folder: str) -> list[str]:
    return sorted(file.read_text() for file in (out / folder).glob("*.parquet"))


def run(files: LocalResultsFolder, offset: int, *names: str, merges: bool = False) -> None:
    """Do what a run does, with texts for rows; ``merges`` replaces the earlier files."""
    repair_tables(files)
    state = read_state(files, "urn") or TablesState(archive_id="x")
    if state.offset >= offset:
        return
    changes = TableChanges(files, "urn", state)
    staging = LocalResultsFolder(files._root)
    put(staging, staged(TABLE, "new"), *names)
    put(staging, staged(TABLE, "rejects"), "reject")
    if merges:
        before = files.data_files("tables/a")
        put(staging, staged(TABLE, "old"), "+".join(filter(None, map(files.read, before))))
        changes.removes += before
    changes.add("a", TABLE)
    changes.commit(offset=offset, selection="{}")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    run(LocalResultsFolder(tmp_path), 2, "1", "2")
    return tmp_path


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("changes", range(1, 17))
def test_commit_is_complete_or_absent(out: Path, changes: int, merges: bool) -> None:
    crashing = CrashingFolder(out, changes)
    is_ended = changes < (15 if merges else 11)
    with pytest.raises(CrashError) if is_ended else nullcontext():
        run(crashing, 4, "3", "4", merges=merges)
    run(LocalResultsFolder(out), 4, "3", "4", merges=merges)
    expected = ["1+2", "3", "4"] if merges else ["1", "2", "3", "4"]
    assert contents(out, "tables/a") == expected
    assert contents(out, "rejects/a") == ["reject", "reject"]
    assert not (out / "tables/_staged").exists()
    state = read_state(crashing, "urn")
    assert state == TablesState(
        archive_id="x", number=2, offset=4, selection="{}", tables={"a": TABLE}
    )
    assert read_state(crashing, "queue") is None


def test_dropped_table_leaves_with_its_rejects(out: Path) -> None:
    files = LocalResultsFolder(out)
    state = read_state(files, "urn")
    assert state is not None
    changes = TableChanges(files, "urn", state)
    changes.drop("a")
    state = changes.commit()
    assert state.tables == {}
    assert contents(out, "tables/a") == contents(out, "rejects/a") == []
