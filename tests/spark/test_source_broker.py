"""The source against a real broker, for behaviour that a fake cannot prove."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.client import BlockingClient, connect_blocking
from phpmq_lite.errors import BrokerError
from phpmq_lite.spark.checkpoints import final_ack
from phpmq_lite.spark.events import read_events
from phpmq_lite.spark.history import open_history
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.source import PhpmqSource
from phpmq_lite.spark.source_options import SourceConnection, SourceMode, write_options
from phpmq_lite.spark.writer import BatchWriter
from phpmq_lite.storage.data_folder import DATABASE
from tests.spark.queries import Batches, forget_commit, read, run
from tests.support.settled_folder import move_to_engine, settled_folder
from tests.support.stores import store_settings

_numbers = count(1)


@dataclass
class Place:
    """A broker, and a queue of one test."""

    process: BrokerProcess
    queue: str

    @property
    def url(self) -> str:
        address = self.process.admin[0]
        return address if "://" in address else f"http://{address}"

    @property
    def connection(self) -> SourceConnection:
        return SourceConnection(self.url)

    @property
    def hi(self) -> int:
        return open_history(self.connection).bounds().hi

    @contextmanager
    def client(self) -> Iterator[BlockingClient]:
        with connect_blocking(f"127.0.0.1:{self.process.port}") as client:
            yield client

    def publish(self, number: int) -> None:
        with self.client() as client:
            client.publish_many(self.queue, [b"%d" % n for n in range(number)])

    def settle(self, number: int) -> None:
        """Publish and acknowledge messages; their bodies are the numbers from 0 on."""
        self.publish(number)
        assert len(self.consume(number)) == number

    def consume(self, number: int) -> list[bytes]:
        found: list[bytes] = []
        with self.client() as client, client.consume(self.queue, credit=500) as deliveries:
            for delivery in deliveries:
                delivery.ack()
                found.append(delivery.body)
                if len(found) == number:
                    break
        return found


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker") / "data"
    with broker_process(folder, "--admin", "127.0.0.1:0") as process:
        yield process


@pytest.fixture
def place(process: BrokerProcess) -> Place:
    return Place(process, f"queue-{next(_numbers)}")


def test_history_comes_whole_with_bodies(spark: SparkSession, place: Place) -> None:
    lo = place.hi
    place.settle(300)
    frame = read(
        spark, url=place.url, queue=place.queue, includeBody=True, startingOffsets=lo + 1,
        numPartitions=3,
    )  # fmt: skip
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(lo + 1, lo + 301))
    assert sorted(int(row.body) for row in rows) == list(range(300))
    assert {(row.queue, row.outcome, row.deliveries) for row in rows} == {(place.queue, "acked", 1)}
    assert frame.where("settled_at < published_at").count() == 0


def test_events_are_those_of_the_messages_of_a_range(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    lo = place.hi
    place.publish(3)
    with place.client() as client, client.consume(place.queue, credit=1) as deliveries:
        next(iter(deliveries)).requeue()
    place.consume(3)
    table = read_events(spark, {"url": place.url, "broker": "Bremen"}, lo, place.hi)
    [row] = table.where("kind = 'requeue'").collect()
    assert (row.queue, row.broker, row["count"]) == (place.queue, "Bremen", 1)
    history = read(spark, url=place.url).where(f"history_offset = {row.history_offset}")
    assert history.select("seq", "history_id", "deliveries").collect() == [
        (row.seq, row.history_id, 2)
    ]
    url = store_settings(place.process.data).get("url")
    if url is None:
        database = {"path": str(place.process.data / DATABASE)}
        assert read_events(spark, database, lo, place.hi).count() == table.count() > 0
    with pytest.raises(PySparkException, match="a stream cannot read events"):
        run(spark, tmp_path, Batches(), url=place.url, mode="events")


def test_same_rows_come_from_the_database(spark: SparkSession, place: Place) -> None:
    place.settle(50)
    url = store_settings(place.process.data).get("url")
    database = url or place.process.data / DATABASE
    over_http = read(spark, url=place.url, includeBody=True).orderBy("offset").collect()
    from_file = read(spark, path=database, includeBody=True).orderBy("offset").collect()
    assert from_file == over_http


def test_filters_and_times_reach_the_broker(spark: SparkSession, place: Place) -> None:
    place.settle(20)
    frame = read(spark, url=place.url, columns="offset,queue,settled_at", pushFilters=True)
    mine = frame.where(f.col("queue") == place.queue)
    assert mine.count() == 20
    assert frame.where("queue = 'nowhere'").count() == 0
    least = mine.select(f.min(f.unix_millis("settled_at"))).collect()[0][0]
    since = read(spark, url=place.url, queue=place.queue, startingTimestamp=least)
    assert since.count() == 20
    assert read(spark, url=place.url, queue=place.queue, endingTimestamp=least).count() == 0
    with pytest.raises(PySparkException, match="nowhere"):
        read(spark, url=place.url, queue="nowhere").count()


@pytest.mark.slow
def test_read_is_continued_after_its_export_process_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = 300_000  # several times what pipes, sockets and batches on the way hold
    settled_folder(tmp_path / "data", rows)
    move_to_engine(tmp_path / "data")
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    with broker_process(tmp_path / "data", *flags) as process:
        threads = f"/proc/{process.pid}/task"

        def kill_at_the_first(batches: Iterator[Any]) -> Iterator[Any]:
            for number, batch in enumerate(batches):
                if number == 0:
                    for file in Path(threads).glob("*/children"):
                        for pid in file.read_text().split():
                            os.kill(int(pid), signal.SIGKILL)
                yield batch.select(["offset"])

        frame = read(spark, url=process.admin[0], numPartitions=1)
        offsets = frame.mapInArrow(kill_at_the_first, "offset BIGINT")
        counts = offsets.selectExpr("count(*)", "count(DISTINCT offset)").first()
        assert counts is not None
        assert tuple(counts) == (rows, rows)


def test_stream_follows_over_restarts_of_broker_and_query(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    lo = place.hi
    sink = Batches()
    options: dict[str, object] = {
        "startingOffsets": lo + 1, "maxOffsetsPerTrigger": 100, "reader": "test",
    }  # fmt: skip
    place.settle(250)
    run(spark, tmp_path, sink, url=place.url, **options)
    place.process.terminate()
    place.process.start()
    place.settle(30)
    run(spark, tmp_path, sink, url=place.url, **options)
    assert sink.all == list(range(lo + 1, lo + 281))


def test_queue_is_consumed_and_acknowledged_to_the_last(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.publish(250)
    options: dict[str, object] = {
        "url": place.url, "mode": "queue", "queue": place.queue, "subscription": place.queue,
        "maxMessagesPerTrigger": 100,
    }  # fmt: skip
    sink = Batches("claim", fails_at=1)
    with pytest.raises(PySparkException):
        run(spark, tmp_path, sink, **options)
    run(spark, tmp_path, sink, **options)
    assert sink.runs == [0, 1, 1, 2]
    assert sink.all == list(range(1, 251))
    lo = place.hi
    assert final_ack(place.connection, place.queue, str(tmp_path)) == 50
    assert place.hi == lo + 50
    assert final_ack(place.connection, place.queue, str(tmp_path)) == 0
    assert PipelineClient(place.connection).ready(place.queue) == 0


def test_rows_are_published_once_over_failures(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    source = place.queue
    lo = place.hi
    place.settle(150)
    target = Place(place.process, f"{source}-copy")

    def publish() -> None:
        history = (
            spark.readStream.format("phpmq")
            .options(url=place.url, queue=source, includeBody="true", startingOffsets=str(lo + 1))
            .option("maxOffsetsPerTrigger", "100")
            .load()
        )
        query = (
            history.select("body")
            .writeStream.format("phpmq")
            .options(url=place.url, queue=target.queue, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    publish()
    forget_commit(tmp_path, 1)
    publish()
    assert PipelineClient(place.connection).ready(target.queue) == 150
    assert sorted(map(int, target.consume(150))) == list(range(150))


def test_batch_with_a_key_is_published_once(spark: SparkSession, place: Place) -> None:
    frame = spark.range(100).select(f.col("id").cast("string").alias("body"))
    for _ in range(2):
        frame.write.format("phpmq").mode("append").options(
            url=place.url, queue=place.queue, txnAppId=place.queue, txnVersion="3"
        ).save()
    assert PipelineClient(place.connection).ready(place.queue) == 100


def test_abort_after_a_lost_answer_takes_nothing_back(spark: SparkSession, place: Place) -> None:
    class Losing(BatchWriter):
        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            super().commit(messages)
            raise BrokerError("the answer is lost")

    class LosingSource(PhpmqSource):
        @classmethod
        def name(cls) -> str:
            return "losing"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return Losing(write_options(self.options, SourceMode.BATCH_WRITE))

    spark.dataSource.register(LosingSource)
    options = {"url": place.url, "queue": place.queue, "txnAppId": place.queue, "txnVersion": "1"}
    frame = spark.range(100).select(f.col("id").cast("string").alias("body"))
    with pytest.raises(PySparkException, match="the answer is lost"):
        frame.write.format("losing").mode("append").options(**options).save()
    assert PipelineClient(place.connection).ready(place.queue) == 100
    frame.write.format("phpmq").mode("append").options(**options).save()
    assert sorted(map(int, place.consume(100))) == list(range(100))
    assert PipelineClient(place.connection).ready(place.queue) == 0


def test_unknown_subscription_is_at_zero_and_refusals_have_their_words(place: Place) -> None:
    broker = PipelineClient(place.connection)
    assert broker.claimed("never-seen").hi == 0
    with pytest.raises(BrokerError) as caught:
        broker.publish("app", 1, ["no-such-token"])
    assert caught.value.status in (404, 409)
