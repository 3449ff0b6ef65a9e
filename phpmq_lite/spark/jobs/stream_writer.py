"""Stream writer for Parquet: each batch has its own folders, which a repeated batch replaces.

Appending would duplicate the rows of a batch whose commit was lost. A batch's folder name contains
the checkpoint's id, so that a new checkpoint, which counts from 0, overwrites nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from phpmq_lite.spark.checkpoints import offset_of, query_id
from phpmq_lite.spark.history import BODY
from phpmq_lite.spark.jobs.day_files import BODY_GROUP_BYTES
from phpmq_lite.spark.jobs.options import JobControl
from phpmq_lite.spark.results_folder import ResultsFolder
from phpmq_lite.spark.running_rows import count_running_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTarget:
    """Where a stream is written."""

    name: str  # name of the query, which is also the phase reported by the job
    folder: str
    checkpoint: str


@dataclass(slots=True)
class StreamResult:
    """The totals of what a stream query has written."""

    rows: int = 0
    batches: int = 0
    offset: int | None = None
    is_stopped: bool = False


class _StoppedError(Exception):
    """Raised to stop a query before it writes a batch; the next run repeats the batch."""


def batch_name(query: str, batch: int) -> str:
    """Return a batch's folder name, made of the first 8 digits of the query id and the number."""
    return f"{query[:8]}-{batch:08d}"


def write_stream(
    stream: "DataFrame",
    files: ResultsFolder,
    target: StreamTarget,
    control: JobControl,
    end: int | None = None,
    write: "Callable[[DataFrame, int], None] | None" = None,
    *,
    begin: int = 0,
) -> StreamResult:
    """Write all available rows; ``control.stop`` ends the query between two batches.

    What is reported starts at ``begin`` and counts the rows of running batches, too; ``end`` is
    reported as the total if the source does not provide one. ``write`` writes a batch,
    given its number, by default with ``write_batch``. Spark's exceptions propagate.
    """
    result = StreamResult()

    def write_or_stop(batch: "DataFrame", number: int) -> None:
        if control.stop():
            result.is_stopped = True
            raise _StoppedError
        if write is None:
            write_batch(batch, files, target, number)
        else:
            write(batch, number)

    remove_staged(files, target.folder)
    query = (
        stream.writeStream.queryName(target.name)
        .option("checkpointLocation", files.url(target.checkpoint))
        .foreachBatch(write_or_stop)
        .trigger(availableNow=True)
        .start()
    )
    _report_batches(
        stream.sparkSession, query, result, _StreamProgress(target.name, control.report, begin, end)
    )
    return result


@dataclass(slots=True)
class _StreamProgress:
    """Reports a stream's progress, which never decreases."""

    phase: str
    report: Callable[[str, int, int | None], None]
    position: int  # row count or offset at the end of the last batch
    total: int | None
    highest: int = 0  # that was reported

    def end_batch(self, position: int, latest: int | None) -> None:
        """Report the end of a batch; ``latest`` is the source's last offset, if known."""
        self.position, self.total = position, latest or self.total
        self.add_rows(0)

    def add_rows(self, rows: int) -> None:
        """Report the ``rows`` of the running batch."""
        current = self.position + rows
        if self.total is not None:
            current = min(current, max(self.total, self.position))
        self.highest = max(self.highest, current)
        self.report(self.phase, self.highest, self.total)


def parquet_options(*, has_bodies: bool) -> dict[str, str]:
    """Return options for Spark's writer.

    Version 2 of the format stores differences of numbers and times, which makes files without
    bodies a quarter as long. Bodies get small pages and row groups, to bound memory: Parquet checks
    a page's size only after 100 rows, and compresses each page as a whole.
    """
    bodies = {
        "parquet.block.size": str(BODY_GROUP_BYTES),
        "parquet.page.size.row.check.min": "1",
        f"parquet.enable.dictionary#{BODY}": "false",
    }
    return {"parquet.writer.version": "v2"} | (bodies if has_bodies else {})


def remove_staged(files: ResultsFolder, folder: str) -> None:
    """Remove files that killed runs left in a folder; no process may be writing to the folder."""
    for name in files.names(folder):
        if name.startswith(".spark-staging"):
            files.remove(f"{folder}/{name}")


def write_batch(
    batch: "DataFrame", files: ResultsFolder, target: StreamTarget, number: int
) -> None:
    """Write one batch, replacing what an earlier attempt wrote."""
    name = batch_name(query_id(files, target.checkpoint) or "", number)
    files.remove(f"{target.folder}/batch={name}")  # an empty batch would not overwrite old rows
    (
        batch.withColumn("batch", sf.lit(name))
        .write.mode("overwrite")
        .options(
            partitionOverwriteMode="dynamic", **parquet_options(has_bodies=BODY in batch.columns)
        )
        .partitionBy("batch")
        .parquet(files.url(target.folder))
    )


def _report_batches(
    spark: "SparkSession", query: "StreamingQuery", result: StreamResult, progress: _StreamProgress
) -> None:
    counted = -1
    try:
        while True:
            is_done = query.awaitTermination(_POLL_S)
            counted = _count(query, result, counted, progress.end_batch)
            if is_done:
                return
            progress.add_rows(count_running_rows(spark))
    except StreamingQueryException:
        _count(query, result, counted, progress.end_batch)
        if not result.is_stopped:
            raise
    finally:
        query.stop()


def _count(
    query: "StreamingQuery",
    result: StreamResult,
    counted: int,
    report: Callable[[int, int | None], None],
) -> int:
    """Add up the non-empty batches numbered above ``counted``; return the last counted number."""
    for progress in query.recentProgress:
        number = progress["batchId"]
        if number <= counted or not progress["numInputRows"]:
            continue
        counted = number
        result.batches += 1
        result.rows += progress["numInputRows"]
        source = progress["sources"][0]
        _, result.offset = offset_of(source["endOffset"])
        _, latest = offset_of(source.get("latestOffset"))
        report(result.rows if result.offset is None else result.offset, latest)
    return counted
