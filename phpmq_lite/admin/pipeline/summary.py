"""The summary that the pipeline writes, and the file that stores it."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from aiohttp import web
from pydantic import ValidationError

from phpmq_lite.errors import StorageError
from phpmq_lite.insights_document import (
    OTHER_QUEUES,
    SUMMARY_BYTES,
    PipelineSummary,
    TracePath,
    merge_summaries,
)
from phpmq_lite.settings.validation_errors import describe_error
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, write_whole


def read_summary(raw: bytes) -> PipelineSummary:
    """Parse a summary, which takes about 30 ms for 2 MiB.

    Raises:
        ValueError: the summary is not JSON or is invalid; the text names the member and the bound.
    """
    try:
        return PipelineSummary.model_validate(_read(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(describe_error(where, first)) from None


def _read(raw: bytes) -> object:
    try:
        return json.loads(raw.decode(), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the content is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("the content is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the content is not valid JSON: {error}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"the content is not valid JSON: {word} is not allowed")


def _merged(stored: bytes, raw: bytes) -> bytes:
    """Merge valid figures into the stored ones; if those are invalid or too much, drop them."""
    try:
        read_summary(stored)
    except ValueError:
        return raw
    document = json.loads(raw)
    merged = merge_summaries(json.loads(stored), document)
    if merged == document:
        return raw
    text = json.dumps(merged, ensure_ascii=False, separators=(",", ":")).encode()
    return text if len(text) <= SUMMARY_BYTES else raw


def visible_to(
    summary: PipelineSummary, allow: Callable[[str], bool], queues: Iterable[str] = ()
) -> PipelineSummary:
    """Return the parts of the summary about queues visible to the caller, without combined rows.

    Only paths whose steps all belong to allowed queues remain.  A step belongs to the queue with
    the longest name, in the summary or in ``known``, that the step begins with.
    """
    names = sorted({*summary.queues(), *queues}, key=len, reverse=True)

    def is_shown(part: Any) -> bool:
        return part.queue != OTHER_QUEUES and allow(part.queue)

    def is_walked(path: TracePath) -> bool:
        return all((name := _queue_of(step, names)) and allow(name) for step in path.path)

    return summary.model_copy(
        update={
            "last24h": tuple(filter(is_shown, summary.last24h)),
            "last30d": tuple(filter(is_shown, summary.last30d)),
            "urns": tuple(filter(is_shown, summary.urns)),
            "deaths": tuple(filter(is_shown, summary.deaths)),
            "expiries": tuple(filter(is_shown, summary.expiries)),
            "paths": tuple(filter(is_walked, summary.paths)),
            "jobs": tuple(job.model_copy(update={"error": None}) for job in summary.jobs),
        }
    )


def _queue_of(step: str, names: Iterable[str]) -> str | None:
    """Return the queue that a step in a path belongs to; ``names`` must begin with the longest."""
    return next((name for name in names if step == name or step.startswith(f"{name}:")), None)


FOLDER: Final = "pipeline"
NAME: Final = "summary.json"


class BadSummaryError(Exception):
    """Raised if the summary file exists but cannot be used; the text says why."""


class SummaryFile:
    """The summary file and its parsed content, which is cached until the file changes.

    The file is the source of truth, because pipeline jobs on this machine also write it.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / FOLDER / NAME
        self._kept: tuple[tuple[int, int, int], PipelineSummary | BadSummaryError] | None = None
        self._writing = threading.Lock()  # all writers use the same temporary file

    async def read(self) -> PipelineSummary | None:
        """Return the summary, or None if no job has written one.

        Raises:
            BadSummaryError: the file cannot be read or is invalid.
        """
        return await asyncio.to_thread(self._read)

    async def write(self, raw: bytes) -> None:
        """Merge a valid summary into the file, which is replaced atomically.

        Raises:
            StorageError: the file cannot be written; the old one remains.
        """
        await asyncio.to_thread(self._write, raw)

    def _write(self, raw: bytes) -> None:
        try:
            with self._writing:
                self.path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                with suppress(FileNotFoundError):
                    raw = _merged(self.path.read_bytes(), raw)
                write_whole(self.path, raw)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error

    def _read(self) -> PipelineSummary | None:
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
                kept = self._kept
                if kept is None or kept[0] != stamp:
                    kept = self._kept = stamp, _parse_summary(file.read(SUMMARY_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadSummaryError(f"the file cannot be read: {error.strerror}") from error
        if isinstance(kept[1], BadSummaryError):
            raise BadSummaryError(str(kept[1]))
        return kept[1]


def _parse_summary(raw: bytes) -> PipelineSummary | BadSummaryError:
    if len(raw) > SUMMARY_BYTES:
        return BadSummaryError(f"the file is larger than {SUMMARY_BYTES} bytes")
    try:
        return read_summary(raw)
    except ValueError as error:
        return BadSummaryError(str(error))


SUMMARIES: Final = web.AppKey("summaries", SummaryFile)
