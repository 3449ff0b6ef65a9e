"""Archive, compact, metrics and summary over folders: twice the same, also after a crash."""

import json
import os
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import duckdb
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyarrow.dataset import dataset, field
from pyarrow.parquet import ParquetFile, write_table
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from phpmq_lite.cli.main import root_command
from phpmq_lite.errors import RefusedError
from phpmq_lite.insights_document import PipelineJobState
from phpmq_lite.spark import insights_tables
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.columns import TIME_COLUMNS
from phpmq_lite.spark.insights_summary import write_summary
from phpmq_lite.spark.jobs import archive, compact, consume, metrics, prune, verify
from phpmq_lite.spark.jobs.archive_files import count_rows
from phpmq_lite.spark.jobs.options import (
    UNCONTROLLED,
    ArchiveOptions,
    CompactOptions,
    ConsumeOptions,
    JobControl,
    JobOptions,
    MetricsOptions,
    PruneOptions,
)
from phpmq_lite.spark.ledger import (
    ArchiveFile,
    ArchiveLedger,
    archive_files,
    read_ledger,
    read_manifest,
)
from phpmq_lite.spark.results_folder import LocalResultsFolder, _HadoopResultsFolder, read_gaps
from phpmq_lite.spark.selection import ArchiveSelection
from phpmq_lite.spark.source_options import SourceConnection
from tests.spark.fake_broker import FakeBroker
from tests.spark.history_rows import (
    DAY_MS,
    START_MS,
    Row,
    history_row,
    history_rows,
    stream,
    to_parquet,
)
from tests.spark.queries import forget_commit
from tests.support.crashing_folder import CrashError, CrashingFolder


class Site:
    """A history as files, one a batch, and the folder of results."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.source = folder / "source"
        self.out = folder / "out"
        self.files = LocalResultsFolder(self.out)
        self._batches = 0

    def settle(self, rows: list[Row]) -> None:
        """Add a batch to the history."""
        to_parquet(rows, self.source / f"{self._batches:04}.parquet")
        self._batches += 1

    def archive(self, control: JobControl = UNCONTROLLED, **given: Any) -> Any:
        options = ArchiveOptions(connection=None, out=str(self.out), bodies=True, **given)
        return archive.archive_stream(self.spark, stream(self.spark, self.source), options, control)

    def metrics(self) -> Any:
        return metrics.run(self.spark, MetricsOptions(connection=None, out=str(self.out)))

    def compact(self, **given: Any) -> Any:
        options = CompactOptions(connection=None, out=str(self.out), **given)
        return compact.run(self.spark, options)

    def listed(self) -> list[ArchiveFile]:
        ledger = read_ledger(self.files)
        assert ledger is not None
        return archive_files(self.files, ledger)

    def shown(self) -> list[int]:
        """Return the offsets in all files that other readers find below ``archive``."""
        found = (self.out / "archive").glob("**/*.parquet")
        columns = (ParquetFile(file).read(["offset"])["offset"] for file in found)
        return sorted(offset for column in columns for offset in column.to_pylist())

    def offsets(self) -> list[int]:
        rows = read_archive(self.spark, self.files).select("offset").collect()
        return sorted(row["offset"] for row in rows)

    def table(self, name: str) -> list[str]:
        table = dataset(self.out / "metrics" / name, format="parquet", partitioning="hive")
        return sorted(str(row) for row in table.to_table().to_pylist())


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path) -> Site:
    return Site(spark, tmp_path)


def days(first: int, last: int, day: int) -> list[Row]:
    return [
        history_row(n, published_at=START_MS + day * DAY_MS + n * 1000) for n in range(first, last)
    ]


def test_archive_has_each_row_once_also_when_a_batch_comes_again(site: Site) -> None:
    site.settle(days(1, 40, 0) + days(40, 50, 1))
    site.settle(days(50, 70, 1))
    first = site.archive()
    assert (first.rows, first.batches) == (69, 2)
    assert site.offsets() == list(range(1, 70))
    assert site.archive().rows == 0

    forget_commit(site.out / "checkpoints/archive")
    again = site.archive()
    assert again.rows == 0  # the ledger has them
    assert site.offsets() == list(range(1, 70))


@pytest.mark.slow
def test_gap_that_is_accepted_is_in_the_ledger_and_the_summary(
    site: Site, broker: FakeBroker
) -> None:
    def options(fails: bool) -> ArchiveOptions:
        return ArchiveOptions(
            connection=SourceConnection(broker.url), out=str(site.out), fail_on_data_loss=fails
        )

    broker.settle(10)
    assert archive.run(site.spark, options(False)).notes == ()
    broker.settle(80, outcome="deleted")
    broker.settle(10)
    broker.lo_deleted = 70
    with pytest.raises(StreamingQueryException, match="up to 70"):
        archive.run(site.spark, options(True))
    assert read_gaps(site.files) == []
    [told] = archive.run(site.spark, options(False)).notes
    assert "offsets 11 to 70 lack 60 rows" in told
    forget_commit(site.out / "checkpoints/archive")
    archive.run(site.spark, options(False))  # the batch comes again, and so does its entry
    assert site.offsets() == [*range(1, 11), *range(71, 101)]
    [gap] = read_gaps(_HadoopResultsFolder(site.spark, f"file://{site.out}"))
    assert (gap.lo, gap.hi, gap.rows, gap.history_id) == (10, 70, 60, broker.history_id)
    broker.settle(5)
    assert archive.run(site.spark, options(False)).notes == ()
    write_summary(site.spark, JobOptions(connection=None, out=str(site.out)), [], now_ms=START_MS)
    summary = json.loads((site.out / "summary.json").read_text())
    assert [(g["lo"], g["hi"], g["rows"]) for g in summary["gaps"]] == [(10, 70, 60)]
    assert (summary["archive"]["gaps"], summary["archive"]["missing"]) == (1, 60)


@pytest.mark.slow
def test_times_have_statistics_and_older_archives_stay_readable(site: Site) -> None:
    def kinds(date: str) -> dict[str, tuple[str, bool]]:
        found = {}
        for listed in site.listed():
            if f"/{date}/" not in listed.path:
                continue
            file = site.out / listed.path
            group = ParquetFile(file).metadata.row_group(0)
            [times] = [
                group.column(n)
                for n in range(group.num_columns)
                if group.column(n).path_in_schema == "settled_at"
            ]
            has_range = times.statistics is not None and times.statistics.has_min_max
            found[file.parent.name] = (times.physical_type, has_range)
        return found

    def times() -> list[Any]:
        rows = read_archive(site.spark, site.files)
        millis = [sf.unix_millis(name) for name in TIME_COLUMNS]
        return sorted(map(tuple, rows.select("offset", *millis).collect()))

    output = "spark.sql.parquet.outputTimestampType"
    assert site.spark.conf.get(output) == "TIMESTAMP_MICROS"
    rows = days(1, 40, 0)
    site.settle(rows)
    site.spark.conf.set(output, "INT96")  # as archives were written before
    try:
        site.archive()
    finally:
        site.spark.conf.set(output, "TIMESTAMP_MICROS")
    rows += days(40, 60, 0)
    site.settle(rows[39:])
    site.archive()
    first, second = kinds("date=2026-03-01").values()
    assert (first, second) == (("INT96", False), ("INT64", True))
    site.settle(more := days(60, 65, 2))
    site.archive()
    expected = times()
    assert expected == sorted(
        (row["offset"], *(row[name] for name in TIME_COLUMNS)) for row in rows + more
    )
    sizes = site.files.data_files("archive")
    by_spark, by_arrow = (
        count_rows(site.spark, site.files, sizes, has_bodies=has_bodies)
        for has_bodies in (None, True)
    )
    assert by_spark == by_arrow
    assert sum(part.file.rows for part in by_arrow) == 64
    assert site.metrics().rows == 64
    tables = {name: site.table(name) for name in ("minutes", "hours")}
    site.compact()
    assert list(kinds("date=2026-03-01").values()) == [("INT64", True)]
    assert times() == expected
    shutil.rmtree(site.out / "metrics")
    site.metrics()
    assert {name: site.table(name) for name in tables} == tables


def test_new_checkpoint_overwrites_no_older_batch(site: Site) -> None:
    site.settle(days(1, 5, 0))
    site.archive()
    site.files.remove("checkpoints/archive")
    site.settle(days(5, 7, 0))
    site.archive()  # reads from the start again, as it was asked
    assert site.offsets() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 6]


def test_archive_stops_between_batches_and_goes_on(site: Site) -> None:
    for n in range(3):
        site.settle(days(n * 10 + 1, n * 10 + 11, 0))
    calls = iter([False, True])
    stopped = site.archive(control=JobControl(stop=lambda: next(calls)))
    assert stopped.is_stopped
    assert site.offsets() == list(range(1, 11))
    assert not site.archive().is_stopped
    assert site.offsets() == list(range(1, 31))


def test_archive_with_a_token_for_other_queues_is_refused_and_skips_nothing(
    site: Site, broker: FakeBroker
) -> None:
    """Rows of the queues that a narrower token hides would be passed for good."""
    options = ArchiveOptions(connection=SourceConnection(broker.url), out=str(site.out))
    broker.settle(6, "orders")
    broker.settle(4, "mails")
    assert archive.run(site.spark, options).rows == 10
    broker.settle(5, "mails")
    broker.settle(1, "orders")
    broker.allowed = ["orders"]
    with pytest.raises(RefusedError, match=r'selection \{\}, not .*"allowed": \["orders"\]'):
        archive.run(site.spark, options)
    broker.allowed = []
    assert archive.run(site.spark, options).rows == 6
    assert site.offsets() == list(range(1, 17))
    narrow = ArchiveOptions(connection=SourceConnection(broker.url), out=f"{site.out}-narrow")
    broker.allowed = ["orders"]
    assert archive.run(site.spark, narrow).rows == 7
    broker.allowed = ["orders", "mails"]
    with pytest.raises(
        RefusedError, match=r'"allowed": \["orders"\]\}, not .*\["mails", "orders"\]'
    ):
        archive.run(site.spark, narrow)


def test_wider_token_adds_what_the_archive_lacks_once(site: Site, broker: FakeBroker) -> None:
    narrow = ArchiveOptions(connection=SourceConnection(broker.url), out=str(site.out))
    wide = replace(narrow, backfill=True)
    broker.allowed = ["orders", "stock"]
    for queue in ("orders", "mails", "orders", "stock", "mails"):
        broker.settle(4, queue)
    assert archive.run(site.spark, narrow).offset == 20
    assert site.offsets() == [*range(1, 5), *range(9, 17)]
    broker.allowed = ["mails"]
    with pytest.raises(RefusedError, match="--backfill only widens it"):
        archive.run(site.spark, wide)
    broker.allowed = []
    for _ in range(2):
        assert archive.run(site.spark, wide).offset == 20
        assert site.offsets() == site.shown() == list(range(1, 21))
        assert duckdb_offsets(site, "events") == list(range(2, 21, 2))
    broker.settle(3, "mails")
    assert archive.run(site.spark, narrow).rows == 3
    assert site.offsets() == list(range(1, 24))
    assert duckdb_offsets(site, "events") == list(range(2, 24, 2))
    assert json.loads(site.files.read("metrics/begun.json") or "[]")


def test_large_bodies_are_archived_in_ranges_and_row_groups_of_bounded_bytes(
    site: Site, broker: FakeBroker
) -> None:
    size = 3 << 20
    for n in range(24):
        broker.settle(1, body=n.to_bytes(1, "big") + os.urandom(size - 1))
    options = ArchiveOptions(
        connection=SourceConnection(broker.url), out=str(site.out), bodies=True
    )
    done = archive.run(site.spark, options)
    assert (done.rows, done.batches) == (24, 1)
    groups = [
        ParquetFile(file).metadata.row_group(number).total_byte_size
        for file in site.out.rglob("*.parquet")
        for number in range(ParquetFile(file).metadata.num_row_groups)
    ]
    assert sum(groups) > 24 * size
    assert max(groups) <= (16 << 20) + 2 * size
    ranges = [(int(q["lo"]), int(q["hi"])) for q in map(asked_range, broker.asked) if "body" in q]
    assert max(hi - lo for lo, hi in ranges) * size <= 32 << 20
    assert sorted(n for lo, hi in ranges for n in range(lo + 1, hi + 1)) == list(range(1, 25))
    rows = read_archive(site.spark, site.files).select("offset", "size", "body").collect()
    assert {row["offset"]: bytes(row["body"][:1]) for row in rows} == {
        n + 1: n.to_bytes(1, "big") for n in range(24)
    }

    ledger = read_ledger(site.files)
    assert ledger is not None
    [entry] = ledger.dates.values()
    manifest = read_manifest(site.files, entry.manifest)
    _, written = compact.merge(site.spark, site.files, ledger, manifest, 1)
    assert (written, len(site.listed())) == (1, 1)
    assert duckdb_offsets(site, "events") == list(range(2, 25, 2))
    events = read_archive(site.spark, site.files, table="events").where("date = '2023-11-14'")
    assert events.select("history_offset", "batch").distinct().count() == 12
    decoded = int(site.spark.conf.get("spark.sql.parquet.columnarReaderBatchSize") or 0)
    assert decoded == (32 << 20) // size
    assert site.offsets() == list(range(1, 25))


def asked_range(line: str) -> dict[str, str]:
    """Return the query of a request for rows."""
    return dict(parse_qsl(urlsplit(line).query)) if "/arrow" in line else {}


def test_archive_refuses_other_queues(site: Site) -> None:
    selection = ArchiveSelection(queues=("a", "b"))
    archive.check_selection(site.files, selection)
    archive.check_selection(site.files, selection)
    with pytest.raises(RefusedError, match="Use the same selection, or another folder"):
        archive.check_selection(site.files, ArchiveSelection())


def test_compact_makes_one_file_of_a_closed_date(site: Site) -> None:
    """The list has the merged file at once; other readers see it when nobody needs the old ones."""
    for n in range(4):
        site.settle(days(n * 10 + 1, n * 10 + 11, 0))
    site.settle(days(41, 51, 1))
    site.archive()
    old = [site.out / file.path for file in site.listed()]
    result = site.compact()
    assert result.details == {"dates": 1, "files_before": 4, "files_after": 1}
    merged, last = site.listed()
    assert (merged.rows, merged.lo, merged.hi, last.rows) == (40, 1, 40, 10)
    assert all(file.exists() for file in old)
    assert site.offsets() == site.shown() == list(range(1, 51))
    assert site.compact().details["dates"] == 0

    forget_commit(site.out / "checkpoints/archive")
    site.archive()
    assert site.offsets() == list(range(1, 51))

    site.settle(days(51, 61, 0))  # late rows of the closed date
    site.settle(days(61, 71, 2))
    site.archive()
    result = site.compact(keep_replaced_ms=0)
    assert result.details == {"dates": 1, "files_before": 2, "files_after": 1}
    assert not any(file.exists() for file in old[:4])
    assert site.offsets() == site.shown() == list(range(1, 71))
    assert [file.path.split("/")[0] for file in site.listed()] == ["archive"] * 3
    site.compact(keep_replaced_ms=0)
    assert not site.files.names("generations")
    assert site.offsets() == site.shown() == list(range(1, 71))


def test_delta_log_has_the_same_files_after_each_job(site: Site) -> None:
    def agrees() -> bool:
        paths = {str(site.out / file.path) for file in site.listed()}
        return set(DeltaTable(site.out).file_uris()) == paths

    site.settle(days(1, 11, 0))
    site.archive()  # without the log, which begins with what is there
    site.settle(days(11, 21, 0))
    site.archive(format="delta")
    site.settle(days(21, 31, 1))
    site.archive()  # an existing log is kept up to date
    assert agrees()
    site.compact()
    assert agrees()
    assert any("/generations/" in path for path in DeltaTable(site.out).file_uris())
    site.compact(keep_replaced_ms=0)
    assert agrees()
    table = DeltaTable(site.out).to_pyarrow_table()
    columns = read_archive(site.spark, site.files).columns
    assert sorted(table["offset"].to_pylist()) == list(range(1, 31))
    assert set(table.column_names) == set(columns)
    times = table.filter(field("offset") == 25)["published_at"].to_pylist()
    assert times == [datetime.fromtimestamp((START_MS + DAY_MS + 25_000) / 1000, UTC)]


def test_compact_leaves_the_last_committed_batch_alone(site: Site) -> None:
    site.settle(days(1, 11, 0))
    site.settle(days(11, 21, 0))
    site.archive()
    assert site.compact().details["dates"] == 0
    assert len(site.files.data_files("archive/date=2026-03-01")) == 2


@pytest.mark.slow
def test_jobs_survive_a_crash_at_each_step(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch, a merge, and the exchange of replaced files."""
    for n in range(2):
        site.settle(days(n * 10 + 1, n * 10 + 11, 0))
    site.archive()
    site.settle(days(21, 31, 1))
    before = site.out.with_name("before")
    shutil.copytree(site.out, before)
    crashes = 0
    files = CrashingFolder(site.out, 0)

    def run() -> None:
        site.archive()
        site.compact(keep_replaced_ms=0)

    for module in ("archive", "compact"):
        monkeypatch.setattr(f"phpmq_lite.spark.jobs.{module}.open_results", lambda *_: files)
    while True:
        files = CrashingFolder(site.out, crashes)
        try:
            run()
        except (CrashError, StreamingQueryException):
            crashes += 1
        else:
            break
        files.left = None
        run()  # what the next run does
        assert site.offsets() == site.shown() == list(range(1, 31))
        assert len(site.listed()) == 2
        assert site.files.names("staged") == []
        shutil.rmtree(site.out)
        shutil.copytree(before, site.out)
    assert crashes > 20


def test_archive_without_a_ledger_is_continued(site: Site) -> None:
    """Version 0.1.0 left fewer columns, another codec, and perhaps an uncommitted batch."""
    site.settle(days(1, 11, 0) + days(11, 21, 1))
    site.settle(days(21, 31, 1))
    site.archive()
    site.files.remove("ledger")
    [older] = (site.out / "archive/date=2026-03-01").glob("*/*.parquet")
    table = ParquetFile(older).read()
    new = ["body", "history_offset", "ready_at", "charged"]
    write_table(table.drop_columns(new), older, compression="snappy")
    forget_commit(site.out / "checkpoints/archive")  # the last batch comes again
    assert site.offsets() == list(range(1, 31))  # readers need no ledger
    assert site.compact().rows == 0
    ledger = read_ledger(site.files)
    assert ledger is not None
    assert (ledger.rows, len(ledger.leftovers), ledger.begin) == (20, 1, 0)
    assert [file.has_bodies for file in site.listed()] == [False, True]
    site.settle(days(31, 41, 2))
    site.archive()
    assert site.offsets() == site.shown() == list(range(1, 41))
    assert verify.run(site.spark, JobOptions(connection=None, out=str(site.out))).is_equal
    rows = read_archive(site.spark, site.files).select("offset", "history_offset", "charged")
    assert all(row["offset"] == row["history_offset"] for row in rows.collect())
    site.compact(keep_replaced_ms=0)
    assert site.offsets() == site.shown() == list(range(1, 41))


def test_prune_removes_old_dates_and_keeps_their_counts(site: Site) -> None:
    """The dates of the rows are long ago, so only the newest is younger than the limit."""
    for day in range(3):
        site.settle(days(day * 10 + 1, day * 10 + 11, day))
    site.archive()
    assert duckdb_offsets(site) == list(range(1, 31))
    age_s = int(time.time()) - (START_MS + 2 * DAY_MS) // 1_000
    options = PruneOptions(connection=None, out=str(site.out), older_than_s=age_s)
    result = prune.run(site.spark, options)
    assert (result.rows, result.details["dates"], result.details["files"]) == (20, 2, 2)
    assert site.offsets() == duckdb_offsets(site) == list(range(21, 31))
    assert site.shown() == list(range(1, 31))  # until nobody reads older lists
    ledger = read_ledger(site.files)
    assert ledger is not None
    assert sorted(ledger.pruned) == ["2026-03-01", "2026-03-02"]
    manifest = read_manifest(site.files, ledger.pruned["2026-03-01"])
    assert manifest.counts == manifest.removed == {"orders": {"acked": 10}}
    assert prune.run(site.spark, replace(options, keep_replaced_ms=0)).rows == 0
    assert site.shown() == site.offsets() == list(range(21, 31))
    assert site.files.names("archive") == ["date=2026-03-03"]


def duckdb_offsets(site: Site, table: str = "archive") -> list[int]:
    """Return the offsets that DuckDB finds in the files of ``pipeline files``."""
    command = ["pipeline", "files", table, "--path", str(site.out / "x.db"), "--out", str(site.out)]
    (site.out / "x.db").touch()
    result = CliRunner().invoke(root_command, command)
    assert result.exit_code == 0, result.output
    query = "SELECT history_offset FROM read_parquet($files) ORDER BY 1"
    rows = duckdb.execute(query, {"files": result.stdout.split()}).fetchall()
    return [offset for (offset,) in rows]


@pytest.mark.slow
def test_metrics_of_batches_equal_metrics_of_all(site: Site, tmp_path: Path) -> None:
    """Without a broker's checkpoint all rows are new each time: the second run repeats one."""
    # Those whose figures need rows of several batches together.
    tables = ("minutes", "urns", "attempts", "paths")
    rows = history_rows(300, days=2)
    for begin in range(0, len(rows), 200):
        site.settle(rows[begin : begin + 200])
        site.archive()
        assert site.metrics().details["dates"] > 0
    step_by_step = {name: site.table(name) for name in tables}

    whole = Site(site.spark, tmp_path / "whole")
    whole.settle(rows)
    whole.archive()
    whole.metrics()
    assert {name: whole.table(name) for name in tables} == step_by_step


@pytest.mark.slow
def test_metrics_compute_only_dates_of_new_rows(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are known of a broker's stream only; here they are given."""
    offsets = iter([20, 20, 30, 30])

    def with_offset(files: LocalResultsFolder) -> ArchiveLedger:
        ledger = read_ledger(files)
        assert ledger is not None
        return replace(ledger, history_id="h", offset=next(offsets))

    monkeypatch.setattr(metrics, "read_ledger", with_offset)
    site.settle(days(1, 11, 0) + days(11, 21, 1))
    site.archive()
    assert site.metrics().details["dates"] == 2
    assert site.metrics().details["dates"] == 0
    site.settle(days(21, 31, 1))
    site.archive()
    result = site.metrics()
    assert (result.rows, result.offset, result.details["dates"]) == (10, 30, 1)
    monkeypatch.setattr(insights_tables, "VERSION", insights_tables.VERSION + 1)
    assert site.metrics().details["dates"] == 2


def test_metrics_of_no_archive_say_so(site: Site) -> None:
    assert "run the archive job first" in site.metrics().notes[0]
    site.settle([])
    assert site.archive().rows == 0
    assert site.metrics().notes == ()  # there is one, which is empty


def test_consumed_messages_are_there_once(site: Site) -> None:
    options = ConsumeOptions(connection=None, out=str(site.out), queue="a/b", subscription=".s")
    site.settle(days(1, 11, 0))
    site.settle(days(11, 21, 0))
    for _ in range(2):
        consume.consume_stream(site.spark, stream(site.spark, site.source), options)
        folder = site.out / "consumed" / "a%2Fb"
        assert site.spark.read.parquet(str(folder)).count() == 20
        forget_commit(site.out / "checkpoints/consume/%2Es")


@pytest.mark.slow
def test_summary_has_the_figures_and_is_written_whole(site: Site) -> None:
    rows = [*days(1, 31, 0), history_row(31, outcome="dead", reason="poison", urn="u", attempts=2)]
    rows += [history_row(n, queue="mail", urn="u", trace_id="t", attempts=0) for n in (32, 33)]
    rows.append(
        history_row(
            34,
            outcome="expired",
            deliveries=0,
            published_at=START_MS - 40 * DAY_MS,
            first_dispatched_at=None,
            last_dispatched_at=None,
            settled_at=START_MS,
        )
    )
    site.settle(rows)
    site.archive()
    site.metrics()
    common = JobOptions(connection=None, out=str(site.out))
    run = PipelineJobState(name="archive", state="done", started_at=1, finished_at=2)
    now = START_MS + DAY_MS // 2
    assert write_summary(site.spark, common, [run], now_ms=now) == ()
    summary = json.loads((site.out / "summary.json").read_text())
    assert (summary["version"], summary["finished_at"]) == (1, now)
    assert summary["archive"]["rows"] == 34
    assert summary["jobs"][0]["name"] == "archive"
    for name in ("last24h", "last30d"):
        of_orders = [item for item in summary[name] if item["queue"] == "orders"]
        # The one of 40 days ago was published then.
        assert sum(item["published"] for item in of_orders) == 31
        assert sum(item["expired_never"] for item in of_orders) == 1
        assert {item["wait_p50"] for item in of_orders} - {None} == {10}
        assert sum(item["acked"] for item in summary[name]) == 32
    assert summary["deaths"] == [{"queue": "orders", "urn": "u", "reason": "poison", "count": 1}]
    assert summary["expiries"] == [{"queue": "orders", "dispatched": 0, "never": 1}]
    assert summary["paths"][0]["path"] == ["mail:u", "mail:u"]
    urns = {item["queue"]: item for item in summary["urns"]}
    assert urns["orders"]["failed"] == {"poison": 1}
    assert urns["mail"]["attempts"] == {"0": 2}


def test_storage_of_hadoop_has_the_rows_events_and_comments_of_a_folder(
    spark: SparkSession, broker: FakeBroker, tmp_path: Path
) -> None:
    """There, Spark writes what its tasks have read; in a folder, they write it themselves."""
    for name, body in (("orders", b'{"id":1,"name":"x"}'), ("mails", b"text")):
        broker.settle(20, name, body)
    link = "fs.viewfs.mounttable.local.link./out"
    spark._jsc.hadoopConfiguration().set(link, f"file://{tmp_path}/hadoop")
    (tmp_path / "hadoop").mkdir()
    stored, comments = [], []
    for out, folder in (("viewfs://local/out", "hadoop"), (f"{tmp_path}/local", "local")):
        options = ArchiveOptions(
            connection=SourceConnection(broker.url), out=out, bodies=True, masks=("name",)
        )
        assert archive.run(spark, options).rows == 40
        tables = []
        for table, key in (("archive", "offset"), ("events", "event_id")):
            files = f"{tmp_path}/{folder}/{table}/**/*.parquet"
            query = f"SELECT * EXCLUDE batch FROM '{files}' ORDER BY \"{key}\""
            found = duckdb.execute(query)
            names = [column[0] for column in found.description]
            tables.append([dict(zip(names, row, strict=True)) for row in found.fetchall()])
            first = next(Path(tmp_path, folder, table).rglob("*.parquet"))
            metadata = ParquetFile(first).schema_arrow.metadata
            comments.append(json.loads(metadata[b"org.apache.spark.sql.parquet.row.metadata"]))
        stored.append(tables)
    (of_hadoop, hadoop_events), (of_folder, folder_events) = stored
    assert of_hadoop == of_folder
    assert hadoop_events == folder_events
    assert len(of_folder) == 40
    assert {row["body"] for row in of_folder} == {b'{"id":1,"name":null}', None}
    assert comments[:2] == comments[2:]


def test_hadoop_files_do_what_local_ones_do(spark: SparkSession, tmp_path: Path) -> None:
    files = _HadoopResultsFolder(spark, f"file://{tmp_path}")
    assert files.read("a/b.json") is None
    files.write("a/b.json", "é")
    files.write("a/b.json", "ü")
    assert files.read("a/b.json") == "ü"
    assert list(files.data_files("a").values()) == [2]
    files.move("a", "c/d")
    assert not files.exists("a")
    assert [name for name in files.names("c/d") if name.endswith("json")] == ["b.json"]
    files.remove("c")
    assert files.names("c") == []
