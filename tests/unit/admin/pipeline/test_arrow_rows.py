"""Staged rows: valid Arrow streams, and hostile ones that are refused."""

import io
import random
from typing import Any

import pyarrow as pa
import pytest

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.pipeline import arrow_rows
from phpmq_lite.broker.pipeline import staging

MAX = 100


def stream(*batches: Any, **options: Any) -> bytes:
    sink = io.BytesIO()
    made = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=made) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def read(raw: bytes | bytearray) -> arrow_rows.UploadedRows:
    return arrow_rows.read_rows(raw, MAX, lambda _: None)


GOOD = batch(body=[b"a", b"bb"], queue=["q", "r"], ttl_s=pa.array([None, 5], pa.int64()))


def test_rows_come_in_order_with_their_sums() -> None:
    found = read(stream(GOOD, GOOD))
    assert (found.rows, found.bytes) == (4, 6)
    rows = [("q", b"a", None), ("r", b"bb", 5)]
    assert list(found.chunks()) == [rows, rows]


@pytest.mark.parametrize("type_", ["binary", "large_binary", "string", "large_string"])
def test_bodies_may_be_bytes_or_text_in_any_order_of_columns(type_: str) -> None:
    bodies = ["Grüße"] if "string" in type_ else ["Grüße".encode()]
    made = batch(queue=["q"], body=pa.array(bodies, getattr(pa, type_)()))
    assert list(read(stream(made)).chunks()) == [[("q", "Grüße".encode(), None)]]


def test_stream_without_rows_is_valid() -> None:
    found = read(stream(GOOD.slice(0, 0)))
    assert (found.rows, found.bytes, list(found.chunks())) == (0, 0, [])


def test_batches_without_rows_are_not_kept() -> None:
    empty = GOOD.slice(0, 0)
    assert [kept.num_rows for kept in read(stream(empty, GOOD, empty, empty)).batches] == [2]


def test_slices_are_bounded_by_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "SLICE_ROWS", 3)
    monkeypatch.setattr(arrow_rows, "SLICE_BYTES", 10)
    bodies = [b"x" * size for size in (4, 4, 4, 30, 1, 1, 1, 1)]
    chunks = list(read(stream(batch(body=bodies, queue=["q"] * 8))).chunks())
    assert [[len(body) for _, body, _ in chunk] for chunk in chunks] == [
        [4, 4], [4], [30], [1, 1, 1], [1],
    ]  # fmt: skip


def cases() -> dict[str, tuple[bytes, int, str | None]]:
    """Return refused streams with the expected status and field."""
    null = pa.array([None], pa.binary())
    return {
        "nothing": (b"", 422, None),
        "no Arrow": (b"x" * 50 + arrow_rows._END, 422, None),
        "cut off": (stream(GOOD)[:-8], 422, None),
        "cut off in a batch": (stream(GOOD)[:-40], 422, None),
        "zstd": (stream(GOOD, compression="zstd"), 422, None),
        "lz4": (stream(GOOD, compression="lz4"), 422, None),
        "dictionary": (
            stream(batch(body=[b"a"], queue=pa.array(["q"]).dictionary_encode())), 422, None,
        ),
        "numbers": (stream(batch(body=[1], queue=["q"])), 422, "body"),
        "no queue": (stream(batch(body=[b"a"])), 422, "queue"),
        "unknown column": (stream(batch(body=[b"a"], queue=["q"], ttl=[1])), 422, "ttl"),
        "null body": (stream(batch(body=null, queue=["q"])), 422, "body"),
        "large body": (stream(batch(body=[b"a" * (MAX + 1)], queue=["q"])), 413, "body"),
        "ttl below": (stream(batch(body=[b"a"], queue=["q"], ttl_s=[-1])), 422, "ttl_s"),
        "ttl above": (stream(batch(body=[b"a"], queue=["q"], ttl_s=[1 << 60])), 422, "ttl_s"),
        "no name": (stream(batch(body=[b"a"], queue=[""])), 422, "queue"),
        "bad name": (stream(batch(body=[b"a"], queue=["a\rb"])), 422, "queue"),
    }  # fmt: skip


@pytest.mark.parametrize("what", cases())
def test_stream_is_refused(what: str) -> None:
    raw, status, field = cases()[what]
    with pytest.raises(Problem) as caught:
        read(raw)
    assert (caught.value.status, caught.value.field) == (status, field)


def test_too_many_rows_are_refused_with_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "TOKEN_ROWS", 3)
    with pytest.raises(Problem) as caught:
        read(stream(GOOD, GOOD))
    assert (caught.value.status, caught.value.bound) == (413, "at most 3 rows")


def test_reading_stops_at_the_first_batch_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "TOKEN_ROWS", 3)
    with pytest.raises(Problem, match="at least 4 rows"):
        read(stream(GOOD, GOOD, GOOD))


def test_permission_is_checked_once_per_queue() -> None:
    asked: list[str] = []
    arrow_rows.read_rows(stream(GOOD, GOOD), MAX, asked.append)
    assert asked == ["q", "r"]


def test_corrupt_stream_is_refused_or_read() -> None:
    raw, chance = stream(GOOD), random.Random(7)
    refused = 0
    for _ in range(500):
        spoiled = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            spoiled[chance.randrange(len(raw) - 8)] = chance.randrange(256)
        try:
            read(spoiled)
        except Problem:
            refused += 1
    assert refused > 250
