"""The metrics job in Spark; ``tests/unit/spark/jobs/test_metric_tables.py`` has the figures."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.insights_tables import TABLES
from phpmq_lite.spark.jobs import metrics
from phpmq_lite.spark.jobs.archive_files import open_ledger
from phpmq_lite.spark.jobs.metrics import new_rows
from phpmq_lite.spark.jobs.options import MetricsOptions
from phpmq_lite.spark.ledger import ArchiveLedger, read_ledger
from phpmq_lite.spark.results_folder import METRICS_STATE, LocalResultsFolder
from tests.spark.history_rows import (
    COLUMNS,
    DAY_MS,
    START_MS,
    Row,
    history_row,
    history_rows,
    to_parquet,
)
from tests.unit.spark.jobs.test_metric_tables import computed, narrowed

FIRST = date(2026, 3, 1)


def archived(
    spark: SparkSession, folder: Path, rows: list[Row], *, without: tuple[str, ...] = ()
) -> tuple[LocalResultsFolder, ArchiveLedger]:
    """Write an archive with one file for each date, and its ledger."""
    for day in sorted({row["settled_at"] // DAY_MS for row in rows}):
        of_day = [row for row in rows if row["settled_at"] // DAY_MS == day]
        name = date(1970, 1, 1) + timedelta(days=day)
        file = folder / f"archive/date={name}/batch=x-00000000/part.parquet"
        to_parquet(of_day, file)
        if without:
            pq.write_table(pq.ParquetFile(file).read().drop(list(without)), file)
    files = LocalResultsFolder(folder)
    with open_ledger(spark, files, keep_ms=0) as ledger:
        return files, ledger


def stored(folder: Path, table: str) -> list[str]:
    """Return the rows of a table without their dates, in any order."""
    files = sorted((folder / "metrics" / table).glob("date=*/*.parquet"))
    return sorted(repr(row) for file in files for row in pq.ParquetFile(file).read().to_pylist())


def test_tables_equal_those_computed_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The archive lacks the columns that version 0.1.0 did not have."""
    rows = [row | {"ready_at": row["published_at"]} for row in history_rows(400)]
    later = tuple(COLUMNS.names[COLUMNS.names.index("ready_at") :])
    archived(spark, tmp_path, rows, without=later)
    done = metrics.run(spark, MetricsOptions(connection=None, out=str(tmp_path)))
    assert done.rows == len(rows)
    expected = computed(narrowed(rows))
    for table in TABLES:
        found = stored(tmp_path, table)
        order = pq.read_schema(next((tmp_path / "metrics" / table).rglob("*.parquet"))).names
        kept = expected[table].drop("date").to_pylist()
        assert found == sorted(repr({name: row[name] for name in order}) for row in kept), table
    dates = expected["minutes"]["date"].unique()
    assert done.details["dates"] == len(dates)


def repeated(offset: int, seq: int, attempts: int, **given: Any) -> Row:
    return history_row(offset, seq=seq, meta_id="m", attempts=attempts, urn="u", **given)


def test_new_rows_touch_the_dates_of_all_their_times(spark: SparkSession, tmp_path: Path) -> None:
    """A late retry touches the date of what it repeats, which it precedes in no other way.

    The retry is published before midnight, the acknowledgement comes after it.
    """
    midnight = START_MS + 10 * DAY_MS
    rows = [
        repeated(1, 1, 0, published_at=midnight - 90, settled_at=midnight + 5),
        history_row(2, published_at=midnight, settled_at=midnight + 7),
        history_row(
            3,
            published_at=START_MS,
            first_dispatched_at=START_MS + 2 * DAY_MS,
            last_dispatched_at=START_MS + 2 * DAY_MS,
            settled_at=midnight + DAY_MS,
        ),
        history_row(4, published_at=midnight + DAY_MS, first_dispatched_at=None,
                    last_dispatched_at=None, deliveries=0, settled_at=midnight + DAY_MS),
        repeated(
            5,
            5,
            1,
            published_at=midnight - 10,
            first_dispatched_at=midnight + DAY_MS,
            last_dispatched_at=midnight + DAY_MS,
            settled_at=midnight + DAY_MS,
        ),
    ]  # fmt: skip
    files, _ = archived(spark, tmp_path, rows)
    ledger = read_ledger(files)
    assert ledger is not None
    count, dates = new_rows(spark, files, ledger, 2)
    assert count == 3
    assert dates == {FIRST + timedelta(days=n) for n in (0, 2, 9, 10, 11)}
    assert new_rows(spark, files, ledger, 3)[1] == dates - {FIRST, FIRST + timedelta(days=2)}
    assert new_rows(spark, files, ledger, 5) == (0, set())


@pytest.mark.slow
def test_run_opens_only_files_of_the_dates_that_change(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dates that were pruned keep their figures, though a new row touches them."""
    rows = [history_row(n, published_at=START_MS + n * DAY_MS) for n in range(1, 30)]
    files, ledger = archived(spark, tmp_path, rows)
    options = MetricsOptions(connection=None, out=str(tmp_path))
    assert metrics.run(spark, options).details["dates"] == 29
    files.write(METRICS_STATE, '{"tables": 3, "history_id": null, "offset": 28}')
    monkeypatch.setattr(
        metrics, "read_ledger",
        lambda files: replace(ledger, offset=29, pruned={"2026-03-02": "x"}),
    )  # fmt: skip
    reads = Mock(wraps=read_archive)
    monkeypatch.setattr(metrics, "read_archive", reads)
    done = metrics.run(spark, options)
    assert (done.rows, done.details["dates"]) == (1, 1)
    only = ["archive/date=2026-03-30/batch=x-00000000/part.parquet"]
    opened = [[file.path for file in call.args[2]] for call in reads.call_args_list]
    assert opened == [only, only]


def test_date_that_has_no_rows_any_more_has_no_file(tmp_path: Path) -> None:
    files = LocalResultsFolder(tmp_path)
    days = [FIRST, FIRST + timedelta(days=1)]
    table = pa.table(
        {"queue": ["q", "q"], "dispatched": [1, 2], "never": [3, 4], "date": days}
    ).select(["date", "queue", "dispatched", "never"])
    assert metrics.write_table(files, "expiries", table, days) == set(days)
    old = tmp_path / f"metrics/expiries/date={FIRST}/part-00000-of-spark.parquet"
    old.touch()
    assert metrics.write_table(files, "expiries", table.slice(0, 1), days) == {FIRST}
    folders = sorted(path.name for path in (tmp_path / "metrics/expiries").iterdir())
    assert folders == [f"date={FIRST}"]
    assert not old.exists()
