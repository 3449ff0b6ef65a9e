"""Streams for tests: read the available data into rows that a test can check."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Sink = Callable[[DataFrame, int], None]


def read(spark: SparkSession, **options: Any) -> DataFrame:
    """Read a batch from the source."""
    return spark.read.format("phpmq").options(**options).load()


def run(spark: SparkSession, checkpoint: Path, sink: Sink, **options: Any) -> list[dict[str, Any]]:
    """Run a stream over the available data; return the progress of its batches."""
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
    """A sink that keeps the values of a column by batch; a repeated batch replaces itself.

    ``fails_at``: raise once, after keeping that batch.
    """

    def __init__(self, column: str = "offset", fails_at: int | None = None) -> None:
        self.column = column
        self.fails_at = fails_at
        self.kept: dict[int, list[int]] = {}
        self.runs: list[int] = []  # batch ids in order of arrival

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Keep a batch."""
        self.runs.append(batch_id)
        self.kept[batch_id] = sorted(row[0] for row in frame.select(self.column).collect())
        if batch_id == self.fails_at:
            self.fails_at = None
            raise RuntimeError("the sink fails")

    @property
    def all(self) -> list[int]:
        """Return all values, in the order of batches."""
        return [value for _, values in sorted(self.kept.items()) for value in values]


def forget_commit(checkpoint: Path, batch_id: int | None = None) -> None:
    """Remove a commit, by default the last, as if the driver had died after the sink's write."""
    commits = checkpoint / "commits"
    if batch_id is None:
        batch_id = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(batch_id)).unlink()
    (commits / f".{batch_id}.crc").unlink()
