"""Writes and rewrites files of tables with Spark."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """What was written; ``counts`` are those of payloads with values that have no column."""

    rows: int
    rejects: int
    misfits: int
    counts: PayloadCounts


class TableWriter:
    """Writes ``rows`` of one table, which have a body; ``bodies`` is their number."""

    def __init__(self, rows: "DataFrame", bodies: int, columns: TableColumns) -> None:
        self._bodies = bodies
        self._counts = rows.sparkSession.sparkContext.accumulator(PayloadCounts(), _CountsParam())
        self._typed = rows.mapInArrow(
            partial(convert, table=columns, count=self._counts.add), columns.converted
        )

    def write(self, url: str) -> WrittenRows:
        """Write the rows that the schema does not reject, and check their number."""
        observed = Observation()
        all_rows = self._typed.observe(
            observed,
            sf.count("*").alias("rows"),
            sf.count(REJECT).alias("rejects"),
            sf.count(MISFIT).alias("misfits"),
        )
        accepted = all_rows.where(sf.col(REJECT).isNull()).drop(REJECT)
        self._save(accepted, url)
        rows, rejects, misfits = (observed.get[name] for name in ("rows", "rejects", "misfits"))
        if rows != self._bodies:
            raise RefusedError(
                "count_differs", f"read {self._bodies} bodies, but converted {rows}; run again"
            )
        counts = self._counts.value
        return WrittenRows(rows=rows - rejects, rejects=rejects, misfits=misfits, counts=counts)

    def write_rejects(self, urn: str, url: str) -> None:
        """Write the rows that the schema rejects."""
        names = [c.name for c in REJECT_COLUMNS if c.name not in ("urn", *REJECT_FIELDS)]
        rejected = self._typed.where(sf.col(REJECT).isNotNull())
        rejected = rejected.select(*names, sf.lit(urn).alias("urn"), f"{REJECT}.*")
        columns = [column.name for column in REJECT_COLUMNS]
        self._save(with_comments(rejected.select(*columns), REJECT_COLUMNS), url)

    def _save(self, rows: "DataFrame", url: str) -> None:
        cores = rows.sparkSession.sparkContext.defaultParallelism
        tasks = min(
            max(cores, math.ceil(self._bodies / FILE_ROWS)), math.ceil(self._bodies / TASK_ROWS)
        )
        rows.coalesce(max(1, tasks)).write.mode("overwrite").parquet(url)


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
        writer.options(**parquet_options(rows)).parquet(files.url(folder))
        moves[next(iter(files.data_files(folder)))] = path
    checksums = ["/.".join(path.rsplit("/", 1)) + ".crc" for path in moves.values()]
    if moves:
        replace_files(files, PreparedChange(moves=moves, removes=checksums))
