"""What a checkpoint says is done."""

from pathlib import Path

import pytest

from phpmq_lite.spark.checkpoints import CommittedBatch, last_committed_batch, offset_of
from phpmq_lite.spark.jobs.stream_writer import batch_name
from phpmq_lite.spark.results_folder import LocalResultsFolder


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


def test_last_done_is_the_last_committed_batch_not_the_last_planned(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    assert last_committed_batch(files, "c") is None
    for batch in (9, 10, 11):
        files.write(f"c/offsets/{batch}", f'v1\n{{"a":1}}\n{{"history":"h","offset":{batch}00}}')
    for batch in (9, 10):
        files.write(f"c/commits/{batch}", "v1\n{}")
        files.write(f"c/commits/.{batch}.crc", "")
    assert last_committed_batch(files, "c") == CommittedBatch(10, "h", 1000)


def test_names_of_batches_sort_as_their_numbers() -> None:
    names = [batch_name("0123456789", n) for n in (2, 10, 9_999_999)]
    assert names == sorted(names)
    assert names[0] == "01234567-00000002"
