"""The job archive: the history, row by row, to Parquet; each row exactly once.

Batches go to ``archive/date=…/batch=…`` by dynamic partition overwrite: a batch that comes again
replaces itself.  Spark's own file sink does not do: it ignores foreign files, so compacting would
break it.
"""

import json
import time
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
from phpmq_lite.spark.history import history_bounds
from phpmq_lite.spark.jobs import archive_gaps
from phpmq_lite.spark.jobs.compact import block_swaps
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    JobResult,
    ReportProgress,
    ShouldStop,
    never_stop,
    report_nothing,
)
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
    """Add ``date``, the day in UTC on which a message was settled."""
    return history.withColumn("date", utc_day("settled_at"))


def run(
    spark: "SparkSession",
    options: ArchiveOptions,
    report: ReportProgress = report_nothing,
    stop: ShouldStop = never_stop,
) -> JobResult:
    """Archive what was settled since the last run.

    Raises:
        RefusedError: ``other_history``: the archive there is of another one, also where gaps are
            taken: offsets would begin anew, and rows of a broker that was restored be there twice.
    """
    end, begin = None, 0
    if options.connection is not None:
        ends = history_bounds(options.connection)
        end = ends.hi
        done = last_committed_batch(open_results(spark, options.out), TARGET.checkpoint)
        if done is not None and done.history_id not in (None, ends.history_id):
            raise RefusedError(
                "other_history",
                f"the broker's history is {ends.history_id}, another than the archive's in "
                f"{options.out}, {done.history_id}: it was restored or replaced; archive it to "
                "another folder",
            )
        begin = first_offset(options, ends, done)
        report(TARGET.name, begin, end)
    stream = spark.readStream.format("phpmq").options(**source_options(options)).load()
    return archive_stream(spark, stream, options, report, stop, end, begin)


def archive_stream(
    spark: "SparkSession",
    stream: "DataFrame",
    options: ArchiveOptions,
    report: ReportProgress = report_nothing,
    stop: ShouldStop = never_stop,
    end: int | None = None,
    begin: int = 0,
) -> JobResult:
    """Archive a stream of the history's columns; ``begin``: the offset ahead of a first batch."""
    files = open_results(spark, options.out)
    with files.lock("checkpoint"), block_swaps(files):
        check_selection(files, options)
        watch = None if options.fail_on_data_loss else _Watch(spark, files, options, begin)
        drained = write_stream(transform(stream), files, TARGET, report, stop, end, watch)
        done = last_committed_batch(files, TARGET.checkpoint)
    return JobResult(
        job="archive",
        rows=drained.rows,
        offset=done.offset if done else None,
        batches=drained.batches,
        is_stopped=drained.is_stopped,
        notes=() if watch is None else tuple(map(archive_gaps.gap_text, watch.found)),
    )


class _Watch:
    """Writes down what each batch lacks; called with its number once it is written."""

    def __init__(
        self, spark: "SparkSession", files: ResultsFolder, options: ArchiveOptions, begin: int
    ) -> None:
        self._spark, self._files, self._options = spark, files, options
        done = last_committed_batch(files, TARGET.checkpoint)
        self._begin = begin if done is None or done.offset is None else done.offset
        self.found: list[archive_gaps.ArchiveGap] = []

    def __call__(self, number: int) -> None:
        batch = planned_batch(self._files, TARGET.checkpoint, number)
        if self._options.connection is None or batch.offset is None:
            return
        name = batch_name(query_id(self._files, TARGET.checkpoint) or "", number)
        gap = archive_gaps.find_gap(
            self._begin,
            batch.offset,
            history_bounds(self._options.connection),
            needs_deleted=not self._options.outcomes or DELETED in self._options.outcomes,
            archived=lambda: self._archived(name),
            batch=name,
            at_ms=time.time_ns() // 1_000_000,
        )
        if gap is not None:
            archive_gaps.store_gap(self._files, gap)
            self.found.append(gap)
        self._begin = batch.offset

    def _archived(self, name: str) -> int | None:
        """Count the rows of a batch, where the archive has all that there are."""
        options = self._options
        if options.queues or options.queue_pattern is not None or options.outcomes:
            return None
        if not self._files.files(results_folder.ARCHIVE):
            return 0
        archive = read_archive(self._spark, self._files)
        return archive.where(archive["batch"] == name).count()


def first_offset(options: ArchiveOptions, ends: HistoryBounds, done: CommittedBatch | None) -> int:
    """Give the offset that a run begins behind: the last one done, else where the first begins."""
    if done is not None and done.offset is not None:
        return done.offset
    word = options.starting_offsets
    return max(int(word) - 1, 0) if word.isdigit() else {"latest": ends.hi}.get(word, ends.lo)


def source_options(options: ArchiveOptions) -> dict[str, str]:
    """Give the options of the stream; they arrive as text."""
    given = {
        **(options.connection.as_options() if options.connection else {}),
        "startingOffsets": options.starting_offsets,
        "maxOffsetsPerTrigger": str(options.max_offsets_per_trigger),
        "reader": "archive",  # the broker shows how far it is behind
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
    }
    if options.bodies:
        given["includeBody"] = "true"
    if options.queues:
        given["queues"] = queues_text(options.queues)
    if options.queue_pattern is not None:
        given["queuePattern"] = options.queue_pattern
    if options.outcomes:
        given["outcomes"] = ",".join(options.outcomes)
    if options.num_partitions is not None:
        given["numPartitions"] = str(options.num_partitions)
    return given


def check_selection(files: ResultsFolder, options: ArchiveOptions) -> None:
    """Store which queues and outcomes an archive has, or compare: one offset cannot stand for two.

    Raises:
        RefusedError: ``other_selection``: the archive there has other queues or outcomes.
    """
    selection: dict[str, Any] = {
        "queues": sorted(options.queues),
        "queue_pattern": options.queue_pattern,
    }
    if options.outcomes:
        selection["outcomes"] = sorted(options.outcomes)
    kept = files.read(results_folder.ARCHIVE_SELECTION)
    if kept is None:
        files.write(results_folder.ARCHIVE_SELECTION, json.dumps(selection))
    elif json.loads(kept) != selection:
        raise RefusedError(
            "other_selection",
            f"the archive in {options.out} has the selection {kept}, now "
            f"{json.dumps(selection)} is asked: take the same one, or another folder",
        )
