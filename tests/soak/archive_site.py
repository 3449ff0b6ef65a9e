"""A broker in a process, an archive of it with all its tables, the jobs, and a judge.

The judge reads Parquet with DuckDB and the broker's database with SQLite, without Spark.
"""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
from pyspark.sql import SparkSession

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.client.blocking_client import connect_blocking
from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark.jobs import archive, compact, erase, metrics, prune, tables, verify
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    EraseOptions,
    JobOptions,
    MetricsOptions,
    PruneOptions,
    TablesOptions,
)
from phpmq_lite.spark.ledger import ArchiveLedger, archive_files, first_ms, read_ledger
from phpmq_lite.spark.results_folder import ARCHIVE, EVENTS, LocalResultsFolder
from phpmq_lite.spark.source_options import SourceConnection
from tests.soak.shifted_broker import set_shift

HOUR_MS: Final = 3_600_000
STEP_MS: Final = 8 * HOUR_MS  # between two settlements, so that a day has three
MESSAGES: Final = 30
BATCH_OFFSETS: Final = 70
KEPT_DATES: Final = 2
JOBS: Final = ("archive", "metrics", "compact", "tables", "prune", "erase")
STATES: Final = {int(outcome.state): name for name, outcome in OUTCOMES.items()}
HISTORY: Final = """
SELECT "offset", queue.name, outcome, settled_at, size FROM history JOIN queue USING (queue_id)
ORDER BY 1"""

Row = tuple[Any, ...]


@dataclass
class SettlingBroker:
    """A broker whose clock advances by eight hours with each settlement."""

    process: BrokerProcess
    settlements: int = 0

    @property
    def url(self) -> str:
        return self.process.admin[0]

    def settle(self) -> None:
        """Publish and settle ``MESSAGES`` envelopes of two URNs; five of a trace."""
        self.settlements += 1
        set_shift(self.process.data, (self.settlements - 400) * STEP_MS)
        first = self.settlements * MESSAGES
        with connect_blocking(self.process.phpmq[0]) as client:
            for queue in ("orders", "mails"):
                client.publish_many(queue, [_body(first + n) for n in range(MESSAGES // 2)])
                with client.consume(queue, MESSAGES, 30) as deliveries:
                    for n in range(MESSAGES // 2):
                        delivery = next(deliveries)
                        settle = delivery.ack if n % 6 else delivery.dead_letter
                        settle()

    def trace(self, ago: int) -> str:
        """Return a trace of an earlier settlement."""
        return f"t{(self.settlements - ago) * MESSAGES // 5}"

    def history(self) -> list[Row]:
        """Return offset, queue, outcome, settled_at and size of all rows, by offset."""
        path = f"file:{self.process.data / 'phpmq.db'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True)) as database:
            rows = database.execute(HISTORY).fetchall()
        return [(n, queue, STATES[state], at, size) for n, queue, state, at, size in rows]


def _body(number: int) -> bytes:
    meta = {"id": f"m{number}", "schema_version": 1}
    head = {"job": f"urn:{number % 2}", "trace_id": f"t{number // 5}", "attempts": 0}
    return json.dumps({**head, "data": {"n": number}, "meta": meta}).encode()


@dataclass
class ChangedArchive:
    """An archive in ``out``; ``keep_ms`` is its grace period."""

    url: str
    out: Path
    format: str = "parquet"
    keep_ms: int = 1_000
    erased: set[str] = field(default_factory=set)  # traces whose erase has ended

    @property
    def log_format(self) -> Literal["parquet", "delta"]:
        return "delta" if self.format == "delta" else "parquet"

    @property
    def files(self) -> LocalResultsFolder:
        return LocalResultsFolder(self.out)

    def run(self, spark: SparkSession, job: str, trace: str = "t0") -> int:
        """Run a job, and return its number of rows; ``erase`` needs a trace."""
        common: dict[str, Any] = {
            "connection": SourceConnection(self.url),
            "out": str(self.out),
            "keep_replaced_ms": self.keep_ms,
        }
        runs: dict[str, Callable[[], Any]] = {
            "archive": lambda: archive.run(
                spark,
                ArchiveOptions(
                    **common, bodies=True, format=self.log_format,
                    max_offsets_per_trigger=BATCH_OFFSETS,
                ),
            ),
            "metrics": lambda: metrics.run(spark, MetricsOptions(**common)),
            "compact": lambda: compact.run(spark, CompactOptions(**common)),
            "tables": lambda: tables.run(spark, TablesOptions(**common)),
            "prune": lambda: prune.run(
                spark, PruneOptions(**common, older_than_s=self._older_than_s())
            ),
            "erase": lambda: erase.run(spark, EraseOptions(**common, traces=(trace,), live=True)),
        }  # fmt: skip
        return int(runs[job]().rows)

    def _older_than_s(self) -> int:
        """Return an age that leaves the newest dates."""
        ledger = read_ledger(self.files)
        dates = sorted(ledger.dates)[-KEPT_DATES:] if ledger else []
        return int(time.time()) - first_ms(dates[0]) // 1_000 if dates else 0

    def verify(self, spark: SparkSession) -> str:
        """Return what ``verify`` finds; empty if that is nothing."""
        connection = SourceConnection(self.url)
        report = verify.run(spark, JobOptions(connection=connection, out=str(self.out)))
        return "" if report.is_equal and report.lo is not None else repr(report)

    def ledger(self) -> ArchiveLedger:
        """Return the current version, which must exist."""
        ledger = read_ledger(self.files)
        assert ledger is not None
        return ledger

    def listed(self, ledger: ArchiveLedger | None = None, table: str = ARCHIVE) -> list[str]:
        """Return the paths of the files in the list of ``archive`` or ``events``."""
        return [f.path for f in archive_files(self.files, ledger or self.ledger(), table=table)]

    def rows(self, paths: list[str]) -> list[Row]:
        """Return offset, queue, outcome, settled_at and size, by offset."""
        columns = '"offset", queue, outcome, epoch_ms(settled_at), size'
        return self.ask(f"SELECT {columns} FROM read_parquet($paths) ORDER BY 1", paths)

    def ask(self, query: str, paths: list[str]) -> list[Row]:
        """Ask DuckDB about files; ``paths`` may have globs."""
        absolute = [str(self.out / path) for path in paths]
        return duckdb.execute(query, {"paths": absolute}).fetchall() if paths else []

    def check_archive(self, history: list[Row]) -> None:
        """Compare list, glob and Delta log with the broker's rows; pruned dates are gone."""
        ledger = self.ledger()
        listed = self.listed(ledger)
        expected = [
            row
            for row in history
            if row[0] <= (ledger.offset or 0) and _date(row[3]) not in ledger.pruned
        ]
        assert self.rows(listed) == expected
        visible = [row[0] for row in self.rows(["archive/**/*.parquet"])]
        assert len(visible) == len(set(visible)), "the glob has rows twice"
        assert set(visible) >= {row[0] for row in expected}
        events = self.listed(ledger, EVENTS)
        for paths in (events, ["events/**/*.parquet"] if [*self.out.glob("events/*/*")] else []):
            step = "history_offset, event_id"
            found = self.ask(f"SELECT {step} FROM read_parquet($paths)", paths)
            assert len(found) == len(set(found)), "events are there twice"
        erased = self.ask(
            "SELECT DISTINCT trace_id FROM read_parquet($paths) WHERE erased_at IS NULL", listed
        )
        assert not self.erased & {row[0] for row in erased}
        left = self.ask(
            "SELECT count(*) FROM read_parquet($paths) WHERE erased_at IS NOT NULL"
            " AND (body IS NOT NULL OR trace_id IS NOT NULL OR meta_id IS NOT NULL)",
            listed,
        )
        assert left in ([], [(0,)])
        if self.format == "delta":
            self._check_delta(listed)

    def _check_delta(self, listed: list[str]) -> None:
        from deltalake import DeltaTable

        assert sorted(DeltaTable(self.out).file_uris()) == sorted(
            str(self.out / path) for path in listed
        )

    def check_results(self, history: list[Row]) -> None:
        """Compare metrics and typed tables with the rows, after all jobs have ended."""
        offset = self.ledger().offset or 0
        sums = "sum(acked), sum(dead)"
        settled = self.ask(
            f"SELECT {sums} FROM read_parquet($paths)", ["metrics/minutes/**/*.parquet"]
        )
        outcomes = [row[2] for row in history if row[0] <= offset]
        assert settled == [(outcomes.count("acked"), outcomes.count("dead"))]
        tabled = self.ask(
            "SELECT history_offset FROM read_parquet($paths) ORDER BY 1", ["tables/*/*.parquet"]
        )
        assert len(tabled) == len(set(tabled)), "a table has rows twice"
        present = self.ask(
            'SELECT "offset" FROM read_parquet($paths) WHERE erased_at IS NULL', self.listed()
        )
        assert set(tabled) >= set(present)
        assert {row[0] for row in tabled} <= set(range(1, offset + 1))

    def check_folders(self) -> None:
        """Nothing is left of a change that was interrupted, and each file is known."""
        ledger, files = self.ledger(), self.files
        for path in ("staged", "ledger/prepared.json", "metrics/begun.json"):
            assert not files.exists(path), path
        assert not list(self.out.glob("tables/_staged/**/*.parquet"))
        listed = (*self.listed(ledger), *self.listed(ledger, EVENTS))
        known = {*listed, *(file.path for file in ledger.replaced)}
        stored = {
            path.relative_to(self.out).as_posix()
            for folder in (ARCHIVE, EVENTS, "generations")
            for path in self.out.glob(f"{folder}/**/*.parquet")
        }
        assert stored <= known, sorted(stored - known)
        unfinished = [
            path
            for pattern in ("**/*.new", "**/_temporary", "**/.spark-staging*")
            for path in self.out.glob(pattern)
        ]
        assert not unfinished, unfinished


def _date(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_ms // 1_000))
