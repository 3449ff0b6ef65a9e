"""A stream into Parquet: each batch has its folders, and replaces itself when it comes again.

Appending would double the rows of a batch whose commit was lost.  A batch's folder has the
checkpoint's own id in its name, so that a new checkpoint, whose batches count from 0 again,
overwrites nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from phpmq_lite.spark.checkpoints import offset_of, query_id
from phpmq_lite.spark.jobs.options import ReportProgress, ShouldStop
from phpmq_lite.spark.results_folder import ResultsFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ReportBatch = Callable[[int, int | None], None]

_POLL_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTarget:
    """Where a stream is written: folder and checkpoint below the root, partitions before batch."""

    name: str  # of the query and of the phase reported
    folder: str
    checkpoint: str
    partitions: tuple[str, ...] = ()


@dataclass(slots=True)
class StreamResult:
    """What went through."""

    rows: int = 0
    batches: int = 0
    offset: int | None = None
    is_stopped: bool = False


class _StoppedError(Exception):
    """Ends a query before a batch is touched; it comes again at the next start."""


def batch_name(query: str, batch: int) -> str:
    """Name a batch's folder: at most 8 digits of the query, then the number."""
    return f"{query[:8]}-{batch:08d}"


def write_stream(
    stream: "DataFrame",
    files: ResultsFolder,
    target: StreamTarget,
    report: ReportProgress,
    stop: ShouldStop,
    end: int | None = None,
    after: Callable[[int], None] | None = None,
) -> StreamResult:
    """Write all that is there now; ``stop`` ends it between two batches.

    ``end`` is reported as what there is to come to, where the source does not say.  ``after`` is
    called with the number of each batch that is written, before Spark commits it.  Spark's
    exceptions pass through.
    """
    drained = StreamResult()

    def write(batch: "DataFrame", number: int) -> None:
        if stop():
            drained.is_stopped = True
            raise _StoppedError
        write_batch(batch, files, target, number)
        if after is not None:
            after(number)

    remove_staged(files, target.folder)
    query = (
        stream.writeStream.queryName(target.name)
        .option("checkpointLocation", files.url(target.checkpoint))
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    _follow(query, drained, lambda done, latest: report(target.name, done, latest or end))
    return drained


def remove_staged(files: ResultsFolder, folder: str) -> None:
    """Remove what runs that were killed left in a folder; nobody may be writing to it."""
    for name in files.names(folder):
        if name.startswith(".spark-staging"):
            files.remove(f"{folder}/{name}")


def write_batch(
    batch: "DataFrame", files: ResultsFolder, target: StreamTarget, number: int
) -> None:
    """Write one batch; what it wrote before is replaced."""
    name = batch_name(query_id(files, target.checkpoint) or "", number)
    if not target.partitions:  # else a batch without rows, all released meanwhile, would keep them
        files.remove(f"{target.folder}/batch={name}")
    (
        batch.withColumn("batch", sf.lit(name))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*target.partitions, "batch")
        .parquet(files.url(target.folder))
    )


def _follow(query: "StreamingQuery", drained: StreamResult, tell: ReportBatch) -> None:
    """Wait for the end of a query, and report its batches."""
    seen = -1
    try:
        while True:
            is_done = query.awaitTermination(_POLL_S)
            seen = _count(query, drained, seen, tell)
            if is_done:
                return
    except StreamingQueryException:
        _count(query, drained, seen, tell)
        if not drained.is_stopped:
            raise
    finally:
        query.stop()


def _count(query: "StreamingQuery", drained: StreamResult, seen: int, tell: ReportBatch) -> int:
    """Add the batches above ``seen``; gives the last one."""
    for progress in query.recentProgress:
        number = progress["batchId"]
        if number <= seen or not progress["numInputRows"]:
            continue
        seen = number
        drained.batches += 1
        drained.rows += progress["numInputRows"]
        source = progress["sources"][0]
        _, drained.offset = offset_of(source["endOffset"])
        _, latest = offset_of(source.get("latestOffset"))
        tell(drained.rows if drained.offset is None else drained.offset, latest)
    return seen
