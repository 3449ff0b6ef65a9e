"""Broken export processes: ``python broken_export.py HOW DATABASE``.

Each announces ten rows.  ``short`` sends five and reports five at a clean end; ``lying`` reports
ten.  ``failing`` reports an error in the middle, ``leaving`` ends there, and ``stalling`` waits
there; ``silent`` never begins, ``babbling`` sends an invalid frame, and ``dying`` ends at once.
"""

import sys
import time

import pyarrow as pa

from phpmq_lite.export import child_process
from phpmq_lite.export.child_process import FrameWriter

ROWS = 10


def answer(how: str, output: FrameWriter) -> None:
    if how == "dying":
        sys.exit(3)
    if how == "silent":
        time.sleep(600)
    if how == "babbling":
        output._write_all(b"Traceback (most recent call last):\n")
        time.sleep(600)
    output.put_json(child_process.HEADER, rows=ROWS, lo=0, hi=ROWS, history_id="x" * 32, queue="")
    batch = pa.record_batch({"offset": pa.array(range(1, ROWS // 2 + 1), pa.int64())})
    writer = pa.ipc.new_stream(output, batch.schema)
    writer.write_batch(batch)
    if how in ("short", "lying"):
        writer.close()
    output.flush_all()
    if how == "failing":
        output.put_json(child_process.ERROR, code="", detail="the disk is gone")
    elif how == "leaving":
        sys.exit(0)
    elif how == "stalling":
        time.sleep(600)
    else:
        output.put_json(child_process.END, rows=ROWS if how == "lying" else ROWS // 2)


if __name__ == "__main__":
    made = FrameWriter(1)
    for _line in sys.stdin.buffer:
        answer(sys.argv[1], made)
