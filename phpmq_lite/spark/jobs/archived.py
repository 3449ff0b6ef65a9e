"""The archive as a DataFrame: its columns, and its times as numbers that no time zone changes."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.jobs import places
from phpmq_lite.spark.jobs.files import Files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAY_MS: Final = 86_400_000

SCHEMA: Final = """
    offset BIGINT, seq BIGINT, message_id STRING, queue STRING, position BIGINT,
    outcome STRING, reason STRING, published_at TIMESTAMP, first_dispatched_at TIMESTAMP,
    last_dispatched_at TIMESTAMP, settled_at TIMESTAMP, deadline TIMESTAMP, ttl_s BIGINT,
    deliveries INT, size BIGINT, publisher BIGINT, consumer BIGINT,
    urn STRING, trace_id STRING, meta_id STRING, attempts BIGINT, body BINARY,
    date DATE, batch STRING
"""
TIMES: Final = ("published_at", "first_dispatched_at", "last_dispatched_at", "settled_at")


def read_archive(spark: "SparkSession", files: Files) -> "DataFrame":
    """Read the archive; ``body`` is null where it was archived without bodies.

    Raises:
        RefusedError: ``no_archive``: nothing was archived yet.
    """
    if not any(name.startswith("date=") for name in files.names(places.ARCHIVE)):
        raise RefusedError(
            "no_archive", f"there is no archive in {files.url('')}: run the job archive first"
        )
    return spark.read.schema(SCHEMA).parquet(files.url(places.ARCHIVE))


def day(at: "Column | str") -> "Column":
    """Give the date of a time in UTC, whatever the session's time zone."""
    days = sf.floor(sf.unix_millis(sf.col(at) if isinstance(at, str) else at) / DAY_MS)
    return sf.date_from_unix_date(days.cast("int"))
