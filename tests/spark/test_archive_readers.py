"""The short form of ``tests.soak.archive_readers``: counts during changes, and a kill."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.soak.archive_readers import ChangedArchive, kill_once, read_during_changes

pytestmark = pytest.mark.slow


def test_duckdb_counts_exactly_while_jobs_change_the_archive(
    spark: SparkSession, tmp_path: Path
) -> None:
    counting = read_during_changes(ChangedArchive(spark, tmp_path), 100, 2)
    assert counting.counts >= 100
    assert len(counting.versions) > 2


def test_archive_has_each_row_once_after_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    killed = ChangedArchive(spark, tmp_path, keep_ms=0)
    for _ in range(3):
        killed.settle()
    kill_once(tmp_path, random.Random(3))
    killed.archive()
    killed.compact()
    killed.check()
