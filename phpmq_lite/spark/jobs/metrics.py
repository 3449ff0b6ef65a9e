"""Metrics job, which finds retried rows in the archive and writes ``metrics/<table>/date=…``."""

import json
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
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import CommittedBatch, last_committed_batch
from phpmq_lite.spark.columns import DAY_MS, TIME_COLUMNS, utc_day
from phpmq_lite.spark.jobs import metric_tables
from phpmq_lite.spark.jobs.compact import block_swaps
from phpmq_lite.spark.jobs.metric_tables import HOUR_MS, MINUTE_MS, period_figures
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, MetricsOptions
from phpmq_lite.spark.jobs.stream_writer import remove_staged
from phpmq_lite.spark.results_folder import ResultsFolder, open_results, read_archive
from phpmq_lite.spark.session import fit_shuffles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

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
    events = _events(acked.where(has_times), "offset", "first_dispatched_at", "settled_at").union(
        _events(retries, "CAST(NULL AS BIGINT)", "published_at", "published_at")
    )
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


def _events(rows: "DataFrame", offset: str, since: str, until: str) -> "DataFrame":
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
                _raise(tree, bisect_left(times, event.since), event.attempts)
    return offsets


def _raise(tree: list[int], at: int, value: int) -> None:
    """Raise one leaf of the tree to ``value``, and update the maxima above it."""
    node = at + len(tree) // 2
    while node and tree[node] < value:
        tree[node] = value
        node //= 2


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
    "urns": metric_tables.urn_counts,
    "attempts": metric_tables.attempt_counts,
    "deaths": metric_tables.death_counts,
    "expiries": metric_tables.expiry_counts,
    "paths": metric_tables.trace_paths,
}

VERSION: Final = 1  # table version; after a change, all dates are recomputed

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
            computed = keep_dates(compute(rows), dates)
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
