"""Spark schemas for the history, the queues and the archive, with related functions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from phpmq_lite.errors import OptionError
from phpmq_lite.spark.history import BODY
from phpmq_lite.spark.source_options import suggestion
from phpmq_lite.spark.table_columns import ARCHIVE_COLUMNS, FILE_COLUMNS
from phpmq_lite.storage import arrow
from phpmq_lite.storage.arrow import ArrowColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


_COMMENT: Final = "comment"  # key under which Spark finds what DESCRIBE shows


def commented_schema(columns: Sequence[ArrowColumn]) -> StructType:
    """Return the Spark schema, with the texts as comments; any column may be null there."""
    types = map(from_arrow_type, arrow.arrow_schema(columns).types)
    return StructType(
        [
            StructField(column.name, kind, True, {_COMMENT: column.comment})
            for column, kind in zip(columns, types, strict=True)
        ]
    )


def with_comments(rows: "DataFrame", columns: Sequence[ArrowColumn]) -> "DataFrame":
    """Add the texts of the columns to the schema; columns without one stay as they are."""
    texts = {field.name: field.metadata for field in commented_schema(columns)}
    return rows.select([sf.col(n).alias(n, metadata=texts.get(n, {})) for n in rows.columns])


# Columns of settled messages, in offset order. Times are UTC, with millisecond precision.
HISTORY_COLUMNS: Final = commented_schema(arrow.READER_COLUMNS)
# Columns that the reader fills in, because each range has one value, or that of another column.
FILLED: Final = frozenset({"history_id", "broker", "history_offset"})
# Columns of messages claimed by a subscription, in the order of their claims.
QUEUE_COLUMNS: Final = commented_schema(arrow.CLAIM_COLUMNS)
_BODY: Final = commented_schema([arrow.BODY])
# Columns of a table for INSERT. With the first one, which must be null, an INSERT without names has
# too few values: it would go by position.
WRITE_COLUMNS: Final = commented_schema(
    [
        ArrowColumn("message_id", "string", "assigned by the broker, so leave it out", "always"),
        ArrowColumn("queue", "string", "the queue", "that of the table"),
        ArrowColumn("body", "string", "the content; binary values are stored as they are"),
        ArrowColumn("ttl_s", "int64", "time to live", "the queue's default", "s"),
    ]
)
# Columns of the exceptional steps of settled messages, by offset, then by time.
EVENT_COLUMNS: Final = commented_schema((*arrow.EVENT_COLUMNS, *arrow.READER_COLUMNS[-3:-1]))


def history_columns(columns: tuple[str, ...] = (), *, body: bool = False) -> StructType:
    """Return the columns in this order, or all; raise OptionError for an unknown one."""
    fields = {field.name: field for field in [*HISTORY_COLUMNS, *_BODY]}
    for name in columns:
        if name not in fields:
            raise OptionError(f"the history has no column {name!r}{suggestion(name, fields)}")
    names = list(columns or HISTORY_COLUMNS.names)
    if body and BODY not in names:
        names.append(BODY)
    return StructType([fields[name] for name in names])


def check_read_schema(requested: StructType, offered: StructType) -> None:
    """Raise OptionError if a column of a user's schema is unknown or has another type."""
    kinds = {field.name: field.dataType for field in offered}
    for field in requested:
        if field.name not in kinds:
            raise OptionError(f"unknown column {field.name!r}{suggestion(field.name, kinds)}")
        if field.dataType != kinds[field.name]:
            raise OptionError(
                f"column {field.name!r} is {kinds[field.name].simpleString()},"
                f" but the schema says {field.dataType.simpleString()}"
            )


def requested_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to request from the broker, so that the others can be filled in."""
    renamed = ("offset" if name == "history_offset" else name for name in names)
    return tuple(dict.fromkeys(name for name in renamed if name not in FILLED))


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Return the Arrow schema that Spark requires for a batch: UTC times in microseconds."""
    return to_arrow_schema(schema, timezone="UTC")


def conform_batch(
    batch: "pa.RecordBatch", schema: "pa.Schema", constants: Mapping[str, Any] | None = None
) -> "pa.RecordBatch":
    """Select the columns that Spark requires, and convert milliseconds to microseconds.

    ``constants`` are the values of columns that are equal in all rows.
    """
    import pyarrow as pa

    constants = constants or {}
    names = {"history_offset": "offset"} if "offset" in batch.schema.names else {}
    arrays = [
        pa.repeat(constants[name], batch.num_rows)
        if name in constants
        else batch.column(names.get(name, name)).cast(kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


DAY_MS: Final = 86_400_000

# Columns of the archive's files; older files lack some of them.
FILE_SCHEMA: Final = commented_schema((*arrow.READER_COLUMNS, *FILE_COLUMNS))
ARCHIVE_SCHEMA: Final = commented_schema((*arrow.READER_COLUMNS, *FILE_COLUMNS, *ARCHIVE_COLUMNS))
TIME_COLUMNS: Final = ("published_at", "first_dispatched_at", "last_dispatched_at", "settled_at")


def utc_day(at: "Column | str") -> "Column":
    """Return the UTC date of a time, regardless of the session's time zone."""
    days = sf.floor(sf.unix_millis(sf.col(at) if isinstance(at, str) else at) / DAY_MS)
    return sf.date_from_unix_date(days.cast("int"))


_MARK: Final = "provider"  # set for every table, but not an option of the data source
_PREFIX: Final = "option."  # properties with this prefix are options of the data source
_KEY: Final = "phpmq.options"
_TOKEN: Final = "token"  # noqa: S105 - the name of the option


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created, or None if none is being created."""
    if _MARK not in options:
        return None
    return {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }


def add_table_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Store the table's options, except its token, in the columns' metadata."""
    public = {name: value for name, value in options.items() if name.lower() != _TOKEN}
    first, *remaining = columns
    metadata = (first.metadata or {}) | {_KEY: public}
    return StructType([StructField(first.name, first.dataType, True, metadata), *remaining])


def read_table_options(columns: StructType) -> dict[str, str]:
    """Return the options stored in a table's columns, or an empty dict if there are none."""
    options: dict[str, str] = {}
    for field in columns:
        options |= (field.metadata or {}).get(_KEY, {})
    return options


def remove_table_options(columns: StructType) -> StructType:
    """Return the columns without their metadata, which has the table options."""
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in columns])
