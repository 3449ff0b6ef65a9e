"""The export process, which reads JSON requests from stdin and writes frames to stdout."""

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
from phpmq_lite.storage.arrow import HistoryRanges, RangeRows, RowFilters, RowSelection
from phpmq_lite.time_slices import set_time_slice

PREFIX: Final = struct.Struct(">cI")  # frame header: kind, payload length
PIECE_BYTES: Final = 1 << 20  # maximum size of a frame's payload

HEADER: Final = b"H"  # start of an export: JSON object with rows, lo, hi, history_id, queue
DATA: Final = b"D"  # a part of the Arrow stream
END: Final = b"Z"  # end of an export: JSON object with the number of rows sent
ERROR: Final = b"E"  # error: JSON object with detail and code (empty unless the export was refused)
BEAT: Final = b"B"  # heartbeat with an empty payload


NICE: Final = 10  # a tenth of the broker's weight; enough for exports on a busy machine
BEAT_S: Final = 1.0
_PIPE_BYTES: Final = 1 << 20  # Linux's limit for unprivileged users; reduces wake-ups


class FrameWriter:
    """Writes frames to a file descriptor; Arrow's writer can use it as a file object."""

    closed = False  # pyarrow requires this attribute

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._piece = bytearray()
        self._beat_s = time.monotonic()

    def put(self, kind: bytes, payload: bytes | bytearray | memoryview = b"") -> None:
        """Write a frame; block until the broker reads it."""
        self._write_all(PREFIX.pack(kind, len(payload)))
        self._write_all(payload)
        self._beat_s = time.monotonic()

    def put_json(self, kind: bytes, **members: Any) -> None:
        self.put(kind, json.dumps(members).encode())

    def beat(self) -> None:
        """Write a heartbeat if nothing has been written for one second."""
        if time.monotonic() - self._beat_s >= BEAT_S:
            self.put(BEAT)

    def write(self, data: Any) -> int:
        """Buffer stream data and write it in full pieces; ``flush_all`` writes the remainder."""
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
        """Do nothing, because Arrow's writer calls this method even before a piece is full."""

    def flush_all(self) -> None:
        """Write the buffered bytes even if they are less than a full piece."""
        if self._piece:
            self.put(DATA, self._piece)
            self._piece = bytearray()

    def drop(self) -> None:
        self._piece = bytearray()

    def _write_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def main(database: str, claims_database: str) -> int:
    """Answer requests until standard input ends; return the exit code."""
    descriptor = os.dup(1)
    os.dup2(2, 1)  # redirect printed text, so that it does not mix with frames
    set_time_slice(0)  # the broker's is short
    with suppress(OSError):
        os.nice(NICE)
    # With autogroups, Linux schedules by session and applies priorities only within a session.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))
    with suppress(ImportError, OSError):  # not Linux or not a pipe, so keep the default size
        from fcntl import F_SETPIPE_SZ, fcntl

        fcntl(descriptor, F_SETPIPE_SZ, _PIPE_BYTES)
    with suppress(BrokenPipeError):  # the broker's process has ended
        answer_requests((database, claims_database), sys.stdin.buffer, FrameWriter(descriptor))
    return 0


def answer_requests(
    databases: tuple[str, str], lines: Iterable[bytes], output: FrameWriter
) -> None:
    """Answer the requests from standard input, one per line."""
    for line in lines:
        try:
            answer_request(databases, json.loads(line), output)
        except BrokenPipeError:
            raise
        except RefusedError as error:
            output.put_json(ERROR, code=error.code, detail=str(error))
        except StorageError as error:
            output.put_json(ERROR, code="", detail=str(error))
        except Exception as error:  # a bug or out of memory; the broker reports the error
            traceback.print_exc()
            output.put_json(ERROR, code="", detail=f"the export failed: {error!r}"[:500])
        finally:
            output.drop()


def answer_request(
    databases: tuple[str, str], request: dict[str, Any], output: FrameWriter
) -> None:
    """Answer a request for history, events or claims, or only for the header (``is_head``)."""
    with HistoryRanges(databases[request["of"] == "claims"]) as ranges:
        ranges.on_statement = output.beat
        ranges.upto = request.get("upto")
        if request["of"] == "claims":
            bounds = request["lo"], request["hi"]
            rows = ranges.claims(request["subscription"], *bounds, request["allowed"])
        else:
            filters = RowFilters(**request["selection"]["filters"])
            selection = RowSelection(**request["selection"] | {"filters": filters})
            read = ranges.events if request["of"] == "events" else ranges.history
            rows = read(selection, is_gap_ok=request["is_gap_ok"])
        output.put_json(
            HEADER,
            rows=rows.count,
            lo=rows.lo,
            hi=rows.hi,
            history_id=ranges.bounds().history_id,
            queue=rows.queue,
        )
        sent = 0 if request["is_head"] else _stream(rows, output)
        output.put_json(END, rows=sent)


def _stream(rows: RangeRows, output: FrameWriter) -> int:
    import pyarrow as pa

    sent = 0
    writer = pa.ipc.new_stream(output, rows.schema)
    for batch in rows:
        writer.write_batch(batch)
        sent += batch.num_rows
    writer.close()  # in a ``with`` block, this would run even after a failure
    output.flush_all()
    return sent
