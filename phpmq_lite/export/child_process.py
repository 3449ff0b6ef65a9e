"""The export process: answers JSON requests on stdin with frames on stdout."""

import json
import os
import struct
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.storage.arrow import HistoryRanges, RangeRows, RowSelection

PREFIX: Final = struct.Struct(">cI")  # kind, number of payload bytes
PIECE_BYTES: Final = 1 << 20  # maximum size of a frame's payload

HEADER: Final = b"H"  # JSON: rows, lo, hi, history_id, queue
DATA: Final = b"D"  # a piece of the Arrow stream
END: Final = b"Z"  # JSON: number of rows sent
ERROR: Final = b"E"  # JSON: code (empty unless refused), detail
BEAT: Final = b"B"  # empty payload


NICE: Final = 10  # a tenth of the broker's weight; exports still progress on a busy machine
BEAT_S: Final = 1.0
_PIPE_BYTES: Final = 1 << 20  # largest pipe allowed without privileges; reduces wake-ups


class FrameWriter:
    """Writes frames to a file descriptor; also serves Arrow's writer as a file object."""

    closed = False  # read by pyarrow

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._piece = bytearray()
        self._beat_s = time.monotonic()

    def put(self, kind: bytes, payload: bytes | bytearray | memoryview = b"") -> None:
        """Write a frame, blocking while the broker does not read.

        Raises:
            BrokenPipeError: the broker has ended.
        """
        self._write_all(PREFIX.pack(kind, len(payload)))
        self._write_all(payload)
        self._beat_s = time.monotonic()

    def put_json(self, kind: bytes, **members: Any) -> None:
        """Write a frame with a JSON object."""
        self.put(kind, json.dumps(members).encode())

    def beat(self) -> None:
        """Signal progress if nothing has been written for a second."""
        if time.monotonic() - self._beat_s >= BEAT_S:
            self.put(BEAT)

    def write(self, data: Any) -> int:
        """Buffer part of the stream and write full pieces; ``flush_all`` writes the remainder."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            part = view[at : at + PIECE_BYTES - len(self._piece)]
            self._piece += part
            at += len(part)
            if len(self._piece) == PIECE_BYTES:
                self.flush_all()
        return len(view)

    def flush(self) -> None:
        """Do nothing: Arrow's writer calls this after each write, before a piece is full."""

    def flush_all(self) -> None:
        """Write the buffered bytes."""
        if self._piece:
            self.put(DATA, self._piece)
            self._piece = bytearray()

    def drop(self) -> None:
        """Discard the buffered bytes."""
        self._piece = bytearray()

    def _write_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def main(database: str) -> int:
    """Answer requests until standard input ends; return the exit code."""
    descriptor = os.dup(1)
    os.dup2(2, 1)  # keep printed text out of the frames
    _lower_priority()
    _enlarge_pipe(descriptor)
    try:
        answer_requests(database, sys.stdin.buffer, FrameWriter(descriptor))
    except BrokenPipeError:  # the broker has ended
        return 0
    return 0


def answer_requests(database: str, lines: Iterable[bytes], output: FrameWriter) -> None:
    """Answer each line, which contains one request."""
    for line in lines:
        try:
            answer_request(database, json.loads(line), output)
        except BrokenPipeError:
            raise
        except RefusedError as error:
            output.put_json(ERROR, code=error.code, detail=str(error))
        except StorageError as error:
            output.put_json(ERROR, code="", detail=str(error))
        except Exception as error:  # a bug or lack of memory; the broker reports it
            traceback.print_exc()
            output.put_json(ERROR, code="", detail=f"the export failed: {error!r}"[:500])
        finally:
            output.drop()


def answer_request(database: str, request: dict[str, Any], output: FrameWriter) -> None:
    """Answer one request: ``of`` is history or claims; ``is_head`` requests only the header.

    The end of the Arrow stream is written only after all rows have been sent and counted.
    """
    with HistoryRanges(database) as ranges:
        ranges.on_statement = output.beat
        rows = _rows(ranges, request)
        output.put_json(
            HEADER,
            rows=rows.count,
            lo=rows.lo,
            hi=rows.hi,
            history_id=ranges.bounds().history_id,
            queue=rows.queue,
        )
        given = 0 if request["is_head"] else _stream(rows, output)
        output.put_json(END, rows=given)


def _rows(ranges: HistoryRanges, request: dict[str, Any]) -> RangeRows:
    if request["of"] == "claims":
        return ranges.claims(
            request["subscription"], request["lo"], request["hi"], request["allowed"]
        )
    return ranges.history(RowSelection(**request["selection"]), is_gap_ok=request["is_gap_ok"])


def _stream(rows: RangeRows, output: FrameWriter) -> int:
    import pyarrow as pa

    given = 0
    writer = pa.ipc.new_stream(output, rows.schema)
    for batch in rows:
        writer.write_batch(batch)
        given += batch.num_rows
    writer.close()  # not a ``with`` block, which would end the stream after a failure, too
    output.flush_all()
    return given


def _lower_priority() -> None:
    """Lower the priority of this process below the broker's."""
    with suppress(OSError):
        os.nice(NICE)
    # Linux may schedule by session (autogroup) and apply priorities only within each.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def _enlarge_pipe(descriptor: int) -> None:
    try:
        from fcntl import F_SETPIPE_SZ, fcntl

        fcntl(descriptor, F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, OSError):  # not Linux, or a socket: keep the default
        pass
