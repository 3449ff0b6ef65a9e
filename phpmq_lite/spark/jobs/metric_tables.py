"""Pure functions that compute statistics by period and queue, and by day and envelope."""

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark.columns import DAY_MS, utc_day

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    "wait",  # time from publish to first dispatch, counted at that dispatch
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
    is_expired = sf.col("outcome") == "expired"
    is_held = sf.col("outcome").isin("acked", "dead")
    outcomes = {outcome: _flag(sf.col("outcome") == outcome) for outcome in OUTCOMES}
    was_dispatched = sf.col("deliveries") > 0
    events = sf.array(
        _event(published, published=once, bytes=sf.col("size")),
        _event(first, dispatched=once, wait=_span(published, first)),
        _event(sf.when(is_redelivered, last), redelivered=sf.col("deliveries") - 1),
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
