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
from phpmq_lite.storage.arrow import HistoryRanges, Rows, RowSelection

PREFIX: Final = struct.Struct(">cI")  # kind, bytes that follow
PIECE: Final = 1 << 20  # bytes of one frame at most

HEAD: Final = b"H"  # JSON: rows, lo, hi, history_id, queue
DATA: Final = b"D"  # a piece of the Arrow stream
END: Final = b"Z"  # JSON: rows, as they were given
ERROR: Final = b"E"  # JSON: code (empty: no refusal), detail
BEAT: Final = b"B"  # nothing follows


NICE: Final = 10  # a tenth of the weight: some of it, however busy the machine is
BEAT_S: Final = 1.0
_PIPE_BYTES: Final = 1 << 20  # as much as a pipe takes without a privilege: fewer wakings


class FrameWriter:
    """Frames to a file descriptor; a file for Arrow's writer, which gathers pieces."""

    closed = False  # asked by pyarrow

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._piece = bytearray()
        self._beat_s = time.monotonic()

    def put(self, kind: bytes, payload: bytes | bytearray | memoryview = b"") -> None:
        """Write a frame; waits while nobody reads.

        Raises:
            BrokenPipeError: the broker is gone.
        """
        self._write_all(PREFIX.pack(kind, len(payload)))
        self._write_all(payload)
        self._beat_s = time.monotonic()

    def put_json(self, kind: bytes, **members: Any) -> None:
        """Write a frame with an object."""
        self.put(kind, json.dumps(members).encode())

    def beat(self) -> None:
        """Say that work goes on, where nothing was written for a second."""
        if time.monotonic() - self._beat_s >= BEAT_S:
            self.put(BEAT)

    def write(self, data: Any) -> int:
        """Take bytes of the stream; whole pieces leave at once, the rest with ``flush_all``."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            part = view[at : at + PIECE - len(self._piece)]
            self._piece += part
            at += len(part)
            if len(self._piece) == PIECE:
                self.flush_all()
        return len(view)

    def flush(self) -> None:
        """Arrow's writer calls this after each of its writes; pieces are left to fill up."""

    def flush_all(self) -> None:
        """Write what was gathered."""
        if self._piece:
            self.put(DATA, self._piece)
            self._piece = bytearray()

    def drop(self) -> None:
        """Forget what was gathered."""
        self._piece = bytearray()

    def _write_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def main(database: str) -> int:
    """Answer until standard input ends; gives the exit code."""
    descriptor = os.dup(1)
    os.dup2(2, 1)  # what anything prints must not get between the frames
    _stand_behind()
    _widen(descriptor)
    try:
        answer_requests(database, sys.stdin.buffer, FrameWriter(descriptor))
    except BrokenPipeError:  # the broker is gone
        return 0
    return 0


def answer_requests(database: str, lines: Iterable[bytes], output: FrameWriter) -> None:
    """Answer each line."""
    for line in lines:
        try:
            answer_request(database, json.loads(line), output)
        except BrokenPipeError:
            raise
        except RefusedError as error:
            output.put_json(ERROR, code=error.code, detail=str(error))
        except StorageError as error:
            output.put_json(ERROR, code="", detail=str(error))
        except Exception as error:  # a defect, or no memory: the broker tells, this goes on
            traceback.print_exc()
            output.put_json(ERROR, code="", detail=f"the export failed: {error!r}"[:500])
        finally:
            output.drop()


def answer_request(database: str, asked: dict[str, Any], output: FrameWriter) -> None:
    """Answer one request: ``of`` is history or claims; ``is_head``: the head only.

    The end of the Arrow stream is written after all rows were given and counted, and never else.
    """
    with HistoryRanges(database) as ranges:
        ranges.on_statement = output.beat
        rows = _rows(ranges, asked)
        output.put_json(
            HEAD,
            rows=rows.count,
            lo=rows.lo,
            hi=rows.hi,
            history_id=ranges.bounds().history_id,
            queue=rows.queue,
        )
        given = 0 if asked["is_head"] else _stream(rows, output)
        output.put_json(END, rows=given)


def _rows(ranges: HistoryRanges, asked: dict[str, Any]) -> Rows:
    if asked["of"] == "claims":
        return ranges.claims(asked["subscription"], asked["lo"], asked["hi"], asked["allowed"])
    return ranges.history(RowSelection(**asked["selection"]), is_gap_ok=asked["is_gap_ok"])


def _stream(rows: Rows, output: FrameWriter) -> int:
    import pyarrow as pa

    given = 0
    writer = pa.ipc.new_stream(output, rows.schema)
    for batch in rows:
        writer.write_batch(batch)
        given += batch.num_rows
    writer.close()  # not in a ``with``, which would end the stream of a failure too
    output.flush_all()
    return given


def _stand_behind() -> None:
    """Where both want a processor, the broker has it."""
    with suppress(OSError):
        os.nice(NICE)
    # Linux may weigh sessions against each other, and priorities then within one only.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def _widen(descriptor: int) -> None:
    try:
        from fcntl import F_SETPIPE_SZ, fcntl

        fcntl(descriptor, F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, OSError):  # another system, or a socket: it goes on with what it has
        pass
