"""Streams of the tests: run what is there, into rows that a test can look at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Sink = Callable[[DataFrame, int], None]


def read(spark: SparkSession, **options: Any) -> DataFrame:
    """Read a batch from the source."""
    return spark.read.format("phpmq").options(**options).load()


def run(spark: SparkSession, checkpoint: Path, sink: Sink, **options: Any) -> list[dict[str, Any]]:
    """Run a stream over what is there, to its end; return the progress of its batches."""
    query = (
        spark.readStream.format("phpmq")
        .options(**options)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [dict(progress) for progress in query.recentProgress if progress["numInputRows"]]


class Batches:
    """A sink that keeps numbers, by batch; a batch that comes again replaces itself.

    ``column``: whose values are kept.  ``fails_at``: raises in that batch, once, after keeping it.
    """

    def __init__(self, column: str = "offset", fails_at: int | None = None) -> None:
        self.column = column
        self.fails_at = fails_at
        self.kept: dict[int, list[int]] = {}
        self.runs: list[int] = []  # batch ids, as they came

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Take one batch."""
        self.runs.append(batch_id)
        self.kept[batch_id] = sorted(row[0] for row in frame.select(self.column).collect())
        if batch_id == self.fails_at:
            self.fails_at = None
            raise RuntimeError("the sink fails")

    @property
    def all(self) -> list[int]:
        """Everything, in the order of batches."""
        return [value for _, values in sorted(self.kept.items()) for value in values]


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """Leave a checkpoint as a driver does that dies after the sink and before the commit."""
    (checkpoint / "commits" / str(batch_id)).unlink()
    (checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)
