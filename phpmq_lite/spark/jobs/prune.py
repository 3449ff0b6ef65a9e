"""Prune job, which removes old dates from the archive; the ledger keeps their counts.

Only whole dates are removed, and the same dates from typed tables. Metrics stay.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from phpmq_lite.spark.columns import DAY_MS
from phpmq_lite.spark.jobs.archive_files import open_ledger
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, PruneOptions
from phpmq_lite.spark.ledger import commit, first_ms, now_ms, read_manifest
from phpmq_lite.spark.results_folder import (
    QUEUE_TABLES,
    REJECTS,
    TABLES,
    ResultsFolder,
    open_results,
)
from phpmq_lite.spark.table_store import LOCK, repair_tables
from phpmq_lite.spark.table_writer import count_in_files, rewrite_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: "SparkSession", options: PruneOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Remove the dates that ended at least ``older_than_s`` seconds ago from the list of files.

    Their files stay for readers of older lists, until ``keep_replaced_ms`` have passed. Typed
    tables have no list, so their rows are removed at once.
    """
    files = open_results(spark, options.out)
    keep_ms = options.keep_replaced_ms
    with open_ledger(spark, files, keep_ms=keep_ms) as ledger, files.lock(LOCK):
        at_ms = now_ms()
        before_ms = at_ms - options.older_than_s * 1_000
        typed_rows = _prune_tables(spark, files, before_ms // DAY_MS)
        dates = [date for date in ledger.dates if first_ms(date) + DAY_MS <= before_ms]
        entries = [ledger.dates[date] for date in dates]
        manifests = [read_manifest(files, entry.manifest) for entry in entries]
        removed = [file for old in manifests for file in old.replaced(at_ms, "prune")]
        if dates:
            commit(
                files,
                ledger,
                now_ms=at_ms,
                manifests=[replace(m, files=(), events=(), removed=m.counts) for m in manifests],
                replaced=removed,
            )
    control.report("prune", len(dates), len(dates))
    return JobResult(
        job="prune",
        rows=sum(entry.rows for entry in entries),
        details={
            "dates": len(dates),
            "files": len(removed),
            "typed_rows": typed_rows,
            "bytes": sum(entry.size_bytes for entry in entries),
        },
    )


def _prune_tables(spark: "SparkSession", files: ResultsFolder, first_day: int) -> int:
    """Remove rows settled before a day since 1970 from the tables, and return their number."""
    repair_tables(files)
    is_old = sf.unix_date("date") < first_day
    folders = (TABLES, QUEUE_TABLES, REJECTS)
    counts = count_in_files(spark, files, folders, lambda rows: rows.where(is_old), "date date")
    rewrite_files(spark, files, counts, lambda rows: rows.where(~is_old))
    return sum(counts.values())
