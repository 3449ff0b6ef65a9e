"""Rows that a Spark task stages: an Arrow IPC stream, checked before anything of it is used.

The stream is from outside.  It has to end with its end mark, for a short one looks complete; it
may not be compressed, for then 64 MiB hold any amount; its offsets and its UTF-8 are checked in
full.  All functions but ``need_arrow`` block: call them in a thread.
"""

import struct
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Final, NamedTuple

from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import check_queue_name
from phpmq_lite.admin.schemas import TTL_MAX_S
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.installation import install_command

MEDIA: Final = "application/vnd.apache.arrow.stream"
ROWS_MAX: Final = 100_000  # of a token, and of a publish
SLICE_ROWS: Final = staging.STAGE_SLICE // 4  # others have their turn after each
SLICE_BYTES: Final = 256 << 10
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_COLUMNS: Final = ("body", "queue", "ttl_s")
_BROKEN: Final = (ArithmeticError, LookupError, OSError, ValueError, struct.error)
_COMPRESSION: Final = 10  # slot of RecordBatch.compression: Message.fbs of Arrow


class Upload(NamedTuple):
    """The rows of a stream, checked; ``bytes`` are those of the bodies."""

    batches: list[Any]  # pyarrow.RecordBatch
    rows: int
    bytes: int

    def chunks(self) -> Iterator[list[staging.StagedRow]]:
        """Yield the rows in order, as many at a time as the broker takes in one slice."""
        for batch in self.batches:
            at = 0
            while at < batch.num_rows:
                some = batch.slice(at, _fitting(batch.column(0).slice(at, SLICE_ROWS)))
                bodies, queues, ttls = (column.to_pylist() for column in some.columns)
                yield list(zip(queues, bodies, ttls, strict=True))
                at += some.num_rows


def _fitting(bodies: Any) -> int:
    """Count the first bodies that make a slice: more than one only below its bound."""
    import pyarrow.compute as pc

    sizes: Iterator[int] = accumulate(pc.binary_length(bodies).to_pylist())
    return max(1, sum(size <= SLICE_BYTES for size in sizes))


def need_arrow() -> None:
    """Refuse where pyarrow is not installed; imports nothing: that would stop the loop for 0.3 s.

    Raises:
        Problem: 501, naming the extra.
    """
    if find_spec("pyarrow") is None:
        raise Problem(
            501, "no_arrow", "This broker speaks no Arrow: it was installed without pyarrow. "
            f"Install it with the extra: {install_command('export')}",
        )  # fmt: skip


def read_rows(
    raw: bytes | bytearray, content_max: int, check_right: Callable[[str], None]
) -> Upload:
    """Read and check a whole stream; ``check_right`` is asked about each queue once.

    Raises:
        Problem: 422 naming the column or the bound, 413 for too many rows or too large a body.
    """
    import pyarrow as pa

    if not raw.endswith(_END):
        raise _bad("The Arrow stream does not end with its end mark; it was cut off.")
    try:
        _check_plain(pa, raw)
        with pa.ipc.open_stream(pa.py_buffer(raw)) as reader:
            _check_schema(pa, reader.schema)
            batches = _batches(pa, reader)
    except (pa.ArrowException, *_BROKEN) as error:
        raise _bad(f"The Arrow stream cannot be read: {error}") from None
    return _checked(batches, content_max, check_right)


def _batches(pa: Any, reader: Any) -> list[Any]:
    """Read the batches that have rows; 64 MiB hold 290,000 empty ones, which take 3 KiB each."""
    batches, rows = [], 0
    for batch in reader:
        batch.validate(full=True)
        rows += batch.num_rows
        if rows > ROWS_MAX:
            raise Problem(413, "too_large", f"The stream has {rows} rows or more.", field="body",
                          bound=f"at most {ROWS_MAX} rows")  # fmt: skip
        if batch.num_rows:
            batches.append(_arranged(pa, batch))
    return batches


def _check_plain(pa: Any, raw: bytes | bytearray) -> None:
    """Refuse compressed batches and dictionaries before anything is unpacked."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(raw)):
        if message.type == "dictionary":
            raise _bad("The Arrow stream has dictionaries.", bound="plain columns")
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise _bad("The Arrow stream is compressed.", bound="no compression")


def _is_compressed(metadata: bytes) -> bool:
    """Look into the flatbuffer of a record batch: does it name a codec?"""
    message = struct.unpack_from("<I", metadata)[0]
    header = _member(metadata, message, 8)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _member(metadata, batch, _COMPRESSION) is not None


def _member(buffer: bytes, table: int, slot: int) -> int | None:
    """Give where a member of a flatbuffer's table lies; None where it is left out."""
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
            raise _bad(f"The column {name!r} is not known.", name, ", ".join(_COLUMNS))
        if schema.names.count(name) > 1:
            raise _bad(f"The column {name!r} is there twice.", name, "once")
        type_ = schema.field(name).type
        if not any(is_right(type_) for is_right in takes[name]):
            bound = {"body": "binary or string", "queue": "string", "ttl_s": "int64"}[name]
            raise _bad(f"The column {name!r} is {type_}.", name, bound)
    for name in ("body", "queue"):
        if name not in schema.names:
            raise _bad(f"There is no column {name!r}.", name, "body, queue and perhaps ttl_s")


def _arranged(pa: Any, batch: Any) -> Any:
    """Put the columns into the order of ``_COLUMNS``, in our types."""
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


def _checked(batches: list[Any], content_max: int, check_right: Callable[[str], None]) -> Upload:
    import pyarrow.compute as pc

    rows, size = 0, 0
    queues: set[str] = set()
    for batch in batches:
        rows += batch.num_rows
        body, queue, ttl = batch.columns
        for name, column in (("body", body), ("queue", queue)):
            if column.null_count:
                raise _bad(f"The column {name!r} has {column.null_count} nulls.", name, "no null")
        lengths = pc.binary_length(body)
        longest = pc.max(lengths).as_py() or 0
        if longest > content_max:
            raise Problem(413, "too_large", f"A body has {longest} bytes.", field="body",
                          bound=f"{content_max} bytes")  # fmt: skip
        size += pc.sum(lengths).as_py() or 0
        queues |= set(pc.unique(queue).to_pylist())
        bounds = pc.min_max(ttl).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= TTL_MAX_S:
            raise _bad(f"The column 'ttl_s' goes from {bounds['min']} to {bounds['max']}.",
                       "ttl_s", f"0 to {TTL_MAX_S}, or null")  # fmt: skip
    for name in sorted(queues):
        check_queue_name(name)
        check_right(name)
    return Upload(batches, rows, size)


def _bad(text: str, field: str | None = None, bound: str | None = None) -> Problem:
    return Problem(422, "bad_arrow", text, field=field, bound=bound)
