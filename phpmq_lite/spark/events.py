"""Reads the exceptional steps of settled messages, for a table beside the archive."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARED: Final = (
    "url", "token", "path", "queue", "queues", "queuePattern", "outcomes", "failOnDataLoss",
    "broker",
)  # fmt: skip


def read_events(spark: "SparkSession", options: Mapping[str, str], lo: int, hi: int) -> "DataFrame":
    """Return the exceptional steps of the messages that were settled in the offsets (lo, hi].

    ``options`` are those of a stream or batch that reads the history; those that select messages or
    name the broker apply here, too. Steps after the settlement, such as ``restore``, are included
    if they have happened by now, so a later read may return more of them. Nothing is requested
    before Spark runs the query.
    """
    values = {name: value for name, value in options.items() if name in _SHARED}
    values |= {"mode": "events", "startingOffsets": str(lo + 1), "endingOffsets": str(hi + 1)}
    return spark.read.format("phpmq").options(**values).load()
