"""A queue as a stream: durable claims, and the final acknowledgement that Spark omits."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from phpmq_lite.errors import DataLossError, PipelineError
from phpmq_lite.spark.checkpoints import final_ack
from phpmq_lite.spark.columns import QUEUE_COLUMNS
from phpmq_lite.spark.source_options import SourceConnection
from tests.spark.fake_broker import FakeBroker
from tests.spark.queries import Batches, forget_commit, run


def options(broker: FakeBroker) -> dict[str, Any]:
    return {
        "url": broker.url, "mode": "queue", "queue": "work", "subscription": "s",
        "maxMessagesPerTrigger": 100,
    }  # fmt: skip


def test_last_batch_stays_claimed_until_final_ack(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.ready = [b"%d" % n for n in range(250)]
    sink = Batches("claim")
    run(spark, tmp_path, sink, **options(broker))
    assert sink.all == list(range(1, 251))
    assert sorted(broker.held) == list(range(201, 251))  # Spark never commits the last batch
    connection = SourceConnection(broker.url)
    assert final_ack(connection, "s", str(tmp_path)) == 50
    assert broker.held == {}
    assert final_ack(connection, "s", f"file://{tmp_path}") == 0
    broker.ready = [b"later"]
    run(spark, tmp_path, sink, **options(broker))
    assert sink.all == list(range(1, 252))


def test_claims_come_again_in_the_same_batch_after_a_failure(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.ready = [b"%d" % n for n in range(150)]
    sink = Batches("claim", fails_at=1)
    with pytest.raises(PySparkException):
        run(spark, tmp_path, sink, **options(broker))
    connection = SourceConnection(broker.url)
    assert final_ack(connection, "s", str(tmp_path)) == 0  # batch 0 was acknowledged
    broker.ready = [b"new"]
    run(spark, tmp_path, sink, **options(broker))
    assert sink.runs == [0, 1, 1, 2]
    assert sink.all == list(range(1, 152))
    forget_commit(tmp_path, 2)
    assert final_ack(connection, "s", str(tmp_path)) == 0  # planned, not committed
    again = Batches("claim")
    run(spark, tmp_path, again, **options(broker))
    assert again.kept == {2: [151]}


def test_new_checkpoint_starts_with_unacknowledged_claims(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.ready = [b"%d" % n for n in range(120)]
    run(spark, tmp_path / "old", Batches("claim"), **options(broker))
    sink = Batches("claim")
    run(spark, tmp_path / "new", sink, **options(broker))
    assert sink.all == list(range(101, 121))


def test_released_claims_are_an_error(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.ready = [b"%d" % n for n in range(10)]
    sink = Batches("claim")
    run(spark, tmp_path, sink, **options(broker))
    forget_commit(tmp_path, 0)
    del broker.held[5]
    with pytest.raises(PySparkException, match="1 of the claims 1 to 10 held by 's' were released"):
        run(spark, tmp_path, sink, **options(broker))
    run(spark, tmp_path, sink, failOnDataLoss=False, **options(broker))
    assert sink.all == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_checkpoint_of_another_subscription_or_history_is_refused(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.ready = [b"x"]
    run(spark, tmp_path, Batches("claim"), **options(broker))
    with pytest.raises(PySparkException, match="checkpoint belongs to subscription 's'"):
        run(spark, tmp_path, Batches("claim"), **(options(broker) | {"subscription": "t"}))
    with pytest.raises(PipelineError, match="belongs to 's', not to 't'"):
        final_ack(SourceConnection(broker.url), "t", str(tmp_path))
    broker.history_id = "b" * 32
    with pytest.raises(PySparkException, match="was restored or replaced"):
        run(spark, tmp_path, Batches("claim"), **options(broker))
    with pytest.raises(DataLossError, match="nothing was acknowledged"):
        final_ack(SourceConnection(broker.url), "s", str(tmp_path))
    assert list(broker.held) == [1]


def test_columns_are_those_of_a_queue(spark: SparkSession, broker: FakeBroker) -> None:
    stream = spark.readStream.format("phpmq").options(**options(broker)).load()
    assert stream.schema == QUEUE_COLUMNS
