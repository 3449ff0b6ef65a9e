"""What the job archive refuses before Spark is asked; ``tests/spark`` has the rest."""

from pathlib import Path

import pytest

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.jobs import archive, places
from phpmq_lite.spark.jobs.files import LocalFiles
from phpmq_lite.spark.jobs.options import ArchiveOptions
from phpmq_lite.spark.options import Connection, Use, history_options
from phpmq_lite.spark.transport import Bounds


@pytest.mark.parametrize("name", ["a,b", " a ", "~til2", "ä"])
def test_archive_of_a_queue_asks_for_that_queue_only(tmp_path: Path, name: str) -> None:
    asked = ArchiveOptions(
        connection=Connection("http://a"), out=str(tmp_path), queues=(name, "plain")
    )
    given = archive.source_options(asked)
    assert history_options(given, Use.HISTORY_STREAM).queues == (name, "plain")


@pytest.mark.parametrize(
    ("word", "begin"), [("earliest", 3), ("latest", 9), ("1", 0), ("0", 0), ("5", 4), ("10", 9)]
)
def test_first_offset_of_an_archive_is_the_one_that_is_named(
    tmp_path: Path, word: str, begin: int
) -> None:
    asked = ArchiveOptions(
        connection=Connection("http://a"), out=str(tmp_path), starting_offsets=word
    )
    assert archive.begin_of(asked, Bounds("a", 3, 9, 0), None) == begin
    assert history_options(archive.source_options(asked), Use.HISTORY_STREAM).outcomes == ()


@pytest.mark.parametrize("fails", [True, False])
def test_archive_of_one_history_takes_no_rows_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A broker that was restored has rows again that are in the archive."""
    files = LocalFiles(tmp_path)
    offset = '{"history": "old", "offset": 7}'
    files.write(f"{places.ARCHIVE_CHECKPOINT}/offsets/0", f"v1\n{{}}\n{offset}")
    files.write(f"{places.ARCHIVE_CHECKPOINT}/commits/0", "v1\n{}")
    monkeypatch.setattr(archive, "bounds", lambda connection: Bounds("new", 0, 5, 0))
    asked = ArchiveOptions(
        connection=Connection("http://a"), out=str(tmp_path), fail_on_data_loss=fails
    )
    with pytest.raises(RefusedError, match=r"history is new, another than the archive's in .* old"):
        archive.run(None, asked)  # type: ignore[arg-type]  # never reached
