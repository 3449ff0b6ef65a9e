"""The short forms of ``tests.soak``: counts during changes, and a kill."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.soak.archive_readers import read_during_changes
from tests.soak.archive_site import JOBS, ChangedArchive, SettlingBroker
from tests.soak.killed_jobs import Run, Site
from tests.soak.shifted_broker import shifted_broker

pytestmark = pytest.mark.slow


@pytest.fixture
def settling(tmp_path: Path) -> Iterator[SettlingBroker]:
    with shifted_broker(tmp_path / "broker") as process:
        yield SettlingBroker(process)


def test_duckdb_counts_exactly_while_jobs_change_the_archive(
    spark: SparkSession, settling: SettlingBroker, tmp_path: Path
) -> None:
    archive = ChangedArchive(settling.url, tmp_path / "out", "delta", keep_ms=5_000)
    counting = read_during_changes(spark, settling, [archive], 100, 2)
    assert counting.counts >= 100
    assert len(counting.versions) > 2


def test_jobs_repair_what_a_kill_left(
    spark: SparkSession, settling: SettlingBroker, tmp_path: Path
) -> None:
    archive = ChangedArchive(settling.url, tmp_path / "out")
    for _ in range(3):
        settling.settle()
    trace = settling.trace(0)
    site = Site(archive, "local[2]", {}, tmp_path, erasing=trace)
    dice = random.Random(4)
    run = Run(settling, [site], dice)
    worker = site.start()
    try:
        run.await_job(worker, "metrics")  # it has archived
        run.sleep(worker, dice.uniform(0, 8))
    finally:
        worker.kill("all")
    for job in JOBS:
        archive.run(spark, job, trace)
    archive.erased.add(trace)
    assert archive.verify(spark) == ""
    history = settling.history()
    archive.check_archive(history)
    archive.check_results(history)
    archive.check_folders()
