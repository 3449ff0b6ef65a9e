"""Compact job, which merges each closed date's small archive files into a few large ones.

A date is closed once all its batches precede the last committed batch in the archive's checkpoint,
so that none of them can be repeated. A date is merged in four steps, and a crash is safe at each:

1. Merge the date's batches into ``compact/staged``, and check the number of rows.
2. Write ``compact/plan.json``; from then on, the swap can only be completed.
3. Move the old batches named in the plan away, and move the merged batch in.
4. Remove the plan, then the old batches.

``finish_swap`` completes an interrupted swap. Readers of the archive use ``block_swaps``, which
calls it.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import last_committed_batch, query_id
from phpmq_lite.spark.columns import ARCHIVE_SCHEMA
from phpmq_lite.spark.jobs.options import UNCONTROLLED, CompactOptions, JobControl, JobResult
from phpmq_lite.spark.jobs.stream_writer import batch_name, parquet_options
from phpmq_lite.spark.results_folder import ResultsFolder, archive_dates, open_results
from phpmq_lite.spark.session import fit_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK: Final = "archive"  # readers and writers hold it shared, swaps hold it exclusively

_PLAN: Final = f"{results_folder.COMPACT}/plan.json"
_STAGED: Final = f"{results_folder.COMPACT}/staged"
_OLD: Final = f"{results_folder.COMPACT}/old"


def transform(rows: "DataFrame", files: int) -> "DataFrame":
    """Repartition a date's rows into ``files`` partitions, ordered by offset."""
    if files == 1:
        return rows.coalesce(1).sortWithinPartitions("offset")
    return rows.repartitionByRange(files, "offset").sortWithinPartitions("offset")


def run(
    spark: "SparkSession", options: CompactOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Compact each closed date that has too many files; the job can be stopped between dates."""
    files = open_results(spark, options.out)
    rows = compacted = before = after = 0
    is_stopped = False
    with files.lock(LOCK):
        finish_swap(files)
        dates = closed_dates(files)
        for number, date in enumerate(dates):
            control.report("compact", number, len(dates))
            if is_stopped := control.stop():
                break
            sizes = files.files(f"{results_folder.ARCHIVE}/{date}")
            file_count = max(1, math.ceil(sum(sizes) / options.target_bytes))
            if len(sizes) <= file_count:
                continue
            rows += _stage(spark, files, date, file_count)
            finish_swap(files)
            compacted += 1
            before += len(sizes)
            after += len(files.files(f"{results_folder.ARCHIVE}/{date}"))
    control.report("compact", len(dates), len(dates))
    details = {"dates": compacted, "files_before": before, "files_after": after}
    return JobResult(job="compact", rows=rows, is_stopped=is_stopped, details=details)


def closed_dates(files: ResultsFolder) -> list[str]:
    """Return the ``date=…`` folders to which no more batches will be written."""
    committed = last_committed_batch(files, results_folder.ARCHIVE_CHECKPOINT)
    query = query_id(files, results_folder.ARCHIVE_CHECKPOINT)
    if committed is None or query is None:
        return []
    last = f"batch={batch_name(query, committed.batch)}"
    prefix = last[: last.rindex("-") + 1]
    return [
        date
        for date in archive_dates(files)
        if all(
            not batch.startswith(prefix) or batch < last
            for batch in files.names(f"{results_folder.ARCHIVE}/{date}")
        )
    ]


def _stage(spark: "SparkSession", files: ResultsFolder, date: str, file_count: int) -> int:
    """Merge a date, write the plan of its swap, and return the rows, or refuse the swap."""
    folder = f"{results_folder.ARCHIVE}/{date}"
    batches = [name for name in files.names(folder) if name.startswith("batch=")]
    rows = _read(spark, [files.url(f"{folder}/{name}") for name in batches])
    merged = hashlib.sha256("\n".join(batches).encode()).hexdigest()[:8]
    fit_batches(spark, rows)
    compacted = transform(rows, file_count)
    writer = compacted.write.mode("overwrite").options(**parquet_options(compacted))
    writer.parquet(files.url(_STAGED))
    expected = _sums(rows)
    actual = _sums(_read(spark, [files.url(_STAGED)]))
    if actual != expected:
        raise RefusedError(
            "count_differs", f"{date}: read {expected} (rows, sum of offsets), but wrote {actual}"
        )
    files.sync(_STAGED)  # Spark does not sync its files, and the originals are about to be removed
    plan = {"date": date, "batches": batches, "merged": f"batch=merged-{merged}"}
    files.write(_PLAN, json.dumps(plan))
    return expected[0]


def _read(spark: "SparkSession", urls: list[str]) -> "DataFrame":
    return spark.read.schema(ARCHIVE_SCHEMA).parquet(*urls).drop("date", "batch")


def _sums(rows: "DataFrame") -> tuple[int, int]:
    sums = rows.agg(sf.count("*"), sf.sum("offset")).collect()[0]
    return sums[0], sums[1] or 0


@contextmanager
def block_swaps(files: ResultsFolder) -> Iterator[None]:
    """Complete an interrupted swap, then prevent swaps; refuse (``is_locked``) during one."""
    if files.exists(_PLAN):
        with files.lock(LOCK):
            finish_swap(files)
    with files.lock(LOCK, is_shared=True):
        yield


def finish_swap(files: ResultsFolder) -> None:
    """Complete an interrupted swap, and remove leftovers from an earlier run."""
    text = files.read(_PLAN)
    if text is not None:
        plan = json.loads(text)
        folder = f"{results_folder.ARCHIVE}/{plan['date']}"
        for batch in plan["batches"]:
            if files.exists(f"{folder}/{batch}"):
                files.move(f"{folder}/{batch}", f"{_OLD}/{batch}")
        if files.exists(_STAGED):
            files.move(_STAGED, f"{folder}/{plan['merged']}")
        files.remove(_PLAN)
    files.remove(results_folder.COMPACT)
