"""Columns and types, ours and the broker's."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from phpmq_lite.spark import schema
from phpmq_lite.spark.errors import OptionError
from phpmq_lite.storage import arrow

ARROW = {"int64": "bigint", "int32": "int", "string": "string", "binary": "binary",
         "timestamp": "timestamp"}  # fmt: skip


def test_history_and_queue_have_the_columns_that_the_broker_sends() -> None:
    for ours, theirs in (
        (schema.history(body=True), (*arrow.COLUMNS, arrow.BODY)),
        (schema.QUEUE, arrow.CLAIM_COLUMNS),
    ):
        assert [(field.name, field.dataType.simpleString()) for field in ours] == [
            (column.name, ARROW[column.type]) for column in theirs
        ]


def test_columns_keep_the_order_asked_for() -> None:
    assert schema.history(("queue", "offset")).names == ["queue", "offset"]
    assert schema.history(("queue",), body=True).names == ["queue", "body"]
    assert schema.history(("body", "queue"), body=True).names == ["body", "queue"]


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="'outcom': did you mean 'outcome'"):
        schema.history(("outcom",))


def test_schema_of_the_caller_must_be_a_selection() -> None:
    schema.check(StructType([StructField("queue", StringType())]), schema.HISTORY)
    with pytest.raises(OptionError, match="no column 'queu': did you mean 'queue'"):
        schema.check(StructType([StructField("queu", StringType())]), schema.HISTORY)
    with pytest.raises(OptionError, match="column 'queue' is string, the schema says bigint"):
        schema.check(StructType([StructField("queue", LongType())]), schema.HISTORY)


def test_batch_is_brought_to_the_columns_and_types_of_spark() -> None:
    sent = pa.RecordBatch.from_pydict(
        {"settled_at": pa.array([1, None], pa.timestamp("ms", tz="UTC")), "offset": [4, 5]}
    )
    wanted = schema.arrow_schema(schema.history(("offset", "settled_at")))
    batch = schema.conform(sent, wanted)
    assert batch.schema.equals(wanted)
    assert batch.column("settled_at").cast(pa.int64()).to_pylist() == [1_000, None]
