"""Columns of the history and of a queue as Spark types, and Arrow batches brought to them."""

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from phpmq_lite.spark.errors import OptionError
from phpmq_lite.spark.options import nearest

if TYPE_CHECKING:
    import pyarrow as pa


def _columns(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns])


# What settled, in the order of its offset.  Times are TIMESTAMP in UTC, to the millisecond.
HISTORY: Final = _columns(
    ("offset", LongType()),
    ("seq", LongType()),
    ("message_id", StringType()),
    ("queue", StringType()),
    ("position", LongType()),
    ("outcome", StringType()),  # acked, expired, dead, deleted
    ("reason", StringType()),
    ("published_at", TimestampType()),
    ("first_dispatched_at", TimestampType()),
    ("last_dispatched_at", TimestampType()),
    ("settled_at", TimestampType()),
    ("deadline", TimestampType()),
    ("ttl_s", LongType()),
    ("deliveries", IntegerType()),
    ("size", LongType()),
    ("publisher", LongType()),
    ("consumer", LongType()),
    ("urn", StringType()),
    ("trace_id", StringType()),
    ("meta_id", StringType()),
    ("attempts", LongType()),
)
BODY: Final = "body"

# What a subscription claimed, in the order of its claim.
QUEUE: Final = _columns(
    ("claim", LongType()),
    ("message_id", StringType()),
    ("queue", StringType()),
    ("body", BinaryType()),
    ("published_at", TimestampType()),
    ("deliveries", IntegerType()),
    ("urn", StringType()),
    ("trace_id", StringType()),
    ("meta_id", StringType()),
)


def history(columns: tuple[str, ...] = (), *, body: bool = False) -> StructType:
    """Give the columns asked for, in that order; all of them for none, ``body`` last.

    Naming ``body`` among the columns asks for it, too.

    Raises:
        OptionError: a name is none of the history's; it gives the nearest.
    """
    fields = {field.name: field for field in [*HISTORY, StructField(BODY, BinaryType())]}
    for name in columns:
        if name not in fields:
            near = nearest(name, tuple(fields))
            hint = f": did you mean {near!r}?" if near else f"; there are {', '.join(fields)}"
            raise OptionError(f"the history has no column {name!r}{hint}")
    names = list(columns or HISTORY.names)
    if body and BODY not in names:
        names.append(BODY)
    return StructType([fields[name] for name in names])


def check(asked: StructType, offered: StructType) -> None:
    """Refuse a schema of the caller's that is not a selection of the columns offered.

    Raises:
        OptionError: a column is unknown or has another type.
    """
    kinds = {field.name: field.dataType for field in offered}
    for field in asked:
        if field.name not in kinds:
            near = nearest(field.name, tuple(kinds))
            raise OptionError(
                f"there is no column {field.name!r}" + (f": did you mean {near!r}?" if near else "")
            )
        if field.dataType != kinds[field.name]:
            raise OptionError(
                f"column {field.name!r} is {kinds[field.name].simpleString()},"
                f" the schema says {field.dataType.simpleString()}"
            )


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Give the Arrow schema that Spark demands of a batch: microseconds, UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Pick and cast the columns that Spark demands; milliseconds become microseconds."""
    import pyarrow as pa

    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
