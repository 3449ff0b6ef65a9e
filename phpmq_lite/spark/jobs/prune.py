"""Prune job, which removes old dates from the archive; the ledger keeps their counts.

Only whole dates are removed. Metrics stay.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from phpmq_lite.spark.columns import DAY_MS
from phpmq_lite.spark.jobs.archive_files import now_ms, open_ledger
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, PruneOptions
from phpmq_lite.spark.ledger import ReplacedFile, commit, first_ms, read_manifest
from phpmq_lite.spark.results_folder import open_results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: "SparkSession", options: PruneOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Remove the dates that ended at least ``older_than_s`` seconds ago from the list of files.

    Their files stay for readers of older lists, until ``keep_replaced_ms`` have passed.
    """
    files = open_results(spark, options.out)
    with open_ledger(spark, files, keep_ms=options.keep_replaced_ms) as ledger:
        at_ms = now_ms()
        before_ms = at_ms - options.older_than_s * 1_000
        dates = [date for date in ledger.dates if first_ms(date) + DAY_MS <= before_ms]
        entries = [ledger.dates[date] for date in dates]
        manifests = [read_manifest(files, entry.manifest) for entry in entries]
        removed = [file.path for manifest in manifests for file in manifest.files]
        if dates:
            commit(
                files,
                ledger,
                now_ms=at_ms,
                manifests=[replace(old, files=(), removed=old.counts) for old in manifests],
                replaced=[ReplacedFile(path=path, at_ms=at_ms, reason="prune") for path in removed],
            )
    control.report("prune", len(dates), len(dates))
    return JobResult(
        job="prune",
        rows=sum(entry.rows for entry in entries),
        details={
            "dates": len(dates),
            "files": len(removed),
            "bytes": sum(entry.size_bytes for entry in entries),
        },
    )
