"""The tables of metrics per day and envelope: urns, attempts, deaths, expiries, trace paths.

Pure functions from rows (the history's columns and ``retried``) to a table with ``date``.
"""

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from phpmq_lite.spark.jobs.archived import day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_STEPS: Final = 50  # of a path
MAX_PATHS: Final = 1_000  # of a day
BUCKET_BASE: Final = 1.01  # durations of a bucket differ by at most 1 %


def urns(rows: "DataFrame") -> "DataFrame":
    """Give date, queue, urn; published and bytes of that date, the rest settled on it."""
    from phpmq_lite.spark.jobs.periods import OUTCOMES

    named = rows.where(sf.col("urn").isNotNull())
    flags = {outcome: sf.col("outcome") == outcome for outcome in OUTCOMES}
    flags |= {"retried": sf.col("retried"), "redelivered_messages": sf.col("deliveries") > 1}
    zeros = [sf.lit(0).cast("bigint").alias(name) for name in flags]
    ones = [
        sf.when(flag, 1).otherwise(0).cast("bigint").alias(name) for name, flag in flags.items()
    ]
    none = sf.lit(0).cast("bigint")
    one = sf.lit(1).cast("bigint")
    events = sf.array(
        sf.struct(
            day("published_at").alias("date"),
            one.alias("published"),
            sf.col("size").alias("bytes"),
            *zeros,
        ),
        sf.struct(
            day("settled_at").alias("date"), none.alias("published"), none.alias("bytes"), *ones
        ),
    )
    sums = [sf.sum(name).alias(name) for name in ("published", "bytes", *flags)]
    exploded = named.select("queue", "urn", sf.explode(events).alias("event"))
    return exploded.select("queue", "urn", "event.*").groupBy("date", "queue", "urn").agg(*sums)


def attempts(rows: "DataFrame") -> "DataFrame":
    """Give date (settled), queue, urn, attempts (of the envelope) and count."""
    counted = rows.where(sf.col("urn").isNotNull() & sf.col("attempts").isNotNull())
    return _counted(counted, "queue", "urn", "attempts")


def deaths(rows: "DataFrame") -> "DataFrame":
    """Give date (settled), queue, urn (null: no envelope), reason and count of dead ones."""
    return _counted(rows.where(sf.col("outcome") == "dead"), "queue", "urn", "reason")


def _counted(rows: "DataFrame", *keys: str) -> "DataFrame":
    return rows.groupBy(day("settled_at").alias("date"), *keys).agg(sf.count("*").alias("count"))


def expiries(rows: "DataFrame") -> "DataFrame":
    """Give date (settled), queue, and how many expired: ``dispatched`` before, or ``never``."""
    expired = rows.where(sf.col("outcome") == "expired")
    return expired.groupBy(day("settled_at").alias("date"), "queue").agg(
        sf.count_if(sf.col("deliveries") > 0).alias("dispatched"),
        sf.count_if(sf.col("deliveries") == 0).alias("never"),
    )


def paths(rows: "DataFrame") -> "DataFrame":
    """Give the commonest ways that traces took: date, path, traces, p50_ms, p95_ms, buckets.

    ``path`` is an array of ``queue:urn`` in the order of arrival, at most ``MAX_STEPS``; a trace
    that goes on after midnight counts on each day with what was published on it.  Durations are
    from the first publish to the last end, exact percentiles.  ``buckets`` (number -> traces) add
    up over days: a bucket n is for durations up to ``BUCKET_BASE`` ** n milliseconds.
    """
    whole = Window.partitionBy("date", "trace_id")
    steps = (
        rows.where(sf.col("trace_id").isNotNull())
        .select(
            day("published_at").alias("date"),
            "trace_id",
            "seq",
            sf.concat_ws(":", "queue", sf.coalesce("urn", sf.lit(""))).alias("step"),
            sf.unix_millis("published_at").alias("begin"),
            sf.unix_millis("settled_at").alias("end"),
        )
        .withColumn("n", sf.row_number().over(whole.orderBy("seq")))
        .withColumn(
            "ms", sf.greatest(sf.max("end").over(whole) - sf.min("begin").over(whole), sf.lit(0))
        )
        .where(sf.col("n") <= MAX_STEPS)
    )
    traces = steps.groupBy("date", "trace_id", "ms").agg(
        sf.transform(
            sf.array_sort(sf.collect_list(sf.struct("n", "step"))), lambda s: s["step"]
        ).alias("path")
    )
    return _commonest(_summed(traces))


def _summed(traces: "DataFrame") -> "DataFrame":
    """Sum traces (date, path, ms) up per path."""
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


def _commonest(summed: "DataFrame") -> "DataFrame":
    order = Window.partitionBy("date").orderBy(sf.desc("traces"), "path")
    ranked = summed.withColumn("rank", sf.row_number().over(order))
    return ranked.where(sf.col("rank") <= MAX_PATHS).drop("rank")
