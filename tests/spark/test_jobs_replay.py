"""Replay: selection, plan, pieces; a fake writer replaces the broker."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs import replay
from phpmq_lite.spark.jobs.archive import TARGET, transform
from phpmq_lite.spark.jobs.options import JobControl, ReplayOptions
from phpmq_lite.spark.jobs.stream_writer import write_batch
from phpmq_lite.spark.results_folder import LocalResultsFolder
from tests.spark.history_rows import START_MS, Row, history_row, to_arrow


class Broker:
    """Keeps published rows and the highest version of each key, as the broker does."""

    def __init__(self) -> None:
        self.published: list[Row] = []
        self.versions: dict[str, int] = {}
        self.fails_after: int | None = None

    def write(self, spark: Any, piece: pa.Table, app_id: str, version: int, options: Any) -> None:
        if version > self.versions.get(app_id, -1):
            self.versions[app_id] = version
            self.published += piece.to_pylist()
        if self.fails_after == version:  # published, but the reply is lost
            raise ConnectionError


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(replay, "publish_piece", broker.write)
    return broker


@pytest.fixture
def out(spark: SparkSession, tmp_path: Path) -> str:
    """Create an archive of 30 rows with bodies."""
    body = (
        b'{"job":"u","attempts":%d,"trace_id":"t","data":{},"meta":{"id":"m%d","schema_version":1}}'
    )
    rows = [
        history_row(
            n,
            queue="mail" if n % 3 == 0 else "orders",
            outcome="dead" if n > 20 else "acked",
            body=None if n == 30 else body % (n, n),
        )
        for n in range(1, 31)
    ]
    frame = transform(spark.createDataFrame(to_arrow(rows)))
    files = LocalResultsFolder(tmp_path)
    files.write("checkpoints/archive/metadata", '{"id":"x"}')
    write_batch(frame, files, TARGET, 0)
    return str(tmp_path)


def asked(out: str, **given: Any) -> ReplayOptions:
    return ReplayOptions(connection=None, out=out, **given)


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({"outcomes": ("dead",)}, range(21, 31)),
        ({"queues": ("mail",), "outcomes": ("acked",)}, range(3, 21, 3)),
        ({"queue_pattern": "m*"}, range(3, 31, 3)),
        ({"since_ms": START_MS + 5_030, "until_ms": START_MS + 7_030}, (5, 6)),
        ({"where": "size = 100 AND offset % 10 = 0"}, (10, 20, 30)),
        ({"traces": ("none",)}, ()),
    ],
)
def test_selection(spark: SparkSession, out: str, given: dict[str, Any], offsets: Any) -> None:
    archive = read_archive(spark, LocalResultsFolder(Path(out)))
    rows = replay.transform(archive, asked(out, **given)).collect()
    assert sorted(row["offset"] for row in rows) == list(offsets)


def test_wrong_condition_is_refused(spark: SparkSession, out: str) -> None:
    with pytest.raises(RefusedError, match="colour"):
        replay.run(spark, asked(out, where="colour = 1"))


def test_dry_run_counts_and_changes_nothing(spark: SparkSession, out: str, broker: Broker) -> None:
    result = replay.run(spark, asked(out, outcomes=("dead",), dry_run=True))
    assert result.rows == 9
    assert result.details == {"mail": 3, "orders": 6, "bytes": 900}
    assert "1 of 10" in result.notes[0]
    assert broker.published == []
    assert not (Path(out) / "replays").exists()


def test_count_of_a_queue_called_bytes_is_not_taken_for_their_sum(
    spark: SparkSession, out: str, broker: Broker
) -> None:
    result = replay.run(spark, asked(out, outcomes=("dead",), to_queue="bytes", dry_run=True))
    assert result.details == {"bytes": 9, "(bytes)": 900}


def test_replay_sends_each_message_once_with_attempts_0(
    spark: SparkSession, out: str, broker: Broker
) -> None:
    options = asked(out, queues=("mail",), to_queue="again", ttl_s=60)
    result = replay.run(spark, options)
    assert result.rows == len(broker.published) == 9
    assert {(row["queue"], row["ttl_s"]) for row in broker.published} == {("again", 60)}
    bodies = [json.loads(row["body"]) for row in broker.published]
    assert [body["meta"]["id"] for body in bodies] == [f"m{n}" for n in range(3, 30, 3)]
    assert {(body["attempts"], body["trace_id"]) for body in bodies} == {(0, "t")}

    assert replay.run(spark, options).rows == 0
    assert len(broker.published) == 9
    assert replay.run(spark, asked(out, queues=("mail",), name="once more")).rows == 9


def test_replay_goes_on_after_a_crash(
    spark: SparkSession, out: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MAX_ROWS", 4)
    broker.fails_after = 3
    with pytest.raises(ConnectionError):
        replay.run(spark, asked(out, name="n"))
    broker.fails_after = None
    result = replay.run(spark, asked(out, name="n"))
    assert (result.details["rows_before"], result.rows, result.batches) == (8, 21, 6)
    ids = [json.loads(row["body"])["meta"]["id"] for row in broker.published]
    assert ids == [f"m{n}" for n in range(1, 30)]


def test_replay_stops_between_pieces(
    spark: SparkSession, out: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MAX_ROWS", 10)
    calls = iter([False, True])
    result = replay.run(spark, asked(out, name="n"), JobControl(stop=lambda: next(calls)))
    assert result.is_stopped
    assert len(broker.published) == 10


def test_rate_holds_after_a_slow_piece(
    spark: SparkSession, out: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of a second's messages: the first one takes ten seconds, the others none."""

    class Clock:
        now_s = 1_000.0

        def monotonic(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

    clock, begun = Clock(), []

    def write(*given: Any) -> None:
        begun.append(round(clock.now_s - 1_000))
        clock.now_s += 10 if len(begun) == 1 else 0
        broker.write(*given)

    monkeypatch.setattr(replay, "time", clock)
    monkeypatch.setattr(replay, "publish_piece", write)
    assert replay.run(spark, asked(out, rate=8.0)).rows == 29
    assert begun == [0, 10, 11, 12]


def test_plan_of_nothing_is_not_kept(spark: SparkSession, out: str, broker: Broker) -> None:
    """The same selection may match messages that are settled later."""
    assert replay.run(spark, asked(out, traces=("none",))).rows == 0
    assert not (Path(out) / "replays").exists()


def test_replay_refuses_a_plan_that_selects_otherwise(
    spark: SparkSession, out: str, broker: Broker
) -> None:
    replay.run(spark, asked(out, name="n", queues=("mail",)))
    with pytest.raises(RefusedError, match="has a different selection"):
        replay.run(spark, asked(out, name="n"))


def test_replay_of_no_bodies_is_refused(spark: SparkSession, out: str, broker: Broker) -> None:
    with pytest.raises(RefusedError, match="have no body"):
        replay.run(spark, asked(out, where="offset = 30"))
