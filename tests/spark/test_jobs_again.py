"""Jobs that were cut off, and then run again with less to read, or with nothing new."""

import json
from datetime import date
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from pyspark.sql import SparkSession

from phpmq_lite.spark import results_folder
from phpmq_lite.spark.jobs import metrics
from phpmq_lite.spark.jobs.options import MetricsOptions
from phpmq_lite.spark.jobs.stream_writer import StreamTarget, write_batch
from phpmq_lite.spark.results_folder import LocalResultsFolder
from tests.spark.history_rows import DAY_MS, START_MS, history_row, to_parquet

ROWS = 20


@pytest.mark.slow
def test_metrics_of_a_named_date_that_were_cut_off_come_with_the_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No new row touches the date then."""
    write_table = metrics.write_table

    def interrupted(files: LocalResultsFolder, name: str, *given: Any) -> set[date]:
        if name == "deaths":
            raise KeyboardInterrupt
        return write_table(files, name, *given)

    files = LocalResultsFolder(tmp_path)
    for day in range(2):
        lived = [
            history_row(n, published_at=START_MS + day * DAY_MS + n) for n in range(1, ROWS + 1)
        ]
        folder = f"archive/date=2026-03-0{day + 1}/batch=x-00000000"
        to_parquet([row | {"offset": row["offset"] + day * ROWS} for row in lived],
                   tmp_path / folder / "part.parquet")  # fmt: skip
    end = json.dumps({"history": "h", "offset": 2 * ROWS})
    files.write(f"{results_folder.ARCHIVE_CHECKPOINT}/offsets/0", f"v1\n{{}}\n{end}")
    files.write(f"{results_folder.ARCHIVE_CHECKPOINT}/commits/0", "v1\n{}")
    everything = MetricsOptions(connection=None, out=str(tmp_path))
    assert metrics.run(spark, everything).details["dates"] == 2
    assert metrics.run(spark, everything).details["dates"] == 0

    first = date(2026, 3, 1)
    alone = MetricsOptions(connection=None, out=str(tmp_path), dates=(first,))
    with monkeypatch.context() as cut:
        cut.setattr(metrics, "write_table", interrupted)
        with pytest.raises(KeyboardInterrupt):
            metrics.run(spark, alone)
    rmtree(tmp_path / f"metrics/minutes/date={first}")

    assert metrics.run(spark, everything).details["dates"] == 1
    assert metrics.run(spark, everything).details["dates"] == 0
    minutes = spark.read.parquet(str(tmp_path / "metrics/minutes"))
    found = {row["date"]: row["n"] for row in minutes.groupBy("date").agg({"acked": "sum"})
             .withColumnRenamed("sum(acked)", "n").collect()}  # fmt: skip
    assert found == {first: ROWS, date(2026, 3, 2): ROWS}


def test_batch_that_comes_again_with_fewer_rows_or_none_keeps_no_old_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Released messages return under new claims, so their old rows would be duplicates."""
    files = LocalResultsFolder(tmp_path)
    files.write("checkpoint/metadata", '{"id": "0123456789"}')
    rows = spark.createDataFrame([(n,) for n in range(4)], "claim long")
    consumed = StreamTarget(name="c", folder="consumed", checkpoint="checkpoint")
    write_batch(rows, files, consumed, 0)
    for again, kept in ((rows, 4), (rows.where("claim > 0"), 3), (rows.limit(0), 0)):
        write_batch(rows, files, consumed, 1)
        write_batch(again, files, consumed, 1)
        assert spark.read.schema(rows.schema).parquet(files.url("consumed")).count() == 4 + kept
