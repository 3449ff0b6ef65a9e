"""Columns and types of the data source and of the broker."""

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from phpmq_lite.errors import OptionError
from phpmq_lite.spark import columns
from phpmq_lite.spark.columns import (
    QUEUE_COLUMNS,
    add_table_options,
    read_table_options,
    remove_table_options,
    table_options,
)
from phpmq_lite.storage import arrow

ARROW = {"int64": "bigint", "int32": "int", "string": "string", "binary": "binary",
         "timestamp": "timestamp"}  # fmt: skip


def test_history_and_queue_have_the_columns_that_the_broker_sends() -> None:
    assert {*arrow.READER_COLUMNS} - {*arrow.COLUMNS} == {arrow.READER_COLUMNS[-2]}
    for ours, theirs in (
        (columns.history_columns(body=True), (*arrow.READER_COLUMNS, arrow.BODY)),
        (QUEUE_COLUMNS, arrow.CLAIM_COLUMNS),
    ):
        assert [(field.name, field.dataType.simpleString()) for field in ours] == [
            (column.name, ARROW[column.type]) for column in theirs
        ]


def test_columns_keep_the_order_asked_for() -> None:
    assert columns.history_columns(("queue", "offset")).names == ["queue", "offset"]
    assert columns.history_columns(("queue",), body=True).names == ["queue", "body"]
    assert columns.history_columns(("body", "queue"), body=True).names == ["body", "queue"]


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="'outcom': did you mean 'outcome'"):
        columns.history_columns(("outcom",))


def test_schema_of_the_caller_must_be_a_subset() -> None:
    def check(name: str, kind: DataType) -> None:
        schema = StructType([StructField(name, kind)])
        columns.check_read_schema(schema, columns.HISTORY_COLUMNS)

    check("queue", StringType())
    with pytest.raises(OptionError, match="unknown column 'queu': did you mean 'queue'"):
        check("queu", StringType())
    with pytest.raises(OptionError, match="column 'queue' is string, but the schema says bigint"):
        check("queue", LongType())


def test_batch_is_converted_to_the_columns_and_types_of_spark() -> None:
    sent = pa.RecordBatch.from_pydict(
        {"settled_at": pa.array([1, None], pa.timestamp("ms", tz="UTC")), "offset": [4, 5]}
    )
    wanted = columns.arrow_schema(columns.history_columns(("offset", "settled_at")))
    batch = columns.conform_batch(sent, wanted)
    assert batch.schema.equals(wanted)
    assert batch.column("settled_at").cast(pa.int64()).to_pylist() == [1_000, None]


def test_table_options_are_the_properties_with_a_prefix() -> None:
    properties = {
        "provider": "phpmq",
        "owner": "root",
        "location": "/tmp/x",
        "comment": "c",
        "queue": "a property of the table",
        "url": "http://a",
        "option.url": "http://a",
    }
    assert table_options(properties) == {"url": "http://a"}
    assert table_options({"url": "http://a"}) is None


def test_columns_carry_options_but_no_token() -> None:
    marked = add_table_options(QUEUE_COLUMNS, {"url": "http://a", "Token": "geheim"})
    assert marked.names == QUEUE_COLUMNS.names
    assert read_table_options(marked) == {"url": "http://a"}
    assert read_table_options(QUEUE_COLUMNS) == {}
    assert [field.metadata["comment"] for field in marked] == [
        column.comment for column in arrow.CLAIM_COLUMNS
    ]
    bare = remove_table_options(marked)
    assert [(field.name, field.dataType, field.metadata) for field in bare] == [
        (field.name, field.dataType, {}) for field in QUEUE_COLUMNS
    ]


def test_columns_that_are_equal_in_all_rows_are_filled_in() -> None:
    """The broker does not send them; ``history_offset`` repeats ``offset``."""
    names = ("history_id", "history_offset", "queue", "broker")
    assert columns.requested_columns((*names, "body")) == ("offset", "queue", "body")
    sent = pa.RecordBatch.from_pydict({"offset": [4, 5], "queue": ["a", "b"]})
    constants = {"history_id": "f" * 32, "broker": "Bremen"}
    target = columns.arrow_schema(columns.history_columns(names))
    assert columns.conform_batch(sent, target, constants).to_pylist() == [
        {"history_id": "f" * 32, "history_offset": offset, "queue": queue, "broker": "Bremen"}
        for offset, queue in ((4, "a"), (5, "b"))
    ]
