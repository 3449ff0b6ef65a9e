"""What Spark's writers upload, under any bytes: rows that hold, or a problem that names the reason.

What must hold of every stream: it is read, or refused with 413 or 422; nothing else is raised and
the process stays alive; and the rows of what is read can be staged: texts, bytes and times to live
within their bounds, as many as were counted.
"""

import io
import re
import struct
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pyarrow as pa

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.pipeline import arrow_rows
from phpmq_lite.broker.pipeline import staging
from phpmq_lite.queue_settings import LONGEST_TTL_S
from tests.fuzz.target import Target

CONTENT_MAX: Final = 1_000
_WORDS: Final = tuple(
    struct.pack(code, value)
    for code, values in (
        ("<b", (-1, 0, 1, 4, 127)),
        ("<h", (-1, 0, 4, 12, 32_767)),
        ("<i", (-(1 << 31), -8, -1, 0, 1, 8, 64, 1 << 20, (1 << 31) - 1)),
        ("<q", (-(1 << 63), -1, 0, 1, 7, 8, 9, 63, 64, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1)),
    )
    for value in values
)
_USUAL: Final = {"body": pa.binary(), "queue": pa.string(), "ttl_s": pa.int64()}
_TYPES: Final[tuple[Callable[[], Any], ...]] = (
    pa.binary, pa.large_binary, pa.string, pa.large_string, pa.int8, pa.int64, pa.uint64, pa.null,
    pa.float64, pa.bool_, pa.date32, lambda: pa.binary(3), lambda: pa.decimal128(9, 2),
    lambda: pa.timestamp("ms", "UTC"), lambda: pa.list_(pa.int64()), pa.string_view, pa.binary_view,
    lambda: pa.struct([("a", pa.string())]), lambda: pa.dictionary(pa.int8(), pa.string()),
    lambda: pa.run_end_encoded(pa.int32(), pa.string()), lambda: pa.map_(pa.string(), pa.int8()),
)  # fmt: skip


def check_upload(data: bytes) -> str:
    try:
        found = arrow_rows.read_rows(data, CONTENT_MAX, lambda name: None)
    except Problem as problem:
        if problem.status not in (413, 422):
            raise
        is_known = problem.field in (None, "body", "queue", "ttl_s")
        return f"{problem.status}-{(problem.field or problem.code) if is_known else 'column'}"
    rows = [row for chunk in found.chunks() for row in chunk]
    assert len(rows) == found.rows <= staging.TOKEN_ROWS
    assert sum(len(body) for _, body, _ in rows) == found.bytes
    for queue, body, ttl_s in rows:
        assert type(queue) is str
        queue.encode()
        assert type(body) is bytes
        assert len(body) <= CONTENT_MAX
        assert ttl_s is None or 0 <= ttl_s <= LONGEST_TTL_S
    return f"rows-{min(len(rows), 3)}"


def _column(dice: Random, type_: Any, rows: int) -> Any:
    values: dict[str, list[Any]] = {
        "body": [b"", b"x", b"x" * 900, b"\xff"],
        "queue": ["q", "größe", "q" * 99, " "],
    }
    kind = "queue" if pa.types.is_string(type_) or pa.types.is_large_string(type_) else "body"
    chosen = [dice.choice((*values[kind], None)) if dice.random() < 0.2 else values[kind][1]
              for _ in range(rows)]  # fmt: skip
    try:
        return pa.array(chosen, type_)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
        pass
    try:
        return pa.array([dice.choice((0, 1, 60, -1, None)) for _ in range(rows)], type_)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError, OverflowError):
        return pa.nulls(rows, type_)


def _fresh(dice: Random) -> bytes:
    """Write a stream whose columns, types, batches or options may be wrong."""
    names = ["body", "queue", "ttl_s"][: dice.choice((3, 3, 2, 1))]
    if dice.random() < 0.1:
        names.append(dice.choice(("ttl_s", "x", "", "body", "ä")))
    types = [
        dice.choice(_TYPES)() if name not in _USUAL or dice.random() < 0.1 else _USUAL[name]
        for name in names
    ]
    metadata = {b"k": b"v" * dice.choice((0, 9, 500))} if dice.random() < 0.2 else None
    fields = [
        pa.field(name, type_, dice.random() < 0.9 or pa.types.is_null(type_))
        for name, type_ in zip(names, types, strict=True)
    ]
    schema = pa.schema(fields, metadata)
    options = pa.ipc.IpcWriteOptions(
        compression=dice.choice((None, None, None, None, "zstd", "lz4")),
        metadata_version=dice.choice((pa.ipc.MetadataVersion.V5, pa.ipc.MetadataVersion.V4)),
        use_legacy_format=dice.random() < 0.1,
    )
    sink = io.BytesIO()
    try:
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            for _ in range(dice.choice((0, 1, 1, 2, 3))):
                rows = dice.choice((0, 1, 2, 5))
                arrays = [_column(dice, type_, rows) for type_ in types]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    except (pa.ArrowException, NotImplementedError):
        return arrow_rows._END
    raw = bytearray(sink.getvalue())
    for _ in range(dice.choice((0, 0, 1, 1, 1, 2, 4))):  # numbers of metadata and of offsets
        word = dice.choice(_WORDS)
        at = dice.randrange(len(raw) - 8) // len(word) * len(word)
        raw[at : at + len(word)] = word
    return bytes(raw if raw.endswith(arrow_rows._END) else raw + arrow_rows._END)


UPLOADS: Final = Target(
    "uploads",
    check_upload,
    _fresh,
    list,
    re.compile(rb".{1,8}", re.DOTALL),
    (*_WORDS, arrow_rows._END, b"\xff\xff\xff\xff", b"body", b"queue", b"ttl_s"),
)
