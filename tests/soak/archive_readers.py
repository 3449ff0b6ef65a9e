"""DuckDB counts archives through their list of files while jobs change them.

    python -m tests.soak.archive_readers [--counts 2000] [--rounds 20] [--short]

Rounds of archive, compact, prune and erase run in one Spark session, for an archive with and one
without a Delta log. Each count must be exactly the number of rows of that version, without an
error. After each job, ``archive/**/*.parquet`` has no row twice. ``tests.soak.killed_jobs`` kills
the same jobs.
"""

import argparse
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from phpmq_lite.spark.ledger import archive_files, read_ledger
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.session import session
from tests.soak.archive_site import ChangedArchive, SettlingBroker
from tests.soak.shifted_broker import shifted_broker

CHANGES = ("archive", "compact", "prune", "erase")


@dataclass
class Counting:
    """Counts the files of the lists with DuckDB until it is stopped."""

    archives: Sequence[ChangedArchive]
    counts: int = 0
    versions: Counter[tuple[Path, int]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with duckdb.connect() as database:
            while not self.stop.is_set():
                for archive in self.archives:
                    self._count(database, archive.out)

    def _count(self, database: duckdb.DuckDBPyConnection, out: Path) -> None:
        files = LocalResultsFolder(out)
        ledger = read_ledger(files)
        if ledger is None or not ledger.rows:
            return
        try:
            paths = [str(out / f.path) for f in archive_files(files, ledger)]
            query = "SELECT count(*) FROM read_parquet($paths)"
            [[rows]] = database.execute(query, {"paths": paths}).fetchall()
        except (OSError, ValueError, duckdb.Error) as error:
            self.errors.append(f"version {ledger.number}: {error!r}")
            return
        if rows != ledger.rows:
            self.errors.append(f"version {ledger.number}: {rows}, not {ledger.rows} rows")
        self.counts += 1
        self.versions[out, ledger.number] += 1


def read_during_changes(
    spark: SparkSession,
    broker: SettlingBroker,
    archives: Sequence[ChangedArchive],
    counts: int,
    rounds: int,
) -> Counting:
    """Change the archives at least ``rounds`` times, and until there are enough counts."""
    counting = Counting(archives)
    reader = threading.Thread(target=counting.run)
    reader.start()
    try:
        done = 0
        while (done < rounds or counting.counts < counts) and not counting.errors:
            for _ in range(3):  # a day
                broker.settle()
            for archive in archives:
                trace = broker.trace(done % 3)
                for job in CHANGES:
                    archive.run(spark, job, trace)
                archive.erased.add(trace)
                archive.check_archive(broker.history())
                archive.check_folders()
            done += 1
    finally:
        counting.stop.set()
        reader.join()
    assert counting.errors == []
    assert [archive.verify(spark) for archive in archives] == [""] * len(archives)
    return counting


def main(counts: int, rounds: int, folder: Path) -> None:
    """Run all rounds, and print the number of counts."""
    spark = session("readers", master="local[2]", log=folder / "spark.log")
    with shifted_broker(folder / "data") as process:
        archives = [
            ChangedArchive(process.admin[0], folder / name, name, keep_ms=5_000)
            for name in ("parquet", "delta")
        ]
        counting = read_during_changes(spark, SettlingBroker(process), archives, counts, rounds)
    print(f"{counting.counts} exact counts of {len(counting.versions)} versions", flush=True)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--short", action="store_true", help="100 counts in one round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phpmq-readers-") as place:
        if options.short:
            main(100, 1, Path(place))
        else:
            main(options.counts, options.rounds, Path(place))
