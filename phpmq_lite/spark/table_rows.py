"""Converts the bodies of archived messages to typed columns, in Arrow, on Spark's executors."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from phpmq_lite.envelopes.indexed_fields import INT64_MAX, INT64_MIN
from phpmq_lite.envelopes.payload_schema import JSON_TYPES, read_schema
from phpmq_lite.envelopes.payload_shape import (
    OTHER_MEMBERS,
    PayloadCounts,
    Shape,
    column_kinds,
    columns_of,
    is_map,
)
from phpmq_lite.envelopes.strict_json import POINTER_CHARACTERS, child_pointer
from phpmq_lite.envelopes.validation import read_payload
from phpmq_lite.spark.columns import arrow_schema, commented_schema
from phpmq_lite.spark.payload_types import payload_columns
from phpmq_lite.spark.table_columns import MISFIT, PAYLOAD_COLUMNS, VERSION
from phpmq_lite.storage.arrow import ArrowColumn

REJECT: Final = "_reject"
REJECT_FIELDS: Final = ("reason", "pointer", "detail")  # of an EnvelopeProblem
POINTERS_LIMIT: Final = 20  # maximum number of pointers in a row
_PART_ROWS: Final = 500  # 10,000 rows as dicts would keep the garbage collector busy: 10 % slower


_REJECT_TYPE: Final = StructType([StructField(name, StringType()) for name in REJECT_FIELDS])


@dataclass(frozen=True, slots=True)
class TableColumns:
    """How a table's bodies are converted; ``keys`` are the columns that are copied.

    ``document`` is the registered schema as JSON, or None if the columns come from bodies.
    """

    shape: Shape
    version: int
    document: str | None
    keys: tuple[ArrowColumn, ...]

    @property
    def reserved(self) -> tuple[str, ...]:
        """The names that columns of payloads cannot have."""
        return (*(column.name for column in self.keys), VERSION, MISFIT, REJECT)

    @property
    def schema(self) -> StructType:
        """The columns of the table."""
        fixed = commented_schema((*self.keys, *PAYLOAD_COLUMNS))
        return StructType([*fixed, *payload_columns(self.shape, self.reserved)])

    @property
    def converted(self) -> StructType:
        """The columns that ``convert`` returns."""
        return StructType([*self.schema, StructField(REJECT, _REJECT_TYPE)])


def convert(
    batches: Iterable[pa.RecordBatch], table: TableColumns, count: Callable[[PayloadCounts], None]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the columns ``table.converted``.

    The input has ``table.keys``, ``urn`` (null: the body is not an envelope) and ``body``. A row
    that the registered schema rejects has ``REJECT``. ``count`` receives payloads with values that
    have no column.
    """
    schema = None if table.document is None else read_schema(json.loads(table.document))
    fit = _object(table.shape, table.reserved)
    keys = [column.name for column in table.keys]
    added = pa.struct(list(arrow_schema(StructType([*table.converted][len(keys) :]))))
    for batch in (
        full_batch.slice(at, _PART_ROWS)
        for full_batch in batches
        for at in range(0, full_batch.num_rows, _PART_ROWS)
    ):
        rows, counts = [], PayloadCounts()
        contents = (batch.column(name).to_pylist() for name in ("body", "urn"))
        for content, urn in zip(*contents, strict=True):
            misfits: list[_Place] = []
            data, problem = read_payload(content, is_envelope=urn is not None)
            if problem is None and schema is not None:
                problem = schema.check(data, is_on_wire=True)
            row: dict[str, Any] = {} if problem is not None else fit(data, None, misfits)
            root = "/data" if urn is not None else ""
            if problem is not None and schema is not None:
                row[REJECT] = asdict(problem)
            elif problem is not None:
                row[MISFIT] = [problem.pointer if urn is not None else ""]
            elif misfits:
                counts.add(data)
                row[MISFIT] = [
                    f"{root}{_pointer(place)}"[:POINTER_CHARACTERS]
                    for place in misfits[:POINTERS_LIMIT]
                ]
            row[VERSION] = table.version
            rows.append(row)
        if counts.kinds:
            count(counts)
        arrays = [*(batch.column(name) for name in keys), *pa.array(rows, added).flatten()]
        yield pa.RecordBatch.from_arrays(arrays, names=[*keys, *(field.name for field in added)])


# -- values: a ``_Fit`` returns a value as its column holds it, or null for one that does not fit,
# whose place it adds to a list

_Place = (
    tuple[Any, str | int | None] | None
)  # of the object or array around it, with a name or an index
_Fit = Callable[[Any, _Place, list[_Place]], Any]


def _pointer(place: _Place) -> str:
    return "" if place is None else child_pointer(_pointer(place[0]), str(place[1]))


def _exact(kind: type) -> _Fit:
    def fit(value: Any, place: _Place, misfits: list[_Place]) -> Any:
        return value if value is None or type(value) is kind else misfits.append(place)

    return fit


def _integer(value: Any, place: _Place, misfits: list[_Place]) -> Any:
    is_integer = type(value) is int or (type(value) is float and value.is_integer())
    if is_integer and INT64_MIN <= value <= INT64_MAX:
        return int(value)
    return None if value is None else misfits.append(place)


def _number(value: Any, place: _Place, misfits: list[_Place]) -> Any:
    """Return the nearest double."""
    try:
        if type(value) in (float, int):
            return float(value)
    except OverflowError:
        pass
    return None if value is None else misfits.append(place)


_SIMPLE: Final[dict[str, _Fit]] = {
    "boolean": _exact(bool),
    "integer": _integer,
    "number": _number,
    "string": _exact(str),
}


def _is_void(value: Any) -> bool:
    """Return whether a value is null, or consists of nulls, so that it needs no column."""
    if isinstance(value, dict | list):
        return all(map(_is_void, value.values() if isinstance(value, dict) else value))
    return value is None


def _no_column(value: Any, place: _Place, misfits: list[_Place]) -> Any:
    if not _is_void(value):
        misfits.append(place)


def _fit(shape: Shape) -> _Fit:
    kinds = column_kinds(shape)
    if not kinds:
        return _no_column
    fits = {kind: _fit_of(kind, shape) for kind in kinds}
    if len(shape.kinds) == 1:
        return fits[kinds[0]]

    def fit(value: Any, place: _Place, misfits: list[_Place]) -> Any:
        kind = None if value is None else JSON_TYPES[type(value)]
        if kind in ("integer", "number") and kind not in fits:
            kind = "number" if kind == "integer" else "integer"
        if kind in fits:
            return {kind: fits[kind](value, place, misfits)}
        return _no_column(value, place, misfits)

    return fit


def _fit_of(kind: str, shape: Shape) -> _Fit:
    if kind == "array":
        return _items(_fit(shape.items or Shape()))
    if kind == "object":
        return _map(_fit(shape.other or Shape())) if is_map(shape) else _object(shape)
    return _SIMPLE[kind]


def _items(fit_item: _Fit) -> _Fit:
    def fit(value: Any, place: _Place, misfits: list[_Place]) -> Any:
        if type(value) is list:
            return [fit_item(item, (place, at), misfits) for at, item in enumerate(value)]
        return None if value is None else misfits.append(place)

    return fit


def _map(fit_member: _Fit) -> _Fit:
    def fit(value: Any, place: _Place, misfits: list[_Place]) -> Any:
        if type(value) is dict:
            return [(n, fit_member(member, (place, n), misfits)) for n, member in value.items()]
        return None if value is None else misfits.append(place)

    return fit


def _object(shape: Shape, reserved: Iterable[str] = ()) -> _Fit:
    """Return a function for objects, with a column for each member."""
    names, is_open = shape.members.keys(), shape.is_open
    columns = [(member, name, _fit(inner)) for name, member, inner in columns_of(shape, reserved)]
    fit_others = columns.pop()[-1] if shape.other is not None else None

    def fit(value: Any, place: _Place, misfits: list[_Place]) -> Any:
        if type(value) is not dict:
            return None if value is None else misfits.append(place)
        row = {}
        for member, name, fit_member in columns:
            if member in value:
                row[name] = fit_member(value[member], (place, member), misfits)
        if fit_others is not None:
            others = {n: member for n, member in value.items() if n not in names}
            row[OTHER_MEMBERS] = fit_others(others, place, misfits)
        elif is_open and not value.keys() <= names:
            misfits += ((place, n) for n in value if n not in names and not _is_void(value[n]))
        return row

    return fit
