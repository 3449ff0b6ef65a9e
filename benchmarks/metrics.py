"""Measure metrics, summary, an increment and a run without news, beside DuckDB.

    python benchmarks/metrics.py [--short] [--rows 656000] [--more-dates 300]
    python benchmarks/metrics.py --duckdb [--short] [--rows 656000]

Writes an archive without a broker: 10 queues, 6 dates, half of the messages envelopes, 5 % of those
retried.  One session (``local[2]``) then computes the metrics of everything and the summary, and
after that an increment of 5,000 messages, with and without so many more dates in the archive.  A
run without news is ``phpmq-lite pipeline run`` after one that archived everything from a broker;
one more reads the broker's file, and one writes to storage that only Spark reaches.
Processor seconds are those of this process and its children, which include the JVM.  ``--duckdb``
prints the time in which DuckDB makes the same seven tables from the same files.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
from admin_database import make

from phpmq_lite.broker_process import broker_process
from phpmq_lite.insights_document import PipelineJobState
from phpmq_lite.spark.idle import idle_results
from phpmq_lite.spark.insights_summary import write_summary
from phpmq_lite.spark.jobs import metrics
from phpmq_lite.spark.jobs.options import (
    ArchiveOptions,
    CompactOptions,
    JobOptions,
    MetricsOptions,
)
from phpmq_lite.spark.ledger import (
    ArchiveFile,
    DateManifest,
    commit,
    create_ledger,
    manifest_of,
    read_ledger,
    read_manifest,
)
from phpmq_lite.spark.results_folder import LocalResultsFolder, open_results
from phpmq_lite.spark.session import session
from phpmq_lite.spark.source_options import SourceConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_MS: Final = 1_772_323_200_000  # 2026-03-01
DAY_MS: Final = 86_400_000
LENGTH_MS: Final = int(5.9 * DAY_MS)
HISTORY_ID: Final = "benchmark"
INCREMENT: Final = 5_000

ROWS: Final = """
WITH random AS (
  SELECT i, hash(i, 1) AS a, hash(i, 2) AS b, hash(i, 3) AS c, hash(i, 4) AS d
  FROM range($1, $2) t(i)
), times AS (
  SELECT *, $3 + ((i - $1) * $4) // ($2 - $1) AS published, c % 2 = 0 AS enveloped,
    CASE WHEN a % 100 < 90 THEN 'acked' WHEN a % 100 < 94 THEN 'expired'
      WHEN a % 100 < 98 THEN 'dead' ELSE 'deleted' END AS outcome,
    CASE WHEN a % 100 BETWEEN 90 AND 92 OR a % 100 > 97 THEN 0 WHEN c % 25 = 0 THEN 2 ELSE 1 END
      AS deliveries,
    (exp((d % 1000) / 100.0))::BIGINT AS wait_ms,
    (exp((d // 1000 % 1000) / 90.0))::BIGINT AS hold_ms,
    enveloped AND a % 100 < 90 AND i % 20 = 7 AS is_failed
  FROM random
), settled AS (
  SELECT *, CASE WHEN deliveries > 0 THEN published + wait_ms END AS first,
    CASE WHEN deliveries > 1 THEN published + wait_ms + c % 60000 ELSE first END AS last,
    coalesce(last, published) + hold_ms AS settled FROM times
), all_rows AS (
  SELECT i, a, b, c, published, first, last, settled, outcome, deliveries, enveloped, i AS id,
    0 AS attempts FROM settled
  UNION ALL SELECT i, a, b, c, last + hold_ms // 2, last + hold_ms // 2 + 5,
    last + hold_ms // 2 + 5, last + hold_ms // 2 + 20, 'acked', 1, true, i, 1
  FROM settled WHERE is_failed
), numbered AS (
  SELECT *, row_number() OVER (ORDER BY settled, i, attempts) + $5 AS "offset",
    row_number() OVER (ORDER BY published, i, attempts) + $5 AS seq FROM all_rows
)
SELECT "offset", seq, printf('%032x', seq) AS message_id, 'queue-' || b % 10 AS queue,
  seq AS position, outcome, CASE WHEN outcome = 'dead' THEN
    CASE c % 3 WHEN 0 THEN 'client' WHEN 1 THEN 'max_deliveries' ELSE 'poison' END END AS reason,
  to_timestamp(published / 1000.0) AS published_at,
  to_timestamp(first / 1000.0) AS first_dispatched_at,
  to_timestamp(last / 1000.0) AS last_dispatched_at, to_timestamp(settled / 1000.0) AS settled_at,
  NULL::TIMESTAMPTZ AS deadline, NULL::BIGINT AS ttl_s, deliveries::INTEGER AS deliveries,
  (100 + c % 4000)::BIGINT AS size, 1::BIGINT AS publisher, 2::BIGINT AS consumer,
  CASE WHEN enveloped THEN 'urn:babel:orders:' || b // 16 % 5 END AS urn,
  CASE WHEN enveloped THEN printf('%032x', id // 6) END AS trace_id,
  CASE WHEN enveloped THEN printf('%08x-0000-4000-8000-%012x', id, id) END AS meta_id,
  CASE WHEN enveloped THEN attempts::BIGINT END AS attempts,
  to_timestamp(published / 1000.0) AS ready_at, NULL::TIMESTAMPTZ AS deliver_at,
  128::INTEGER AS priority, 0::INTEGER AS retries, NULL::VARCHAR AS "group",
  NULL::VARCHAR AS unique_key, NULL::BLOB AS body, settled // 86400000 AS day
FROM numbered
"""


def write_archive(folder: Path, rows: int, begin_ms: int, length_ms: int) -> int:
    """Add ``rows`` messages and their retries to an archive as one batch; return the last offset.

    Messages are published evenly from ``begin_ms`` on.
    """
    files = LocalResultsFolder(folder)
    ledger = read_ledger(files) or create_ledger(history_id=HISTORY_ID, offset=0)
    first, batch = ledger.offset or 0, f"bench-{ledger.number:08d}"
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    given = [first + 1, first + 1 + rows, begin_ms, length_ms, first]
    database.execute(f"CREATE TABLE made AS {ROWS}", given)
    found = database.execute(
        """SELECT day, (DATE '1970-01-01' + day::INTEGER)::VARCHAR, count(*), min("offset"),
        max("offset"), min(epoch_ms(published_at)) // 86400000 FROM made GROUP BY 1 ORDER BY 1"""
    ).fetchall()
    manifests = []
    for day, date, count, lo, hi, first_day in found:
        path = f"archive/date={date}/batch={batch}/part-0.parquet"
        files.path(path).parent.mkdir(parents=True)
        database.execute(
            f"""COPY (SELECT * EXCLUDE (day) FROM made WHERE day = {day} ORDER BY "offset")
            TO '{files.path(path)}' (FORMAT parquet, COMPRESSION zstd)"""
        )
        before = manifest_of(ledger, date)
        manifest = DateManifest(date=date) if before is None else read_manifest(files, before)
        file = ArchiveFile(
            path=path, rows=count, size_bytes=files.path(path).stat().st_size, lo=lo, hi=hi,
            first_day=first_day, last_day=day, batch=batch, has_bodies=False,
        )  # fmt: skip
        manifests.append(replace(manifest, files=(*manifest.files, file)))
    last = max(row[4] for row in found)
    commit(files, ledger, now_ms=1, manifests=manifests, offset=last, batch=batch)
    return int(last)


EVENTS: Final = """
  SELECT queue, published_at AS moment, 1 AS published, size AS bytes, 0 AS dispatched,
    0 AS redelivered, NULL AS outcome, NULL::BIGINT AS wait, NULL::BIGINT AS hold FROM history
  UNION ALL SELECT queue, first_dispatched_at, 0, 0, 1, 0, NULL,
    epoch_ms(first_dispatched_at) - epoch_ms(ready_at), NULL FROM history
    WHERE first_dispatched_at IS NOT NULL
  UNION ALL SELECT queue, last_dispatched_at, 0, 0, 0, deliveries - 1, NULL, NULL, NULL
    FROM history WHERE deliveries > 1
  UNION ALL SELECT queue, settled_at, 0, 0, 0, 0, outcome, NULL,
    CASE WHEN outcome IN ('acked', 'dead')
      THEN epoch_ms(settled_at) - epoch_ms(last_dispatched_at) END FROM history
"""
PERIODS: Final = f"""
  SELECT time_bucket(INTERVAL '1 {{0}}', moment) AS period, queue, sum(published), sum(bytes),
    sum(dispatched), sum(redelivered), count_if(outcome = 'acked'), count_if(outcome = 'expired'),
    count_if(outcome = 'dead'), count_if(outcome = 'deleted'),
    quantile_cont(wait, [0.5, 0.95, 0.99, 1]), quantile_cont(hold, [0.5, 0.95, 0.99, 1])
  FROM ({EVENTS}) GROUP BY ALL"""
RETRIED: Final = """
  SELECT DISTINCT h."offset" FROM history h JOIN history t ON t.meta_id = h.meta_id
    AND t.seq > h.seq AND t.attempts > h.attempts
    AND t.published_at BETWEEN h.first_dispatched_at AND h.settled_at
  WHERE h.outcome = 'acked' AND t.attempts > 0"""
TABLES: Final = {
    "minutes": PERIODS.format("minute"),
    "hours": PERIODS.format("hour"),
    "urns": f"""SELECT settled_at::DATE, queue, urn, outcome, count(*), sum(size),
      count_if("offset" IN ({RETRIED})) FROM history WHERE urn IS NOT NULL GROUP BY ALL""",
    "attempts": """SELECT settled_at::DATE, queue, urn, attempts, count(*) FROM history
      WHERE attempts IS NOT NULL GROUP BY ALL""",
    "deaths": """SELECT settled_at::DATE, queue, urn, reason, count(*) FROM history
      WHERE outcome = 'dead' GROUP BY ALL""",
    "expiries": """SELECT settled_at::DATE, queue, count_if(deliveries > 0) FROM history
      WHERE outcome = 'expired' GROUP BY ALL""",
    "paths": """SELECT * FROM (SELECT date, path, count(*) AS traces,
        quantile_cont(ms, [0.5, 0.95]) AS ms FROM (
          SELECT published_at::DATE AS date, trace_id, list(queue || ':' || urn ORDER BY seq)[:50]
            AS path, epoch_ms(max(settled_at)) - epoch_ms(min(published_at)) AS ms
          FROM history WHERE trace_id IS NOT NULL GROUP BY ALL) GROUP BY ALL)
      QUALIFY row_number() OVER (PARTITION BY date ORDER BY traces DESC) <= 1000""",
}


def duckdb_tables(folder: Path) -> None:
    """Write the seven tables from the archive's files with DuckDB."""
    files = str(folder / "archive" / "*" / "*" / "*.parquet")
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(f"CREATE VIEW history AS FROM read_parquet('{files}')")
        for name, query in TABLES.items():
            database.execute(f"COPY ({query}) TO '{folder / name}.parquet' (FORMAT parquet)")


def processor_s() -> float:
    """Return the processor seconds of this process and its children so far."""
    used: dict[int, tuple[int, int]] = {}  # parent and ticks by process
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # has ended
            fields = file.read_text().rpartition(") ")[2].split()
            used[int(file.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    own, ticks = {os.getpid()}, used[os.getpid()][1]
    while children := {pid for pid, (parent, _) in used.items() if parent in own} - own:
        own |= children
        ticks += sum(used[pid][1] for pid in children)
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def measured(what: str, rows: int | None = None) -> Iterator[None]:
    """Print the time and the processor seconds of the block."""
    began_s, used_s = time.monotonic(), processor_s()
    yield
    took_s = time.monotonic() - began_s
    rate = "" if rows is None else f"{rows / took_s:12,.0f} rows/s"
    print(f"{what:44}{took_s:8.2f} s{processor_s() - used_s:8.2f} CPU s{rate}", flush=True)


def increment(spark: "SparkSession", folder: Path, number: int) -> None:
    """Archive 5,000 messages, and measure their metrics and the summary."""
    begin_ms = FIRST_MS + LENGTH_MS + number * 60_000
    write_archive(folder, INCREMENT, begin_ms, 60_000)
    dates = len(list((folder / "archive").iterdir()))
    with measured(f"increment of {INCREMENT:,} messages, {dates} dates"):
        compute(spark, folder)


def compute(spark: "SparkSession", folder: Path) -> None:
    """Compute the metrics and the summary."""
    done = metrics.run(spark, MetricsOptions(connection=None, out=str(folder)))
    assert done.rows, done
    summarize(spark, folder)


def summarize(spark: "SparkSession", folder: Path) -> None:
    """Write the summary."""
    run = PipelineJobState(name="metrics", state="done")
    options = JobOptions(connection=None, out=str(folder))
    now_ms = FIRST_MS + LENGTH_MS
    assert not write_summary(spark, options, [run], now_ms=now_ms)


def count_dates(folder: Path) -> int:
    """Return the number of archived dates."""
    return len(list((folder / "archive").iterdir()))


def idle_run(folder: Path, rows: int) -> None:
    """Archive a broker's history, and measure the second run, from the broker and from its file."""
    data, out, remote = folder / "data", str(folder / "idle"), folder / "remote"
    make(data, 0, rows)
    flags = ("--admin", "127.0.0.1:0", "--set", "history.days=36500")
    with broker_process(data, *flags) as broker:
        for what in ("first run", "run without news"):
            run_pipeline(what, "--url", broker.admin[0], "--out", out)
    path = str(data / "phpmq.db")
    run_pipeline("run without news, --path", "--path", path, "--out", out)
    remote.mkdir()
    conf = f"{_LINK}={remote.as_uri()}"
    given = ("--path", path, "--out", _REMOTE, "--log", str(folder / "log"), "--conf", conf)
    run_pipeline("first run, storage that only Spark reaches", *given)
    command = [sys.executable, __file__, "--idle-on-hadoop", path, conf]
    subprocess.run(command, check=True)


_REMOTE: Final = "viewfs://local/out"  # Hadoop's name for a folder
_LINK: Final = "spark.hadoop.fs.viewfs.mounttable.local.link./out"


def run_pipeline(what: str, *options: str) -> None:
    """Run the command, and print its time and processor seconds."""
    command = (sys.executable, "-m", "phpmq_lite", "pipeline", "run", "--master", "local[2]")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, *options], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what:44}{time.monotonic() - began_s:8.2f} s{used_s:8.2f} CPU s", flush=True)


def idle_on_hadoop(path: str, conf: str) -> None:
    """Measure what a run without news does in a session that has just started."""
    with measured("session"):
        log = Path(path).with_name("spark.log")
        spark = session("idle", master="local[2]", conf=dict([conf.split("=")]), log=log)
    given: dict[str, Any] = {"connection": SourceConnection(path=path), "out": _REMOTE}
    with measured("run without news besides, same storage"):
        jobs = [kind(**given) for kind in (ArchiveOptions, MetricsOptions, CompactOptions)]
        results = idle_results(open_results(spark, _REMOTE), jobs)
        assert results is not None
        end_ms = time.time_ns() // 1_000_000
        runs = [
            PipelineJobState(name=done.job, state="done", offset=done.offset, finished_at=end_ms)
            for done in results
        ]
        write_summary(spark, jobs[0], runs, now_ms=end_ms, has_news=False)


def main(rows: int, more_dates: int, folder: Path) -> None:
    """Measure everything."""
    out, many = folder / "out", folder / "many"
    last = write_archive(out, rows, FIRST_MS, LENGTH_MS)
    with measured("DuckDB, seven tables", last):
        duckdb_tables(out)
    used_s = processor_s()
    with measured("session"):
        spark = session("bench", master="local[2]", log=folder / "spark.log")
    with measured("metrics", last):
        done = metrics.run(spark, MetricsOptions(connection=None, out=str(out)))
        assert done.rows == last, done
    print(f"{'session and metrics':44}{'':10}{processor_s() - used_s:8.2f} CPU s")
    with measured("summary"):
        summarize(spark, out)
    with measured("metrics again, warm", last):
        shutil.rmtree(out / "metrics")
        compute(spark, out)
    begin_ms = FIRST_MS - more_dates * DAY_MS
    write_archive(many, more_dates * 200, begin_ms, more_dates * DAY_MS)
    write_archive(many, rows, FIRST_MS, LENGTH_MS)
    compute(spark, many)
    for number in range(1, 4):
        increment(spark, out, number)
        increment(spark, many, number)
    spark.stop()
    idle_run(folder, min(rows, 50_000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=656_000, help="without retries")
    parser.add_argument("--more-dates", type=int, default=300, help="of an increment's archive")
    parser.add_argument("--short", action="store_true", help="20,000 messages and 30 more dates")
    parser.add_argument("--duckdb", action="store_true", help="only DuckDB's time")
    parser.add_argument("--idle-on-hadoop", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.idle_on_hadoop:
        idle_on_hadoop(*options.idle_on_hadoop)
        sys.exit()
    count, more = (20_000, 30) if options.short else (options.rows, options.more_dates)
    with tempfile.TemporaryDirectory(prefix="phpmq-metrics-") as place:
        if options.duckdb:
            total = write_archive(Path(place), count, FIRST_MS, LENGTH_MS)
            with measured("DuckDB, seven tables", total):
                duckdb_tables(Path(place))
        else:
            main(count, more, Path(place))
