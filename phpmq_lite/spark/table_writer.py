"""Writes and rewrites files of tables with Spark."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from phpmq_lite.envelopes.payload_shape import PayloadCounts
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.columns import with_comments
from phpmq_lite.spark.jobs.stream_writer import parquet_options
from phpmq_lite.spark.prepared import PreparedChange
from phpmq_lite.spark.results_folder import ResultsFolder
from phpmq_lite.spark.session import fit_batches
from phpmq_lite.spark.table_columns import MISFIT, REJECT_COLUMNS
from phpmq_lite.spark.table_rows import REJECT, REJECT_FIELDS, TableColumns, convert
from phpmq_lite.spark.table_store import STAGED, replace_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_ROWS: Final = 500_000  # intended number of rows in a new file
TASK_ROWS: Final = 20_000  # fewer rows are not worth another task
_BODY_BYTES: Final = 8 << 20

RowsOf = Callable[["DataFrame"], "DataFrame"]


def write_rows(
    rows: "DataFrame", bodies: int, table: TableColumns, url: str, urn: str, rejects_url: str
) -> tuple[dict[str, int], PayloadCounts]:
    """Write a table's rows, and those that its schema rejects, from ``rows`` with a body each.

    Returns how many ``rows``, ``rejects`` and ``misfits`` there are, and the counts of payloads
    with values that have no column.

    Raises:
        RefusedError: ``count_differs``: their number is not ``bodies``.
    """
    context, observed = rows.sparkSession.sparkContext, Observation()
    counts = context.accumulator(PayloadCounts(), _CountsParam())
    typed = rows.mapInArrow(partial(convert, table=table, count=counts.add), table.converted)
    counted = {"rows": sf.count("*"), "rejects": sf.count(REJECT), "misfits": sf.count(MISFIT)}
    all_rows = typed.observe(observed, *(count.alias(name) for name, count in counted.items()))
    tasks_at_most = max(context.defaultParallelism, math.ceil(bodies / FILE_ROWS))
    tasks = max(1, min(tasks_at_most, math.ceil(bodies / TASK_ROWS)))

    def save(chosen: "DataFrame", to: str) -> None:
        chosen.coalesce(tasks).write.mode("overwrite").parquet(to)

    save(all_rows.where(sf.col(REJECT).isNull()).drop(REJECT), url)
    written = dict(observed.get)
    if written["rows"] != bodies:
        detail = f"read {bodies} bodies, but converted {written['rows']}; run again"
        raise RefusedError("count_differs", detail)
    if written["rejects"]:
        columns = [  # not by ``.*``, because a payload may have members with these names
            sf.lit(urn).alias(c.name)
            if c.name == "urn"
            else sf.col(f"{REJECT}.{c.name}" if c.name in REJECT_FIELDS else c.name)
            for c in REJECT_COLUMNS
        ]
        chosen = typed.where(sf.col(REJECT).isNotNull()).select(columns)
        save(with_comments(chosen, REJECT_COLUMNS), rejects_url)
    written["rows"] -= written["rejects"]
    return written, counts.value


class _CountsParam(AccumulatorParam[PayloadCounts]):
    def zero(self, value: PayloadCounts) -> PayloadCounts:
        return PayloadCounts()

    def addInPlace(self, value1: PayloadCounts, value2: PayloadCounts) -> PayloadCounts:  # noqa: N802
        value1.merge(value2)
        return value1


def count_in_files(
    spark: "SparkSession", files: ResultsFolder, folders: Iterable[str], rows_of: RowsOf, ddl: str
) -> dict[str, int]:
    """Return how many rows ``rows_of`` selects in each file of some folders, if it selects any.

    ``ddl`` are the columns that it needs.
    """
    paths = {path for folder in folders for path in files.data_files(folder)}
    if not paths:
        return {}
    rows = spark.read.schema(ddl).parquet(*map(files.url, paths))
    chosen = rows_of(rows.withColumn("url", sf.col("_metadata.file_path")))
    counts = {}
    for url, count in chosen.groupBy("url").count().collect():
        parts = unquote(url).split("/")
        counts[next(p for n in (3, 4) if (p := "/".join(parts[-n:])) in paths)] = count
    return counts


def rewrite_files(
    spark: "SparkSession", files: ResultsFolder, paths: Iterable[str], rows_of: RowsOf
) -> None:
    """Replace files that no list names, all at once; the caller holds the lock of the tables."""
    moves = {}
    for number, path in enumerate(paths):
        rows = spark.read.parquet(files.url(path))
        if "body" in rows.columns:  # the file does not have their sizes
            fit_batches(spark, rows.select(sf.lit(_BODY_BYTES).alias("size")))
        folder = f"{STAGED}/rewritten-{number}"
        writer = rows_of(rows).coalesce(1).write
        writer.options(**parquet_options(has_bodies="body" in rows.columns)).parquet(
            files.url(folder)
        )
        moves[next(iter(files.data_files(folder)))] = path
    checksums = ["/.".join(path.rsplit("/", 1)) + ".crc" for path in moves.values()]
    if moves:
        replace_files(files, PreparedChange(moves=moves, removes=checksums))
