"""Converts the bodies of archived messages to typed columns, in Arrow, on Spark's executors."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from phpmq_lite.envelopes.indexed_fields import INT64_MAX, INT64_MIN
from phpmq_lite.envelopes.payload_schema import JSON_TYPES, read_schema
from phpmq_lite.envelopes.payload_shape import (
    PayloadCounts,
    Shape,
    column_kinds,
    columns_of,
    is_map,
)
from phpmq_lite.envelopes.strict_json import POINTER_CHARACTERS, child_pointer
from phpmq_lite.envelopes.validation import read_payload
from phpmq_lite.spark.table_columns import MISFIT, VERSION

REJECT: Final = "_reject"
REJECT_FIELDS: Final = ("reason", "pointer", "detail")  # of an EnvelopeProblem
POINTERS_LIMIT: Final = 20  # maximum number of pointers in a row


@dataclass(frozen=True, slots=True)
class TableColumns:
    """How a table's bodies are converted; ``keys`` are the columns that are copied.

    ``document`` is the registered schema as JSON, or None if the columns come from bodies.
    """

    shape: Shape
    version: int
    document: str | None
    keys: tuple[str, ...]

    @property
    def reserved(self) -> tuple[str, ...]:
        """The names that columns of payloads cannot have."""
        return (*self.keys, VERSION, MISFIT, REJECT)


def convert(
    batches: Iterable[pa.RecordBatch], table: TableColumns, count: Callable[[PayloadCounts], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the keys, ``VERSION``, ``MISFIT``, the columns of the payloads and ``REJECT``.

    The input has ``table.keys``, ``urn`` (null: the body is not an envelope) and ``body``. A row
    that the registered schema rejects has ``REJECT``. ``count`` receives payloads with values that
    have no column.
    """
    schema = None if table.document is None else read_schema(json.loads(table.document))
    for batch in batches:
        misfits: list[str] = []
        columns = _Object(table.shape, lambda: "/data", misfits, table.reserved)
        pointers, rejects, counts = [], [], PayloadCounts()
        contents = (batch.column(name).to_pylist() for name in ("body", "urn"))
        for content, urn in zip(*contents, strict=True):
            data, problem = read_payload(content, is_envelope=urn is not None)
            if problem is None and schema is not None:
                problem = schema.check(data, is_on_wire=True)
            columns.add(data if problem is None else {})
            rejects.append(asdict(problem) if problem is not None and schema is not None else None)
            if problem is not None and schema is None:
                misfits.append(problem.pointer)
            elif misfits:
                counts.add(data)
            prefix = 0 if urn is not None else len("/data")
            pointers.append(
                [p[prefix:][:POINTER_CHARACTERS] for p in misfits[:POINTERS_LIMIT]] or None
            )
            misfits.clear()
        if counts.kinds:
            count(counts)
        arrays = [
            *(batch.column(name) for name in table.keys),
            pa.array([table.version] * batch.num_rows, pa.int64()),
            pa.array(pointers, pa.list_(pa.string())),
            *(column.array() for column in columns.columns.values()),
            pa.array(rejects, pa.struct([(name, pa.string()) for name in REJECT_FIELDS])),
        ]
        names = [*table.keys, VERSION, MISFIT, *columns.columns, REJECT]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


# -- columns: ``add`` appends a value, or null and the pointer of a value that does not fit

_Where = Callable[[], str]  # returns the pointer of the value that is being added


def _integer(value: Any) -> int | None:
    is_integer = type(value) is int or (type(value) is float and value.is_integer())
    return int(value) if is_integer and INT64_MIN <= value <= INT64_MAX else None


def _number(value: Any) -> float | None:
    """Return the nearest double."""
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        return None


_SIMPLE: Final[dict[str, tuple[pa.DataType, Callable[[Any], Any]]]] = {
    "boolean": (pa.bool_(), lambda value: value if type(value) is bool else None),
    "integer": (pa.int64(), _integer),
    "number": (pa.float64(), _number),
    "string": (pa.string(), lambda value: value if type(value) is str else None),
}


class _Column:
    """A location without a column, where only null and lists and objects of nulls fit."""

    def __init__(self, where: _Where, misfits: list[str]) -> None:
        self.where, self.misfits = where, misfits
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        if value is not None and not _is_void(value):
            self.miss()

    def miss(self) -> None:
        self.misfits.append(self.where())

    def array(self) -> pa.Array:
        raise NotImplementedError  # only those that have a column have an array


def _is_void(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_void, value.values() if isinstance(value, dict) else value))
    return value is None


class _Simple(_Column):
    def __init__(self, kind: str, where: _Where, misfits: list[str]) -> None:
        super().__init__(where, misfits)
        self.type, self.convert = _SIMPLE[kind]

    def add(self, value: Any) -> None:
        if value is not None:
            value = self.convert(value)
            if value is None:
                self.miss()
        self.values.append(value)

    def array(self) -> pa.Array:
        return pa.array(self.values, self.type)


class _List(_Column):
    """Arrays, or maps with their ``keys``; ``values`` has the position of the first item."""

    def __init__(self, kind: str, shape: Shape, where: _Where, misfits: list[str]) -> None:
        super().__init__(where, misfits)
        self.at: int | str = 0
        self.size = 0
        self.type = list if kind == "array" else dict
        self.keys: list[str] = []
        inner = shape.items if kind == "array" else shape.other
        self.items = _column(
            inner or Shape(), lambda: child_pointer(where(), str(self.at)), misfits
        )

    def add(self, value: Any) -> None:
        if type(value) is not self.type:
            if value is not None:
                self.miss()
            self.values.append(None)
            return
        self.values.append(self.size)
        self.size += len(value)
        if self.type is dict:
            self.keys += value
        for at, item in value.items() if isinstance(value, dict) else enumerate(value):
            self.at = at
            self.items.add(item)

    def array(self) -> pa.Array:
        offsets = pa.array([*self.values, self.size], pa.int32())
        if self.type is list:
            return pa.ListArray.from_arrays(offsets, self.items.array())
        keys = pa.array(self.keys, pa.string())
        return pa.MapArray.from_arrays(offsets, keys, self.items.array())


class _Struct(_Column):
    """Columns side by side; ``values`` says where all of them are null."""

    columns: dict[str, _Column]

    def array(self) -> pa.Array:
        arrays = [column.array() for column in self.columns.values()]
        is_null = pa.array(self.values, pa.bool_())
        return pa.StructArray.from_arrays(arrays, [*self.columns], mask=is_null)


class _Object(_Struct):
    """Objects, with a column for each member."""

    def __init__(
        self, shape: Shape, where: _Where, misfits: list[str], reserved: Iterable[str] = ()
    ) -> None:
        super().__init__(where, misfits)
        self.names = shape.members.keys()
        self.is_open = shape.is_open
        self.columns = {}
        self.members: list[tuple[str, _Column]] = []
        self.others: _Column | None = None
        for name, member, inner in columns_of(shape, reserved):
            column = self._member(member, inner)
            if member is None:
                self.others = column
            else:
                self.members.append((member, column))
            if column_kinds(inner):
                self.columns[name] = column

    def _member(self, member: str | None, shape: Shape) -> _Column:
        where = self.where
        if member is None:
            return _column(shape, where, self.misfits)
        return _column(shape, lambda: child_pointer(where(), member), self.misfits)

    def add(self, value: Any) -> None:
        is_object = type(value) is dict
        self.values.append(not is_object)
        if not is_object and value is not None:
            self.miss()
        members = value if is_object else {}
        for name, column in self.members:
            column.add(members.get(name))
        if self.others is not None:
            unnamed = {n: m for n, m in members.items() if n not in self.names}
            self.others.add(unnamed if is_object else None)
        elif self.is_open and not members.keys() <= self.names:
            self.misfits += (
                child_pointer(self.where(), name)
                for name, member in members.items()
                if name not in self.names and not _is_void(member)
            )


class _Union(_Struct):
    """Values of several kinds, with a column for each kind."""

    def __init__(self, shape: Shape, where: _Where, misfits: list[str]) -> None:
        super().__init__(where, misfits)
        self.columns = {kind: _one(kind, shape, where, misfits) for kind in column_kinds(shape)}

    def add(self, value: Any) -> None:
        kind = None if value is None else JSON_TYPES[type(value)]
        if kind in ("integer", "number") and kind not in self.columns:
            kind = "number" if kind == "integer" else "integer"
        if kind not in self.columns and not _is_void(value):
            self.miss()
        self.values.append(kind not in self.columns)
        for name, column in self.columns.items():
            column.add(value if name == kind else None)


def _column(shape: Shape, where: _Where, misfits: list[str]) -> _Column:
    kinds = column_kinds(shape)
    if not kinds:
        return _Column(where, misfits)
    if len(shape.kinds) > 1:
        return _Union(shape, where, misfits)
    return _one(kinds[0], shape, where, misfits)


def _one(kind: str, shape: Shape, where: _Where, misfits: list[str]) -> _Column:
    if kind in _SIMPLE:
        return _Simple(kind, where, misfits)
    if kind == "array" or is_map(shape):
        return _List(kind, shape, where, misfits)
    return _Object(shape, where, misfits)
