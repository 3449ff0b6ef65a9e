"""The job metrics: archive to ``metrics/<table>/date=…``.

Each date that new rows touch by any of their times is computed anew from the whole archive and
overwritten whole, so a run that is repeated ends with the same tables.  Spark removes a date before
its new files get their names, and a run that is cut off there has lost it: so the dates are written
down first, and the next run takes them too.  The archive's times have statistics in Parquet, so
only files are read that can have rows of the dates.
"""

import json
from collections.abc import Callable, Iterable
from datetime import date
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.jobs import places, tables
from phpmq_lite.spark.jobs.archived import DAY_MS, TIMES, day, read_archive
from phpmq_lite.spark.jobs.batches import remove_staged
from phpmq_lite.spark.jobs.checkpoint import Done, last_done
from phpmq_lite.spark.jobs.compact import reading
from phpmq_lite.spark.jobs.files import Files, open_files
from phpmq_lite.spark.jobs.options import MetricsOptions, Report, Result, Stop, never, silent
from phpmq_lite.spark.jobs.periods import HOUR_MS, MINUTE_MS, figures
from phpmq_lite.spark.jobs.retries import mark
from phpmq_lite.spark.session import fit_shuffles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLES: Final[dict[str, Callable[["DataFrame"], "DataFrame"]]] = {
    "minutes": lambda rows: figures(rows, MINUTE_MS, "minute"),
    "hours": lambda rows: figures(rows, HOUR_MS, "hour"),
    "urns": tables.urns,
    "attempts": tables.attempts,
    "deaths": tables.deaths,
    "expiries": tables.expiries,
    "paths": tables.paths,
}

VERSION: Final = 1  # of the tables; with another one all dates are computed anew

_EPOCH: Final = date(1970, 1, 1)
_MAX_RANGES: Final = 50  # of dates in one condition; more are read as one


def transform(archive: "DataFrame", table: str, dates: Iterable[date]) -> "DataFrame":
    """Compute one table's ``dates`` from the whole archive."""
    return of_dates(TABLES[table](rows_of(archive, dates)), dates)


def run(
    spark: "SparkSession", options: MetricsOptions, report: Report = silent, stop: Stop = never
) -> Result:
    """Compute the dates that new rows touch; stops between two tables, and then begins again."""
    files = open_files(spark, options.out)
    with files.lock("metrics"), reading(files):
        done = last_done(files, places.ARCHIVE_CHECKPOINT)  # before the archive is listed
        try:
            archive = read_archive(spark, files)
        except RefusedError as nothing:
            return Result(job="metrics", rows=0, notes=(str(nothing),))
        new = archive if (after := _included(files, done)) is None else archive.where(after)
        asked = set(options.dates) or touched(new) | touched_by_retries(new, archive)
        dates = sorted(asked | _begun(files))
        is_stopped = not _write(archive, dates, files, report, stop)
        if not is_stopped and not options.dates and done is not None:
            state = {"tables": VERSION, "history_id": done.history_id, "offset": done.offset}
            files.write(places.METRICS_STATE, json.dumps(state))
        if not is_stopped:
            files.remove(places.METRICS_BEGUN)
    return Result(
        job="metrics",
        rows=0 if not dates else new.count(),
        offset=done.offset if done else None,
        is_stopped=is_stopped,
        details={"dates": len(dates), "tables": len(TABLES)},
    )


def _included(files: Files, done: Done | None) -> "Column | None":
    """Give the condition for rows that no run has had; None: all of them.

    A row above the offset may have been seen, where a batch was written and not committed: it is
    new once more, which changes nothing.  Offsets of another history tell nothing.
    """
    state = json.loads(files.read(places.METRICS_STATE) or "{}")
    offset = state.get("offset")
    if done is None or offset is None or state["tables"] != VERSION:
        return None
    if state["history_id"] != done.history_id:
        return None
    return sf.col("offset") > int(offset)


def _begun(files: Files) -> set[date]:
    """Give the dates that a run before began with and did not end."""
    return {
        date.fromisoformat(text) for text in json.loads(files.read(places.METRICS_BEGUN) or "[]")
    }


def _write(
    archive: "DataFrame", dates: list[date], files: Files, report: Report, stop: Stop
) -> bool:
    """Overwrite the dates in all tables; False where it was stopped in between."""
    if not dates:
        return True
    files.write(places.METRICS_BEGUN, json.dumps([one.isoformat() for one in dates]))
    fit_shuffles(archive.sparkSession, archive.where(sf.col("date").isin(*dates)).count())
    rows = rows_of(archive, dates).persist()
    try:
        for number, (table, compute) in enumerate(TABLES.items()):
            if stop():
                return False
            report("metrics", number, len(TABLES))
            folder = f"{places.METRICS}/{table}"
            remove_staged(files, folder)
            computed = of_dates(compute(rows), dates)
            (
                computed.repartition("date")
                .write.mode("overwrite")
                .option("partitionOverwriteMode", "dynamic")
                .partitionBy("date")
                .parquet(files.url(folder))
            )
    finally:
        rows.unpersist()
    report("metrics", len(TABLES), len(TABLES))
    return True


def touched(new: "DataFrame") -> set[date]:
    """Collect the dates on which anything happened to these rows."""
    days = sf.explode(sf.array(*(day(time) for time in TIMES))).alias("day")
    found = new.select(days).where(sf.col("day").isNotNull()).distinct().collect()
    return {row["day"] for row in found}


def touched_by_retries(new: "DataFrame", archive: "DataFrame") -> set[date]:
    """Collect the dates of older rows that are retried (``retries.py``) because of new ones.

    A retry may be settled, and so archived, after what it repeats; mostly on the same date.
    """
    again = new.where((sf.col("attempts") > 0) & sf.col("meta_id").isNotNull())
    since = again.agg(sf.min(day("published_at")).alias("since")).collect()[0]["since"]
    if since is None:
        return set()
    repeated = archive.where((sf.col("outcome") == "acked") & (sf.col("date") >= sf.lit(since)))
    found = mark(repeated, again).where("retried").select("date").distinct().collect()
    return {row["date"] for row in found}


def rows_of(archive: "DataFrame", dates: Iterable[date]) -> "DataFrame":
    """Give all rows with any time on one of the dates, with ``retried``, without body."""
    ranges = _ranges(dates)
    rows = archive.drop("body", "batch").where(reduce(or_, (_is_in(*r) for r in ranges)))
    had = rows.where((sf.col("outcome") == "acked") & sf.col("meta_id").isNotNull())
    earliest = had.agg(sf.min("first_dispatched_at").alias("at")).select(sf.unix_millis("at"))
    since = earliest.collect()[0][0]
    if since is None:
        return rows.withColumn("retried", sf.lit(False))
    until = ranges[-1][1] * DAY_MS
    published = sf.col("published_at")
    near = (published >= sf.timestamp_millis(sf.lit(since))) & (
        published < sf.timestamp_millis(sf.lit(until))
    )
    return mark(rows, archive.where(near))


def _ranges(dates: Iterable[date]) -> list[tuple[int, int]]:
    """Give the dates as ranges of days since 1970, the end exclusive, in order."""
    days = sorted({(one - _EPOCH).days for one in dates})
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
    """Ask for any time in [first, end), days; in a form that Parquet's statistics answer."""
    low = sf.timestamp_millis(sf.lit(first * DAY_MS))
    high = sf.timestamp_millis(sf.lit(end * DAY_MS))
    return reduce(or_, ((sf.col(time) >= low) & (sf.col(time) < high) for time in TIMES))


def of_dates(table: "DataFrame", dates: Iterable[date]) -> "DataFrame":
    """Drop what belongs to other dates: it is not whole."""
    return table.where(sf.col("date").isin(*sorted(set(dates))))
