"""The seal of a database that is open, while nobody writes to the file.

What is stored goes into the write-ahead log, whose frames have checksums; the database itself
changes in checkpoints only.  So its checksum is taken behind one, beside the work, and counts until
the next one: where a crash comes in between, the next start compares every byte, as it does behind
a clean stop (``seal.py``).  A busy broker has too many checkpoints to seal each of them.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from phpmq_lite.errors import DatabaseReplacedError
from phpmq_lite.storage import seal_file
from phpmq_lite.storage.opened_files import OpenedFiles
from phpmq_lite.storage.seal import SEALED_BYTES, checksum_of_file

_SHARE: Final = 100  # of the time at most one part in so many is spent on it,
_LEAST_S: Final = 1.0  # and so much lies between two: to strike one costs an fsync


class RestingSeal:
    """``strike`` ahead of each checkpoint, ``take`` behind one; both in the writer's thread.

    ``close`` it behind the last connection.  No seal lies there when it is made.
    """

    def __init__(self, database: Path, files: OpenedFiles | None = None) -> None:
        self._files = files or OpenedFiles(database)
        # Open until the end: to close the database any earlier would take SQLite's locks away.
        self._database = database.open("rb", buffering=0)
        self._file = _opened(database.parent)
        self._lock = threading.Lock()  # of what is in the file
        self._has_seal = False
        self._checkpoints = 0
        self._thread: threading.Thread | None = None
        self._due_s = 0.0  # monotonic

    def strike(self) -> None:
        """Take the seal away, and have none made of what was read so far.

        Raises:
            OSError: it is there still, so nobody may write to the database.
        """
        with self._lock:
            self._checkpoints += 1
            if self._file is not None and self._has_seal:
                seal_file.strike(self._file)
                self._has_seal = False

    def take(self) -> None:
        """Have the file sealed as it is now, unless that was done just now or is under way."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if self._file is not None and not is_busy and monotonic() >= self._due_s:
            thread = threading.Thread(
                target=self._seal, args=(self._checkpoints,), name="seal", daemon=True
            )
            with suppress(RuntimeError):  # no thread to be had: behind this one no seal
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Seal no more, and close the files."""
        with self._lock:
            self._checkpoints += 1
        self._due_s = float("inf")
        if self._thread is not None:
            self._thread.join()
        self._database.close()
        if self._file is not None:
            os.close(self._file)

    def _seal(self, checkpoints: int) -> None:
        began_s = monotonic()
        # After a crash the structure is checked instead.  A database that was replaced is not
        # sealed; the writer finds it too, and stops.
        with suppress(OSError, DatabaseReplacedError):
            if os.fstat(self._database.fileno()).st_size <= SEALED_BYTES:
                self._database.seek(0)
                found = checksum_of_file(self._database, lambda: checkpoints == self._checkpoints)
                self._write(found, checkpoints)
        took_s = monotonic() - began_s
        self._due_s = max(self._due_s, began_s + max(_LEAST_S, _SHARE * took_s))

    def _write(self, found: int, checkpoints: int) -> None:
        with self._lock:
            if self._file is not None and checkpoints == self._checkpoints:
                self._files.check()
                self._has_seal = True
                seal_file.write(self._file, found)


def _opened(folder: Path) -> int | None:
    """Open the file of the seal, with its room on the disk; None: nothing can be sealed."""
    try:
        file = seal_file.open_file(folder)
    except OSError:
        return None
    try:
        seal_file.strike(file)
    except OSError:
        os.close(file)
        return None
    return file
