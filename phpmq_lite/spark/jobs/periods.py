"""Figures of queues per minute, hour or any period, from rows of the history.  Pure functions.

Each event of a message counts in its own period: the publish where it was published, the first
dispatch where it was first dispatched, the outcome where it was settled.  A message still alive is
in no history and counts nowhere yet.
"""

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

COUNTS: Final = (
    "published",  # messages
    "bytes",  # of their bodies, when published
    "dispatched",  # messages, for the first time
    "redelivered",  # deliveries after the first; all of a message at its last dispatch
    "acked",
    "expired",
    "dead",
    "deleted",
    "redelivered_messages",  # settled ones with more than one delivery
    "retried",  # acked ones whose envelope was published again with higher attempts: no success
    "expired_dispatched",  # expired ones that somebody had before
    "expired_never",
)
SPANS: Final = (
    "wait",  # published to first dispatch; counts at that dispatch
    "hold",  # last dispatch to settled, acked and dead ones only; counts when settled
)
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
OUTCOMES: Final = ("acked", "expired", "dead", "deleted")


def figures(
    rows: "DataFrame",
    period_ms: int | None = None,
    name: str = "period",
    *,
    since_ms: int | None = None,
) -> "DataFrame":
    """Sum up per queue and period, or per queue alone; events before ``since_ms`` left out.

    ``rows`` have the history's columns and ``retried``.  The result has ``queue``, ``COUNTS``,
    ``wait_p50 wait_p95 wait_p99 wait_max`` and the same of ``hold`` (milliseconds, exact, null
    where there is none; a clock set back counts as 0), and, where ``period_ms`` is given, ``date``
    and ``name``, the TIMESTAMP at which the period begins.
    """
    from phpmq_lite.spark.jobs.archived import DAY_MS

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
    spans = [figure for span in SPANS for figure in _percentiles(span)]
    return events.groupBy(*keys).agg(*sums, *spans).select("*", *_unpacked()).drop(*SPANS)


def _events(rows: "DataFrame") -> "DataFrame":
    """Turn each row into its events: ``queue``, ``at`` in ms, ``COUNTS``, ``SPANS``."""
    one = sf.lit(1)
    published, first, last, settled = (
        sf.unix_millis(sf.col(time))
        for time in ("published_at", "first_dispatched_at", "last_dispatched_at", "settled_at")
    )
    is_again = sf.col("deliveries") > 1
    is_expired = sf.col("outcome") == "expired"
    is_held = sf.col("outcome").isin("acked", "dead")
    outcomes = {outcome: _flag(sf.col("outcome") == outcome) for outcome in OUTCOMES}
    was_dispatched = sf.col("deliveries") > 0
    events = sf.array(
        _event(published, published=one, bytes=sf.col("size")),
        _event(first, dispatched=one, wait=_span(published, first)),
        _event(sf.when(is_again, last), redelivered=sf.col("deliveries") - 1),
        _event(
            settled,
            **outcomes,
            redelivered_messages=_flag(is_again),
            retried=_flag(sf.col("retried")),
            expired_dispatched=_flag(is_expired & was_dispatched),
            expired_never=_flag(is_expired & ~was_dispatched),
            hold=sf.when(is_held, _span(last, settled)),
        ),
    )
    exploded = rows.select("queue", sf.explode(events).alias("event"))
    return exploded.select("queue", "event.*").where(sf.col("at").isNotNull())


def _event(at: "Column", **given: "Column") -> "Column":
    counts = [given.get(c, sf.lit(0)).cast("bigint").alias(c) for c in COUNTS]
    spans = [given.get(s, sf.lit(None)).cast("bigint").alias(s) for s in SPANS]
    return sf.struct(at.alias("at"), *counts, *spans)


def _flag(condition: "Column") -> "Column":
    return sf.when(condition, 1).otherwise(0)


def _span(begin: "Column", end: "Column") -> "Column":
    """Give the milliseconds between; null where one is (``greatest`` alone would give 0)."""
    return sf.when(begin.isNotNull() & end.isNotNull(), sf.greatest(end - begin, sf.lit(0)))


def _percentiles(span: str) -> list["Column"]:
    wanted = sf.array(*(sf.lit(share) for share in PERCENTILES.values()))
    return [sf.percentile(span, wanted).alias(span), sf.max(span).alias(f"{span}_max")]


def _unpacked() -> list["Column"]:
    return [
        sf.col(span)[n].alias(f"{span}_{name}")
        for span in SPANS
        for n, name in enumerate(PERCENTILES)
    ]


def columns(row: Any) -> dict[str, Any]:
    """Give the figures of a collected row by name, ``COUNTS`` first."""
    spans = [f"{span}_{name}" for span in SPANS for name in (*PERCENTILES, "max")]
    return {name: row[name] for name in (*COUNTS, *spans)}
