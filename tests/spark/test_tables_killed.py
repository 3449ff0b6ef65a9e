"""Runs of typed tables that are killed with their JVM, and what the last one leaves."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import duckdb
import pytest
from pyspark.sql import SparkSession

from phpmq_lite.spark import SourceConnection
from phpmq_lite.spark.jobs import tables
from phpmq_lite.spark.jobs.options import TablesOptions
from tests.spark.archived_rows import archive_rows, envelope_row
from tests.spark.fake_broker import FakeBroker
from tests.support.waiting import until

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = 120
KILLS: Final = 2
DRIVER: Final = """
import sys
from pathlib import Path
from phpmq_lite.spark import SourceConnection
from phpmq_lite.spark.jobs import tables
from phpmq_lite.spark.jobs.options import TablesOptions
from phpmq_lite.spark.session import session

url, out = sys.argv[1:]
tables.SLICE_OFFSETS = 4
tables.SMALL_FILES = 3
spark = session("killed", master="local[2]", log=Path(out) / "spark.log")
tables.run(spark, TablesOptions(connection=SourceConnection(url), out=out))
"""


def names_below(folder: Path) -> set[str]:
    return {f"{parent}/{name}" for parent, _, names in os.walk(folder) for name in names}


def kill_after(url: str, out: Path, changes: int) -> None:
    """Run the job until the names of its files have changed so often, then kill all processes."""
    before = names_below(out / "tables")
    count = 0

    def is_reached() -> bool:
        nonlocal before, count
        names = names_below(out / "tables")
        count += len(names ^ before)
        before = names
        return count >= changes or driver.poll() is not None

    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, url, str(out)], cwd=ROOT, start_new_session=True
    ) as driver:
        try:
            until(is_reached, 240)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL, "it has finished before"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_row_is_missing_or_doubled_after_kills(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.schemas["urn:0"] = {"properties": {"n": {"type": "integer", "minimum": 3}}}
    rows = [
        envelope_row(
            n, f"urn:{n % 3}", {"n": n if n < ROWS / 2 else n + 0.0 if n % 3 == 0 else n + 0.5}
        )
        for n in range(1, ROWS + 1)
    ]  # the column of two URNs becomes a double in the middle, so their files are rewritten
    archive_rows(tmp_path, rows)
    dice = random.Random(9)
    for _ in range(KILLS):
        kill_after(broker.url, tmp_path, dice.randint(30, 400))
    options = TablesOptions(connection=SourceConnection(broker.url), out=str(tmp_path))
    assert 0 < tables.run(spark, options).rows < ROWS
    for number in range(3):
        found = duckdb.execute(
            f"SELECT history_offset, n FROM '{tmp_path}/tables/urn%3A{number}/*.parquet' ORDER BY 1"
        ).fetchall()
        ours = [n for n in range(1, ROWS + 1) if n % 3 == number]
        shift = 0.0 if number == 0 else 0.5
        assert found == [(n, n if n < ROWS / 2 else n + shift) for n in ours]
    assert [path.name for path in (tmp_path / "tables").glob("_*/*")] == ["urn.json"]
