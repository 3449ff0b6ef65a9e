"""The history as a batch and as a stream, from a fake broker that can fail."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from phpmq_lite.spark.columns import HISTORY_COLUMNS
from phpmq_lite.spark.source import PUSHDOWN, PhpmqSource, register
from phpmq_lite.storage.arrow import COLUMNS
from tests.spark.fake_broker import START_MS, FakeBroker
from tests.spark.queries import Batches, forget_commit, read, run


def offsets(spark: SparkSession, broker: FakeBroker, **options: Any) -> list[int]:
    rows = read(spark, url=broker.url, **options).select("offset").collect()
    return sorted(row[0] for row in rows)


def test_batch_reads_each_row_once_whatever_the_partitions(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.settle(234)
    frame = read(spark, url=broker.url, numPartitions=5)
    assert frame.schema == HISTORY_COLUMNS
    assert frame.rdd.getNumPartitions() == 5
    assert frame.select(f.count("*"), f.sum("offset")).first() == (234, 234 * 235 // 2)


def test_batch_of_an_empty_history_is_empty(spark: SparkSession, broker: FakeBroker) -> None:
    assert offsets(spark, broker) == []


def test_batch_reads_a_range_of_offsets_and_of_times(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.settle(100)
    assert offsets(spark, broker, startingOffsets=10, endingOffsets=12) == [10, 11]  # as Kafka's
    at_97 = START_MS + 97  # of settled_at; row n settled n ms after the start
    assert offsets(spark, broker, startingTimestamp=at_97) == [97, 98, 99, 100]
    assert offsets(spark, broker, endingTimestamp=START_MS + 3) == [1, 2]


@pytest.mark.parametrize(
    ("given", "other"),
    [
        ({}, {"queue": "mails"}),
        ({"queue": "orders"}, {"queue": "mails"}),
        ({"queue": "orders"}, {}),
        ({"queues": "orders,mails"}, {"queuePattern": "*s"}),
        ({"outcomes": "acked"}, {"outcomes": "acked,dead"}),
    ],
)
def test_checkpoint_refuses_another_selection_and_names_both(
    spark: SparkSession,
    broker: FakeBroker,
    tmp_path: Path,
    given: dict[str, str],
    other: dict[str, str],
) -> None:
    broker.settle(5, "orders")
    broker.settle(5, "mails")
    common = {"url": broker.url, "startingOffsets": "earliest"}
    run(spark, tmp_path, sink := Batches(), **common, **given)
    before = sink.all
    broker.settle(3, "mails")
    with pytest.raises(PySparkException, match="the checkpoint was created with") as refused:
        run(spark, tmp_path, sink, **common, **other)
    first, second = (
        next(iter(one.values())).split(",")[0] if one else "{}" for one in (given, other)
    )
    assert first in str(refused.value)
    assert second in str(refused.value)
    assert sink.all == before
    run(spark, tmp_path, sink, **common, **given)


def test_checkpoint_refuses_a_token_for_other_queues(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(5, "orders")
    common = {"url": broker.url, "startingOffsets": "earliest"}
    run(spark, tmp_path, sink := Batches(), **common)
    broker.settle(5, "mails")
    broker.settle(5, "orders")
    broker.allowed = ["orders"]
    with pytest.raises(PySparkException, match=r"selection \{\}, not \{'allowed': \['orders'\]\}"):
        run(spark, tmp_path, sink, **common)
    forget_commit(tmp_path)  # a planned batch is refused too
    with pytest.raises(PySparkException, match=r"selection \{\}, not \{'allowed': \['orders'\]\}"):
        run(spark, tmp_path, sink, **common)
    broker.allowed = []
    run(spark, tmp_path, sink, **common)
    assert sink.all == list(range(1, 16))


def test_times_are_utc_to_the_millisecond(spark: SparkSession, broker: FakeBroker) -> None:
    broker.settle(1)
    frame = read(spark, url=broker.url).select(f.unix_millis("settled_at"), "deadline")
    assert frame.first() == (START_MS + 1, None)


def test_columns_and_body_come_as_asked(spark: SparkSession, broker: FakeBroker) -> None:
    broker.settle(2, body=b"\x00\xff")
    frame = read(spark, url=broker.url, columns="queue,body,offset")
    assert frame.columns == ["queue", "body", "offset"]
    assert [tuple(row) for row in frame.collect()] == [
        ("orders", b"\x00\xff", 1),
        ("orders", b"\x00\xff", 2),
    ]
    assert read(spark, url=broker.url, includeBody=True).columns == [*HISTORY_COLUMNS.names, "body"]
    only = read(spark, url=broker.url, columns="body").collect()
    assert [row.body for row in only] == [b"\x00\xff"] * 2


def test_pushed_filters_narrow_the_request(spark: SparkSession, broker: FakeBroker) -> None:
    broker.settle(100)
    broker.settle(100, "mails")
    frame = read(spark, url=broker.url, columns="offset,queue,size,settled_at,urn,history_offset")
    wanted = frame.where("queue = 'mails' AND offset > 90 AND offset <= 102 AND size = 4")
    assert sorted(row.offset for row in wanted.collect()) == [101, 102]
    asked = broker.asked[-1]
    assert "lo=90&hi=102" in asked
    assert "queue=mails" in asked
    assert frame.where("queue = 'nowhere'").count() == 0
    assert frame.where("queue IN ('orders', 'nowhere') AND offset = 100").count() == 1
    # Times in the session's zone, and filters that only Spark can evaluate.
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        day = "settled_at >= '2023-11-14 17:13:20.0501' AND settled_at < '2023-11-14 17:13:20.06'"
        plan = frame.where(f"{day} AND urn <=> NULL AND history_offset <> 55")
        assert sorted(row.offset for row in plan.collect()) == [51, 52, 53, 54, 56, 57, 58, 59]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    asked = broker.asked[-1]
    assert f"settled_from_ms={START_MS + 51}&settled_until_ms={START_MS + 60}" in asked
    assert "lo=50&hi=59" in asked
    assert frame.where("urn = 'urn:a' AND urn IS NOT NULL").count() == 0
    assert "urn=urn%3Aa" in broker.asked[-1]
    broker.ignores_filters = True  # as earlier versions do
    with pytest.raises(PySparkException, match="is older and ignores filters"):
        frame.where("urn = 'urn:a'").count()


def test_filters_are_left_to_spark_when_they_are_not_to_be_pushed(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.settle(100)
    assert read(spark, url=broker.url).where("offset > 90").count() == 10
    assert "lo=90&hi=100" in broker.asked[-1]
    assert read(spark, url=broker.url, pushFilters=False).where("offset > 90").count() == 10
    assert "lo=0&hi=100" in broker.asked[-1]
    other = spark.newSession()
    other.conf.set(PUSHDOWN, "false")
    register(other)
    assert other.conf.get(PUSHDOWN) == "false"
    for given in ({}, {"pushFilters": True}):
        assert read(other, url=broker.url, **given).where("offset > 90").count() == 10
        assert "lo=0&hi=100" in broker.asked[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": 5}, "unknown option 'startingoffset': did you mean 'startingOffsets'"),
        ({"subscribe": "orders"}, "'subscribe' is for Kafka; use queue or queues"),
        ({"columns": "ofset"}, "no column 'ofset': did you mean 'offset'"),
        ({"mode": "queue", "queue": "work", "subscription": "s"}, "a batch read cannot consume"),
        ({"maxOffsetsPerTrigger": 5}, "is for a stream read of the history, but this"),
        ({"startingOffsets": 102}, "offset 102 is beyond the next offset 101"),
    ],
)
def test_wrong_option_is_an_error_that_helps(
    spark: SparkSession, broker: FakeBroker, options: dict[str, Any], words: str
) -> None:
    broker.settle(100)
    with pytest.raises((AnalysisException, PySparkException)) as caught:
        read(spark, url=broker.url, **options).collect()
    assert words in str(caught.value)


def test_gap_is_an_error_unless_allowed(spark: SparkSession, broker: FakeBroker) -> None:
    broker.settle(100)
    broker.lo = 40
    with pytest.raises(PySparkException) as caught:
        offsets(spark, broker, startingOffsets=10)
    assert "retention removed all rows up to 40" in str(caught.value)
    left = offsets(spark, broker, startingOffsets=10, failOnDataLoss=False)
    assert left == list(range(41, 101))
    assert offsets(spark, broker) == left  # earliest is what there is


def test_rows_of_deleted_messages_that_left_are_a_gap(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(10)
    options = {"url": broker.url, "startingOffsets": "earliest"}
    sink = Batches()
    run(spark, tmp_path, sink, **options)
    broker.settle(80, outcome="deleted")
    broker.settle(10)
    broker.lo_deleted = 70  # a purge of more than deleted rows may take: 60 of them are gone
    with pytest.raises(PySparkException, match="removed rows of deleted messages up to 70"):
        run(spark, tmp_path, sink, **options)
    with pytest.raises(PySparkException, match="from offset 1 were requested"):
        offsets(spark, broker)
    kept = [*range(71, 91), *range(91, 101)]
    run(spark, tmp_path, sink, **options, failOnDataLoss=False)
    assert sink.all == [*range(1, 11), *kept]
    assert offsets(spark, broker, failOnDataLoss=False) == [*range(1, 11), *kept]
    # A reader that does not request deleted rows has no gap.
    assert offsets(spark, broker, outcomes="acked, dead") == [*range(1, 11), *range(91, 101)]
    pushed = read(spark, url=broker.url, pushFilters=True).where("outcome = 'acked'")
    assert pushed.count() == 20


def test_busy_broker_is_asked_again(spark: SparkSession, broker: FakeBroker) -> None:
    broker.settle(100)
    broker.faults.busy = 1
    assert len(offsets(spark, broker)) == 100


def test_short_stream_is_an_error(spark: SparkSession, broker: FakeBroker) -> None:
    broker.settle(100)
    broker.faults.short = 1
    with pytest.raises(Exception, match="ShortReadError") as caught:
        offsets(spark, broker, numPartitions=1)
    assert "received 50 rows but expected 100" in str(caught.value)


def test_broken_stream_is_continued_inside_the_reader(
    spark: SparkSession, broker: FakeBroker
) -> None:
    broker.settle(3_000, body=b"x" * 1_000)
    broker.faults.broken = 2
    assert offsets(spark, broker, numPartitions=1, includeBody=True) == list(range(1, 3_001))
    assert broker.faults.broken == 0


def test_stream_goes_on_where_it_stopped(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    options = {"url": broker.url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    sink = Batches()
    broker.settle(100)
    progress = run(spark, tmp_path, sink, reader="archive", **options)
    assert [each["numInputRows"] for each in progress] == [40, 40, 20]
    broker.settle(10)
    run(spark, tmp_path, sink, reader="archive", **options)
    assert sink.all == list(range(1, 111))
    assert sink.runs == [0, 1, 2, 3]
    assert broker.notes[-1] == ("archive", 110)


def test_stream_repeats_a_batch_that_was_not_committed(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    options = {"url": broker.url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 100}
    broker.settle(250)
    first = Batches(fails_at=1)
    with pytest.raises(PySparkException):
        run(spark, tmp_path, first, **options)
    broker.settle(50)
    run(spark, tmp_path, first, **options)
    assert first.runs == [0, 1, 1, 2]
    assert first.all == list(range(1, 301))
    forget_commit(tmp_path, 2)
    again = Batches()
    run(spark, tmp_path, again, **options)
    assert again.kept == {2: first.kept[2]}


def test_stream_fails_on_another_history(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    options = {"url": broker.url, "startingOffsets": "earliest"}
    broker.settle(10)
    sink = Batches()
    run(spark, tmp_path, sink, **options)
    broker.history_id = "b" * 32  # restored from a copy
    with pytest.raises(PySparkException, match="was restored or replaced"):
        run(spark, tmp_path, sink, **options)
    run(spark, tmp_path, sink, failOnDataLoss=False, **options)
    assert sink.all == list(range(1, 11)) * 2


def test_batch_planned_in_another_history_does_not_block_the_stream(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    options = {"url": broker.url, "startingOffsets": "earliest"}
    broker.settle(10)
    run(spark, tmp_path, Batches(), **options)
    forget_commit(tmp_path, 0)
    broker.history_id = "b" * 32
    sink = Batches()
    with pytest.raises(PySparkException, match="the history id is b"):
        run(spark, tmp_path, sink, **options)
    run(spark, tmp_path, sink, failOnDataLoss=False, **options)
    assert sink.kept == {0: [], 1: list(range(1, 11))}


def test_stream_fails_on_a_gap_unless_allowed(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    options = {"url": broker.url, "startingOffsets": "earliest"}
    broker.settle(10)
    sink = Batches()
    run(spark, tmp_path, sink, **options)
    broker.settle(30)
    broker.lo = 20
    with pytest.raises(PySparkException, match="retention removed all rows up to 20"):
        run(spark, tmp_path, sink, **options)
    run(spark, tmp_path, sink, failOnDataLoss=False, **options)
    assert sink.all == [*range(1, 11), *range(21, 41)]


def test_stream_starts_at_the_end_by_default(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(10)
    sink = Batches()
    run(spark, tmp_path, sink, url=broker.url)
    broker.settle(5)
    run(spark, tmp_path, sink, url=broker.url)
    assert sink.all == [11, 12, 13, 14, 15]


def test_table_of_a_catalog_is_created_and_queried(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.settle(5)
    broker.ready = [b"1", b"2"]
    given = f"url '{broker.url}', token 'geheim'"
    spark.sql(f"CREATE TABLE settled USING phpmq OPTIONS ({given}, columns 'queue,offset')"
              " TBLPROPERTIES (team = 'a')")  # fmt: skip
    spark.sql(f"CREATE TABLE work USING phpmq OPTIONS ({given}, mode 'queue', queue 'work',"
              " subscription 's')")  # fmt: skip
    spark.sql(f"CREATE TABLE named (offset BIGINT) USING phpmq OPTIONS ({given})")
    try:
        rows = spark.sql("SELECT * FROM settled WHERE offset > 3").collect()
        assert [(row.queue, row.offset) for row in rows] == [("orders", 4), ("orders", 5)]
        late = spark.sql("SELECT * FROM settled WITH ('startingOffsets' = '5')")
        assert late.count() == 1
        assert "geheim" not in spark.table("settled").schema.json()
        described = {row.col_name: row.comment for row in spark.sql("DESCRIBE settled").collect()}
        texts = {column.name: column.comment for column in COLUMNS}
        assert described == {name: texts[name] for name in ("queue", "offset")}
        sink = Batches("claim")
        stream = spark.readStream.table("work").writeStream.foreachBatch(sink)
        located = stream.option("checkpointLocation", str(tmp_path))
        located.trigger(availableNow=True).start().awaitTermination()
        assert sink.all == [1, 2]
        with pytest.raises((AnalysisException, PySparkException), match="WITH"):
            spark.table("named").collect()
        with pytest.raises(AnalysisException, match="did you mean 'queue'"):
            spark.sql(f"CREATE TABLE wrong USING phpmq OPTIONS ({given}, queuee 'a')")
    finally:
        for name in ("settled", "work", "named"):
            spark.sql(f"DROP TABLE {name}")


def test_source_is_found_by_its_name_alone(spark: SparkSession, broker: FakeBroker) -> None:
    assert import_module("pyspark_phpmq").DefaultSource is PhpmqSource
    broker.settle(3)
    fresh = spark.newSession()  # the source is not registered here
    assert fresh.read.format("phpmq").option("url", broker.url).load().count() == 3
    fresh.conf.unset(PUSHDOWN)
    register(fresh)
    assert fresh.conf.get(PUSHDOWN) == "true"


def test_workers_import_the_installed_pyspark_which_is_compiled(spark: SparkSession) -> None:
    one = spark.sparkContext.parallelize([0], 1)
    assert one.map(lambda _: pyspark.__file__).collect() == [pyspark.__file__]
