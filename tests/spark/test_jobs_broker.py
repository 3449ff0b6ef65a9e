"""The jobs with a real broker: archive, metrics, summary, replay, consume."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.main import root_command
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.insights_document import PipelineJobState
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.history import HistoryRequest, open_history
from phpmq_lite.spark.insights_summary import write_summary
from phpmq_lite.spark.jobs import archive, compact, consume, metrics, replay, replay_plans
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    ConsumeOptions,
    JobOptions,
    MetricsOptions,
    ReplayOptions,
)
from phpmq_lite.spark.ledger import read_ledger
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import LocalResultsFolder, open_results
from phpmq_lite.spark.source_options import SourceConnection
from tests.spark.queries import forget_commit

ROWS = 250


@pytest.fixture(scope="module")
def broker_of_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("jobs") / "data", "--admin", "127.0.0.1:0") as own:
        yield own


@pytest.fixture
def connection(broker_of_jobs: BrokerProcess) -> SourceConnection:
    return SourceConnection(broker_of_jobs.admin[0])


def settle(broker: BrokerProcess, queue: str, count: int) -> list[bytes]:
    """Publish, consume and acknowledge messages; return their bodies."""
    meta = '"meta":{"id":"m%d","schema_version":1}'
    body = '{"job":"u","trace_id":"t%d","data":{},' + meta + ',"attempts":2}'
    bodies = [(body % (n, n)).encode() for n in range(count)]
    with connect_blocking(broker.phpmq[0]) as client:
        client.publish_many(queue, bodies)
        with client.consume(queue, 100, 30) as deliveries:
            for _ in range(count):
                next(deliveries).ack()
    return bodies


def assert_reader_is_taken_over(spark: SparkSession, asked: ArchiveOptions) -> None:
    """The archive's reader has its id, and replaces that of version 0.1.0."""
    assert asked.connection is not None
    admin, files = (
        AdminClient(None, str(asked.connection.url), None),
        open_results(spark, asked.out),
    )

    def readers() -> dict[str, int]:
        rows = admin.list("/pipeline/history/readers")
        return {row["reader"]: row["offset"] for row in rows}

    ledger = read_ledger(files)
    assert ledger is not None
    assert readers() == {ledger.reader: ROWS}
    files.remove("ledger")  # as in version 0.1.0
    PipelineClient(asked.connection).bounds("archive", 200)
    archive.run(spark, asked)
    adopted = read_ledger(files)
    assert adopted is not None
    assert readers() == {ledger.reader: ROWS, adopted.reader: ROWS}


def test_history_goes_to_summary_and_back_into_a_queue(
    spark: SparkSession, broker_of_jobs: BrokerProcess, connection: SourceConnection, tmp_path: Path
) -> None:
    settle(broker_of_jobs, "orders", ROWS)
    out = str(tmp_path)
    asked = ArchiveOptions(connection=connection, out=out, bodies=True, max_offsets_per_trigger=100)
    first = archive.run(spark, asked)
    assert (first.rows, first.offset, first.batches) == (ROWS, ROWS, 3)
    assert archive.run(spark, asked).rows == 0
    forget_commit(tmp_path / "checkpoints/archive")
    archive.run(spark, asked)
    assert_reader_is_taken_over(spark, asked)
    offsets = [row["offset"] for row in read_archive(spark, LocalResultsFolder(tmp_path)).collect()]
    assert sorted(offsets) == list(range(1, ROWS + 1))

    done = metrics.run(spark, MetricsOptions(connection=connection, out=out))
    assert (done.rows, done.offset) == (ROWS, ROWS)
    assert metrics.run(spark, MetricsOptions(connection=connection, out=out)).rows == 0
    compact.run(spark, CompactOptions(connection=connection, out=out))

    end = open_history(connection).bounds().hi
    now = int(time.time() * 1000)
    run = PipelineJobState(name="archive", state="done", started_at=now, finished_at=now)
    assert (
        write_summary(spark, JobOptions(connection=connection, out=out), [run], now_ms=now + 1000)
        == ()
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["lag"] == {"offset": end, "rows": 0}
    assert sum(item["acked"] for item in summary["last30d"]) == ROWS
    kept = broker_of_jobs.data / "pipeline" / "summary.json"
    assert json.loads(kept.read_text()) == summary

    again = ReplayOptions(
        connection=connection, out=out, queues=("orders",), to_queue="again", rate=200.0
    )
    assert replay.run(spark, again).batches == 2
    assert replay.run(spark, again).rows == 0
    (tmp_path / "replays").joinpath(f"{replay_plans.plan_name(again)}.done").write_text("1")
    assert replay.run(spark, again).rows == 50  # sent to the broker, which has had this version
    with (
        connect_blocking(broker_of_jobs.phpmq[0]) as client,
        client.consume("again", 500, 30) as deliveries,
    ):
        got = [next(deliveries) for _ in range(ROWS)]
        sent = [json.loads(each.body) for each in got]
        for each in got:
            each.ack()
    assert [body["meta"]["id"] for body in sent] == [f"m{n}" for n in range(ROWS)]
    assert {body["attempts"] for body in sent} == {0}


def test_history_without_an_archive_is_replayed(
    spark: SparkSession, broker_of_jobs: BrokerProcess, connection: SourceConnection, tmp_path: Path
) -> None:
    settle(broker_of_jobs, "direct", 20)
    asked = ReplayOptions(
        connection=connection, out=str(tmp_path), source="history", queues=("direct",)
    )
    assert replay.run(spark, asked).rows == 20
    assert replay.run(spark, asked).rows == 0


def test_consumed_queue_is_empty_and_in_parquet_once(
    spark: SparkSession, broker_of_jobs: BrokerProcess, connection: SourceConnection, tmp_path: Path
) -> None:
    with connect_blocking(broker_of_jobs.phpmq[0]) as client:
        client.publish_many("eat", (b"%d" % n for n in range(120)))
    before = open_history(connection).bounds().hi
    asked = ConsumeOptions(
        connection=connection, out=str(tmp_path), queue="eat", subscription="s", max_messages=50
    )
    result = consume.run(spark, asked)
    assert (result.rows, result.details["acked_at_end"]) == (120, 20)
    assert consume.run(spark, asked).rows == 0
    rows = spark.read.parquet(str(tmp_path / "consumed" / "eat")).collect()
    assert Counter(bytes(row["body"]) for row in rows) == Counter(b"%d" % n for n in range(120))
    assert open_history(connection).bounds().hi == before + 120  # all of them are settled


@pytest.mark.parametrize("name", ["~til2", "..", "ä" * 100, "eat,more"])
def test_queue_of_any_name_is_consumed(
    spark: SparkSession,
    broker_of_jobs: BrokerProcess,
    connection: SourceConnection,
    tmp_path: Path,
    name: str,
) -> None:
    with connect_blocking(broker_of_jobs.phpmq[0]) as client:
        client.publish_many(name, [b"1", b"2", b"3"])
    asked = ConsumeOptions(
        connection=connection, out=str(tmp_path), queue=name, subscription=f"of {name}"
    )
    result = consume.run(spark, asked)
    assert (result.rows, result.details["acked_at_end"], result.notes) == (3, 3, ())
    rows = spark.read.parquet(str(tmp_path / results_folder.consumed_folder(name))).collect()
    assert {row["queue"] for row in rows} == {name}


def test_missing_queue_is_noted(
    spark: SparkSession, connection: SourceConnection, tmp_path: Path
) -> None:
    asked = ConsumeOptions(
        connection=connection, out=str(tmp_path), queue="nowhere", subscription="nobody"
    )
    result = consume.run(spark, asked)
    assert (result.rows, result.notes) == (0, ("queue 'nowhere' does not exist",))


def test_archive_of_a_queue_with_a_comma_has_its_rows_only(
    spark: SparkSession, broker_of_jobs: BrokerProcess, connection: SourceConnection, tmp_path: Path
) -> None:
    for name in ("a,b", "a", "b"):
        settle(broker_of_jobs, name, 3)
    asked = ArchiveOptions(connection=connection, out=str(tmp_path), queues=("a,b",))
    assert archive.run(spark, asked).rows == 3
    rows = read_archive(spark, LocalResultsFolder(tmp_path)).collect()
    assert {row["queue"] for row in rows} == {"a,b"}


def test_queues_that_are_too_many_for_a_request_are_read(
    broker_of_jobs: BrokerProcess, connection: SourceConnection
) -> None:
    names = [f"{n:02d}{'ä' * 98}" for n in range(30)]
    lo = open_history(connection).bounds().hi
    for name in [*names[:15], "not me", *names[15:]]:
        settle(broker_of_jobs, name, 1)
    history = open_history(connection)
    ends = history.bounds()
    asked = HistoryRequest(
        history_id=ends.history_id, lo=lo, hi=ends.hi, columns=("offset",), queues=tuple(names)
    )
    found = [row for batch in history.rows(asked) for row in batch.column("offset").to_pylist()]
    assert found == [offset for offset in range(lo + 1, lo + 32) if offset != lo + 16]


def test_viewer_token_keeps_the_summary_local_and_notes_it(
    spark: SparkSession, broker_of_jobs: BrokerProcess, tmp_path: Path
) -> None:
    arguments = f"token create viewer --role viewer --data {broker_of_jobs.data}"
    token = CliRunner().invoke(root_command, arguments, catch_exceptions=False).stdout.strip()
    viewing = SourceConnection(broker_of_jobs.admin[0], token)
    settle(broker_of_jobs, "seen", 5)
    archived = archive.run(spark, ArchiveOptions(connection=viewing, out=str(tmp_path)))
    assert archived.offset == open_history(viewing).bounds().hi
    run = PipelineJobState(name="archive", state="done", started_at=1, finished_at=2)
    [note] = write_summary(
        spark, JobOptions(connection=viewing, out=str(tmp_path)), [run], now_ms=3
    )
    assert note.startswith("the broker did not accept the summary: ")
    assert " 403 " in note
    assert note.endswith("; the token's role or queues do not allow this")
    assert json.loads((tmp_path / "summary.json").read_text())["lag"]["rows"] == 0
