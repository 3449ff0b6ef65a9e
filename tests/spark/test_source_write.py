"""Writes in two phases: staged by tasks, published once by the driver."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.fake_broker import FakeBroker
from tests.spark.queries import forget_commit, run


def rows(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    numbers = spark.range(0, count, 1, partitions)
    return numbers.select(f.col("id").cast("string").alias("body"), f.lit("out").alias("queue"))


def save(frame: DataFrame, broker: FakeBroker, **options: Any) -> None:
    frame.write.format("phpmq").mode("append").options(url=broker.url, **options).save()


def bodies(broker: FakeBroker) -> list[int]:
    return sorted(int(row["body"]) for row in broker.published)


@pytest.mark.slow
def test_batch_is_published_in_one_piece(spark: SparkSession, broker: FakeBroker) -> None:
    save(rows(spark, 1_000), broker)
    assert bodies(broker) == list(range(1_000))
    assert {row["queue"] for row in broker.published} == {"out"}
    assert sum("/publish" in path for path in broker.asked) == 1
    assert broker.staged == {}


def test_option_queue_goes_before_the_column_and_ttl_travels(
    spark: SparkSession, broker: FakeBroker
) -> None:
    frame = rows(spark, 2).withColumn("ttl_s", f.when(f.col("body") == "1", 60))
    save(frame, broker, queue="other")
    found = sorted((row["body"], row["queue"], row["ttl_s"]) for row in broker.published)
    assert found == [(b"0", "other", None), (b"1", "other", 60)]


def test_batch_with_a_key_is_published_once(spark: SparkSession, broker: FakeBroker) -> None:
    for version in (0, 0, 1, 0):
        save(rows(spark, 10), broker, txnAppId="job", txnVersion=version)
    assert bodies(broker) == sorted([*range(10)] * 2)
    assert broker.staged == {}


def test_batch_without_a_key_is_published_each_time(
    spark: SparkSession, broker: FakeBroker
) -> None:
    for _ in range(2):
        save(rows(spark, 10), broker)
    assert len(broker.published) == 20


def test_failing_task_publishes_nothing_and_leaves_nothing_staged(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.faults.stage = 1
    with pytest.raises(PySparkException, match="disk_full"):
        save(rows(spark, 300), broker)
    assert broker.published == []
    bad = rows(spark, 100).withColumn(
        "body", f.when(f.col("body") == "99", f.raise_error(f.lit("no"))).otherwise(f.col("body"))
    )
    with pytest.raises(Exception, match="no"):
        save(bad, broker)
    assert broker.published == []


def test_lost_answer_to_publish_is_an_error_that_takes_nothing_back(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.faults.lost_publish = 1
    with pytest.raises(PySparkException, match="the reply is lost"):
        save(rows(spark, 10), broker, txnAppId="job", txnVersion=5)
    save(rows(spark, 10), broker, txnAppId="job", txnVersion=5)
    assert bodies(broker) == list(range(10))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["*", "1 AS ttl"], "column 'ttl' cannot be written: did you mean 'ttl_s'"),
        (["body", "1L AS queue"], "column 'queue' is bigint, but it must be string"),
        (["queue"], "column 'body' is missing"),
        (["queue", "CAST(NULL AS STRING) AS body"], "have no body"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused(
    spark: SparkSession, broker: FakeBroker, columns: list[str], words: str
) -> None:
    with pytest.raises((AnalysisException, PySparkException)) as caught:
        save(rows(spark, 3).selectExpr(*columns), broker)
    assert words in str(caught.value)
    assert broker.published == []


WRITTEN_BY_NAME = [
    ("INSERT INTO {t} (queue, body) VALUES ('q', 'x')", "q", b"x", None),
    ("INSERT INTO {t} (ttl_s, body) SELECT 5, 'x'", "work", b"x", 5),
    ("INSERT INTO {t} BY NAME SELECT 7 AS ttl_s, 'x' AS body, 'q' AS queue", "q", b"x", 7),
    ("INSERT INTO {t} (body) SELECT X'ff00fe'", "work", b"\xff\x00\xfe", None),
    ("INSERT INTO {t} WITH ('queue' = 'other') (body) SELECT 'x'", "other", b"x", None),
]
REFUSED = [
    # Without names, values go by position: too few for the table, or the first one is refused.
    ("INSERT INTO {t} SELECT 'q' AS queue, 'x' AS body, 5 AS ttl_s", "not enough data columns"),
    ("INSERT INTO {t} SELECT 'x' AS body, 'q' AS queue, 'z', 5", "or use INSERT INTO ... BY NAME"),
    ("INSERT INTO {t} BY NAME SELECT 'x' AS body, 1 AS priority", "extra columns `priority`"),
    ("INSERT INTO {t} (queue) SELECT 'q'", "rows have no body"),
    ("INSERT OVERWRITE {t} (body) SELECT 'x'", "cannot be overwritten"),
    ("SELECT * FROM {t}", "is only for INSERT"),
    ("INSERT INTO history (queue, ttl_s) SELECT 'q', 5", "mode 'write'); INSERT INTO it BY"),
    ("INSERT INTO history WITH ('url' = '{url}') (queue, ttl_s) SELECT 'q', 5",
     "column 'offset' cannot be written"),
    ("INSERT INTO named (queue, body) SELECT 'q', 'x'", "mode 'write'); INSERT INTO it BY"),
    ("CREATE TABLE made USING phpmq OPTIONS (url '{url}') AS SELECT 'x' AS body, 'q' AS queue",
     "AS SELECT, Spark passes no options"),
    ("CREATE TABLE made USING phpmq OPTIONS (url '{url}', mode 'write', queu 'q')",
     "did you mean 'queue'"),
]  # fmt: skip


def test_table_is_written_by_name_or_not_at_all(spark: SparkSession, broker: FakeBroker) -> None:
    options = f"OPTIONS (url '{broker.url}', queue 'work'"
    spark.sql(f"CREATE TABLE target USING phpmq {options}, mode 'write')")
    spark.sql(f"CREATE TABLE history USING phpmq {options})")
    spark.sql(f"CREATE TABLE named (queue STRING, body STRING) USING phpmq {options})")
    try:
        for statement, queue, body, ttl_s in WRITTEN_BY_NAME:
            broker.published.clear()
            spark.sql(statement.format(t="target"))
            [row] = broker.published
            assert (row["queue"], row["body"], row["ttl_s"]) == (queue, body, ttl_s), statement
        broker.published.clear()
        for statement, words in REFUSED:
            with pytest.raises((AnalysisException, PySparkException)) as caught:
                spark.sql(statement.format(t="target", url=broker.url)).collect()
            assert words in str(caught.value), statement
        frame = spark.sql("SELECT 'x' AS body, 'q' AS queue")
        with pytest.raises(AnalysisException, match="not enough data columns"):
            frame.write.insertInto("target")
        assert (broker.published, broker.staged) == ([], {})
        frame.writeTo("target").append()
        frame.write.format("phpmq").option("url", broker.url).saveAsTable("made")
        assert [(row["queue"], row["body"]) for row in broker.published] == [("q", b"x")] * 2
    finally:
        for name in ("target", "history", "named", "made"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_overwriting_a_queue_is_refused(spark: SparkSession, broker: FakeBroker) -> None:
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows(spark, 3).write.format("phpmq").option("url", broker.url).mode("overwrite").save()


def test_more_rows_than_one_publish_takes_go_out_in_parts(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.publish_rows = 40
    save(rows(spark, 100, partitions=2), broker)
    assert len(broker.published) == 100
    assert broker.staged == {}
    assert len([path for path in broker.asked if path.endswith("/publish")]) == 3


def stream(spark: SparkSession, broker: FakeBroker, checkpoint: Path) -> None:
    """Publish what settled since the last run, 100 offsets in a batch."""
    history = (
        spark.readStream.format("phpmq")
        .options(url=broker.url, startingOffsets="earliest", maxOffsetsPerTrigger="100")
        .load()
    )
    written = history.select(
        f.col("offset").cast("string").cast("binary").alias("body"), f.lit("out").alias("queue")
    )
    query = (
        written.writeStream.format("phpmq")
        .options(url=broker.url, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.slow
def test_stream_publishes_each_batch_once_whatever_happens(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(150)
    stream(spark, broker, tmp_path)
    assert bodies(broker) == list(range(1, 151))
    broker.settle(100)
    broker.faults.stage = 1  # in write
    with pytest.raises(PySparkException, match="disk_full"):
        stream(spark, broker, tmp_path)
    broker.faults.lost_publish = 1  # after the publish, so Spark calls abort
    with pytest.raises(PySparkException, match="the reply is lost"):
        stream(spark, broker, tmp_path)
    stream(spark, broker, tmp_path)
    assert bodies(broker) == list(range(1, 251))
    forget_commit(tmp_path, 2)  # the driver died after the publish: the batch comes again
    stream(spark, broker, tmp_path)
    assert bodies(broker) == list(range(1, 251))
    assert broker.staged == {}


def test_stream_that_ends_between_two_parts_of_a_batch_publishes_the_rest_once(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(150)
    broker.publish_rows = 40  # a batch of 100 takes three calls
    for _ in range(2):
        broker.faults.lost_publish = 1
        with pytest.raises(PySparkException, match="the reply is lost"):
            stream(spark, broker, tmp_path)
    assert len(broker.published) == 80  # of batch 0, over two runs
    stream(spark, broker, tmp_path)
    assert bodies(broker) == list(range(1, 151))
    assert (broker.staged, broker.sealed) == ({}, {})


def test_write_inside_foreach_batch_is_once_with_a_key(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    def publish(frame: DataFrame, batch_id: int) -> None:
        messages = frame.select(f.col("offset").cast("string").alias("body"))
        save(messages, broker, queue="out", txnAppId="copy", txnVersion=batch_id)

    broker.settle(20)
    run(spark, tmp_path, publish, url=broker.url, startingOffsets="earliest")
    forget_commit(tmp_path, 0)
    run(spark, tmp_path, publish, url=broker.url, startingOffsets="earliest")
    assert bodies(broker) == list(range(1, 21))
