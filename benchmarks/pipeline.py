"""Measure reading the history with Spark, check that it is complete, and time live messages.

    python benchmarks/pipeline.py [--rows 1000000] [--rounds 3] [--rate 1000] [--seconds 15]

One broker, one session (``local[2]``).  A stream and the job archive read all rows first; then all
sources are read in each round, in rotated order, so that other load affects all of them:

- path: the database file, by ADBC and by Python's SQLite;
- HTTP: the broker's export process, by ADBC;
- Parquet: what the job archive wrote.

Each pass compares its figures with those of SQLite, or, for all columns, with those of the first
source.  At the end, live messages are timed while Spark reads all rows over HTTP repeatedly.  The
program ends by itself and removes its folder.
"""

import argparse
import signal
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from unittest import mock

from admin_database import make
from export_liveness import alternate
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from phpmq_lite.broker_process import broker_process
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs import archive
from phpmq_lite.spark.jobs.options import ArchiveOptions
from phpmq_lite.spark.reader import HistoryReader
from phpmq_lite.spark.results_folder import open_results
from phpmq_lite.spark.session import session
from phpmq_lite.spark.source import PhpmqSource
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.storage import arrow
from phpmq_lite.storage.data_folder import DATABASE

LIMIT_S: Final = 1_800  # the whole run
MINUTE_MS: Final = 60_000
STREAM_BATCHES: Final = 4
BASIS: Final = "Parquet"  # the others are compared with it
SHARES: Final = (0.5, 0.95, 0.99)
COLUMNS: Final = tuple(column.name for column in arrow.COLUMNS)
# of a pass: rows, sums of offset, size, deliveries and settled_at in milliseconds
TOTALS: Final = 'count(*), sum("offset"), sum(size), sum(deliveries), sum(settled_at)'

Figures = tuple[float, ...]
Read = Callable[[], DataFrame]
Query = Callable[[DataFrame], Figures]


class PythonReader(HistoryReader):
    """Reads the file as if ADBC were not installed."""

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the rows of one range."""
        with mock.patch.object(arrow, "has_adbc", return_value=False):
            yield from super().read(partition)


class PythonSource(PhpmqSource):
    """The data source without ADBC; for ``path``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "phpmq-python"

    def reader(self, schema: StructType) -> PythonReader:
        """Return the reader of a batch."""
        reader = super().reader(schema)
        assert type(reader) is HistoryReader
        return PythonReader(reader._options, schema)


# -- the queries


def totals(rows: DataFrame) -> Figures:
    """Count and sum up, as ``TOTALS``."""
    sums = [sf.sum(name) for name in ("offset", "size", "deliveries")]
    return _first(rows.agg(sf.count("*"), *sums, sf.sum(sf.unix_millis("settled_at"))))


def windows(rows: DataFrame) -> Figures:
    """Sum the percentiles of the time from publish to settled over all minutes."""
    wait = sf.unix_millis("settled_at") - sf.unix_millis("published_at")
    found = sf.percentile(wait, sf.array(*map(sf.lit, SHARES))).alias("found")
    minutes = rows.groupBy(sf.window("settled_at", "1 minute")).agg(sf.count("*").alias("n"), found)
    sums = [sf.sum(sf.col("found")[place]) for place in range(len(SHARES))]
    figures = _first(minutes.agg(sf.count("*"), sf.sum("n"), *sums))
    return tuple(round(figure, 3) for figure in figures)


def columns(rows: DataFrame) -> Figures:
    """Return one number from all columns of all rows, independent of their order."""
    names = [name for name in rows.columns if name in COLUMNS]
    return _first(rows.agg(sf.count("*"), sf.bit_xor(sf.xxhash64(*names))))


QUERIES: Final[dict[str, Query]] = {"totals": totals, "windows": windows, "columns": columns}


def _first(rows: DataFrame) -> Figures:
    [row] = rows.collect()
    return tuple(row)


# -- the figures of SQLite


def sqlite_totals(database: Path) -> Figures:
    """Count and sum up."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return tuple(connection.execute(f"SELECT {TOTALS} FROM history").fetchone())


def sqlite_windows(database: Path) -> Figures:
    """Compute the figures of ``windows`` in Python."""
    text = f"SELECT settled_at / {MINUTE_MS}, settled_at - published_at FROM history ORDER BY 1, 2"
    found = [0.0] * (2 + len(SHARES))
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for _, rows in groupby(connection.execute(text), itemgetter(0)):
            waits = [wait for _, wait in rows]
            exact = [interpolated(waits, share) for share in SHARES]
            found = [sum(pair) for pair in zip(found, [1, len(waits), *exact], strict=True)]
    return tuple(round(value, 3) for value in found)


def interpolated(ordered: list[int], share: float) -> float:
    """Return a percentile like SQL's ``percentile``, interpolated between two values."""
    place = share * (len(ordered) - 1)
    low, part = int(place), place % 1
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * part


# -- the run


@dataclass(frozen=True)
class Bench:
    """A session, a broker, and the figures of SQLite for its history."""

    spark: SparkSession
    database: Path
    connection: SourceConnection
    out: Path
    rows: int
    known: dict[str, Figures]

    def http(self) -> DataFrame:
        """Read all columns over HTTP, without messages that settle during the read."""
        given = {**self.connection.as_options(), "endingOffsets": str(self.rows + 1)}
        return self.spark.read.format("phpmq").options(**given).load()

    def file(self, source: str) -> DataFrame:
        """Read all columns from the database file."""
        return self.spark.read.format(source).option("path", str(self.database)).load()

    def sources(self) -> dict[str, Read]:
        """Return the sources by name."""
        return {
            "path, ADBC": partial(self.file, "phpmq"),
            "path, Python": partial(self.file, PythonSource.name()),
            "HTTP, ADBC": self.http,
            BASIS: lambda: read_archive(self.spark, open_results(self.spark, str(self.out))),
        }

    def check(self, query: str, found: Figures) -> None:
        """Compare figures with the known ones, or with the first ones found."""
        expected = self.known.setdefault(query, found)
        assert found == expected, f"{query}: {found}, expected {expected}"

    def archive(self) -> None:
        """Run the job archive over HTTP."""
        began = time.monotonic()
        done = archive.run(
            self.spark, ArchiveOptions(connection=self.connection, out=str(self.out))
        )
        assert done.rows == self.rows, done
        self._tell(f"archive, {done.batches} batches", began)

    def stream(self, checkpoint: Path) -> None:
        """Sum up the batches of a stream over HTTP."""
        began = time.monotonic()
        sums: dict[int, Figures] = {}
        query = (
            self.spark.readStream.format("phpmq")
            .options(**self.connection.as_options(), startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", str(-(-self.rows // STREAM_BATCHES)))
            .load()
            .writeStream.foreachBatch(lambda rows, number: sums.update({number: totals(rows)}))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert len(sums) == STREAM_BATCHES, sums
        self.check("totals", tuple(sum(column) for column in zip(*sums.values(), strict=True)))
        self._tell(f"stream, {len(sums)} batches", began)

    def _tell(self, what: str, began: float) -> None:
        took_s = time.monotonic() - began
        print(f"{what:20}{self.rows / took_s:11,.0f} rows/s", flush=True)

    def round(self, number: int) -> dict[str, dict[str, float]]:
        """Run each query on each source once; return rows per second."""
        names = list(self.sources())
        turn = number % len(names)
        rates: dict[str, dict[str, float]] = {name: {} for name in names}
        for query, work in QUERIES.items():
            for name in names[turn:] + names[:turn]:
                began = time.monotonic()
                self.check(query, work(self.sources()[name]()))
                rates[name][query] = self.rows / (time.monotonic() - began)
        return rates

    @contextmanager
    def reading(self) -> Iterator[list[int]]:
        """Sum up all rows over HTTP repeatedly, in a thread; yield the row counts."""
        counts: list[int] = []
        stop, begun = threading.Event(), threading.Event()

        def work() -> None:
            while not stop.is_set():
                found = totals(self.http())
                self.check("totals", found)
                if begun.is_set():
                    counts.append(int(found[0]))
                begun.set()

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            try:
                while not begun.wait(1) and not done.done():
                    pass
                yield counts
            finally:
                stop.set()
            done.result()


def show(title: str, rates: dict[str, dict[str, float]]) -> None:
    """Print a round."""
    print(f"{title:14}" + "".join(f"{f'{query}, rows/s':>24}" for query in QUERIES))
    for name, found in rates.items():
        cells = (f"{found[q]:16,.0f} ({found[q] / rates[BASIS][q]:5.2f})" for q in QUERIES)
        print(f"{name:14}" + "".join(cells), flush=True)


def main(rows: int, rounds: int, rate: int, seconds: float, folder: Path) -> None:
    """Create the history, start broker and Spark, and run all parts."""
    data, out = folder / "data", folder / "out"
    make(data, 0, rows)
    database = data / DATABASE
    known = {"totals": sqlite_totals(database), "windows": sqlite_windows(database)}
    assert known["totals"][0] == rows
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": str(folder / "local")}
    with broker_process(data, *flags) as broker:
        began = time.monotonic()
        spark = session("bench", master="local[2]", conf=conf, log=folder / "spark.log")
        spark.dataSource.register(PythonSource)
        print(f"{rows:,} rows; session started in {time.monotonic() - began:.1f} s", flush=True)
        try:
            bench = Bench(spark, database, SourceConnection(broker.admin[0]), out, rows, known)
            bench.stream(folder / "checkpoint")  # the first stream of a session starts slowly
            bench.archive()
            show("warming up", bench.round(0))
            found = [bench.round(number) for number in range(1, rounds + 1)]
            for number, rates in enumerate(found, 1):
                show(f"round {number}", rates)
            if found:
                show("median", median(found))
            if seconds:
                alternate(broker.port, rate, seconds, bench.reading)
        finally:
            spark.stop()


def median(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median of each figure."""
    return {
        name: {query: statistics.median(each[name][query] for each in rounds) for query in QUERIES}
        for name in rounds[0]
    }


def _give_up(*_: object) -> None:
    raise TimeoutError(f"not done in {LIMIT_S} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="up to 5,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="of the sources")
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=15, help="of a span; 0: no messages")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LIMIT_S)
    with tempfile.TemporaryDirectory(prefix="phpmq-pipeline-") as place:
        main(options.rows, options.rounds, options.rate, options.seconds, Path(place))
