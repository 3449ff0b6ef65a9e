"""Writes the rows of a typed table with Spark."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import Observation
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from phpmq_lite.envelopes.payload_shape import PayloadCounts
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.columns import commented_schema, with_comments
from phpmq_lite.spark.payload_types import payload_columns
from phpmq_lite.spark.table_columns import MISFIT, PAYLOAD_COLUMNS, REJECT_COLUMNS
from phpmq_lite.spark.table_rows import REJECT, REJECT_FIELDS, TableColumns, convert

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from phpmq_lite.storage.arrow import ArrowColumn

FILE_BYTES: Final = 128 << 20  # intended size of a merged file
FILE_ROWS: Final = 500_000  # intended number of rows in a new file
TASK_ROWS: Final = 20_000  # fewer rows are not worth another task


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """What was written; ``counts`` are those of payloads with values that have no column."""

    rows: int
    rejects: int
    misfits: int
    counts: PayloadCounts


def table_schema(keys: Sequence["ArrowColumn"], columns: TableColumns) -> StructType:
    """Return the columns of a table."""
    fixed = commented_schema((*keys, *PAYLOAD_COLUMNS))
    return StructType([*fixed, *payload_columns(columns.shape, columns.reserved)])


class TableWriter:
    """Writes ``rows`` of one table, which have a body; ``bodies`` is their number."""

    def __init__(
        self, rows: "DataFrame", bodies: int, keys: Sequence["ArrowColumn"], columns: TableColumns
    ) -> None:
        self._bodies = bodies
        self._counts = rows.sparkSession.sparkContext.accumulator(PayloadCounts(), _CountsParam())
        schema = StructType([*table_schema(keys, columns), StructField(REJECT, _REJECT_TYPE)])
        self._typed = rows.mapInArrow(_converter(columns, self._counts.add), schema)

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


_REJECT_TYPE: Final = StructType([StructField(name, StringType()) for name in REJECT_FIELDS])


class _CountsParam(AccumulatorParam[PayloadCounts]):
    def zero(self, value: PayloadCounts) -> PayloadCounts:
        return PayloadCounts()

    def addInPlace(self, value1: PayloadCounts, value2: PayloadCounts) -> PayloadCounts:  # noqa: N802
        value1.merge(value2)
        return value1


def _converter(columns: TableColumns, count: Callable[[PayloadCounts], None]) -> Any:
    def rows(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        return convert(batches, columns, count)

    return rows


def merge_files(rows: "DataFrame", schema: StructType, size_bytes: int, url: str) -> None:
    """Write the rows of some files of a table again, with the columns of ``schema``."""
    files = max(1, math.ceil(size_bytes / FILE_BYTES))
    rows.to(schema).coalesce(files).write.mode("overwrite").parquet(url)
