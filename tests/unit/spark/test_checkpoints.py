"""The committed batches of a checkpoint."""

import json
from pathlib import Path

import pytest

from phpmq_lite.errors import PipelineError
from phpmq_lite.spark.checkpoints import (
    CommittedBatch,
    final_ack,
    last_committed_batch,
    last_committed_offsets,
    offset_of,
)
from phpmq_lite.spark.jobs.stream_writer import batch_name
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection

NOBODY = SourceConnection("http://127.0.0.1:1")


def checkpoint(folder: Path, files: dict[str, str]) -> LocalResultsFolder:
    made = LocalResultsFolder(folder)
    for path, text in files.items():
        made.write(path, text)
    return made


def offsets(*sources: object) -> str:
    return "\n".join(["v1", json.dumps({"batchTimestampMs": 1}), *map(json.dumps, sources)])


def test_offsets_are_those_of_the_last_committed_batch(tmp_path: Path) -> None:
    files = {f"offsets/{n}": offsets({"claim": n * 10}) for n in range(12)}
    files |= {f"commits/{n}": "v1\n{}" for n in range(11)} | {"commits/.10.crc": ""}
    end = last_committed_offsets(checkpoint(tmp_path, files))
    assert end is not None
    assert end[-1] == {"claim": 100}


def test_nothing_is_committed_in_a_new_checkpoint(tmp_path: Path) -> None:
    assert (
        last_committed_offsets(checkpoint(tmp_path, {"offsets/0": offsets({"claim": 1})})) is None
    )
    assert last_committed_offsets(LocalResultsFolder(tmp_path / "none")) is None


def test_source_of_another_kind_is_skipped(tmp_path: Path) -> None:
    files = {"offsets/0": offsets({"claim": 3}) + "\n-", "commits/0": ""}
    found = last_committed_offsets(checkpoint(tmp_path, files))
    assert found == [{"batchTimestampMs": 1}, {"claim": 3}, None]


def test_commit_without_its_offsets_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="commits/0 but lacks offsets/0"):
        last_committed_offsets(checkpoint(tmp_path, {"commits/0": ""}))


def test_final_ack_refuses_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    """Otherwise a misspelled path would silently leave the last batch claimed."""
    with pytest.raises(PipelineError, match="chekpoint is not a query checkpoint"):
        final_ack(NOBODY, "s", str(tmp_path / "chekpoint"))


def test_final_ack_does_not_decode_the_uri(tmp_path: Path) -> None:
    batch = offsets({"history": "h", "subscription": "t", "claim": 1})
    files = {"metadata": "{}", "commits/0": "", "offsets/0": batch}
    checkpoint(tmp_path / "a%20b", files)
    with pytest.raises(PipelineError, match="belongs to 't', not to 's'"):
        final_ack(NOBODY, "s", f"file://{tmp_path}/a%20b")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"history":"h","offset":5}', ("h", 5)),
        ('"{\\"history\\":\\"h\\",\\"offset\\":5}"', ("h", 5)),
        ({"history": "h", "offset": 5}, ("h", 5)),
        ({"logOffset": 3}, (None, None)),
        ("-", (None, None)),
        (None, (None, None)),
    ],
)
def test_offset_is_read_in_every_form(
    written: object, expected: tuple[str | None, int | None]
) -> None:
    assert offset_of(written) == expected


def test_planned_batch_is_not_committed(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    assert last_committed_batch(files, "c") is None
    for batch in (9, 10, 11):
        files.write(f"c/offsets/{batch}", f'v1\n{{"a":1}}\n{{"history":"h","offset":{batch}00}}')
    for batch in (9, 10):
        files.write(f"c/commits/{batch}", "v1\n{}")
        files.write(f"c/commits/.{batch}.crc", "")
    assert last_committed_batch(files, "c") == CommittedBatch(10, "h", 1000)


def test_names_of_batches_sort_by_number() -> None:
    names = [batch_name("0123456789", n) for n in (2, 10, 9_999_999)]
    assert names == sorted(names)
    assert names[0] == "01234567-00000002"
