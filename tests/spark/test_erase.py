"""Erase in the archive, in tables and in a real broker, also when it is interrupted."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.erased_ids import runs_with
from phpmq_lite.spark.jobs import archive, compact, consume, erase, replay, tables, verify
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    ConsumeOptions,
    EraseOptions,
    JobOptions,
    JobResult,
    ReplayOptions,
    TablesOptions,
)
from phpmq_lite.spark.ledger import archive_files, read_ledger
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection

TRACE = "s3cr3t-4bf9"
ROWS = 60


class Site:
    """A broker with a results folder."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, out: Path) -> None:
        self.spark, self.broker, self.out = spark, broker, out
        self.connection = SourceConnection(broker.admin[0])
        self.files = LocalResultsFolder(out)

    def settle(self, queue: str, count: int, trace: str = "") -> None:
        """Publish and acknowledge envelopes; each tenth has the secret trace, or all have it.

        One of those first fails, and the report names the trace.
        """
        traces = [trace or (TRACE if n % 10 == 3 else f"t{n}") for n in range(count)]
        with connect_blocking(self.broker.phpmq[0]) as client:
            client.publish_many(queue, [body(n, trace) for n, trace in enumerate(traces)])
            with client.consume(queue, 4, 30) as deliveries:
                [*_, failed] = [next(deliveries) for _ in range(4)]
                failed.retry(error=f"no {traces[3]}")
            with client.consume(queue, 100, 30) as deliveries:
                for _ in range(count):
                    next(deliveries).ack()

    def archive(self) -> JobResult:
        options = ArchiveOptions(
            connection=self.connection, out=str(self.out), bodies=True, max_offsets_per_trigger=25
        )
        return archive.run(self.spark, options)

    def tables(self) -> JobResult:
        options = TablesOptions(connection=self.connection, out=str(self.out))
        return tables.run(self.spark, options)

    def erase(self, **given: Any) -> JobResult:
        options = EraseOptions(connection=self.connection, out=str(self.out), **given)
        return erase.run(self.spark, options)

    def with_secret(self, paths: list[str] | None = None) -> list[str]:
        """Return the files that have the secret, of all data files or of these."""
        paths = list(self.files.data_files("")) if paths is None else paths
        data = [path for path in paths if path.endswith(".parquet")]
        return [
            path
            for path in data
            if TRACE in repr(pq.ParquetFile(self.out / path).read().to_pylist())
        ]

    def listed(self, *tables: str) -> list[str]:
        ledger = read_ledger(self.files)
        assert ledger is not None
        tables = tables or ("archive", "events")
        listed = [archive_files(self.files, ledger, table=table) for table in tables]
        return [file.path for part in listed for file in part]

    def kinds(self) -> list[str]:
        """Return the kinds of all archived events."""
        tables = (pq.ParquetFile(self.out / path).read() for path in self.listed("events"))
        return sorted(kind for table in tables for kind in table["kind"].to_pylist())

    def rows(self) -> list[Any]:
        """Return offset, size and whether it is erased, of each archived row."""
        archived = read_archive(self.spark, self.files)
        columns = archived.selectExpr("offset", "size", "erased_at IS NOT NULL", "body IS NULL")
        return sorted(tuple(row) for row in columns.collect())


def body(number: int, trace: str, urn: str = "u") -> bytes:
    meta = {"id": f"{trace}-{number}", "schema_version": 1}
    data = {"email": f"{trace}@example.org"}
    return json.dumps(
        {"job": urn, "trace_id": trace, "data": data, "meta": meta, "attempts": 0}
    ).encode()


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path) -> Iterator[Site]:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        yield Site(spark, broker, tmp_path / "out")


def fill(site: Site) -> None:
    """Archive settled messages, consume others, and write tables, one with a name to be quoted."""
    site.settle("orders", ROWS)
    with connect_blocking(site.broker.phpmq[0]) as client:
        client.publish_many("mail", [body(1, TRACE), body(2, "other")])
    options = ConsumeOptions(
        connection=site.connection, out=str(site.out), queue="mail", subscription="s"
    )
    assert consume.run(site.spark, options).rows == 2
    assert site.archive().rows == ROWS + 2
    rows = read_archive(site.spark, site.files).select("offset", "message_id", "trace_id").toArrow()
    table = rows.rename_columns(["history_offset", "message_id", "a.b"])
    (site.out / "rejects/u").mkdir(parents=True)
    pq.write_table(table.slice(0, 30), site.out / "rejects/u/0.parquet")
    pq.write_table(table.slice(30), site.out / "rejects/u/1.parquet")
    assert site.tables().rows == ROWS + 2


def check_tables(site: Site) -> None:
    """Run the tables job again: it has each row once, without what was erased."""
    again = site.tables()
    assert (again.rows, again.details["erased"]) == (0, 1)
    rows = pq.read_table(site.out / "tables/u").to_pylist()
    assert sorted(row["history_offset"] for row in rows) == [*range(1, ROWS + 3)]
    assert sum(row["email"] is None for row in rows) == 7


@pytest.mark.slow
def test_erased_trace_is_in_no_file_of_the_list_and_not_in_the_broker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(site)
    before, kinds = site.rows(), site.kinds()
    assert site.with_secret(site.listed("events"))
    with connect_blocking(site.broker.phpmq[0]) as client:
        client.publish_many("orders", [body(99, TRACE)])
    files = site.files.data_files("")
    with pytest.raises(RefusedError, match="1 selected messages are live"):
        site.erase(traces=(TRACE,))
    counted = site.erase(traces=(TRACE,), dry_run=True)
    assert counted.details == {"archived": 7, "tables": 15, "live": 1, "broker": 7}
    assert {path: files[path] for path in files if "parquet" in path} == {
        path: size for path, size in site.files.data_files("").items() if "parquet" in path
    }

    run = erase._EraseRun
    for owner, step in ((erase, "rewrite_files"), (run, "_rewrite_archive"), (run, "_erase")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, _fail)
            with pytest.raises(InterruptedError):
                site.erase(traces=(TRACE,), live=True)
        assert PipelineClient(site.connection).erase({"trace_ids": [TRACE], "dry_run": True})[
            "erased"
        ]
    done = site.erase(traces=(TRACE,), live=True)
    assert done.details["broker"] == 8
    assert any("replaced files until 20" in note for note in done.notes)
    assert (site.with_secret(site.listed()), site.kinds()) == ([], kinds)
    assert {path.split("/")[0] for path in site.with_secret()} == {"archive", "events"}  # replaced
    after = site.rows()
    assert [row[:2] for row in after] == [row[:2] for row in before]
    assert sum(row[2] for row in after) == sum(row[3] for row in after) == 7
    answer = PipelineClient(site.connection).erase({"trace_ids": [TRACE], "dry_run": True})
    assert (answer["erased"], answer["already"]) == (0, 0)

    table = pa.concat_tables(pq.read_table(site.out / f"rejects/u/{n}.parquet") for n in (0, 1))
    assert table.num_rows == ROWS + 2
    assert table.column("a.b").null_count == 7
    consumed = pq.read_table(site.out / "consumed/mail").to_pylist()
    assert sorted(row["body"] is None for row in consumed) == [False, True]

    assert site.erase(traces=(TRACE,), now=True).details["archived"] == 0
    assert site.with_secret() == []
    assert [bool(run["finished_at"]) for run in runs_with(site.files, TRACE)][-2:] == [True, True]
    assert runs_with(site.files, "t1") == []
    assert TRACE not in "".join(path.read_text() for path in (site.out / "erased").iterdir())

    assert site.archive().rows == 1  # the live message, which was deleted and erased
    check_tables(site)
    assert site.with_secret() == []
    report = verify.run(site.spark, JobOptions(connection=site.connection, out=str(site.out)))
    assert (report.is_equal, sum(row.archived for row in report.rows)) == (True, ROWS + 3)
    options = ReplayOptions(
        connection=site.connection, out=str(site.out), queues=("orders",), to_queue="again"
    )
    sent = replay.run(site.spark, options)
    assert sent.rows == ROWS - 6
    assert "7 of 61 messages are skipped" in sent.notes[0]


@pytest.mark.slow
def test_condition_selects_settled_messages_in_both_places(site: Site) -> None:
    site.settle("orders", 20)
    site.archive()
    site.settle("orders", 20)
    done = site.erase(where="offset BETWEEN 11 AND 30")
    assert done.details == {"archived": 10, "tables": 0, "live": 0, "broker": 20}
    assert [row[0] for row in site.rows() if row[2]] == list(range(11, 21))
    site.archive()
    assert [row[0] for row in site.rows() if row[2]] == list(range(11, 31))
    assert site.erase(where="offset BETWEEN 11 AND 30").rows == 0
    with pytest.raises(RefusedError, match="nothing"):
        site.erase(where="nothing = 1")


def _fail(*_arguments: Any) -> None:
    raise InterruptedError


def test_mask_keeps_members_out_of_the_archive(site: Site) -> None:
    site.settle("orders", 20)
    with connect_blocking(site.broker.phpmq[0]) as client:
        client.publish_many("mail", [b"email=a@example.org", b'{"data":{}}'])
        with client.consume("mail", 10, 30) as deliveries:
            for _ in range(2):
                next(deliveries).ack()
    while PipelineClient(site.connection).bounds().hi < 22:  # the last one is being committed
        time.sleep(0.01)
    masks = ("/data/email",)
    options: dict[str, Any] = {"connection": site.connection, "out": str(site.out), "bodies": True}
    assert archive.run(site.spark, ArchiveOptions(masks=masks, **options)).rows == 22
    rows = read_archive(site.spark, site.files).orderBy("offset").collect()
    assert [row["masked"] for row in rows] == [1] * 20 + [0, None]
    assert [row["body"] for row in rows[20:]] == [None, bytearray(b'{"data":{}}')]
    for row in rows[:20]:
        number = int(row["meta_id"].rpartition("-")[2])
        expected = json.loads(body(number, row["trace_id"]))
        expected["data"]["email"] = None
        expected["attempts"] = row["attempts"]  # of which the one that failed has one
        assert json.loads(row["body"]) == expected
    assert "retry" in site.kinds()
    assert site.with_secret(site.listed("events")) == []
    compact.run(site.spark, CompactOptions(connection=None, out=str(site.out), target_bytes=1))
    with pytest.raises(RefusedError, match="was created with the selection"):
        archive.run(site.spark, ArchiveOptions(**options))
    again = ReplayOptions(connection=site.connection, out=str(site.out), to_queue="again")
    sent = replay.run(site.spark, again)
    assert (sent.rows, sent.notes[0][:29]) == (1, "21 of 22 messages are skipped")
