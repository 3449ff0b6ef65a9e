"""DuckDB counts an archive through its list while jobs change it, and jobs are killed.

    python -m tests.soak.archive_readers [--counts 2000] [--rounds 20] [--kills 40] [--seed 1]

Reading: rounds of archive, compact and prune run in one Spark session, while DuckDB counts the
files of the list. Each count must be exactly the number of rows of that version, without an error.
After each job, ``archive/**/*.parquet`` has no row twice.

Killing: a process that runs the same jobs is killed with SIGKILL at a random moment. The next one
must find all rows once, ``verify`` must find no difference, and nothing may be left behind.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb
from pyspark.sql import SparkSession

from phpmq_lite.spark.jobs import archive, compact, prune, verify
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    JobOptions,
    PruneOptions,
)
from phpmq_lite.spark.ledger import GENERATIONS, STAGED, archive_files, read_ledger
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.session import session
from tests.spark.history_rows import DAY_MS, START_MS, history_row, stream, to_parquet

ROOT: Final = Path(__file__).parents[2]
BATCH_ROWS: Final = 50
RUNNING: Final = "running"
KEPT_MS: Final = 5_000  # shorter than a round, longer than a count


@dataclass
class ChangedArchive:
    """An archive of settled messages, a few for each day; pruned from its beginning."""

    spark: SparkSession
    folder: Path
    keep_ms: int = KEPT_MS
    pruned_days: int = 0

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def files(self) -> LocalResultsFolder:
        return LocalResultsFolder(self.out)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def settle(self) -> None:
        """Add two batches of the history; each day has three."""
        for _ in range(2):
            number = len(list(self.source.iterdir())) if self.source.is_dir() else 0
            offsets = range(number * BATCH_ROWS + 1, (number + 1) * BATCH_ROWS + 1)
            at_ms = START_MS + number // 3 * DAY_MS
            rows = [history_row(n, published_at=at_ms + n) for n in offsets]
            file = self.source / f"{number:05}.parquet"
            unfinished = self.folder / file.name
            to_parquet(rows, unfinished)
            at_s = 1_700_000_000 + number  # a stream follows files by their time
            os.utime(unfinished, (at_s, at_s))
            self.source.mkdir(exist_ok=True)
            unfinished.replace(file)

    def archive(self) -> None:
        options = ArchiveOptions(connection=None, out=str(self.out), keep_replaced_ms=self.keep_ms)
        archive.archive_stream(self.spark, stream(self.spark, self.source), options)

    def compact(self) -> None:
        options = CompactOptions(connection=None, out=str(self.out), keep_replaced_ms=self.keep_ms)
        compact.run(self.spark, options)

    def prune(self) -> None:
        """Remove the oldest day that is in the list, unless it is the newest."""
        ledger = read_ledger(self.files)
        if ledger is None or len(ledger.dates) < 3:
            return
        self.pruned_days = len(ledger.pruned) + 1
        until_s = (START_MS + self.pruned_days * DAY_MS) // 1_000
        options = PruneOptions(
            connection=None,
            out=str(self.out),
            keep_replaced_ms=self.keep_ms,
            older_than_s=int(time.time()) - until_s,
        )
        prune.run(self.spark, options)

    def change(self) -> None:
        """Run each job once."""
        self.settle()
        self.archive()
        self.compact()
        self.prune()

    def check(self) -> None:
        """Compare the list, the glob and the folders with what they should contain."""
        report = verify.run(self.spark, JobOptions(connection=None, out=str(self.out)))
        assert report.is_equal, report
        ledger = read_ledger(self.files)
        assert ledger is not None
        batches = len(list(self.source.iterdir()))
        pruned = len(ledger.pruned) * 3 * BATCH_ROWS
        expected = list(range(pruned + 1, batches * BATCH_ROWS + 1))
        listed = [str(self.out / file.path) for file in archive_files(self.files, ledger)]
        assert offsets_in(listed) == expected
        visible = offsets_in([str(self.out / "archive/**/*.parquet")])
        assert len(visible) == len(set(visible)), "the glob has rows twice"
        assert set(visible) >= set(expected)
        assert not self.files.exists(STAGED)
        assert not self.files.exists("ledger/prepared.json")


def offsets_in(paths: list[str]) -> list[int]:
    """Return all offsets in the files, sorted."""
    query = 'SELECT "offset" FROM read_parquet($paths) ORDER BY 1'
    return [row[0] for row in duckdb.execute(query, {"paths": paths}).fetchall()]


@dataclass
class Counting:
    """Counts the files of the list with DuckDB until it is stopped."""

    out: Path
    counts: int = 0
    versions: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        files = LocalResultsFolder(self.out)
        with duckdb.connect() as database:
            while not self.stop.is_set():
                ledger = read_ledger(files)
                if ledger is None or not ledger.rows:
                    continue
                try:
                    paths = [str(self.out / f.path) for f in archive_files(files, ledger)]
                    query = "SELECT count(*) FROM read_parquet($paths)"
                    [[rows]] = database.execute(query, {"paths": paths}).fetchall()
                except (OSError, ValueError, duckdb.Error) as error:
                    self.errors.append(f"version {ledger.number}: {error!r}")
                    continue
                if rows != ledger.rows:
                    self.errors.append(f"version {ledger.number}: {rows}, not {ledger.rows} rows")
                self.counts += 1
                self.versions[ledger.number] += 1


def read_during_changes(changed: ChangedArchive, counts: int, rounds: int) -> Counting:
    """Change the archive at least ``rounds`` times, and until there are enough counts."""
    counting = Counting(changed.out)
    reader = threading.Thread(target=counting.run)
    reader.start()
    try:
        done = 0
        while (done < rounds or counting.counts < counts) and not counting.errors:
            changed.change()
            changed.check()
            done += 1
    finally:
        counting.stop.set()
        reader.join()
    assert counting.errors == []
    return counting


def kill_once(folder: Path, dice: random.Random) -> None:
    """Start the jobs in a process of their own, and kill it and its JVM after a while."""
    command = [sys.executable, "-m", "tests.soak.archive_readers", "--worker", str(folder)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline().strip() == RUNNING
            time.sleep(dice.uniform(0, 12))
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def work(folder: Path) -> None:
    """Run the jobs until killed."""
    spark = session("worker", master="local[2]", log=folder / "worker.log")
    changed = ChangedArchive(spark, folder, keep_ms=1_000)
    changed.archive()
    print(RUNNING, flush=True)
    while True:
        changed.archive()
        changed.compact()
        changed.prune()
        changed.settle()


def main(counts: int, rounds: int, kills: int, seed: int, folder: Path) -> None:
    """Run both parts."""
    spark = session("readers", master="local[2]", log=folder / "spark.log")
    if rounds:
        (folder / "reading").mkdir()
        counting = read_during_changes(ChangedArchive(spark, folder / "reading"), counts, rounds)
        print(f"{counting.counts} exact counts of {len(counting.versions)} versions", flush=True)
    killed = ChangedArchive(spark, folder / "killed", keep_ms=1_000)
    killed.folder.mkdir()
    killed.settle()
    for number in range(kills):
        kill_once(killed.folder, random.Random(seed + number))
        killed.archive()
        killed.compact()
        killed.check()
        print(f"kill {number + 1}: {len(offsets_in_list(killed)):,} rows, each once", flush=True)
    time.sleep(1)
    for _ in range(2):
        killed.compact()
        time.sleep(1)
    assert killed.files.names(GENERATIONS) == []
    spark.stop()


def offsets_in_list(changed: ChangedArchive) -> list[int]:
    """Return the offsets in the files of the list."""
    ledger = read_ledger(changed.files)
    assert ledger is not None
    return offsets_in([str(changed.out / f.path) for f in archive_files(changed.files, ledger)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
    else:
        with tempfile.TemporaryDirectory(prefix="phpmq-readers-") as place:
            main(options.counts, options.rounds, options.kills, options.seed, Path(place))
