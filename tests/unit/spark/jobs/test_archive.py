"""The archive job without Spark; ``tests/spark`` has the rest."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.jobs import archive
from phpmq_lite.spark.jobs.options import ArchiveOptions
from phpmq_lite.spark.ledger import read_ledger
from phpmq_lite.spark.pipeline_client import HistoryBounds
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection, SourceMode, history_options


@pytest.mark.parametrize("name", ["a,b", " a ", "~til2", "ä"])
def test_archive_of_queues_reads_only_these(tmp_path: Path, name: str) -> None:
    asked = ArchiveOptions(
        connection=SourceConnection("http://a"), out=str(tmp_path), queues=(name, "plain")
    )
    given = archive.source_options(asked)
    assert history_options(given, SourceMode.HISTORY_STREAM).queues == (name, "plain")


@pytest.mark.parametrize(
    ("word", "begin"), [("earliest", 3), ("latest", 9), ("1", 0), ("0", 0), ("5", 4), ("10", 9)]
)
def test_archive_begins_at_the_given_offset(tmp_path: Path, word: str, begin: int) -> None:
    asked = ArchiveOptions(
        connection=SourceConnection("http://a"), out=str(tmp_path), starting_offsets=word
    )
    assert archive.first_offset(asked, HistoryBounds("a", 3, 9, 0), None) == begin
    assert history_options(archive.source_options(asked), SourceMode.HISTORY_STREAM).outcomes == ()


@pytest.mark.parametrize("is_old", [True, False])
def test_archive_has_a_reader_of_its_own_in_place_of_that_of_old_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    removed: list[str] = []
    broker = SimpleNamespace(remove_reader=removed.append)
    monkeypatch.setattr(archive, "PipelineClient", lambda _: broker)
    asked = ArchiveOptions(connection=SourceConnection("http://a"), out=str(tmp_path))
    files = LocalResultsFolder(tmp_path)
    ledger = archive._create_ledger(None, files, asked, is_old=is_old)  # type: ignore[arg-type]
    assert removed == (["archive"] if is_old else [])
    assert read_ledger(files) == ledger
    assert re.fullmatch("archive-[0-9a-f]{8}", ledger.reader)
    given = history_options(archive.source_options(asked, ledger.reader), SourceMode.HISTORY_STREAM)
    assert given.reader == ledger.reader


@pytest.mark.parametrize("fails", [True, False])
def test_archive_refuses_another_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A restored broker repeats rows that are already in the archive."""
    files = LocalResultsFolder(tmp_path)
    offset = '{"history": "old", "offset": 7}'
    files.write(f"{results_folder.ARCHIVE_CHECKPOINT}/offsets/0", f"v1\n{{}}\n{offset}")
    files.write(f"{results_folder.ARCHIVE_CHECKPOINT}/commits/0", "v1\n{}")
    bounds = HistoryBounds("new", 0, 5, 0)
    monkeypatch.setattr(archive, "open_history", lambda _: SimpleNamespace(bounds=lambda: bounds))
    asked = ArchiveOptions(
        connection=SourceConnection("http://a"), out=str(tmp_path), fail_on_data_loss=fails
    )
    with pytest.raises(RefusedError, match=r"history is new, but the archive in .* old"):
        archive.run(None, asked)  # type: ignore[arg-type]  # never reached


@pytest.mark.parametrize(
    ("lo", "lo_deleted", "needs_deleted", "archived", "expected"),
    [
        (10, 10, True, 90, None),  # nothing above offset 10 is gone
        (70, 70, True, 40, (10, 70, 50)),
        (70, 70, True, 90, None),  # it was removed after it was read
        (10, 70, True, 40, (10, 70, 50)),
        (10, 70, False, 40, None),
        (500, 500, True, 0, (10, 100, 90)),  # the whole batch
        (70, 70, True, None, (10, 70, None)),  # an archive of some queues
    ],
)
def test_rows_removed_before_the_read_are_a_gap(
    lo: int,
    lo_deleted: int,
    needs_deleted: bool,
    archived: int | None,
    expected: tuple[int, int, int | None] | None,
) -> None:
    found = archive.find_gap(
        10,
        100,
        HistoryBounds("h", lo, 900, lo_deleted),
        needs_deleted=needs_deleted,
        archived=archived,
        batch="b-1",
        at_ms=5,
    )
    assert (None if found is None else (found.lo, found.hi, found.rows)) == expected


def test_gaps_are_stored_once_per_batch_and_listed_newest_first(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    assert results_folder.read_gaps(files) == []
    made = [
        results_folder.ArchiveGap(
            at_ms=n, history_id="h", lo=n, hi=n + 9, rows=None, batch=f"b-{n}"
        )
        for n in (10, 20)
    ]
    for gap in (*made, made[0]):
        results_folder.store_gap(files, gap)
    (tmp_path / "gaps" / "b-30.json.new").write_text("{")  # of a run that was killed
    assert results_folder.read_gaps(files) == made[::-1]
    assert "offsets 11 to 19 lack up to 9 rows" in results_folder.gap_text(made[0])
