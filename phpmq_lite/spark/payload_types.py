"""Spark types of typed tables, and of payloads for ``from_json``."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.payload_shape import Shape, column_kinds, columns_of, is_map, shape_of
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import open_results
from phpmq_lite.spark.source_options import SourceConnection
from phpmq_lite.spark.table_store import read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIMPLE: Final[dict[str, DataType]] = {
    "boolean": types.BooleanType(),
    "integer": types.LongType(),
    "number": types.DoubleType(),
    "string": types.StringType(),
}


def payload_columns(
    shape: Shape, reserved: Iterable[str] = (), *, is_json: bool = False
) -> StructType:
    """Return the columns of a table's payloads, with comments; ``is_json``: see ``schema_of``."""
    return StructType(
        [
            StructField(
                member if is_json and member is not None else name,
                _type(inner, is_json), True, {"comment": inner.comment},
            )
            for name, member, inner in columns_of(shape, reserved)
            if column_kinds(inner) and (member is not None or not is_json)
        ]
    )  # fmt: skip


def _type(shape: Shape, is_json: bool) -> DataType:
    kinds = column_kinds(shape)
    if len(shape.kinds) == 1:
        return _type_of(kinds[0], shape, is_json)
    if is_json:
        return types.VariantType()
    return StructType([StructField(kind, _type_of(kind, shape, is_json)) for kind in kinds])


def _type_of(kind: str, shape: Shape, is_json: bool) -> DataType:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind == "array":
        return types.ArrayType(_type(shape.items or Shape(), is_json))
    if is_map(shape):
        return types.MapType(types.StringType(), _type(shape.other or Shape(), is_json))
    return payload_columns(shape, is_json=is_json)


def schema_of(
    urn: str,
    connection: SourceConnection | None = None,
    *,
    out: str | None = None,
    spark: "SparkSession | None" = None,
) -> StructType:
    """Return the type of a URN's ``data`` for ``from_json``, with the types of its table.

    Members have their own names. A location that allows several types is a VARIANT, because
    ``from_json`` cannot choose a column; members that the schema does not name are missing.

    Args:
        urn: the URN.
        connection: the broker, which is asked for the registered schema.
        out: a results folder; if it has a table of the URN, its columns decide.
        spark: session for a folder that is not on this machine.

    Raises:
        RefusedError: ``no_schema``: there is neither a table nor a registered schema.
    """
    state = None if out is None else read_state(open_results(spark, out), "urn")
    table = None if state is None else state.tables.get(urn)
    if table is not None:
        return payload_columns(table.shape, is_json=True)
    document = None if connection is None else PipelineClient(connection).schema(urn)
    if document is None:
        raise RefusedError(
            "no_schema",
            f"{urn} has neither a registered schema nor a table; register one, or create the"
            " tables (phpmq-lite pipeline tables) and pass out",
        )
    return payload_columns(shape_of(read_schema(json.loads(document))), is_json=True)
