"""Compare the archive job with Spark's own copy from Parquet to Parquet.

    python benchmarks/archive_speed.py [--rows 670000] [--rounds 5] [--short] [--bodies]

One broker, one session (``local[2]``).  The history has 10 queues, 6 dates, and envelopes in half
of its rows.  After a warm-up, each round archives it over HTTP into a new folder, and lets Spark
copy files that Spark wrote with the same codec, columns and partitions, in alternating order.  (It
reads the archive's own files more slowly, because they are shorter.)  Wall time and the processor
time of JVM and driver are printed, and the median of native / archive.  Each pass is counted.
"""

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from admin_database import make
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from phpmq_lite.broker_process import broker_process
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs import archive
from phpmq_lite.spark.jobs.options import ArchiveOptions
from phpmq_lite.spark.ledger import archive_files, read_ledger
from phpmq_lite.spark.results_folder import open_results
from phpmq_lite.spark.session import session
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.storage.data_folder import DATABASE

QUEUES: Final = 10
DATES: Final = 6
DAY_MS: Final = 86_400_000
SHAPE: Final = """
UPDATE history SET
  queue_id = 1 + "offset" % {queues},
  published_at = {begin} + "offset" * {span} / {rows},
  first_dispatched_at = {begin} + "offset" * {span} / {rows} + 5,
  last_dispatched_at = {begin} + "offset" * {span} / {rows} + 5,
  settled_at = {begin} + "offset" * {span} / {rows} + 30,
  urn = iif("offset" % 2, urn, NULL), trace_id = iif("offset" % 2, trace_id, NULL),
  meta_id = iif("offset" % 2, meta_id, NULL), attempts = iif("offset" % 2, attempts, NULL)
"""


def shape(database: Path, rows: int) -> None:
    """Spread the rows over queues and dates."""
    begin = (time.time_ns() // 1_000_000 // DAY_MS - DATES) * DAY_MS
    values = {"queues": QUEUES, "begin": begin, "span": DATES * DAY_MS - 1_000, "rows": rows}
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(SHAPE.format_map(values))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def cpu_s(spark: SparkSession) -> float:
    """Return the processor time of the JVM and of this process, in seconds."""
    java = spark.sparkContext._jvm.ProcessHandle.current().pid()  # type: ignore[union-attr]
    used = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK") + time.process_time()


class Copies:
    """One way of each; both return rows and are timed by ``timed``."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, *, bodies: bool) -> None:
        self.spark, self.folder = spark, folder
        self.connection = SourceConnection(url)
        self.bodies = bodies
        self.number = 0
        self.first, self.copy = str(folder / "first"), str(folder / "copy")

    def archive(self, out: str = "") -> int:
        """Archive the history into a new folder."""
        self.number += 1
        out = out or str(self.folder / f"archive-{self.number}")
        options = ArchiveOptions(connection=self.connection, out=out, bodies=self.bodies)
        return archive.run(self.spark, options).rows

    def first_copy(self) -> int:
        """Let Spark write the first archive, which the other copies read."""
        files = open_results(self.spark, self.first)
        ledger = read_ledger(files)
        assert ledger is not None
        rows = read_archive(self.spark, files, archive_files(files, ledger)).drop("batch")
        rows.write.partitionBy("date").parquet(self.copy)
        return ledger.rows

    def native(self) -> int:
        """Copy the first copy with Spark."""
        self.number += 1
        rows = self.spark.read.parquet(self.copy)
        target = self.folder / f"native-{self.number}"
        rows.write.partitionBy("date").parquet(str(target))
        return int(dataset(target).count_rows())

    def timed(self, work: Callable[[], int], rows: int) -> tuple[float, float]:
        """Return wall seconds and processor seconds."""
        began_s, began_cpu_s = time.monotonic(), cpu_s(self.spark)
        assert work() == rows
        return time.monotonic() - began_s, cpu_s(self.spark) - began_cpu_s


def main(rows: int, rounds: int, folder: Path, *, bodies: bool) -> None:
    """Create the history, and compare."""
    make(folder / "data", 0, rows)
    shape(folder / "data" / DATABASE, rows)
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    conf = {"spark.local.dir": str(folder / "local")}
    with broker_process(folder / "data", *flags) as broker:
        spark = session("bench", master="local[2]", conf=conf, log=folder / "spark.log")
        try:
            copies = Copies(spark, broker.admin[0], folder, bodies=bodies)
            assert copies.archive(copies.first) == copies.first_copy() == rows
            for work in (copies.native, copies.archive):
                copies.timed(work, rows)
            ratios = []
            for number in range(rounds):
                ways = [copies.native, copies.archive]
                found = {way.__name__: copies.timed(way, rows) for way in ways[:: (-1) ** number]}
                (native_s, native_cpu_s), (ours_s, ours_cpu_s) = found["native"], found["archive"]
                ratios.append(native_s / ours_s)
                print(
                    f"native {native_s:.2f} s ({native_cpu_s:.2f} s of processor), archive"
                    f" {ours_s:.2f} s ({ours_cpu_s:.2f}): {ratios[-1]:.2f}; load"
                    f" {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            rate = rows / ours_s
            print(f"median {statistics.median(ratios):.2f}; last archive {rate:,.0f} rows/s")
        finally:
            spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=670_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="20,000 rows, one round")
    parser.add_argument("--bodies", action="store_true")
    options = parser.parse_args()
    count, times = (20_000, 1) if options.short else (options.rows, options.rounds)
    with tempfile.TemporaryDirectory(prefix="phpmq-archive-") as place:
        main(count, times, Path(place), bodies=options.bodies)
