"""Which acknowledged messages were no success: their worker had sent the envelope again.

A worker that fails publishes the envelope with higher ``attempts`` and acknowledges what it had
(``docs/workers.md``).  So a row is *retried* where it was acked, and another one with the same
``meta_id``, a later ``seq`` and higher ``attempts`` was published while this one was held: between
its first dispatch and its end.  A redrive or a replay comes after the end, and is no retry.
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def candidates(rows: "DataFrame") -> "DataFrame":
    """Give what may be a retry of something: ``meta_id`` and ``again``, a list for each."""
    again = rows.where((sf.col("attempts") > 0) & sf.col("meta_id").isNotNull())
    packed = sf.struct("seq", "attempts", "published_at")
    return again.groupBy("meta_id").agg(sf.collect_list(packed).alias("again"))


def mark(rows: "DataFrame", archive: "DataFrame") -> "DataFrame":
    """Add the BOOLEAN ``retried`` to ``rows``; looks for retries in ``archive``."""
    joined = rows.join(candidates(archive), "meta_id", "left")
    is_retried = (sf.col("outcome") == "acked") & sf.exists("again", _is_retry)
    return joined.withColumn("retried", sf.coalesce(is_retried, sf.lit(False))).drop("again")


def _is_retry(again: "Column") -> "Column":
    return (
        (again["seq"] > sf.col("seq"))
        & (again["attempts"] > sf.coalesce(sf.col("attempts"), sf.lit(0)))
        & (again["published_at"] >= sf.col("first_dispatched_at"))
        & (again["published_at"] <= sf.col("settled_at"))
    )
