"""``summary.json``: what the Insights page shows, and all that it reads.

::

    {"version": 1, "finished_at": ms, "history_id": str | null,
     "archive": {"offset": n | null, "rows": n, "dates": n, "bytes": n,
                 "outcomes": ["acked", …],          those that it has; empty: all
                 "gaps": n, "missing": n},          accepted ones; rows that they lack at most
     "gaps": [{"at_ms", "history_id", "lo", "hi", "rows": n | null, "batch"}]   the newest 100
     "lag": {"offset": n | null, "rows": n | null},   the broker's last offset; how many behind
     "jobs": [{"name", "state": "done|running|failed|stopped", "started_at", "finished_at",
               "offset", "error"}],
     "queues":  [{"queue", figures}]                  the last 24 hours
     "last24h": [{"minute": ms, "queue", figures}],
     "last30d": [{"hour": ms, "queue", figures}],
     the last 30 dates:
     "urns": [{"urn", "queue", "published", "bytes", "acked", "expired", "dead", "deleted",
               "retried", "redelivered_messages", "failed": {reason: n}, "attempts": {count: n}}],
     "deaths": [{"queue", "urn" | null, "reason" | null, "count"}],
     "paths": [{"path": ["queue:urn", …], "traces": n, "p50_ms", "p95_ms"}],
     "expiries": [{"queue", "dispatched": n, "never": n}]}

``figures`` are those of ``metric_tables``: counts, and ``wait_p50 wait_p95 wait_p99 wait_max``
and ``hold_…`` in milliseconds or null.  A period without a row had no event.  ``retried`` ones are
among ``acked`` and were no success.  Percentiles are exact but for ``paths``: within 1 %.

Lists begin with the busiest; ``last24h`` and ``last30d`` are in the order of time.  What does not
fit into 2 MiB is under the queue ``(others)``, which has no percentiles, only the maxima.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from phpmq_lite.errors import PhpmqError, RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import last_committed_batch
from phpmq_lite.spark.columns import ARCHIVE_SCHEMA
from phpmq_lite.spark.history import history_bounds
from phpmq_lite.spark.jobs import archive_gaps
from phpmq_lite.spark.jobs.compact import block_swaps
from phpmq_lite.spark.jobs.metric_tables import (
    BUCKET_BASE,
    COUNTS,
    PERCENTILES,
    SPANS,
    figures_by_name,
    period_figures,
)
from phpmq_lite.spark.jobs.metrics import rows_of_dates
from phpmq_lite.spark.jobs.options import JobOptions, ReportProgress, report_nothing
from phpmq_lite.spark.pipeline_client import put_insights
from phpmq_lite.spark.results_folder import ResultsFolder, open_results, read_archive
from phpmq_lite.spark.session import fit_shuffles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION: Final = 1
MAX_BYTES: Final = (2 << 20) - 1
OTHERS: Final = "(others)"
MAX_QUEUES: Final = 50  # by name; at most, if they fit
MAX_ROWS: Final = 200  # of urns, deaths, expiries
MAX_PATHS: Final = 50
MAX_GAPS: Final = 100
MAX_KEYS: Final = 20  # of failed and attempts of a urn
SHARES: Final = {"last24h": 1_150_000, "last30d": 500_000}  # bytes of the 2 MiB

_DAYS: Final = 30
_DAY_MS: Final = 86_400_000
_MAXIMA: Final = tuple(f"{span}_max" for span in SPANS)
_SPANS: Final = tuple(f"{span}_{name}" for span in SPANS for name in (*PERCENTILES, "max"))
_URN_COUNTS: Final = [
    "published",
    "bytes",
    "acked",
    "expired",
    "dead",
    "deleted",
    "retried",
    "redelivered_messages",
]

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job, as ``summary.json`` tells it; times are Unix milliseconds."""

    name: str
    state: str  # done, running, failed or stopped
    started_at: int
    finished_at: int | None = None
    offset: int | None = None
    error: str | None = None


def write_summary(
    spark: "SparkSession",
    options: JobOptions,
    runs: Sequence[JobRun],
    *,
    now_ms: int,
    report: ReportProgress = report_nothing,
) -> tuple[str, ...]:
    """Write ``summary.json`` anew and send it to the broker; gives what did not work, as notes.

    ``runs`` are kept, the newest of each name, in ``jobs.json``.
    """
    report("summary", 0, None)
    files = open_results(spark, options.out)
    kept = record_run(files, runs)
    lag, notes = _lag(options)
    try:
        with block_swaps(files):
            summary = collect_summary(spark, files, now_ms)
    except RefusedError as error:  # the job's own work is done: the next run writes it
        return (*notes, f"the summary was not written: {error}")
    archived = summary["archive"]["offset"]
    behind = None if lag is None or archived is None else max(0, lag - archived)
    summary |= {"jobs": kept, "lag": {"offset": lag, "rows": behind}}
    text = encode_summary(summary)
    files.write(results_folder.SUMMARY, text)
    if options.connection is not None and options.connection.url is not None:
        try:
            put_insights(options.connection, text.encode())
        except (PhpmqError, OSError) as error:
            notes += (f"the broker did not take the summary: {error}",)
    return notes


def record_run(files: ResultsFolder, runs: Iterable[JobRun]) -> list[Item]:
    """Keep the newest run of each name; gives all that are kept, by name."""
    kept: dict[str, Item] = {
        run["name"]: run for run in json.loads(files.read(results_folder.JOBS) or "[]")
    }
    kept |= {run.name: asdict(run) for run in runs}
    ordered = [kept[name] for name in sorted(kept)]
    files.write(results_folder.JOBS, json.dumps(ordered))
    return ordered


def _lag(options: JobOptions) -> tuple[int | None, tuple[str, ...]]:
    """Ask the broker for its last offset."""
    if options.connection is None:
        return None, ()
    try:
        return history_bounds(options.connection).hi, ()
    except (PhpmqError, OSError) as error:
        return None, (f"how far the archive is behind is not known: {error}",)


def collect_summary(spark: "SparkSession", files: ResultsFolder, now_ms: int) -> Item:
    """Read archive and metrics; gives the summary without ``jobs`` and ``lag``."""
    done = last_committed_batch(files, results_folder.ARCHIVE_CHECKPOINT)
    summary: Item = {
        "gaps": [asdict(gap) for gap in archive_gaps.read_gaps(files)[:MAX_GAPS]],
        "version": VERSION,
        "finished_at": now_ms,
        "history_id": done.history_id if done else None,
        "archive": _archive(spark, files, done.offset if done else None),
    }
    tables = MetricTables(spark, files, now_ms)
    for name, read in (
        ("queues", tables.queues),
        ("last24h", tables.minutes),
        ("last30d", tables.hours),
        ("urns", tables.urns),
        ("deaths", tables.deaths),
        ("paths", tables.paths),
        ("expiries", tables.expiries),
    ):
        summary[name] = read()
    return summary


def _archive(spark: "SparkSession", files: ResultsFolder, offset: int | None) -> Item:
    sizes = files.files(results_folder.ARCHIVE)
    dates = [name for name in files.names(results_folder.ARCHIVE) if name.startswith("date=")]
    rows = (
        spark.read.schema(ARCHIVE_SCHEMA).parquet(files.url(results_folder.ARCHIVE)).count()
        if sizes
        else 0
    )
    selection = json.loads(files.read(results_folder.ARCHIVE_SELECTION) or "{}")
    return {
        "offset": offset,
        "rows": rows,
        "dates": len(dates),
        "bytes": sum(sizes),
        "outcomes": selection.get("outcomes", []),
        "gaps": len(found := archive_gaps.read_gaps(files)),
        "missing": sum(gap.rows_at_most for gap in found),
    }


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


class MetricTables:
    """The tables of metrics, cut to what a summary has room for; empty where there are none."""

    def __init__(self, spark: "SparkSession", files: ResultsFolder, now_ms: int) -> None:
        self._spark = spark
        self._files = files
        self._now_ms = now_ms

    def _read(self, table: str, days: int) -> "DataFrame | None":
        """Read the dates that the last ``days`` times 24 hours touch."""
        path = f"{results_folder.METRICS}/{table}"
        if not self._files.files(path):
            return None
        now = _moment(self._now_ms)
        rows = self._spark.read.parquet(self._files.url(path))
        return rows.where(sf.col("date") >= sf.lit((now - timedelta(days=days)).date()))

    def queues(self) -> list[Item]:
        """Sum up the archive's last 24 hours per queue: percentiles do not add up."""
        if not self._files.files(results_folder.ARCHIVE):
            return []
        since_ms = self._now_ms - _DAY_MS
        dates = {_moment(ms).date() for ms in (since_ms, self._now_ms)}
        archive = read_archive(self._spark, self._files)
        fit_shuffles(self._spark, archive.where(sf.col("date").isin(*dates)).count())
        recent = rows_of_dates(archive, dates)
        rows = period_figures(recent, since_ms=since_ms).collect()
        items = [round_times({"queue": row["queue"], **figures_by_name(row)}) for row in rows]
        return sorted(items, key=lambda item: (-queue_weight(item), item["queue"]))[:MAX_ROWS]

    def minutes(self) -> list[Item]:
        """Give the last 24 hours by minute."""
        return self._periods("minutes", "minute", 1, SHARES["last24h"])

    def hours(self) -> list[Item]:
        """Give the last 30 days by hour."""
        return self._periods("hours", "hour", _DAYS, SHARES["last30d"])

    def _periods(self, table: str, name: str, days: int, share: int) -> list[Item]:
        rows = self._read(table, days)
        if rows is None:
            return []
        at = sf.unix_millis(name)
        recent = rows.where(at > self._now_ms - days * _DAY_MS).withColumn(name, at).drop("date")
        total = sf.sum(sf.col("published") + sum((sf.col(o) for o in COUNTS[4:8]), sf.lit(0)))
        totals = recent.groupBy("queue").agg(total.alias("n")).orderBy(sf.desc("n"), "queue")
        busiest = [row["queue"] for row in totals.limit(MAX_QUEUES).collect()]
        named = recent.where(sf.col("queue").isin(busiest)).collect()
        sums = [sf.sum(count).alias(count) for count in COUNTS]
        maxima = [sf.max(maximum).alias(maximum) for maximum in _MAXIMA]
        rest = recent.where(~sf.col("queue").isin(busiest)).groupBy(name).agg(*sums, *maxima)
        items = [round_times(row.asDict()) for row in named]
        return fit_queues(items, [row.asDict() for row in rest.collect()], busiest, name, share)

    def urns(self) -> list[Item]:
        """Give the busiest urns with what became of them."""
        rows = self._read("urns", _DAYS)
        if rows is None:
            return []
        sums = [sf.sum(name).alias(name) for name in _URN_COUNTS]
        totals = rows.groupBy("queue", "urn").agg(*sums)
        order = (sf.desc(sf.col("published") + sf.col("acked") + sf.col("dead")), "queue", "urn")
        found = [row.asDict() for row in totals.orderBy(*order).limit(MAX_ROWS).collect()]
        failed = self._by_urn("deaths", "reason", found)
        attempts = self._by_urn("attempts", "attempts", found)
        for item in found:
            key = item["queue"], item["urn"]
            item |= {"failed": failed.get(key, {}), "attempts": attempts.get(key, {})}
        return found

    def _by_urn(
        self, table: str, column: str, wanted: list[Item]
    ) -> dict[tuple[str, str], dict[str, int]]:
        """Give the counts of a column, the commonest first, for the (queue, urn) wanted."""
        rows = self._read(table, _DAYS)
        if rows is None:
            return {}
        keys = ["queue", "urn", column]
        counted = rows.groupBy(*keys).agg(sf.sum("count").alias("n"))
        order = Window.partitionBy("queue", "urn").orderBy(sf.desc("n"), column)
        ranked = counted.withColumn("rank", sf.row_number().over(order))
        urns = {item["urn"] for item in wanted}
        kept = ranked.where((sf.col("rank") <= MAX_KEYS) & sf.col("urn").isin(*urns))
        result: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for row in kept.orderBy("rank").collect():
            result[row["queue"], row["urn"]][str(row[column])] = row["n"]
        return result

    def deaths(self) -> list[Item]:
        """Give the commonest causes of death."""
        keys = ["queue", "urn", "reason"]
        rows = self._read("deaths", _DAYS)
        if rows is None:
            return []
        totals = rows.groupBy(*keys).agg(sf.sum("count").alias("count"))
        ordered = totals.orderBy(sf.desc("count"), *keys).limit(MAX_ROWS)
        return [row.asDict() for row in ordered.collect()]

    def expiries(self) -> list[Item]:
        """Give the queues where most expired."""
        rows = self._read("expiries", _DAYS)
        if rows is None:
            return []
        totals = rows.groupBy("queue").agg(
            sf.sum("dispatched").alias("dispatched"), sf.sum("never").alias("never")
        )
        order = (sf.desc(sf.col("dispatched") + sf.col("never")), "queue")
        return [row.asDict() for row in totals.orderBy(*order).limit(MAX_ROWS).collect()]

    def paths(self) -> list[Item]:
        """Give the commonest ways of traces, their days added up."""
        rows = self._read("paths", _DAYS)
        if rows is None:
            return []
        totals = rows.groupBy("path").agg(
            sf.sum("traces").alias("traces"), sf.collect_list("buckets").alias("buckets")
        )
        found = totals.orderBy(sf.desc("traces"), "path").limit(MAX_PATHS).collect()
        return [path_item(row["path"], row["buckets"]) for row in found]


def path_item(path: Sequence[str], days: Iterable[Mapping[int, int]]) -> Item:
    """Add the days' buckets (number -> traces) of a path up; durations are within 1 %."""
    buckets: Counter[int] = Counter()
    for day in days:
        buckets.update(day)
    traces = sum(buckets.values())
    p50, p95 = (_percentile(buckets, traces * share) for share in (0.5, 0.95))
    return {"path": list(path), "traces": traces, "p50_ms": p50, "p95_ms": p95}


def _percentile(buckets: Mapping[int, int], wanted: float) -> float | None:
    """Give the middle of the bucket in which ``wanted`` traces are reached."""
    reached = 0
    for number in sorted(buckets):
        reached += buckets[number]
        if reached >= wanted:
            return round(BUCKET_BASE ** (number - 0.5), 1) if number else 1.0
    return None


def queue_weight(item: Mapping[str, Any]) -> int:
    """Tell how busy: messages published and settled."""
    names = ("published", "acked", "expired", "dead", "deleted")
    return sum(int(item[name]) for name in names)


def fit_queues(
    items: list[Item], rest: list[Item], busiest: Sequence[str], name: str, share: int
) -> list[Item]:
    """Keep whole queues, the busiest first, within ``share`` bytes; the rest becomes ``OTHERS``.

    ``rest`` are sums of other queues, without ``queue``.  Gives the items by time (``name``).
    """
    by_queue: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_queue[item["queue"]].append(item)
    sizes = {queue: _size(by_queue[queue]) for queue in busiest}
    if rest or sum(sizes.values()) > share:
        share -= _size(_others([*items, *rest], name))  # at most so much is left over
    kept: list[Item] = []
    for number, queue in enumerate(busiest):
        if sizes[queue] > share:
            rest = [i for left in busiest[number:] for i in by_queue[left]] + rest
            break
        kept += by_queue[queue]
        share -= sizes[queue]
    kept += _others(rest, name)
    return sorted(kept, key=lambda item: (item[name], item["queue"] == OTHERS, item["queue"]))


def _size(items: Iterable[Item]) -> int:
    return sum(len(_json(item).encode()) + 1 for item in items)


def round_times(item: Item) -> Item:
    """Give an item with a tenth of a millisecond at most."""
    return {n: round(v, 1) if isinstance(v, float) else v for n, v in item.items()}


def _others(items: Iterable[Item], name: str) -> list[Item]:
    """Add items of the same period up; no percentiles, for they do not add up."""
    sums: dict[int, Item] = {}
    for item in items:
        into = sums.setdefault(
            item[name],
            {
                name: item[name],
                "queue": OTHERS,
                **dict.fromkeys(COUNTS, 0),
                **dict.fromkeys(_SPANS),
            },
        )
        for count in COUNTS:
            into[count] += item[count]
        for maximum in _MAXIMA:
            found = [m for m in (into[maximum], item[maximum]) if m is not None]
            into[maximum] = max(found, default=None)
    return list(sums.values())


def encode_summary(summary: Item) -> str:
    """Write the summary; where it is too large, its long lists lose their ends.

    The tables have the share that the periods leave; only very long names come to this.
    """
    while len(text := _json(summary).encode()) > MAX_BYTES:
        lists = ("urns", "deaths", "paths", "expiries", "queues", "last30d", "last24h")
        longest = max(lists, key=lambda name: len(_json(summary[name])))
        is_timed = longest.startswith("last")  # the oldest come first there
        half = len(summary[longest]) // 2
        kept = summary[longest][half:] if is_timed else summary[longest][:half]
        summary = {**summary, longest: kept}
    return text.decode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
