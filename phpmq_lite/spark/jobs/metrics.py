"""Metrics job, which computes ``metrics/<table>/date=…`` of the dates with new rows."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sf

from phpmq_lite.spark import results_folder
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.columns import (
    DAY_MS,
    TIME_COLUMNS,
    arrow_schema,
    commented_schema,
    utc_day,
)
from phpmq_lite.spark.insights_tables import TABLES, VERSION, metrics_offset
from phpmq_lite.spark.jobs.archive_files import open_ledger
from phpmq_lite.spark.jobs.metric_tables import (
    RECORD,
    ROW_COLUMNS,
    map_rows,
    metric_tables,
    read_records,
    reduce_parts,
)
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, MetricsOptions
from phpmq_lite.spark.ledger import (
    KEEP_REPLACED_MS,
    ArchiveFile,
    ArchiveLedger,
    archive_files,
    read_ledger,
)
from phpmq_lite.spark.results_folder import ResultsFolder, open_results
from phpmq_lite.spark.session import shuffle_partitions
from phpmq_lite.spark.table_columns import METRIC_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EPOCH: Final = date(1970, 1, 1)
_MAX_RANGES: Final = 50  # maximum number of date ranges in a condition; more are merged into one
_MAX_ROWS: Final = 20_000_000  # about the rows of the dates that are computed at once
_FILE: Final = "part-0.parquet"  # the only file of a date
_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"  # where Spark finds the comments


def run(
    spark: "SparkSession", options: MetricsOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Compute the dates affected by new rows; if the previous run was stopped, start over."""
    files = open_results(spark, options.out)
    with files.lock("metrics"):
        ledger = read_ledger(files)
        if ledger is None:
            with open_ledger(spark, files, keep_ms=KEEP_REPLACED_MS) as ledger:
                pass
        if not ledger.dates:
            note = f"there is no archive in {files.url('')}: run the archive job first"
            # A stored ledger without dates belongs to an archive without messages.
            return JobResult(job="metrics", rows=0, notes=() if ledger.number else (note,))
        offset = metrics_offset(files, ledger)
        if offset is None:
            rows, touched = ledger.rows, dates_between(ledger)
        else:
            rows, touched = new_rows(spark, files, ledger, offset)
        begun = json.loads(files.read(results_folder.METRICS_BEGUN) or "[]")  # by an earlier run
        dates = (set(options.dates) or touched) | set(map(date.fromisoformat, begun))
        # A date whose rows were pruned keeps its figures.
        dates -= set(map(date.fromisoformat, ledger.pruned))
        job = _MetricsRun(spark, files, ledger, control)
        is_stopped = not job.write(sorted(dates))
        if not is_stopped and not options.dates and ledger.offset is not None:
            state = {"tables": VERSION, "history_id": ledger.history_id, "offset": ledger.offset}
            files.write(results_folder.METRICS_STATE, json.dumps(state))
        if not is_stopped:
            files.remove(results_folder.METRICS_BEGUN)
    return JobResult(
        job="metrics",
        rows=rows if dates else 0,
        offset=ledger.offset,
        is_stopped=is_stopped,
        details={"dates": len(job.written), "tables": len(TABLES)},
    )


def dates_between(ledger: ArchiveLedger) -> set[date]:
    """Return all dates on which a time of any row may fall."""
    days = {
        day for entry in ledger.dates.values() for day in range(entry.first_day, entry.last_day + 1)
    }
    return {_EPOCH + timedelta(days=day) for day in days}


def new_rows(
    spark: "SparkSession", files: ResultsFolder, ledger: ArchiveLedger, offset: int
) -> tuple[int, set[date]]:
    """Return the number of rows after ``offset``, and the dates on which their figures count.

    A retry may be settled and archived after the row that it repeats, usually on the same date.
    """
    chosen = archive_files(files, ledger, after_offset=offset)
    if not chosen:
        return 0, set()
    new = read_archive(spark, files, chosen).where(sf.col("offset") > offset)
    is_retry = (sf.col("meta_id").isNotNull() & (sf.col("attempts") > 0)).alias("is_retry")
    groups = new.groupBy(*(utc_day(time).alias(time) for time in TIME_COLUMNS), is_retry).count()
    counts = groups.collect()
    dates = {row[time] for row in counts for time in TIME_COLUMNS if row[time] is not None}
    published = [row["published_at"] for row in counts if row["is_retry"]]
    others = {day for day in ledger.dates if published and day >= str(min(published))}
    others -= set(map(str, dates))
    if others:
        last = sf.timestamp_millis(sf.lit(((max(published) - _EPOCH).days + 1) * DAY_MS))
        retries = new.where(is_retry).select("meta_id").distinct()
        older = read_archive(spark, files, archive_files(files, ledger, dates=others))
        acked = older.where((sf.col("outcome") == "acked") & (sf.col("first_dispatched_at") < last))
        repeated = acked.join(retries, "meta_id", "left_semi").select("date").distinct()
        dates |= {row["date"] for row in repeated.collect()}
    return sum(row["count"] for row in counts), dates


@dataclass(frozen=True, slots=True)
class _MetricsRun:
    """Computes dates in groups, so that the results of each fit into memory."""

    spark: "SparkSession"
    files: ResultsFolder
    ledger: ArchiveLedger
    control: JobControl
    written: set[date] = field(default_factory=set)

    def write(self, dates: list[date]) -> bool:
        """Replace the dates in all tables; return False if the job is stopped before."""
        if not dates:
            return True
        begun = json.dumps([day.isoformat() for day in dates])
        self.files.write(results_folder.METRICS_BEGUN, begun)
        computed = rows = 0
        groups: dict[int, list[date]] = defaultdict(list)
        for day in dates:
            groups[rows // _MAX_ROWS].append(day)
            rows += entry.rows if (entry := self.ledger.dates.get(str(day))) else 0
        for group in groups.values():
            self.control.report("metrics", computed, len(dates))
            for name, table in self._compute(group).items():
                if self.control.stop():
                    return False
                self.written.update(write_table(self.files, name, table, group))
            computed += len(group)
        self.control.report("metrics", computed, len(dates))
        return True

    def _compute(self, dates: Sequence[date]) -> dict[str, pa.Table]:
        days = [(day - _EPOCH).days for day in dates]
        chosen: dict[str, ArchiveFile] = {}
        since = min(days)
        for first, end in _ranges(days):
            overlapping = archive_files(self.files, self.ledger, first_day=first, last_day=end - 1)
            chosen |= {file.path: file for file in overlapping}
            since = min(since, *(file.first_day for file in overlapping))
        # Retries of these rows may have been published on earlier days, and settled there.
        earlier = archive_files(self.files, self.ledger, first_day=since, last_day=min(days) - 1)
        chosen |= {file.path: file for file in earlier}
        archive = read_archive(self.spark, self.files, list(chosen.values()))
        return compute(archive, dates, sum(file.rows for file in chosen.values()), since)


def compute(
    archive: "DataFrame", dates: Iterable[date], rows: int, since: int = 0
) -> dict[str, pa.Table]:
    """Compute all tables for ``dates``.

    Args:
        archive: the rows with a time on any of the dates, and the retries of these rows.
        dates: the dates to compute.
        rows: about the number of rows.
        since: first day, since 1970, on which a retry of the rows may have been published.
    """
    days = [(day - _EPOCH).days for day in dates]
    spark = archive.sparkSession
    shares = shuffle_partitions(spark.sparkContext.defaultParallelism, rows)
    is_retry = sf.col("meta_id").isNotNull() & (sf.col("attempts") > 0)
    is_retry &= _is_between("published_at", since, max(days) + 1)
    is_needed = reduce(or_, (_is_in(*days) for days in _ranges(days)))
    parts = archive.where(is_needed | is_retry).select(*_columns(shares))
    reduced = (
        parts.mapInArrow(partial(map_rows, days=days, shares=shares), RECORD)
        .repartition(shares, "share")
        .mapInArrow(reduce_parts, RECORD)
    )
    results = metric_tables(read_records(reduced.toArrow().to_batches()))
    return {name: conform(results.get(name), name) for name in TABLES}


def _columns(shares: int) -> "list[Column]":
    columns = {
        f"{time}": sf.unix_millis(f"{time}_at") for time in ("published", "settled", "ready")
    }
    columns |= {time: sf.unix_millis(f"{time}_dispatched_at") for time in ("first", "last")}
    columns |= {
        f"{name}_share": sf.pmod(sf.hash(column), sf.lit(shares))
        for name, column in (("trace", "trace_id"), ("meta", "meta_id"))
    }
    return [columns.get(name, sf.col(name)).alias(name) for name in ROW_COLUMNS]


def conform(table: pa.Table | None, name: str) -> pa.Table:
    """Return a table with the columns of ``METRIC_COLUMNS``, and their texts for Spark."""
    schema = commented_schema(METRIC_COLUMNS[name])
    columns = arrow_schema(schema)
    if table is None:
        return columns.empty_table()
    return pa.table([table[field.name].cast(field.type) for field in columns], columns)


def write_table(
    files: ResultsFolder, name: str, table: pa.Table, dates: Iterable[date]
) -> set[date]:
    """Replace each date's file of a table, and return the dates that have rows."""
    folder = f"{results_folder.METRICS}/{name}"
    schema = commented_schema([c for c in METRIC_COLUMNS[name] if c.name != "date"])
    days = set(table["date"].unique().to_pylist())
    stored = set(files.names(folder))
    for old in stored & {f"date={day}" for day in set(dates) - days}:
        files.remove(f"{folder}/{old}")
    for day in days:
        rows = table.filter(pc.equal(table["date"], pa.scalar(day))).drop("date")
        for old in set(files.names(f"{folder}/date={day}")) - {_FILE}:  # by version 0.1.0
            files.remove(f"{folder}/date={day}/{old}")
        sink = pa.BufferOutputStream()
        described = rows.replace_schema_metadata({_SCHEMA: schema.json()})
        pq.write_table(described, sink, compression="zstd")
        files.write(f"{folder}/date={day}/{_FILE}", sink.getvalue().to_pybytes())
    return days


def _ranges(days: Iterable[int]) -> list[tuple[int, int]]:
    """Return days since 1970 as ordered ranges with exclusive ends."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(days):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    if len(ranges) > _MAX_RANGES:
        ranges = [(ranges[0][0], ranges[-1][1])]
    return ranges


def _is_in(first: int, end: int) -> "Column":
    """Return the condition that any time is within days [first, end); it lets Parquet prune."""
    return reduce(or_, (_is_between(time, first, end) for time in TIME_COLUMNS))


def _is_between(time: str, first: int, end: int) -> "Column":
    low, high = (sf.timestamp_millis(sf.lit(day * DAY_MS)) for day in (first, end))
    return (sf.col(time) >= low) & (sf.col(time) < high)
