"""Archive job, which writes each row of the history to Parquet exactly once.

Batches are written to ``archive/date=…/batch=…`` by dynamic partition overwrite: a repeated batch
replaces itself. Spark's own file sink ignores files that it did not write, so compacted files would
be invisible.
"""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import (
    CommittedBatch,
    last_committed_batch,
    planned_batch,
    query_id,
)
from phpmq_lite.spark.columns import utc_day
from phpmq_lite.spark.history import open_history
from phpmq_lite.spark.jobs.compact import block_swaps
from phpmq_lite.spark.jobs.options import UNCONTROLLED, ArchiveOptions, JobControl, JobResult
from phpmq_lite.spark.jobs.stream_writer import StreamTarget, batch_name, write_stream
from phpmq_lite.spark.pipeline_client import HistoryBounds
from phpmq_lite.spark.results_folder import ResultsFolder, open_results, read_archive
from phpmq_lite.spark.source_options import DELETED, queues_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET: Final = StreamTarget(
    name="archive",
    folder=results_folder.ARCHIVE,
    checkpoint=results_folder.ARCHIVE_CHECKPOINT,
    partitions=("date",),
)


def transform(history: "DataFrame") -> "DataFrame":
    """Add ``date``, the UTC day on which a message was settled."""
    return history.withColumn("date", utc_day("settled_at"))


def run(
    spark: "SparkSession", options: ArchiveOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Archive the messages settled since the last run.

    Raises:
        RefusedError: ``other_history``: the archive belongs to another history. Accepting gaps does
            not help, because offsets would restart and rows would be archived twice.
    """
    end, begin = None, 0
    allowed: tuple[str, ...] = ()
    if options.connection is not None:
        bounds = open_history(options.connection).bounds()
        end, allowed = bounds.hi, bounds.allowed
        committed = last_committed_batch(open_results(spark, options.out), TARGET.checkpoint)
        if committed is not None and committed.history_id not in (None, bounds.history_id):
            raise RefusedError(
                "other_history",
                f"the broker's history is {bounds.history_id}, but the archive in "
                f"{options.out} belongs to {committed.history_id}: the broker was restored or "
                "replaced. Archive to another folder",
            )
        begin = first_offset(options, bounds, committed)
        control.report(TARGET.name, begin, end)
    stream = spark.readStream.format("phpmq").options(**source_options(options)).load()
    return archive_stream(spark, stream, options, control, end, begin, allowed)


def archive_stream(
    spark: "SparkSession",
    stream: "DataFrame",
    options: ArchiveOptions,
    control: JobControl = UNCONTROLLED,
    end: int | None = None,
    begin: int = 0,
    allowed: tuple[str, ...] = (),
) -> JobResult:
    """Archive a stream of history rows; ``begin`` is the offset just before the first row.

    ``allowed`` are the token's queue globs, which belong to the archive's selection.
    """
    files = open_results(spark, options.out)
    with files.lock("checkpoint"), block_swaps(files):
        check_selection(files, options, allowed)
        recorder = None if options.fail_on_data_loss else _GapRecorder(spark, files, options, begin)
        totals = write_stream(transform(stream), files, TARGET, control, end, recorder)
        committed = last_committed_batch(files, TARGET.checkpoint)
    return JobResult(
        job="archive",
        rows=totals.rows,
        offset=committed.offset if committed else None,
        batches=totals.batches,
        is_stopped=totals.is_stopped,
        notes=() if recorder is None else tuple(map(results_folder.gap_text, recorder.gaps)),
    )


class _GapRecorder:
    """Records accepted gaps; call it with each batch's number after the batch is written."""

    def __init__(
        self, spark: "SparkSession", files: ResultsFolder, options: ArchiveOptions, begin: int
    ) -> None:
        self._spark, self._files, self._options = spark, files, options
        committed = last_committed_batch(files, TARGET.checkpoint)
        self._begin = begin if committed is None or committed.offset is None else committed.offset
        self.gaps: list[results_folder.ArchiveGap] = []

    def __call__(self, number: int) -> None:
        batch = planned_batch(self._files, TARGET.checkpoint, number)
        if self._options.connection is None or batch.offset is None:
            return
        name = batch_name(query_id(self._files, TARGET.checkpoint) or "", number)
        gap = find_gap(
            self._begin,
            batch.offset,
            open_history(self._options.connection).bounds(),
            needs_deleted=not self._options.outcomes or DELETED in self._options.outcomes,
            archived=lambda: self._archived(name),
            batch=name,
            at_ms=time.time_ns() // 1_000_000,
        )
        if gap is not None:
            results_folder.store_gap(self._files, gap)
            self.gaps.append(gap)
        self._begin = batch.offset

    def _archived(self, name: str) -> int | None:
        """Return a batch's row count, or None if the archive excludes queues or outcomes."""
        options = self._options
        if options.queues or options.queue_pattern is not None or options.outcomes:
            return None
        if not self._files.files(results_folder.ARCHIVE):
            return 0
        archive = read_archive(self._spark, self._files)
        return archive.where(archive["batch"] == name).count()


def first_offset(
    options: ArchiveOptions, bounds: HistoryBounds, committed: CommittedBatch | None
) -> int:
    """Return the offset after which a run starts: the last archived one or the configured one."""
    if committed is not None and committed.offset is not None:
        return committed.offset
    start = options.starting_offsets
    return (
        max(int(start) - 1, 0) if start.isdigit() else {"latest": bounds.hi}.get(start, bounds.lo)
    )


def source_options(options: ArchiveOptions) -> dict[str, str]:
    """Return the stream's options as strings."""
    values = {
        **options.connection_options,
        "startingOffsets": options.starting_offsets,
        "maxOffsetsPerTrigger": str(options.max_offsets_per_trigger),
        "reader": "archive",  # reader name under which the broker shows the archive's lag
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        "includeBody": "true" if options.bodies else "",
        "queues": queues_text(options.queues) if options.queues else "",
        "queuePattern": options.queue_pattern or "",
        "outcomes": ",".join(options.outcomes),
        "numPartitions": "" if options.num_partitions is None else str(options.num_partitions),
    }
    return {name: value for name, value in values.items() if value}


def check_selection(
    files: ResultsFolder, options: ArchiveOptions, allowed: tuple[str, ...] = ()
) -> None:
    """Store the selection, or refuse another one (``other_selection``): there is one offset."""
    selection: dict[str, Any] = {
        "queues": sorted(options.queues),
        "queue_pattern": options.queue_pattern,
    }
    if options.outcomes:
        selection["outcomes"] = sorted(options.outcomes)
    if allowed:
        selection["allowed"] = sorted(allowed)
    stored = files.read(results_folder.ARCHIVE_SELECTION)
    if stored is None:
        files.write(results_folder.ARCHIVE_SELECTION, json.dumps(selection))
    elif json.loads(stored) != selection:
        raise RefusedError(
            "other_selection",
            f"the archive in {options.out} was created with the selection {stored}, not "
            f"{json.dumps(selection)} (allowed: the token's queue globs; all if missing). "
            "Use the same selection, or another folder",
        )


def find_gap(
    begin: int,
    end: int,
    bounds: HistoryBounds,
    *,
    needs_deleted: bool,
    archived: Callable[[], int | None],
    batch: str,
    at_ms: int,
) -> results_folder.ArchiveGap | None:
    """Return the gap in the batch of offsets ``(begin, end]``, or None if no rows are missing.

    ``bounds`` are the bounds of the history after the batch was written.  ``archived`` returns the
    number of rows in the batch, or None if the archive excludes queues or outcomes.
    """
    hi = min(end, max(bounds.lo, bounds.lo_deleted if needs_deleted else 0))
    if hi <= begin:
        return None
    count = archived()
    rows = None if count is None else end - begin - count
    if rows == 0:  # retention removed the rows after they were read
        return None
    return results_folder.ArchiveGap(
        at_ms=at_ms, history_id=bounds.history_id, lo=begin, hi=hi, rows=rows, batch=batch
    )
