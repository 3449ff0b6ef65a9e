"""Reads the rows of an uploaded Arrow stream, and refuses a stream that is not valid."""

import struct
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

from phpmq_lite.admin.http.input import check_queue_name
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.queue_settings import LONGEST_TTL_S

SLICE_ROWS: Final = staging.STAGE_SLICE // 4  # small slices, so that other batches run in between
SLICE_BYTES: Final = 256 << 10
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_COLUMNS: Final = ("body", "queue", "ttl_s")
_BROKEN: Final = (ArithmeticError, LookupError, OSError, ValueError, struct.error)
_COMPRESSION: Final = 10  # vtable offset of RecordBatch.compression in Arrow's Message.fbs


class UploadedRows(NamedTuple):
    """Validated rows from a stream; ``bytes`` is the total size of the message bodies."""

    batches: list[Any]  # pyarrow.RecordBatch
    rows: int
    bytes: int

    def chunks(self) -> Iterator[list[staging.StagedRow]]:
        """Yield the rows in order, in chunks small enough for one slice of the broker."""
        import pyarrow.compute as pc

        for batch in self.batches:
            at = 0
            while at < batch.num_rows:
                bodies = batch.column(0).slice(at, SLICE_ROWS)
                sizes: Iterator[int] = accumulate(pc.binary_length(bodies).to_pylist())
                part = batch.slice(at, max(1, sum(size <= SLICE_BYTES for size in sizes)))
                bodies, queues, ttls = (column.to_pylist() for column in part.columns)
                yield list(zip(queues, bodies, ttls, strict=True))
                at += part.num_rows


def read_rows(
    raw: bytes | bytearray, content_max: int, check_right: Callable[[str], None]
) -> UploadedRows:
    """Read and validate a complete stream; call ``check_right`` once for each queue in the stream.

    Raises:
        Problem: 422 naming the column or bound, 413 for too many rows or a body that is too large.
    """
    import pyarrow as pa

    if not raw.endswith(_END):
        raise _bad("The Arrow stream is truncated: its end-of-stream marker is missing.")
    try:
        _check_plain(pa, raw)
        with pa.ipc.open_stream(pa.py_buffer(raw)) as reader:
            _check_schema(pa, reader.schema)
            batches = _batches(pa, reader)
    except (pa.ArrowException, *_BROKEN) as error:
        raise _bad(f"The Arrow stream cannot be read: {error}") from None
    return _checked(batches, content_max, check_right)


def _batches(pa: Any, reader: Any) -> list[Any]:
    """Read only non-empty batches; a 64 MiB stream could expand to 290,000 empty 3 KiB batches."""
    batches, rows = [], 0
    for batch in reader:
        batch.validate(full=True)
        rows += batch.num_rows
        if rows > staging.TOKEN_ROWS:
            detail = f"The stream has at least {rows} rows; the limit is {staging.TOKEN_ROWS}."
            bound = f"at most {staging.TOKEN_ROWS} rows"
            raise Problem(413, "too_large", detail, field="body", bound=bound)
        if batch.num_rows:
            batches.append(_arrange_columns(pa, batch))
    return batches


def _check_plain(pa: Any, raw: bytes | bytearray) -> None:
    """Reject compressed batches and dictionary columns before unpacking anything."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(raw)):
        if message.type == "dictionary":
            raise _bad("Dictionary columns are not supported.", bound="plain columns")
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise _bad("Compressed Arrow streams are not supported.", bound="no compression")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch's flatbuffer specifies a compression codec."""
    message = struct.unpack_from("<I", metadata)[0]
    header = _member(metadata, message, 8)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _member(metadata, batch, _COMPRESSION) is not None


def _member(buffer: bytes, table: int, slot: int) -> int | None:
    """Return the position of a flatbuffer table's member, or None if the member is absent."""
    entries = table - struct.unpack_from("<i", buffer, table)[0]
    if entries < 0 or slot >= struct.unpack_from("<H", buffer, entries)[0]:
        return None
    offset = struct.unpack_from("<H", buffer, entries + slot)[0]
    return table + offset if offset else None


def _check_schema(pa: Any, schema: Any) -> None:
    types = pa.types
    takes = {
        "body": (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string),
        "queue": (types.is_string, types.is_large_string),
        "ttl_s": (types.is_integer, types.is_null),
    }
    for name in schema.names:
        if name not in takes:
            raise _bad(f"The column {name!r} is unknown.", name, ", ".join(_COLUMNS))
        if schema.names.count(name) > 1:
            raise _bad(f"The column {name!r} appears more than once.", name, "once")
        type_ = schema.field(name).type
        if not any(is_right(type_) for is_right in takes[name]):
            bound = {"body": "binary or string", "queue": "string", "ttl_s": "int64"}[name]
            raise _bad(f"The column {name!r} has type {type_}, not {bound}.", name, bound)
    for name in ("body", "queue"):
        if name not in schema.names:
            raise _bad(f"The column {name!r} is missing.", name, "body, queue and optionally ttl_s")


def _arrange_columns(pa: Any, batch: Any) -> Any:
    """Return the columns in the order of ``_COLUMNS``, converted to the types used here."""
    ttl = (
        batch.column("ttl_s").cast(pa.int64())
        if "ttl_s" in batch.schema.names
        else pa.nulls(batch.num_rows, pa.int64())
    )
    body = batch.column("body")
    if pa.types.is_string(body.type):
        body = body.cast(pa.binary())
    elif pa.types.is_large_string(body.type):
        body = body.cast(pa.large_binary())
    return pa.RecordBatch.from_arrays([body, batch.column("queue"), ttl], list(_COLUMNS))


def _checked(
    batches: list[Any], content_max: int, check_right: Callable[[str], None]
) -> UploadedRows:
    import pyarrow.compute as pc

    rows, size = 0, 0
    queues: set[str] = set()
    for batch in batches:
        rows += batch.num_rows
        body, queue, ttl = batch.columns
        for name, column in (("body", body), ("queue", queue)):
            if column.null_count:
                count = column.null_count
                detail = f"The column {name!r} contains {count} nulls; none are allowed."
                raise _bad(detail, name, "no nulls")
        lengths = pc.binary_length(body)
        longest = pc.max(lengths).as_py() or 0
        if longest > content_max:
            detail = f"A body is {longest} bytes; the limit is {content_max} (limits.max_content)."
            raise Problem(413, "too_large", detail, field="body", bound=f"{content_max} bytes")
        size += pc.sum(lengths).as_py() or 0
        queues |= set(pc.unique(queue).to_pylist())
        bounds = pc.min_max(ttl).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= LONGEST_TTL_S:
            range_ = f"ranges from {bounds['min']} to {bounds['max']}"
            detail = f"The column 'ttl_s' {range_}; values must be 0 to {LONGEST_TTL_S}."
            raise _bad(detail, "ttl_s", f"0 to {LONGEST_TTL_S}, or null")
    for name in sorted(queues):
        check_queue_name(name)
        check_right(name)
    return UploadedRows(batches, rows, size)


def _bad(text: str, field: str | None = None, bound: str | None = None) -> Problem:
    return Problem(422, "bad_arrow", text, field=field, bound=bound)
