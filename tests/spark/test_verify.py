"""``pipeline verify`` beside DuckDB, over changes of the broker and of the archive.

``VERIFY_ROUNDS=20`` repeats the changes of a real broker in other orders, one at a time.
"""

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
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

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.cli.main import root_command
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.errors import BrokerError
from phpmq_lite.spark.jobs import archive, compact, prune, verify
from phpmq_lite.spark.jobs.options import ArchiveOptions, CompactOptions, JobOptions, PruneOptions
from phpmq_lite.spark.jobs.verify import VerifyReport
from phpmq_lite.spark.ledger import archive_files, read_ledger
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection
from tests.soak.archive_site import STATES
from tests.soak.shifted_broker import set_shift, shifted_broker
from tests.spark.fake_broker import START_MS, FakeBroker
from tests.spark.queries import forget_commit
from tests.support.waiting import until

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

    def __init__(self, spark: SparkSession, broker: Any, out: Path) -> None:
        self.spark, self.broker, self.out = spark, broker, out
        self.files = LocalResultsFolder(out)
        self.dice = random.Random(7)
        self.clock = timedelta()

    @property
    def options(self) -> ArchiveOptions:
        connection = SourceConnection(self.broker.url, getattr(self.broker, "token", None))
        return ArchiveOptions(connection=connection, out=str(self.out))

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

    @property
    def begin(self) -> int:
        ledger = read_ledger(self.files)
        return (ledger and ledger.begin) or 0

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
    assert report.lost_events == 0
    [events] = (site.out / "events").glob("**/*.parquet")
    parquet.write_table(parquet.ParquetFile(events).read().slice(2), events)
    assert site.verify().lost_events == 2
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


class StoredBroker:
    """A broker in a process, with what the judge reads from its database."""

    lo: int  # as in the database, below, while retention has nothing to do
    lo_deleted: int

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.token: str | None = None
        self.allowed: list[str] = []
        self.shift_ms = 0

    @property
    def url(self) -> str:
        return self.process.admin[0]

    @property
    def admin(self) -> AdminClient:
        return AdminClient(self.process.data / "control.sock")

    def ask(self, query: str) -> list[Any]:
        path = f"file:{self.process.data / 'phpmq.db'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True)) as database:
            return database.execute(query).fetchall()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows of the history; sets the bounds, which retention may move."""
        counters = dict(self.ask("SELECT name, value FROM counter"))
        self.lo, self.lo_deleted = (
            max(counters.get(name, 0) - 1, 0) for name in ("history_lo", "deleted_lo")
        )
        found = self.ask(
            'SELECT "offset", settled_at, name, outcome FROM history JOIN queue USING (queue_id)'
            " ORDER BY 1"
        )
        return [
            {"offset": n, "settled_at": datetime.fromtimestamp(at / 1_000, UTC), "queue": queue,
             "outcome": STATES[outcome]}
            for n, at, queue, outcome in found
        ]  # fmt: skip

    def settle(self, count: int, queue: str = "orders", *, outcome: str = "acked") -> None:
        """Publish and settle messages; those that are deleted are purged."""
        with connect_blocking(self.process.phpmq[0]) as client:
            client.publish_many(queue, [b"%d" % n for n in range(count)])
            if outcome == "deleted":
                self.admin.post(f"/queues/{queue}/purge", {})
                return
            with client.consume(queue, count, 30) as deliveries:
                for _ in range(count):
                    delivery = next(deliveries)
                    settle = delivery.dead_letter if outcome == "dead" else delivery.ack
                    settle()

    def allow(self, *queues: str, takes_reader: bool = True) -> None:
        """Use a new token; without queues, one for all. An admin gives it the archive's reader."""
        name = f"t{len(list(self.admin.list('/tokens')))}"
        token = {"name": name, "role": "viewer", "queues": list(queues)}
        self.token, self.allowed = self.admin.post("/tokens", token)["token"], list(queues)
        for reader in self.admin.list("/pipeline/history/readers") if takes_reader else ():
            self.admin.post("/pipeline/history/readers/remove", {"reader": reader["reader"]})

    def set_clock(self, by: timedelta) -> None:
        self.shift_ms += by // timedelta(milliseconds=1)
        set_shift(self.process.data, self.shift_ms)

    def restart(self, *flags: str, is_killed: bool = False) -> None:
        """Start again with these flags, and wait until retention has nothing to do."""
        if is_killed:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.flags[2:] = flags
        self.process.start()

    def retain(self, rows: int, deleted_share: float) -> None:
        """Keep only the newest rows."""
        self.restart("--set", f"history.rows={rows}", "--set",
                     f"history.deleted_share={deleted_share}")  # fmt: skip
        deleted_rows = round(rows * deleted_share)

        def is_done() -> bool:
            [(deleted, others)] = self.ask(
                "SELECT count(*) FILTER (WHERE outcome = 5), count(*) FILTER (WHERE outcome <> 5)"
                " FROM history"
            )
            return bool(deleted <= deleted_rows + 1 and others <= rows - deleted_rows + 1)

        until(is_done, 60)


class RestartedSite(Site):
    """A real broker and an archive of it, and what may happen to them."""

    broker: StoredBroker

    def settle(self) -> None:
        for queue in QUEUES:
            for outcome in self.dice.sample(("acked", "acked", "dead", "deleted"), 2):
                self.broker.settle(self.dice.randint(1, 9), queue, outcome=outcome)

    def widen_token(self) -> None:
        wider = {"orders": ("orders", "mails"), "orders mails": ()}
        self.broker.allow(*wider.get(" ".join(self.broker.allowed), ()))

    def purge(self) -> None:
        for queue in QUEUES:
            self.broker.settle(20, queue, outcome="deleted")

    def shrink_history(self) -> None:
        count = len(self.broker.rows)
        self.broker.retain(count // 2, self.dice.choice((0.1, 0.5, 0.9)))
        self.broker.restart("--set", "history.rows=100000")

    def stop(self) -> None:
        self.broker.restart()

    def kill(self) -> None:
        self.broker.restart(is_killed=True)

    def set_clock_forward(self) -> None:
        self.broker.set_clock(timedelta(days=2, hours=3))

    def set_clock_back_while_stopped(self) -> None:
        self.broker.process.terminate()
        self.broker.set_clock(timedelta(days=-1))
        self.broker.process.start()

    def compact(self) -> None:
        options = CompactOptions(connection=None, out=str(self.out), keep_replaced_ms=0)
        compact.run(self.spark, options)

    def forget_commit(self) -> None:
        commits = self.out / "checkpoints/archive/commits"
        if any(file.name.isdigit() for file in commits.glob("*")):
            forget_commit(commits.parent)

    def lose_checkpoint(self) -> None:
        self.files.remove("checkpoints/archive")


CHANGES = (
    "widen_token", "purge", "shrink_history", "kill", "set_clock_forward", "compact",
    "set_clock_back_while_stopped", "widen_token", "forget_commit", "shrink_history", "stop",
    "lose_checkpoint",
)  # fmt: skip


@pytest.fixture
def restarted(spark: SparkSession, tmp_path: Path) -> Iterator[RestartedSite]:
    with shifted_broker(tmp_path / "data") as process:
        yield RestartedSite(spark, StoredBroker(process), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_verify_says_what_sql_says_of_a_real_broker(restarted: RestartedSite) -> None:
    """Tokens, purges, retention, stops, kills, clocks, compaction, lost checkpoints."""
    site, report = restarted, None
    site.broker.allow("orders")
    rounds = int(os.environ.get("VERIFY_ROUNDS", "1"))
    changes = list(CHANGES)
    for _ in range(rounds):
        for first in range(0, len(changes), at_once := 2 if rounds == 1 else 1):
            now = changes[first : first + at_once]
            site.settle()
            if site.dice.random() < 0.3:
                site.archive(backfill=True, fail_on_data_loss=False)
            for change in now:
                getattr(site, change)()
            site.archive(backfill=True, fail_on_data_loss=False)
            report = site.verify()
            assert report.is_equal, (now, report)
            assert (report.lo, report.behind) == (max(site.broker.lo, site.begin), 0), now
        site.dice.shuffle(changes)
    assert report is not None
    assert report.gaps > 0
    assert len(report.rows) > 10


@pytest.mark.slow
def test_backfill_is_refused_before_it_writes_if_another_user_has_the_reader(
    restarted: RestartedSite,
) -> None:
    site = restarted
    site.broker.allow("orders")
    site.settle()
    site.archive()
    before = read_ledger(site.files)
    assert before is not None
    site.broker.allow(takes_reader=False)
    with pytest.raises(BrokerError, match="belongs to another user"):
        site.archive(backfill=True)
    after = read_ledger(site.files)
    assert after is not None
    assert (after.number, after.rows) == (before.number, before.rows)
