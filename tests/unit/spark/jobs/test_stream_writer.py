"""The progress of a stream without Spark; ``tests/spark`` has the rest."""

from phpmq_lite.spark.jobs.stream_writer import _StreamProgress


def test_progress_counts_the_rows_of_a_running_batch_and_never_decreases() -> None:
    reports: list[tuple[str, int, int | None]] = []
    progress = _StreamProgress("archive", lambda *report: reports.append(report), 100, 1_000)
    for rows in (0, 40, 300, 120):  # the last are those of a second query of the batch
        progress.add_rows(rows)
    progress.end_batch(450, 1_200)
    progress.add_rows(0)
    progress.add_rows(9_000)
    assert reports == [
        ("archive", 100, 1_000), ("archive", 140, 1_000), ("archive", 400, 1_000),
        ("archive", 400, 1_000), ("archive", 450, 1_200), ("archive", 450, 1_200),
        ("archive", 1_200, 1_200),
    ]  # fmt: skip


def test_progress_without_a_total_counts_rows() -> None:
    reports: list[int] = []
    progress = _StreamProgress("consume", lambda _, count, __: reports.append(count), 0, None)
    progress.add_rows(7)
    progress.end_batch(5, None)
    progress.add_rows(3)
    assert reports == [7, 7, 8]
