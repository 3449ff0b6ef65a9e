"""Metrics job, which finds retried rows in the archive and writes ``metrics/<table>/date=…``.

The functions of the tables compute statistics by period and queue, and by day and envelope.
"""

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from functools import reduce
from itertools import chain, groupby, islice
from operator import itemgetter, or_
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.checkpoints import CommittedBatch, last_committed_batch
from phpmq_lite.spark.columns import DAY_MS, TIME_COLUMNS, utc_day, with_comments
from phpmq_lite.spark.jobs.compact import block_swaps
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, MetricsOptions
from phpmq_lite.spark.jobs.stream_writer import remove_staged
from phpmq_lite.spark.results_folder import ResultsFolder, open_results
from phpmq_lite.spark.session import fit_shuffles
from phpmq_lite.spark.table_columns import METRIC_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

MAX_STEPS: Final = 50  # maximum number of steps in a path
MAX_PATHS: Final = 1_000  # maximum number of paths per day
BUCKET_BASE: Final = 1.01  # durations in the same bucket differ by at most 1 %


def urn_counts(rows: "DataFrame") -> "DataFrame":
    """Count the messages published and settled on each date, by queue and URN."""
    named = rows.where(sf.col("urn").isNotNull())
    flags = {outcome: sf.col("outcome") == outcome for outcome in OUTCOMES}
    flags |= {"retried": sf.col("retried"), "redelivered_messages": sf.col("deliveries") > 1}
    names = ("published", "bytes", *flags)

    def event(at: str, **values: "Column") -> "Column":
        counts = [values.get(name, sf.lit(0)).cast("bigint").alias(name) for name in names]
        return sf.struct(utc_day(at).alias("date"), *counts)

    settled = {name: _flag(condition) for name, condition in flags.items()}
    events = sf.array(
        event("published_at", published=sf.lit(1), bytes=sf.col("size")),
        event("settled_at", **settled),
    )
    sums = [sf.sum(name).alias(name) for name in names]
    exploded = named.select("queue", "urn", sf.explode(events).alias("event"))
    return exploded.select("queue", "urn", "event.*").groupBy("date", "queue", "urn").agg(*sums)


def attempt_counts(rows: "DataFrame") -> "DataFrame":
    """Count messages by settlement date, queue, URN and the number of attempts in the envelope."""
    envelopes = rows.where(sf.col("urn").isNotNull() & sf.col("attempts").isNotNull())
    return _count_by(envelopes, "queue", "urn", "attempts")


def death_counts(rows: "DataFrame") -> "DataFrame":
    """Count dead letters by settlement date, queue, URN (may be null) and reason."""
    return _count_by(rows.where(sf.col("outcome") == "dead"), "queue", "urn", "reason")


def _count_by(rows: "DataFrame", *keys: str) -> "DataFrame":
    return rows.groupBy(utc_day("settled_at").alias("date"), *keys).agg(
        sf.count("*").alias("count")
    )


def expiry_counts(rows: "DataFrame") -> "DataFrame":
    """Count expired messages (``dispatched`` or ``never``) by settlement date and queue."""
    expired = rows.where(sf.col("outcome") == "expired")
    return expired.groupBy(utc_day("settled_at").alias("date"), "queue").agg(
        sf.count_if(sf.col("deliveries") > 0).alias("dispatched"),
        sf.count_if(sf.col("deliveries") == 0).alias("never"),
    )


def trace_paths(rows: "DataFrame") -> "DataFrame":
    """Return date, path, traces, p50_ms, p95_ms and buckets of the most frequent trace paths.

    ``path`` is an array of ``queue:urn`` in order of arrival, at most ``MAX_STEPS``. A trace that
    spans midnight counts on each day, with the messages published that day. Durations are measured
    from the first publish to the last settlement; percentiles are exact. ``buckets`` (number ->
    traces) can be added up over days: bucket n counts durations up to ``BUCKET_BASE`` ** n
    milliseconds.
    """
    trace = Window.partitionBy("date", "trace_id")
    steps = (
        rows.where(sf.col("trace_id").isNotNull())
        .select(
            utc_day("published_at").alias("date"),
            "trace_id",
            "seq",
            sf.concat_ws(":", "queue", sf.coalesce("urn", sf.lit(""))).alias("step"),
            sf.unix_millis("published_at").alias("begin"),
            sf.unix_millis("settled_at").alias("end"),
        )
        .withColumn("n", sf.row_number().over(trace.orderBy("seq")))
        .withColumn(
            "ms", sf.greatest(sf.max("end").over(trace) - sf.min("begin").over(trace), sf.lit(0))
        )
        .where(sf.col("n") <= MAX_STEPS)
    )
    traces = steps.groupBy("date", "trace_id", "ms").agg(
        sf.transform(
            sf.array_sort(sf.collect_list(sf.struct("n", "step"))), lambda s: s["step"]
        ).alias("path")
    )
    order = Window.partitionBy("date").orderBy(sf.desc("traces"), "path")
    ranked = _sum_by_path(traces).withColumn("rank", sf.row_number().over(order))
    return ranked.where(sf.col("rank") <= MAX_PATHS).drop("rank")


def _sum_by_path(traces: "DataFrame") -> "DataFrame":
    bucket = sf.ceil(sf.log(sf.greatest(sf.col("ms"), sf.lit(1))) / math.log(BUCKET_BASE)).cast(
        "int"
    )
    per_bucket = (
        traces.withColumn("bucket", bucket)
        .groupBy("date", "path", "bucket")
        .agg(sf.count("*").alias("traces"))
        .groupBy("date", "path")
        .agg(sf.map_from_entries(sf.collect_list(sf.struct("bucket", "traces"))).alias("buckets"))
    )
    exact = traces.groupBy("date", "path").agg(
        sf.count("*").alias("traces"),
        sf.percentile("ms", sf.array(sf.lit(0.5), sf.lit(0.95))).alias("p"),
    )
    return exact.join(per_bucket, ["date", "path"]).select(
        "date",
        "path",
        "traces",
        sf.col("p")[0].alias("p50_ms"),
        sf.col("p")[1].alias("p95_ms"),
        "buckets",
    )


MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

COUNTS: Final = (
    "published",  # number of messages
    "bytes",  # total size of published bodies
    "dispatched",  # number of messages, counted at the first dispatch
    "redelivered",  # deliveries after the first, counted at the last dispatch
    *OUTCOMES,
    "redelivered_messages",  # settled messages with more than one delivery
    "retried",  # acked messages published again with more attempts; these count as failed
    "expired_dispatched",  # expired messages that had been dispatched
    "expired_never",
)
SPANS: Final = (
    "wait",  # time from ready to first dispatch, or after a later delay to last; counted there
    "hold",  # time from last dispatch to settlement as acked or dead, counted at settlement
)
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPAN_FIGURES: Final = tuple(f"{span}_{name}" for span in SPANS for name in (*PERCENTILES, "max"))


def period_figures(
    rows: "DataFrame",
    period_ms: int | None = None,
    name: str = "period",
    *,
    since_ms: int | None = None,
) -> "DataFrame":
    """Return statistics by queue, or by queue and period, excluding events before ``since_ms``.

    ``rows`` has the history's columns and ``retried``. The result has ``queue``, ``COUNTS``,
    ``wait_p50 wait_p95 wait_p99 wait_max`` and the same for ``hold`` (exact milliseconds, null if
    there are none; negative spans, after a clock was set back, count as 0). With ``period_ms``, it
    also has ``date`` and ``name``, the TIMESTAMP at which the period begins.
    """
    events = _events(rows)
    if since_ms is not None:
        events = events.where(sf.col("at") >= since_ms)
    keys = ["queue"]
    if period_ms is not None:
        begin = sf.floor(sf.col("at") / period_ms) * period_ms
        days = sf.floor(sf.col("at") / DAY_MS).cast("int")
        events = events.withColumn("date", sf.date_from_unix_date(days)).withColumn(
            name, sf.timestamp_millis(begin)
        )
        keys = ["date", name, "queue"]
    sums = [sf.sum(count).alias(count) for count in COUNTS]
    shares = sf.array(*map(sf.lit, PERCENTILES.values()))
    spans = [sf.percentile(span, shares).alias(span) for span in SPANS]
    maxima = [sf.max(span).alias(f"{span}_max") for span in SPANS]
    percentiles = [
        sf.col(span)[number].alias(f"{span}_{name}")
        for span in SPANS
        for number, name in enumerate(PERCENTILES)
    ]
    totals = events.groupBy(*keys).agg(*sums, *spans, *maxima)
    return totals.select("*", *percentiles).drop(*SPANS)


def _events(rows: "DataFrame") -> "DataFrame":
    """Return one row per event, with ``queue``, ``at`` in ms, ``COUNTS`` and ``SPANS``."""
    once = sf.lit(1)
    published, first, last, settled = (
        sf.unix_millis(sf.col(time))
        for time in ("published_at", "first_dispatched_at", "last_dispatched_at", "settled_at")
    )
    is_redelivered = sf.col("deliveries") > 1
    ready = sf.coalesce(sf.unix_millis("ready_at"), published)  # null in archives of version 0.1.0
    # For example, by a retry; after the clock was set back, the first dispatch can come before the
    # publish.
    was_delayed_later = is_redelivered & (ready > first) & (ready > published)
    is_expired = sf.col("outcome") == "expired"
    is_held = sf.col("outcome").isin("acked", "dead")
    outcomes = {outcome: _flag(sf.col("outcome") == outcome) for outcome in OUTCOMES}
    was_dispatched = sf.col("deliveries") > 0
    events = sf.array(
        _event(published, published=once, bytes=sf.col("size")),
        _event(first, dispatched=once, wait=sf.when(~was_delayed_later, _span(ready, first))),
        _event(
            sf.when(is_redelivered, last),
            redelivered=sf.col("deliveries") - 1,
            wait=sf.when(was_delayed_later, _span(ready, last)),
        ),
        _event(
            settled,
            **outcomes,
            redelivered_messages=_flag(is_redelivered),
            retried=_flag(sf.col("retried")),
            expired_dispatched=_flag(is_expired & was_dispatched),
            expired_never=_flag(is_expired & ~was_dispatched),
            hold=sf.when(is_held, _span(last, settled)),
        ),
    )
    exploded = rows.select("queue", sf.explode(events).alias("event"))
    return exploded.select("queue", "event.*").where(sf.col("at").isNotNull())


def _event(at: "Column", **values: "Column") -> "Column":
    counts = [values.get(c, sf.lit(0)).cast("bigint").alias(c) for c in COUNTS]
    spans = [values.get(s, sf.lit(None)).cast("bigint").alias(s) for s in SPANS]
    return sf.struct(at.alias("at"), *counts, *spans)


def _flag(condition: "Column") -> "Column":
    return sf.when(condition, 1).otherwise(0)


def _span(begin: "Column", end: "Column") -> "Column":
    """Return the milliseconds between two times; null if either is null, unlike ``greatest``."""
    return sf.when(begin.isNotNull() & end.isNotNull(), sf.greatest(end - begin, sf.lit(0)))


_ROWS_AT_ONCE: Final = 10_000


class RetryEvent(NamedTuple):
    """An acked row, or a possible retry (whose ``offset`` is None); times are in microseconds."""

    meta_id: str
    seq: int
    attempts: int
    offset: int | None
    since: int  # time of the first dispatch if the row is acked, otherwise the publish time
    until: int  # time of the settlement if the row is acked, otherwise the publish time


def mark_retried(rows: "DataFrame", archive: "DataFrame") -> "DataFrame":
    """Add a BOOLEAN column ``retried`` to ``rows``, based on retries found in ``archive``."""
    has_id = sf.col("meta_id").isNotNull()
    retries = archive.where((sf.col("attempts") > 0) & has_id)
    acked = rows.where((sf.col("outcome") == "acked") & has_id)
    has_times = sf.col("first_dispatched_at").isNotNull() & sf.col("settled_at").isNotNull()
    events = _retry_events(
        acked.where(has_times), "offset", "first_dispatched_at", "settled_at"
    ).union(_retry_events(retries, "CAST(NULL AS BIGINT)", "published_at", "published_at"))
    by_seq = Window.partitionBy("meta_id").orderBy(sf.desc("seq"))
    message = by_seq.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    in_order = (
        events.withColumn("repeats", sf.max(sf.col("offset").isNull()).over(message))
        .where("repeats")  # so that no other rows are sent from the JVM to Python
        .drop("repeats")
        .sortWithinPartitions("meta_id", sf.desc("seq"))
    )
    retried = in_order.mapInArrow(_offsets, "offset BIGINT").withColumn("retried", sf.lit(True))
    joined = rows.join(retried, "offset", "left")
    return joined.withColumn("retried", sf.coalesce("retried", sf.lit(False)))


def _retry_events(rows: "DataFrame", offset: str, since: str, until: str) -> "DataFrame":
    return rows.select(
        "meta_id",
        "seq",
        sf.coalesce("attempts", sf.lit(0)).alias("attempts"),
        sf.expr(offset).alias("offset"),
        sf.unix_micros(since).alias("since"),
        sf.unix_micros(until).alias("until"),
    )


def _offsets(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """Yield the offsets of retried rows; input is sorted by ``meta_id``, highest ``seq`` first."""
    import pyarrow as pa

    def events() -> Iterator[RetryEvent]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in RetryEvent._fields)
            yield from map(RetryEvent._make, zip(*columns, strict=True))

    groups = (list(group) for _, group in groupby(events(), itemgetter(0)))
    retried = chain.from_iterable(map(retried_offsets, groups))
    while offsets := list(islice(retried, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_arrays([pa.array(offsets, pa.int64())], names=["offset"])


def retried_offsets(events: list[RetryEvent]) -> list[int]:
    """Return the offsets of one message's retried rows; ``events`` are sorted as in ``_offsets``.

    Rows published later come first, so a row was retried if a row already seen was published while
    the former was held and has more attempts. A tree of maxima over publish times finds such rows.
    """
    times = sorted({event.since for event in events if event.offset is None})
    tree = [0] * (2 * len(times))
    offsets = []
    for _, group in groupby(events, itemgetter(1)):  # a row never counts as a retry of itself
        at_once = list(group)
        for event in at_once:
            if event.offset is not None:
                lo, hi = bisect_left(times, event.since), bisect_right(times, event.until)
                if _max_between(tree, lo, hi) > event.attempts:
                    offsets.append(event.offset)
        for event in at_once:
            if event.offset is None:
                node = bisect_left(times, event.since) + len(times)
                while node and tree[node] < event.attempts:
                    tree[node] = event.attempts
                    node //= 2
    return offsets


def _max_between(tree: list[int], lo: int, hi: int) -> int:
    """Return the maximum of the leaves from ``lo`` (inclusive) to ``hi`` (exclusive)."""
    largest, lo, hi = 0, lo + len(tree) // 2, hi + len(tree) // 2
    while lo < hi:
        if lo & 1:
            largest = max(largest, tree[lo])
            lo += 1
        if hi & 1:
            hi -= 1
            largest = max(largest, tree[hi])
        lo //= 2
        hi //= 2
    return largest


TABLES: Final[dict[str, Callable[["DataFrame"], "DataFrame"]]] = {
    "minutes": lambda rows: period_figures(rows, MINUTE_MS, "minute"),
    "hours": lambda rows: period_figures(rows, HOUR_MS, "hour"),
    "urns": urn_counts,
    "attempts": attempt_counts,
    "deaths": death_counts,
    "expiries": expiry_counts,
    "paths": trace_paths,
}

VERSION: Final = 2  # table version; after a change, all dates are recomputed

_EPOCH: Final = date(1970, 1, 1)
_MAX_RANGES: Final = 50  # maximum number of date ranges in a condition; more are merged into one


def transform(archive: "DataFrame", table: str, dates: Iterable[date]) -> "DataFrame":
    """Compute one table for ``dates`` from the entire archive."""
    return keep_dates(TABLES[table](rows_of_dates(archive, dates)), dates)


def run(
    spark: "SparkSession", options: MetricsOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Compute the dates affected by new rows; if the previous run was stopped, start over."""
    files = open_results(spark, options.out)
    with files.lock("metrics"), block_swaps(files):
        # This must be read before the archive is listed.
        committed = last_committed_batch(files, results_folder.ARCHIVE_CHECKPOINT)
        try:
            archive = read_archive(spark, files)
        except RefusedError as nothing:
            return JobResult(job="metrics", rows=0, notes=(str(nothing),))
        is_new = _is_new(files, committed)
        new = archive if is_new is None else archive.where(is_new)
        affected = set(options.dates) or touched_dates(new) | dates_touched_by_retries(new, archive)
        begun = json.loads(files.read(results_folder.METRICS_BEGUN) or "[]")  # by an earlier run
        dates = sorted(affected | set(map(date.fromisoformat, begun)))
        is_stopped = not _write(archive, dates, files, control)
        if not is_stopped and not options.dates and committed is not None:
            history_id, offset = committed.history_id, committed.offset
            state = {"tables": VERSION, "history_id": history_id, "offset": offset}
            files.write(results_folder.METRICS_STATE, json.dumps(state))
        if not is_stopped:
            files.remove(results_folder.METRICS_BEGUN)
    return JobResult(
        job="metrics",
        rows=0 if not dates else new.count(),
        offset=committed.offset if committed else None,
        is_stopped=is_stopped,
        details={"dates": len(dates), "tables": len(TABLES)},
    )


def _is_new(files: ResultsFolder, committed: CommittedBatch | None) -> "Column | None":
    """Return a condition that selects rows added since the last run, or None if all are new.

    Rows above the offset may have been included if their batch was written but not committed.
    Treating those rows as new again is harmless. Offsets from another history are ignored.
    """
    state = json.loads(files.read(results_folder.METRICS_STATE) or "{}")
    offset = state.get("offset")
    if committed is None or offset is None or state["tables"] != VERSION:
        return None
    if state["history_id"] != committed.history_id:
        return None
    return sf.col("offset") > int(offset)


def _write(
    archive: "DataFrame", dates: list[date], files: ResultsFolder, control: JobControl
) -> bool:
    """Overwrite the dates in all tables; return False if the job is stopped before that is done."""
    if not dates:
        return True
    files.write(results_folder.METRICS_BEGUN, json.dumps([day.isoformat() for day in dates]))
    fit_shuffles(archive.sparkSession, archive.where(sf.col("date").isin(*dates)).count())
    rows = rows_of_dates(archive, dates).persist()
    try:
        for number, (table, compute) in enumerate(TABLES.items()):
            if control.stop():
                return False
            control.report("metrics", number, len(TABLES))
            folder = f"{results_folder.METRICS}/{table}"
            remove_staged(files, folder)
            computed = with_comments(keep_dates(compute(rows), dates), METRIC_COLUMNS[table])
            (
                computed.repartition("date")
                .write.mode("overwrite")
                .option("partitionOverwriteMode", "dynamic")
                .partitionBy("date")
                .parquet(files.url(folder))
            )
    finally:
        rows.unpersist()
    control.report("metrics", len(TABLES), len(TABLES))
    return True


def touched_dates(new: "DataFrame") -> set[date]:
    """Return all dates on which an event in the rows happened."""
    days = sf.explode(sf.array(*(utc_day(time) for time in TIME_COLUMNS))).alias("day")
    rows = new.select(days).where(sf.col("day").isNotNull()).distinct().collect()
    return {row["day"] for row in rows}


def dates_touched_by_retries(new: "DataFrame", archive: "DataFrame") -> set[date]:
    """Return the dates of older rows whose retries are among the new rows.

    A retry may be settled and archived after the row that it repeats, usually on the same date.
    """
    retries = new.where((sf.col("attempts") > 0) & sf.col("meta_id").isNotNull())
    since = retries.agg(sf.min(utc_day("published_at")).alias("since")).collect()[0]["since"]
    if since is None:
        return set()
    repeated = archive.where((sf.col("outcome") == "acked") & (sf.col("date") >= sf.lit(since)))
    rows = mark_retried(repeated, retries).where("retried").select("date").distinct().collect()
    return {row["date"] for row in rows}


def rows_of_dates(archive: "DataFrame", dates: Iterable[date]) -> "DataFrame":
    """Return rows with an event on any of the dates, adding ``retried`` and omitting the body."""
    ranges = _ranges(dates)
    rows = archive.drop("body", "batch").where(reduce(or_, (_is_in(*r) for r in ranges)))
    acked = rows.where((sf.col("outcome") == "acked") & sf.col("meta_id").isNotNull())
    earliest = acked.agg(sf.min("first_dispatched_at").alias("at")).select(sf.unix_millis("at"))
    since = earliest.collect()[0][0]
    if since is None:
        return rows.withColumn("retried", sf.lit(False))
    until = ranges[-1][1] * DAY_MS
    published = sf.col("published_at")
    is_near = (published >= sf.timestamp_millis(sf.lit(since))) & (
        published < sf.timestamp_millis(sf.lit(until))
    )
    return mark_retried(rows, archive.where(is_near))


def _ranges(dates: Iterable[date]) -> list[tuple[int, int]]:
    """Return the dates as ordered ranges of days since 1970, with exclusive ends."""
    days = sorted({(day - _EPOCH).days for day in dates})
    ranges: list[tuple[int, int]] = []
    for number in days:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    if len(ranges) > _MAX_RANGES:
        ranges = [(ranges[0][0], ranges[-1][1])]
    return ranges


def _is_in(first: int, end: int) -> "Column":
    """Return the condition that any time is within days [first, end); it lets Parquet prune."""
    low = sf.timestamp_millis(sf.lit(first * DAY_MS))
    high = sf.timestamp_millis(sf.lit(end * DAY_MS))
    return reduce(or_, ((sf.col(time) >= low) & (sf.col(time) < high) for time in TIME_COLUMNS))


def keep_dates(table: "DataFrame", dates: Iterable[date]) -> "DataFrame":
    """Keep only the rows of these dates, because all other dates are incomplete."""
    return table.where(sf.col("date").isin(*sorted(set(dates))))
