"""Compact job, which merges each date's small archive files into a few large ones.

The dates of the last batch are left for later, because the next batch usually adds to them. The
merged files are counted, and the ledger's list switches to them at once. The replaced files stay in
the archive until ``ledger.tidy`` exchanges them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Final

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs.archive_files import add_parts, count_rows, open_ledger
from phpmq_lite.spark.jobs.archive_source import write_events
from phpmq_lite.spark.jobs.day_files import FileCounts
from phpmq_lite.spark.jobs.options import UNCONTROLLED, CompactOptions, JobControl, JobResult
from phpmq_lite.spark.jobs.stream_writer import parquet_options
from phpmq_lite.spark.ledger import (
    GENERATIONS,
    STAGED,
    ArchiveFile,
    ArchiveLedger,
    Counts,
    DateManifest,
    add_counts,
    commit,
    now_ms,
    read_manifest,
)
from phpmq_lite.spark.results_folder import ARCHIVE, EVENTS, ResultsFolder, open_results
from phpmq_lite.spark.session import fit_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STAGED: Final = f"{STAGED}/merged"
_EVENTS_MAX: Final = 1_000_000
_EVENT_ORDER: Final = [("history_offset", "ascending"), ("event_id", "ascending")]


def transform(rows: "DataFrame", files: int) -> "DataFrame":
    """Repartition a date's rows into ``files`` partitions, ordered by offset."""
    if files == 1:
        return rows.coalesce(1).sortWithinPartitions("offset")
    return rows.repartitionByRange(files, "offset").sortWithinPartitions("offset")


def run(
    spark: "SparkSession", options: CompactOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Compact each date that has too many files; the job can be stopped between dates."""
    files = open_results(spark, options.out)
    rows = compacted = before = after = 0
    is_stopped = False
    keep_ms = options.keep_replaced_ms
    with open_ledger(spark, files, keep_ms=keep_ms) as ledger:
        dates = sorted(ledger.dates)
        for number, date in enumerate(dates):
            control.report("compact", number, len(dates))
            if is_stopped := control.stop():
                break
            entry = ledger.dates[date]
            file_count = max(1, math.ceil(entry.size_bytes / options.target_bytes))
            manifest = read_manifest(files, entry.manifest)
            is_open = any(file.batch == ledger.batch for file in manifest.files)
            if is_open or len(manifest.files) <= file_count:
                continue
            ledger, written = merge(spark, files, ledger, manifest, file_count)
            rows += entry.rows
            compacted += 1
            before += len(manifest.files)
            after += written
    control.report("compact", len(dates), len(dates))
    details = {"dates": compacted, "files_before": before, "files_after": after}
    return JobResult(job="compact", rows=rows, is_stopped=is_stopped, details=details)


def merge(
    spark: "SparkSession",
    files: ResultsFolder,
    ledger: ArchiveLedger,
    manifest: DateManifest,
    file_count: int,
    *,
    is_old: Callable[[ArchiveFile], bool] = lambda _: True,
    change: Callable[["DataFrame"], "DataFrame"] | None = None,
) -> tuple[ArchiveLedger, int]:
    """Replace a date's files by ``file_count`` merged ones; return the ledger and their number.

    Files of events are merged, too. Only files that are ``is_old`` are replaced, and ``change`` may
    change values of their rows.

    Raises:
        RefusedError: ``count_differs``: the merged files lack rows or have too many.
    """
    old, others = manifest.select(is_old), manifest.select(lambda file: not is_old(file))
    has_bodies = any(file.has_bodies for file in old.files)
    rows = read_archive(spark, files, old.files).drop("date", "batch")
    if has_bodies:
        fit_batches(spark, rows)
    rows = rows if change is None else change(rows)
    writer = transform(rows, file_count).write.mode("overwrite")
    folder = f"{_STAGED}/{ARCHIVE}/date={manifest.date}"
    writer.options(**parquet_options(has_bodies=has_bodies)).parquet(files.url(folder))
    written = count_rows(spark, files, files.data_files(folder), has_bodies=has_bodies)
    sizes = {file.path: file.size_bytes for file in old.files}
    expected = _totals(count_rows(spark, files, sizes, has_bodies=has_bodies))
    if (actual := _totals(written)) != expected:
        raise RefusedError(
            "count_differs",
            f"{manifest.date}: read {expected} (rows by queue and outcome, sum of offsets), but"
            f" wrote {actual}; the archive is unchanged. Run the job again",
        )
    written += _merge_events(spark, files, old.events, change)
    files.sync(_STAGED)  # Spark does not sync its files, and the originals will be removed
    number = ledger.number + 1
    batch = f"merged-{number:08d}"
    merged, moves = add_parts(others, written, batch, f"{GENERATIONS}/{number}/")
    at_ms, reason = now_ms(), "compact" if change is None else "erase"
    ledger = commit(
        files,
        ledger,
        now_ms=at_ms,
        manifests=[merged],
        moves=moves,
        replaced=old.replaced(at_ms, reason),
    )
    files.remove(_STAGED)
    return ledger, len(merged.files)


def _merge_events(
    spark: "SparkSession",
    files: ResultsFolder,
    old: Sequence[ArchiveFile],
    change: Callable[["DataFrame"], "DataFrame"] | None,
) -> list[FileCounts]:
    """Stage merged files of events, of which about ``_EVENTS_MAX`` rows are in memory."""
    written = []
    ends = accumulate(file.rows for file in old)
    for _, group in groupby(zip(ends, old, strict=True), lambda pair: pair[0] // _EVENTS_MAX):
        chosen = [file for _, file in group]
        rows = read_archive(spark, files, chosen, table=EVENTS).drop("date", "batch")
        table = (rows if change is None else change(rows)).toArrow().sort_by(_EVENT_ORDER)
        written += write_events(files, table.to_batches(), _STAGED)
    counts = [sum(file.rows for file in part) for part in (old, (p.file for p in written))]
    if counts[0] != counts[1]:
        raise RefusedError(
            "count_differs", f"read {counts[0]} events, but wrote {counts[1]}; run the job again"
        )
    return written


def _totals(parts: Sequence[FileCounts]) -> tuple[Counts, int]:
    return add_counts(*(part.counts for part in parts)), sum(part.offsets for part in parts)
