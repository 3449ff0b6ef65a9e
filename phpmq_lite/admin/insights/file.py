"""Where the summary lies: ``<data>/pipeline/summary.json``, replaced as a whole."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Final

from phpmq_lite.admin.insights.summary import SUMMARY_BYTES, Summary, read_summary
from phpmq_lite.errors import StorageError
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, write_whole

FOLDER: Final = "pipeline"
NAME: Final = "summary.json"

Stamp = tuple[int, int, int]


class BadSummaryError(Exception):
    """The file is there and cannot be used; the text says why."""


class SummaryFile:
    """The file, and what was read from it last: a page does not read it anew while it stays.

    The truth is the disk: jobs on this machine write there too.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / FOLDER / NAME
        self._kept: tuple[Stamp, Summary | BadSummaryError] | None = None
        self._writing = threading.Lock()  # all who write here go by way of one temporary file

    async def read(self) -> Summary | None:
        """Give the summary; None where no job has left one.

        Raises:
            BadSummaryError: it cannot be read, or is none.
        """
        return await asyncio.to_thread(self._read)

    async def write(self, raw: bytes) -> None:
        """Replace the file; whoever reads meanwhile sees the old one or the new one.

        Raises:
            StorageError: it cannot be written; the old one stays.
        """
        await asyncio.to_thread(self._write, raw)

    def _write(self, raw: bytes) -> None:
        try:
            with self._writing:
                self.path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                write_whole(self.path, raw)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error

    def _read(self) -> Summary | None:
        try:
            stamp = _stamp_of(os.stat(self.path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadSummaryError(f"it cannot be read: {error.strerror}") from error
        kept = self._kept
        if kept is None or kept[0] != stamp:
            found = self._bytes()
            if found is None:
                return None
            kept = self._kept = found[0], _judged(found[1])
        if isinstance(kept[1], BadSummaryError):
            raise BadSummaryError(str(kept[1]))
        return kept[1]

    def _bytes(self) -> tuple[Stamp, bytes] | None:
        try:
            with self.path.open("rb") as file:
                stamp = _stamp_of(os.fstat(file.fileno()))
                raw = file.read(SUMMARY_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadSummaryError(f"it cannot be read: {error.strerror}") from error
        if len(raw) > SUMMARY_BYTES:
            raise BadSummaryError(f"it is larger than {SUMMARY_BYTES} bytes")
        return stamp, raw


def _judged(raw: bytes) -> Summary | BadSummaryError:
    try:
        return read_summary(raw)
    except ValueError as error:
        return BadSummaryError(str(error))


def _stamp_of(stat: os.stat_result) -> Stamp:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
