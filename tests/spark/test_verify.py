"""``pipeline verify`` beside DuckDB, over changes of the broker and of the archive."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet
from pyspark.sql import SparkSession

from phpmq_lite.cli.main import root_command
from phpmq_lite.spark.jobs import archive, compact, prune, verify
from phpmq_lite.spark.jobs.options import ArchiveOptions, CompactOptions, JobOptions, PruneOptions
from phpmq_lite.spark.jobs.verify import VerifyReport
from phpmq_lite.spark.ledger import archive_files, read_ledger
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection
from tests.spark.fake_broker import START_MS, FakeBroker
from tests.spark.queries import forget_commit

QUEUES = ("orders", "mails", "stock")
OUTCOMES = ("acked", "acked", "expired", "dead", "deleted")

# Rows of both sides in the range that both have, by the rules of retention, and the differences.
JUDGE = """
WITH both_have AS (
    SELECT "offset" AS n, strftime(settled_at AT TIME ZONE 'UTC', '%Y-%m-%d') AS day,
           queue, outcome, side
    FROM (SELECT *, 'broker' AS side FROM broker
          UNION ALL BY NAME SELECT *, 'archive' AS side FROM archived)
    WHERE "offset" > $lo AND "offset" <= $hi AND (outcome <> 'deleted' OR "offset" > $lo_deleted)
      AND list_contains($queues, queue)
), numbers AS (
    SELECT day, queue, outcome, n, count(*) FILTER (side = 'broker') AS b,
           count(*) FILTER (side = 'archive') AS a
    FROM both_have GROUP BY ALL
)
SELECT day, queue, outcome, sum(b)::INT, sum(a)::INT, sum(greatest(b - a, 0))::INT,
       sum(greatest(a - b, 0))::INT
FROM numbers GROUP BY ALL ORDER BY ALL
"""


class Site:
    """A fake broker, an archive of it, and a judge."""

    def __init__(self, spark: SparkSession, broker: FakeBroker, out: Path) -> None:
        self.spark, self.broker, self.out = spark, broker, out
        self.files = LocalResultsFolder(out)
        self.dice = random.Random(7)
        self.clock = timedelta()
        self.options = ArchiveOptions(connection=SourceConnection(broker.url), out=str(out))

    def settle(self) -> None:
        """Settle messages of several queues; the clock may have been set, by up to two days."""
        for _ in range(self.dice.randint(1, 4)):
            first = len(self.broker.rows)
            outcome = self.dice.choice(OUTCOMES)
            self.broker.settle(self.dice.randint(1, 9), self.dice.choice(QUEUES), outcome=outcome)
            for row in self.broker.rows[first:]:
                row["settled_at"] += self.clock

    def archive(self, **given: Any) -> None:
        archive.run(self.spark, replace(self.options, **given))

    def paths(self) -> list[str]:
        ledger = read_ledger(self.files)
        assert ledger is not None
        return [str(self.out / file.path) for file in archive_files(self.files, ledger)]

    def verify(self) -> VerifyReport:
        """Return the report, after comparing it with DuckDB's figures."""
        report = verify.run(
            self.spark, JobOptions(connection=self.options.connection, out=str(self.out))
        )
        rows = [
            {name: row[name] for name in ("offset", "settled_at", "queue", "outcome")}
            for row in self.broker.rows
            if row["offset"] > self.broker.lo
            and (row["outcome"] != "deleted" or row["offset"] > self.broker.lo_deleted)
        ]
        broker = pa.Table.from_pylist(
            rows,
            pa.schema([("offset", pa.int64()), ("settled_at", pa.timestamp("us", "UTC")),
                       ("queue", pa.string()), ("outcome", pa.string())]),
        )  # fmt: skip
        with duckdb.connect() as judge:
            judge.execute("SET TimeZone = 'UTC'")
            judge.register("broker", broker)
            judge.register("archived", self._archived())
            expected = judge.execute(
                JUDGE,
                {"lo": self.broker.lo, "hi": report.offset, "lo_deleted": self.broker.lo_deleted,
                 "queues": self.broker.allowed or list(QUEUES)},
            ).fetchall()  # fmt: skip
        told = [
            (row.date, row.queue, row.outcome, row.broker, row.compared, row.missing, row.doubled)
            for row in report.rows
            if row.broker or row.compared
        ]
        assert told == expected
        return report

    def _archived(self) -> pa.Table:
        names = ["offset", "settled_at", "queue", "outcome"]
        tables = [parquet.ParquetFile(path).read(names) for path in self.paths()]
        return pa.concat_tables(tables)


@pytest.fixture
def site(spark: SparkSession, broker: FakeBroker, tmp_path: Path) -> Site:
    return Site(spark, broker, tmp_path / "out")


@pytest.mark.slow
def test_verify_says_what_sql_says_after_every_change(site: Site) -> None:
    """Tokens, purges, retention, restarts, lost checkpoints, clocks, compaction."""
    broker = site.broker
    broker.allowed = ["orders"]
    broker.settle(3)
    for step in range(14):
        site.settle()
        if step in (3, 9):
            site.clock += timedelta(days=2 if step == 3 else -1)
        if step == 4:
            broker.allowed = ["orders", "mails"]
        if step == 7:
            broker.allowed = []
        if step == 6:  # retention reaches rows that were archived
            broker.lo = len(broker.rows) // 3
        if step in (8, 11):  # a purge, whose rows leave first
            broker.settle(20, "mails", outcome="deleted")
            broker.lo_deleted = len(broker.rows) - 5
        if step == 10:
            forget_commit(site.out / "checkpoints/archive")
        if step == 12:
            site.files.remove("checkpoints/archive")
        site.archive(backfill=True, fail_on_data_loss=step < 6)
        if step % 5 == 2:
            compact.run(
                site.spark,
                CompactOptions(connection=None, out=str(site.out), keep_replaced_ms=0),
            )
        report = site.verify()
        assert report.is_equal, report.differences
        assert report.lo == broker.lo
        assert report.behind == 0
    assert report.gaps > 0
    assert len(report.rows) > 10


def test_verify_finds_missing_and_doubled_rows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = site.broker
    for queue in QUEUES:
        broker.settle(20, queue)
    site.archive()
    assert site.verify().is_equal
    [path] = site.paths()
    table = parquet.ParquetFile(path).read()
    keep = [n for n in range(60) if n not in (3, 45)]
    parquet.write_table(pa.concat_tables([table.take(keep), table.slice(30, 1)]), path)
    report = site.verify()
    found = [(row.queue, row.missing, row.doubled) for row in report.rows]
    assert found == [("mails", 0, 1), ("orders", 1, 0), ("stock", 1, 0)]
    assert not report.is_equal
    document = json.loads(json.dumps(report.document()))
    assert (document["missing_rows"], document["doubled_rows"]) == (2, 1)
    broker.lo = 30  # what the broker lacks is compared with the counts of the ledger
    report = site.verify()
    assert (report.lo, report.hi) == (30, 60)
    assert [(row.queue, row.missing, row.doubled) for row in report.rows] == found
    assert [row.compared for row in report.rows] == [11, 0, 19]

    monkeypatch.setattr(site.spark, "stop", lambda: None)
    command = ["pipeline", "verify", "--url", broker.url, "--out", str(site.out), "-o"]
    result = CliRunner().invoke(root_command, [*command, "json"])
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["missing_rows"] == 2
    result = CliRunner().invoke(root_command, [*command, "table"])
    assert result.exit_code == 1
    assert (
        "30 of 59 archived rows were compared with the broker (offsets 31 to 60)" in result.stdout
    )
    assert "the archive differs" in result.stderr


def test_verify_accounts_for_pruned_dates(site: Site) -> None:
    site.broker.settle(20)
    site.clock = timedelta(days=1)
    site.settle()
    site.archive()
    day_after = datetime.fromtimestamp(START_MS / 1_000, UTC).date() + timedelta(days=1)
    now = datetime.now(UTC)
    age_s = (now - datetime.combine(day_after, datetime.min.time(), UTC)).total_seconds()
    options = PruneOptions(connection=None, out=str(site.out), older_than_s=int(age_s))
    assert prune.run(site.spark, options).rows == 20
    common = JobOptions(connection=site.options.connection, out=str(site.out))
    report = verify.run(site.spark, common)
    assert report.is_equal, report.differences
    assert report.removed == 20
    site.broker.history_id = "b" * 32
    report = verify.run(site.spark, common)
    assert report.is_equal
    assert report.lo is None
    assert "compared with the ledger only" in report.notes[0]
