"""Metrics against a plain computation in SQLite of the same rows, to the last unit."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from math import ceil, floor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.insights_summary import path_item
from phpmq_lite.spark.jobs import archive as archive_job
from phpmq_lite.spark.jobs.metrics import (
    COUNTS,
    TABLES,
    dates_touched_by_retries,
    rows_of_dates,
    touched_dates,
    transform,
)
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.storage.arrow import READER_COLUMNS
from tests.spark.history_rows import (
    DAY_MS,
    START_MS,
    Row,
    history_row,
    history_rows,
    to_arrow,
    to_sqlite,
)

FIRST = date(2026, 3, 1)
ALL_DATES = [FIRST + timedelta(days=n) for n in range(8)]
DATE_ALONE = ALL_DATES[1]

RETRIED = """
  outcome = 'acked' AND EXISTS (
    SELECT 1 FROM history t
    WHERE t.meta_id = h.meta_id AND t.seq > h.seq AND t.attempts > coalesce(h.attempts, 0)
      AND t.published_at BETWEEN h.first_dispatched_at AND h.settled_at)
"""
EVENTS = f"""
  SELECT queue, published_at AS at, 1 AS published, size AS bytes, 0 AS dispatched,
    0 AS redelivered, 0 AS acked, 0 AS expired, 0 AS dead, 0 AS deleted,
    0 AS redelivered_messages, 0 AS retried, 0 AS expired_dispatched, 0 AS expired_never,
    NULL AS wait, NULL AS hold FROM history h
  UNION ALL SELECT queue, first_dispatched_at, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    CASE WHEN ready_at <= max(first_dispatched_at, published_at) OR deliveries = 1
      THEN max(first_dispatched_at - ready_at, 0) END, NULL
    FROM history h WHERE first_dispatched_at IS NOT NULL
  UNION ALL SELECT queue, last_dispatched_at, 0, 0, 0, deliveries - 1, 0, 0, 0, 0, 0, 0, 0, 0,
    CASE WHEN ready_at > max(first_dispatched_at, published_at)
      THEN max(last_dispatched_at - ready_at, 0) END, NULL
    FROM history h WHERE deliveries > 1
  UNION ALL SELECT queue, settled_at, 0, 0, 0, 0, outcome = 'acked', outcome = 'expired',
    outcome = 'dead', outcome = 'deleted', deliveries > 1, {RETRIED},
    outcome = 'expired' AND deliveries > 0, outcome = 'expired' AND deliveries = 0, NULL,
    CASE WHEN outcome IN ('acked', 'dead') THEN max(settled_at - last_dispatched_at, 0) END
    FROM history h
"""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return history_rows(1_000)


@pytest.fixture(scope="module")
def database(rows: list[Row]) -> Iterator[sqlite3.Connection]:
    with closing(to_sqlite(rows)) as database:
        yield database


@pytest.fixture(scope="module")
def archive(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return as_archive(spark, rows)


def as_archive(spark: SparkSession, rows: list[Row]) -> DataFrame:
    history = archive_job.transform(spark.createDataFrame(to_arrow(rows)))
    return history.withColumn("batch", sf.lit("x-00000000")).cache()


def day_of(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def percentile(values: list[int], share: float) -> float | None:
    """Interpolate, as ``percentile`` of SQL does."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


def expected_periods(database: sqlite3.Connection, period_ms: int) -> dict[Any, dict[str, Any]]:
    sums = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)
    found = database.execute(
        f"SELECT at / {period_ms} * {period_ms} AS period, queue, {sums}, "
        f"group_concat(wait) AS wait, group_concat(hold) AS hold FROM ({EVENTS}) GROUP BY 1, 2"
    )
    result = {}
    for row in found:
        figures: dict[str, Any] = {name: row[name] for name in COUNTS}
        for span in ("wait", "hold"):
            values = [int(n) for n in (row[span] or "").split(",") if n]
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                figures[f"{span}_{name}"] = percentile(values, share)
            figures[f"{span}_max"] = max(values, default=None)
        result[row["period"], row["queue"]] = figures
    return result


def present(figures: dict[str, Any]) -> dict[str, Any]:
    """Drop nulls: ``approx`` compares only numbers, and missing keys differ as well."""
    return {name: figure for name, figure in figures.items() if figure is not None}


def test_archive_of_version_0_1_has_no_columns_of_later_versions(
    spark: SparkSession, archive: DataFrame, rows: list[Row], tmp_path: Path
) -> None:
    names = [column.name for column in READER_COLUMNS]
    later = names[names.index("ready_at") :]
    folder = str(tmp_path / "archive")
    archive.drop(*later).write.partitionBy("date", "batch").parquet(folder)
    older = read_archive(spark, LocalResultsFolder(tmp_path))
    assert older.where("ready_at IS NULL AND priority IS NULL").count() == len(rows)
    assert older.where("broker IS NULL AND history_offset = offset").count() == len(rows)
    computed = transform(older, "hours", ALL_DATES).collect()
    assert sum(row["published"] for row in computed) == len(rows)
    waits = [
        row["first_dispatched_at"] - row["published_at"]
        for row in rows
        if row["first_dispatched_at"] is not None
    ]
    assert max(row["wait_max"] or 0 for row in computed) == max(waits)


@pytest.mark.parametrize(
    ("table", "name", "period_ms"), [("minutes", "minute", 60_000), ("hours", "hour", 3_600_000)]
)
def test_figures_of_periods_equal_sql(
    archive: DataFrame, database: sqlite3.Connection, table: str, name: str, period_ms: int
) -> None:
    computed = transform(archive, table, ALL_DATES).withColumn("ms", sf.unix_millis(name))
    found = {}
    for row in computed.collect():
        figures = row.asDict()
        key = figures.pop("ms"), figures.pop("queue")
        assert figures.pop("date") == day_of(key[0])
        del figures[name]
        found[key] = figures
    expected = expected_periods(database, period_ms)
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert present(found[key]) == pytest.approx(present(figures), rel=1e-9), key
    assert sum(f["retried"] for f in expected.values()) > 50  # the rows contain such cases
    assert sum(f["expired_never"] for f in expected.values()) > 5


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        (
            "deaths",
            "SELECT settled_at / 86400000 AS day, queue, urn, reason, count(*) FROM history "
            "WHERE outcome = 'dead' GROUP BY 1, 2, 3, 4",
        ),
        (
            "attempts",
            "SELECT settled_at / 86400000 AS day, queue, urn, attempts, count(*) FROM history "
            "WHERE urn IS NOT NULL AND attempts IS NOT NULL GROUP BY 1, 2, 3, 4",
        ),
        (
            "expiries",
            "SELECT settled_at / 86400000 AS day, queue, sum(deliveries > 0), sum(deliveries = 0) "
            "FROM history WHERE outcome = 'expired' GROUP BY 1, 2",
        ),
        (
            "urns",
            f"""SELECT day, queue, urn, sum(published), sum(bytes), sum(acked), sum(expired),
              sum(dead), sum(deleted), sum(retried), sum(redelivered_messages) FROM (
                SELECT published_at / 86400000 AS day, queue, urn, 1 AS published, size AS bytes,
                  0 AS acked, 0 AS expired, 0 AS dead, 0 AS deleted, 0 AS retried,
                  0 AS redelivered_messages FROM history
                UNION ALL SELECT settled_at / 86400000, queue, urn, 0, 0, outcome = 'acked',
                  outcome = 'expired', outcome = 'dead', outcome = 'deleted', {RETRIED},
                  deliveries > 1 FROM history h)
              WHERE urn IS NOT NULL GROUP BY 1, 2, 3""",
        ),
    ],
)
def test_tables_of_days_equal_sql(
    archive: DataFrame, database: sqlite3.Connection, table: str, sql: str
) -> None:
    found = [tuple(row) for row in transform(archive, table, ALL_DATES).collect()]
    epoch = date(1970, 1, 1)
    expected = [(epoch + timedelta(days=r[0]), *r[1:]) for r in database.execute(sql)]
    assert Counter(found) == Counter(expected)
    assert len(expected) > 5


def test_paths_equal_a_plain_count(archive: DataFrame, rows: list[Row]) -> None:
    traces: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row["trace_id"] is not None:
            traces[day_of(row["published_at"]), row["trace_id"]].append(row)
    expected: dict[Any, list[int]] = defaultdict(list)
    for (day, _), steps in traces.items():
        steps.sort(key=lambda row: int(row["seq"]))
        path = tuple(f"{row['queue']}:{row['urn']}" for row in steps[:50])
        begin, end = min(r["published_at"] for r in steps), max(r["settled_at"] for r in steps)
        expected[day, path].append(end - begin)
    computed = transform(archive, "paths", ALL_DATES).collect()
    found = {(row["date"], tuple(row["path"])): row for row in computed}
    assert found.keys() == expected.keys()
    for key, durations in expected.items():
        of_spark = found[key]
        assert of_spark["traces"] == len(durations)
        assert of_spark["p50_ms"] == pytest.approx(percentile(durations, 0.5))
        assert of_spark["p95_ms"] == pytest.approx(percentile(durations, 0.95))
        if len(durations) == 1:
            item = path_item(of_spark["path"], [of_spark["buckets"]])
            assert item["p50_ms"] == pytest.approx(durations[0], rel=0.01)


def test_long_trace_keeps_its_first_steps(spark: SparkSession) -> None:
    rows = [history_row(n, queue=f"q{n:02}", urn="u", trace_id="t") for n in range(1, 61)]
    (row,) = transform(as_archive(spark, rows), "paths", [FIRST]).collect()
    assert list(row["path"]) == [f"q{n:02}:u" for n in range(1, 51)]
    assert row["p50_ms"] == rows[-1]["settled_at"] - rows[0]["published_at"]


@pytest.mark.slow
def test_date_computed_alone_equals_the_same_of_all(archive: DataFrame) -> None:
    """A date needs rows of other dates: published before, settled after, retried later."""
    for table in TABLES:
        whole = transform(archive, table, ALL_DATES).where(sf.col("date") == DATE_ALONE)
        alone = {str(row) for row in transform(archive, table, [DATE_ALONE]).collect()}
        assert alone == {str(row) for row in whole.collect()}


def repeated(offset: int, seq: int, attempts: int, **given: Any) -> Row:
    return history_row(offset, seq=seq, meta_id="m", attempts=attempts, urn="u", **given)


@pytest.mark.parametrize(
    ("rows", "retried"),
    [
        pytest.param(
            [
                repeated(1, 1, 0, published_at=START_MS, settled_at=START_MS + 50),
                repeated(2, 2, 1, published_at=START_MS + 40),
            ],
            {1},
            id="published before the acknowledgement",
        ),
        pytest.param(
            [
                repeated(1, 1, 1, published_at=START_MS, settled_at=START_MS + 50),
                repeated(2, 2, 2, published_at=START_MS + 60),
            ],
            set(),
            id="published after the end",
        ),
        pytest.param(
            [
                repeated(1, 1, 3, published_at=START_MS, settled_at=START_MS + 50),
                repeated(2, 2, 0, published_at=START_MS + 40),
            ],
            set(),
            id="redriven with attempts 0",
        ),
        pytest.param(
            [
                repeated(1, 1, 0, published_at=START_MS, settled_at=START_MS + 50, outcome="dead"),
                repeated(2, 2, 1, published_at=START_MS + 40),
            ],
            set(),
            id="not acked",
        ),
    ],
)
def test_retry_is_told_from_redrive(
    spark: SparkSession, rows: list[Row], retried: set[int]
) -> None:
    marked = rows_of_dates(as_archive(spark, rows), [FIRST]).where("retried").collect()
    assert {row["offset"] for row in marked} == retried


def test_new_rows_touch_the_dates_of_all_their_times(spark: SparkSession) -> None:
    row = history_row(
        1,
        published_at=START_MS,
        first_dispatched_at=START_MS + 2 * DAY_MS,
        last_dispatched_at=START_MS + 2 * DAY_MS,
        settled_at=START_MS + 4 * DAY_MS - 1,
    )
    never = history_row(2, first_dispatched_at=None, last_dispatched_at=None, deliveries=0)
    dates = touched_dates(as_archive(spark, [row, never]))
    assert dates == {FIRST + timedelta(days=n) for n in (0, 2, 3)}


def test_late_retry_touches_the_date_of_what_it_repeats(spark: SparkSession) -> None:
    """The retry is published before midnight, the acknowledgement comes after it."""
    midnight = START_MS + DAY_MS
    first = repeated(1, 1, 0, published_at=midnight - 90, settled_at=midnight + 5)
    again = repeated(
        2,
        2,
        1,
        published_at=midnight - 10,
        first_dispatched_at=midnight + DAY_MS,
        last_dispatched_at=midnight + DAY_MS,
        settled_at=midnight + DAY_MS,
    )
    archive = as_archive(spark, [first, again])
    new = archive.where("offset = 2")
    assert touched_dates(new) == {FIRST, FIRST + timedelta(days=2)}
    assert dates_touched_by_retries(new, archive) == {FIRST + timedelta(days=1)}
