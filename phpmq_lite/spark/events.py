"""Reads the exceptional steps of settled messages, for a table beside the archive."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from phpmq_lite.spark.columns import EVENT_COLUMNS
from phpmq_lite.spark.reader import OFFSETS_PER_PARTITION, HistoryReader, OffsetRange, cut_range
from phpmq_lite.spark.source_options import HistoryOptions

if TYPE_CHECKING:
    import pyarrow as pa
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
    values = event_options(options)
    values |= {"startingOffsets": str(lo + 1), "endingOffsets": str(hi + 1)}
    return spark.read.format("phpmq").options(**values).load()


def event_batches(options: HistoryOptions, offsets: OffsetRange) -> "Iterator[pa.RecordBatch]":
    """Yield the same without Spark, except of messages that retention has removed.

    ``options`` are those by which the rows of the range are read.
    """
    options = replace(
        options, columns=(), has_body=False, has_events=True, fails_on_data_loss=False
    )
    reader = HistoryReader(options, EVENT_COLUMNS)
    limits = range(offsets.lo + OFFSETS_PER_PARTITION, offsets.hi, OFFSETS_PER_PARTITION)
    for part in cut_range(offsets, 1, limits):
        yield from reader.read(part)


def event_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read of events, given those of a read of the history."""
    shared = {name: value for name, value in options.items() if name in _SHARED}
    return shared | {"mode": "events"}
