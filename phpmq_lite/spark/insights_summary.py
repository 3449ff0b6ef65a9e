"""The insights document, ``summary.json``, built from the archive and the metric tables.

``insights_document`` defines its fields. The jobs also write fields that no page shows: ``queues``
(statistics for the last 24 hours by queue), ``history_id`` and ``batch`` for each gap, and
``published``, ``bytes``, ``expired``, ``dead``, ``deleted`` and ``redelivered_messages`` for each
URN.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from phpmq_lite.errors import PhpmqError, RefusedError
from phpmq_lite.insights_document import (
    OTHER_QUEUES,
    SUMMARY_BYTES,
    PipelineJobState,
    merge_summaries,
)
from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.checkpoints import last_committed_batch
from phpmq_lite.spark.columns import DAY_MS
from phpmq_lite.spark.history import open_history
from phpmq_lite.spark.jobs.compact import block_swaps
from phpmq_lite.spark.jobs.metrics import (
    BUCKET_BASE,
    COUNTS,
    SPAN_FIGURES,
    SPANS,
    period_figures,
    rows_of_dates,
)
from phpmq_lite.spark.jobs.options import JobOptions
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import ResultsFolder, open_results
from phpmq_lite.spark.session import fit_shuffles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_QUEUES: Final = 50  # maximum number of queues listed by name; SHARES may allow fewer
MAX_ROWS: Final = 200  # maximum length of each list: queues, urns, deaths, expiries
MAX_PATHS: Final = 50
MAX_GAPS: Final = 100
MAX_KEYS: Final = 20  # maximum number of reasons, and of attempt counts, per URN
SHARES: Final = {"minutes": 1_150_000, "hours": 500_000}  # maximum number of bytes of each list

_COMPUTING: Final = frozenset({"archive", "metrics", "compact"})  # jobs with figures of their own
_DAYS: Final = 30
_MAXIMA: Final = tuple(f"{span}_max" for span in SPANS)
_URN_COUNTS: Final = ("published", "bytes", *OUTCOMES, "retried", "redelivered_messages")

Item = dict[str, Any]


def write_summary(
    spark: "SparkSession", options: JobOptions, runs: Sequence[PipelineJobState], *, now_ms: int
) -> tuple[str, ...]:
    """Write ``summary.json``, and send the folder's figures to the broker; return problems.

    The most recent run of each job is stored in ``jobs.json``. If no run has figures of its own,
    only the state of the jobs is sent. The broker keeps absent figures, which may come from
    another folder.
    """
    files = open_results(spark, options.out)
    jobs = record_run(files, runs)
    lag: int | None = None  # the last offset in the broker's history
    notes: tuple[str, ...] = ()
    if options.connection is not None:
        try:
            lag = open_history(options.connection).bounds().hi
        except (PhpmqError, OSError) as error:
            notes = (f"the archive's lag is unknown: {error}",)
    try:
        with block_swaps(files):
            summary = collect_summary(spark, files, now_ms)
    except RefusedError as error:  # not an error, because the job's next run will write the summary
        return (*notes, f"the summary was not written: {error}")
    if "archive" in summary:
        archived_offset = summary["archive"]["offset"]
        rows = None if lag is None or archived_offset is None else max(0, lag - archived_offset)
        summary["lag"] = {"offset": lag, "rows": rows}
    stored = files.read(results_folder.SUMMARY) or "{}"
    previous: Item = {}  # may have figures that another folder's jobs sent
    with suppress(ValueError):
        previous = json.loads(stored)
    text = encode_summary(merge_summaries(previous, {**summary, "jobs": jobs}))
    files.write(results_folder.SUMMARY, text)
    if options.connection is not None and options.connection.url is not None:
        names = {run.name for run in runs}
        document = summary if names & _COMPUTING else {"version": 1, "finished_at": now_ms}
        document = {**document, "jobs": [job for job in jobs if job["name"] in names]}
        try:
            PipelineClient(options.connection).put_insights(encode_summary(document).encode())
        except (PhpmqError, OSError) as error:
            notes += (f"the broker did not accept the summary: {error}",)
    return notes


def record_run(files: ResultsFolder, runs: Iterable[PipelineJobState]) -> list[Item]:
    """Store the most recent run of each job; return all stored runs, sorted by job name.

    A run that failed keeps the offset that the job has reached.
    """
    by_name: dict[str, Item] = {
        run["name"]: run for run in json.loads(files.read(results_folder.JOBS) or "[]")
    }
    committed = last_committed_batch(files, results_folder.ARCHIVE_CHECKPOINT)
    for run in runs:
        offset = run.offset
        if offset is None and run.name == "archive" and committed is not None:
            offset = committed.offset
        if offset is None and run.name in by_name:
            offset = by_name[run.name]["offset"]
        by_name[run.name] = {**run.model_dump(), "offset": offset}
    ordered = [by_name[name] for name in sorted(by_name)]
    files.write(results_folder.JOBS, json.dumps(ordered))
    return ordered


def collect_summary(spark: "SparkSession", files: ResultsFolder, now_ms: int) -> Item:
    """Build the document without ``jobs`` and ``lag``; what has not been computed is absent."""
    committed = last_committed_batch(files, results_folder.ARCHIVE_CHECKPOINT)
    tables = MetricTables(spark, files, now_ms)
    summary: Item = {"version": 1, "finished_at": now_ms}
    if committed is not None or files.files(results_folder.ARCHIVE):
        gaps = results_folder.read_gaps(files)
        summary |= {
            "gaps": [asdict(gap) for gap in gaps[:MAX_GAPS]],
            "history_id": committed.history_id if committed else None,
            "archive": _archive(spark, files, committed.offset if committed else None, gaps),
            "queues": tables.queues(),
        }
    if files.names(results_folder.METRICS):
        summary |= {
            "last24h": tables.periods("minutes", "minute", 1),
            "last30d": tables.periods("hours", "hour", _DAYS),
            "urns": tables.urns(),
            "deaths": tables.totals("deaths", ("queue", "urn", "reason"), ("count",)),
            "paths": tables.paths(),
            "expiries": tables.totals("expiries", ("queue",), ("dispatched", "never")),
        }
    return summary


def _archive(
    spark: "SparkSession",
    files: ResultsFolder,
    offset: int | None,
    gaps: Sequence[results_folder.ArchiveGap],
) -> Item:
    sizes = files.files(results_folder.ARCHIVE)
    selection = json.loads(files.read(results_folder.ARCHIVE_SELECTION) or "{}")
    return {
        "offset": offset,
        "rows": read_archive(spark, files).count() if sizes else 0,
        "dates": len(results_folder.archive_dates(files)),
        "bytes": sum(sizes),
        "outcomes": selection.get("outcomes", []),
        "gaps": len(gaps),
        "missing": sum(gap.rows_at_most for gap in gaps),
    }


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class MetricTables:
    """Reads as many metrics as the document can hold; a missing table counts as empty."""

    spark: "SparkSession"
    files: ResultsFolder
    now_ms: int

    def _read(self, table: str, days: int) -> "DataFrame | None":
        """Return a table's rows, starting with the date ``days`` days ago."""
        path = f"{results_folder.METRICS}/{table}"
        if not self.files.files(path):
            return None
        now = _moment(self.now_ms)
        rows = self.spark.read.parquet(self.files.url(path))
        return rows.where(sf.col("date") >= sf.lit((now - timedelta(days=days)).date()))

    def queues(self) -> list[Item]:
        """Compute 24-hour statistics from the archive, because percentiles cannot be summed."""
        if not self.files.files(results_folder.ARCHIVE):
            return []
        since_ms = self.now_ms - DAY_MS
        dates = {_moment(ms).date() for ms in (since_ms, self.now_ms)}
        archive = read_archive(self.spark, self.files)
        fit_shuffles(self.spark, archive.where(sf.col("date").isin(*dates)).count())
        recent = rows_of_dates(archive, dates)
        rows = period_figures(recent, since_ms=since_ms).collect()
        items = [round_times(row.asDict()) for row in rows]
        names = ("published", *OUTCOMES)
        items.sort(key=lambda item: (-sum(item[name] for name in names), item["queue"]))
        return items[:MAX_ROWS]

    def periods(self, table: str, name: str, days: int) -> list[Item]:
        """Return statistics by period for ``days`` days; ``name`` names the time column."""
        rows = self._read(table, days)
        if rows is None:
            return []
        at = sf.unix_millis(name)
        recent = rows.where(at > self.now_ms - days * DAY_MS).withColumn(name, at).drop("date")
        total = sf.sum(sum((sf.col(name) for name in OUTCOMES), sf.col("published")))
        totals = recent.groupBy("queue").agg(total.alias("n")).orderBy(sf.desc("n"), "queue")
        busiest = [row["queue"] for row in totals.limit(MAX_QUEUES).collect()]
        named = recent.where(sf.col("queue").isin(busiest)).collect()
        sums = [sf.sum(count).alias(count) for count in COUNTS]
        maxima = [sf.max(maximum).alias(maximum) for maximum in _MAXIMA]
        unnamed = recent.where(~sf.col("queue").isin(busiest)).groupBy(name).agg(*sums, *maxima)
        items = [round_times(row.asDict()) for row in named]
        return fit_queues(
            items, [row.asDict() for row in unnamed.collect()], busiest, name, SHARES[table]
        )

    def urns(self) -> list[Item]:
        """Return counts for the busiest URNs, with dead-letter reasons and attempts."""
        weights = ("published", "acked", "dead")
        items = self.totals("urns", ("queue", "urn"), _URN_COUNTS, weights)
        failed = self._by_urn("deaths", "reason", items)
        attempts = self._by_urn("attempts", "attempts", items)
        for item in items:
            key = item["queue"], item["urn"]
            item |= {"failed": failed.get(key, {}), "attempts": attempts.get(key, {})}
        return items

    def _by_urn(
        self, table: str, column: str, items: list[Item]
    ) -> dict[tuple[str, str], dict[str, int]]:
        """Count messages by ``column`` for each (queue, urn) of the items, most frequent first."""
        rows = self._read(table, _DAYS)
        if rows is None:
            return {}
        keys = ["queue", "urn", column]
        counts = rows.groupBy(*keys).agg(sf.sum("count").alias("n"))
        order = Window.partitionBy("queue", "urn").orderBy(sf.desc("n"), column)
        ranked = counts.withColumn("rank", sf.row_number().over(order))
        urns = {item["urn"] for item in items}
        frequent = ranked.where((sf.col("rank") <= MAX_KEYS) & sf.col("urn").isin(*urns))
        result: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for row in frequent.orderBy("rank").collect():
            result[row["queue"], row["urn"]][str(row[column])] = row["n"]
        return result

    def totals(
        self,
        table: str,
        keys: Sequence[str],
        counts: Sequence[str],
        weights: Sequence[str] | None = None,
    ) -> list[Item]:
        """Sum ``counts`` by ``keys``; sort by ``weights`` (default: ``counts``), descending."""
        rows = self._read(table, _DAYS)
        if rows is None:
            return []
        totals = rows.groupBy(*keys).agg(*(sf.sum(name).alias(name) for name in counts))
        weight = sum((sf.col(name) for name in weights or counts), sf.lit(0))
        largest = totals.orderBy(sf.desc(weight), *keys).limit(MAX_ROWS)
        return [row.asDict() for row in largest.collect()]

    def paths(self) -> list[Item]:
        """Return the most frequent trace paths, summed over all days."""
        rows = self._read("paths", _DAYS)
        if rows is None:
            return []
        totals = rows.groupBy("path").agg(
            sf.sum("traces").alias("traces"), sf.collect_list("buckets").alias("buckets")
        )
        frequent = totals.orderBy(sf.desc("traces"), "path").limit(MAX_PATHS).collect()
        return [path_item(row["path"], row["buckets"]) for row in frequent]


def path_item(path: Sequence[str], days: Iterable[Mapping[int, int]]) -> Item:
    """Sum a path's buckets (number -> traces) over all days; durations are accurate to 1 %."""
    buckets: Counter[int] = Counter()
    for day in days:
        buckets.update(day)
    traces = sum(buckets.values())
    p50, p95 = (_percentile(buckets, traces * share) for share in (0.5, 0.95))
    return {"path": list(path), "traces": traces, "p50_ms": p50, "p95_ms": p95}


def _percentile(buckets: Mapping[int, int], rank: float) -> float | None:
    """Return the midpoint of the bucket in which the cumulative count reaches ``rank``."""
    reached = 0
    for number in sorted(buckets):
        reached += buckets[number]
        if reached >= rank:
            return round(BUCKET_BASE ** (number - 0.5), 1) if number else 1.0
    return None


def fit_queues(
    items: list[Item], omitted: list[Item], busiest: Sequence[str], name: str, share: int
) -> list[Item]:
    """Return items, ordered by time, for as many of the busiest queues as fit in ``share`` bytes.

    Other items and ``omitted`` (sums without ``queue``) are summed under ``OTHER_QUEUES``.
    ``name`` is the field with the time.
    """
    by_queue: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_queue[item["queue"]].append(item)
    sizes = {queue: _size(by_queue[queue]) for queue in busiest}
    if omitted or sum(sizes.values()) > share:
        share -= _size(_others([*items, *omitted], name))  # reserve space for other queues
    listed: list[Item] = []
    for number, queue in enumerate(busiest):
        if sizes[queue] > share:
            omitted = [i for name in busiest[number:] for i in by_queue[name]] + omitted
            break
        listed += by_queue[queue]
        share -= sizes[queue]
    listed += _others(omitted, name)
    return sorted(
        listed, key=lambda item: (item[name], item["queue"] == OTHER_QUEUES, item["queue"])
    )


def _size(items: Iterable[Item]) -> int:
    return sum(len(_json(item).encode()) + 1 for item in items)


def round_times(item: Item) -> Item:
    """Return an item with its times rounded to a tenth of a millisecond."""
    return {n: round(v, 1) if isinstance(v, float) else v for n, v in item.items()}


def _others(items: Iterable[Item], name: str) -> list[Item]:
    """Sum the items of each period, leaving out percentiles, which cannot be summed."""
    sums: dict[int, Item] = {}
    for item in items:
        empty: Item = dict.fromkeys(COUNTS, 0) | dict.fromkeys(SPAN_FIGURES)
        key = {name: item[name], "queue": OTHER_QUEUES}
        totals = sums.setdefault(item[name], key | empty)
        for count in COUNTS:
            totals[count] += item[count]
        for maximum in _MAXIMA:
            values = [m for m in (totals[maximum], item[maximum]) if m is not None]
            totals[maximum] = max(values, default=None)
    return list(sums.values())


def encode_summary(summary: Item) -> str:
    """Encode the document; if it is too large, truncate its longest lists.

    This happens only with very long names, because ``SHARES`` bounds the periods.
    """
    while len(text := _json(summary).encode()) > SUMMARY_BYTES:
        lists = ("urns", "deaths", "paths", "expiries", "queues", "last30d", "last24h")
        longest = max(lists, key=lambda name: len(_json(summary.get(name, []))))
        is_timed = longest.startswith("last")  # these lists start with the oldest entries
        half = len(summary[longest]) // 2
        shorter = summary[longest][half:] if is_timed else summary[longest][:half]
        summary = {**summary, longest: shorter}
    return text.decode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
