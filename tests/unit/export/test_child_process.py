"""Output of the export process: frames of bounded size, and an end only after all rows."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.export import child_process
from phpmq_lite.export.child_process import FrameWriter, answer_requests
from phpmq_lite.storage.arrow import RangeError

BATCH = pa.record_batch({"offset": pa.array(range(1_000), pa.int64())})


class CollectedOutput(FrameWriter):
    def __init__(self) -> None:
        super().__init__(-1)
        self.bytes = b""

    def _write_all(self, data: bytes | bytearray | memoryview) -> None:
        self.bytes += bytes(data)

    @property
    def frames(self) -> list[tuple[bytes, bytes]]:
        found, left = [], self.bytes
        while left:
            kind, size = child_process.PREFIX.unpack_from(left)
            end = child_process.PREFIX.size + size
            found.append((kind, left[child_process.PREFIX.size : end]))
            assert len(left) >= end
            left = left[end:]
        return found


def test_stream_leaves_in_whole_pieces() -> None:
    output = CollectedOutput()
    data = bytes(range(256)) * 10_000
    for at in range(0, len(data), 7_777):
        output.write(data[at : at + 7_777])
    output.flush()
    assert [len(payload) for _, payload in output.frames] == [child_process.PIECE_BYTES] * 2
    output.flush_all()
    assert b"".join(payload for _, payload in output.frames) == data
    assert {kind for kind, _ in output.frames} == {child_process.DATA}


def test_heartbeat_is_sent_only_after_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(child_process, "time", SimpleNamespace(monotonic=lambda: now_s))
    output = CollectedOutput()
    for now_s in (0.5, 1.0, 1.5, 2.5):  # noqa: B007 - read by the clock
        output.beat()
    assert output.frames == [(child_process.BEAT, b"")] * 2


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (RefusedError("gap", "rows left"), "gap", "rows left"),
        (StorageError("cannot read"), "", "cannot read"),
        (RangeError("3 rows, 2 came"), "", "3 rows, 2 came"),
        (MemoryError("much"), "", "the export failed: MemoryError('much')"),
    ],
)
def test_error_is_reported_and_the_next_request_answered(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, detail: str
) -> None:
    def answer(_database: str, asked: dict[str, Any], output: FrameWriter) -> None:
        output.write(b"half a piece")
        if asked["fails"]:
            raise error
        output.flush_all()

    monkeypatch.setattr(child_process, "answer_request", answer)
    output = CollectedOutput()
    answer_requests(("", ""), [b'{"fails": true}\n', b'{"fails": false}\n'], output)
    (kind, payload), last = output.frames
    assert (kind, json.loads(payload)) == (child_process.ERROR, {"code": code, "detail": detail})
    assert last == (child_process.DATA, b"half a piece")


def test_process_ends_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_database: str, _asked: dict[str, Any], _output: FrameWriter) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(child_process, "answer_request", answer)
    with pytest.raises(BrokenPipeError):
        answer_requests(("", ""), [b"{}\n", b"{}\n"], CollectedOutput())


class Rows:
    """Two batches, followed by an error."""

    schema = BATCH.schema

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        yield BATCH
        yield BATCH
        if self._error is not None:
            raise self._error


def test_stream_ends_only_after_all_rows() -> None:
    whole, broken = CollectedOutput(), CollectedOutput()
    assert child_process._stream(Rows(None), whole) == 2_000  # type: ignore[arg-type]
    with pytest.raises(RangeError):
        child_process._stream(Rows(RangeError("")), broken)  # type: ignore[arg-type]
    broken.flush_all()
    streams = [b"".join(payload for _, payload in output.frames) for output in (whole, broken)]
    end = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    assert streams[0] == streams[1] + end
    assert pa.ipc.open_stream(streams[0]).read_all().num_rows == 2_000
