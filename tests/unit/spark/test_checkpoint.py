"""What a checkpoint says is done."""

import json
from pathlib import Path

import pytest

from phpmq_lite.spark.checkpoints import final_ack, last_committed_offsets
from phpmq_lite.spark.errors import PipelineError
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


def test_last_committed_batch_counts_and_not_a_planned_one(tmp_path: Path) -> None:
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


def test_source_of_another_kind_is_passed_over(tmp_path: Path) -> None:
    files = {"offsets/0": offsets({"claim": 3}) + "\n-", "commits/0": ""}
    found = last_committed_offsets(checkpoint(tmp_path, files))
    assert found == [{"batchTimestampMs": 1}, {"claim": 3}, None]


def test_commit_without_its_offsets_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="commits/0, but not offsets/0"):
        last_committed_offsets(checkpoint(tmp_path, {"commits/0": ""}))


def test_last_acknowledgement_refuses_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    """One letter amiss would leave the last batch claimed, and say nothing."""
    with pytest.raises(PipelineError, match="chekpoint is no checkpoint of a query"):
        final_ack(NOBODY, "s", str(tmp_path / "chekpoint"))


def test_last_acknowledgement_takes_a_uri_as_spark_does_without_decoding(tmp_path: Path) -> None:
    batch = offsets({"history": "h", "subscription": "t", "claim": 1})
    files = {"metadata": "{}", "commits/0": "", "offsets/0": batch}
    checkpoint(tmp_path / "a%20b", files)
    with pytest.raises(PipelineError, match="is not of subscription 's'; it has 't'"):
        final_ack(NOBODY, "s", f"file://{tmp_path}/a%20b")
