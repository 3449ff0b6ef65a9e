"""The summary that the pipeline writes, and its file."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from phpmq_lite.errors import StorageError
from phpmq_lite.settings.validation_errors import describe_error
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, write_whole

SUMMARY_BYTES: Final = 2 << 20
REST: Final = "(others)"  # the jobs' name for all omitted queues
COUNTS: Final = (
    "published", "dispatched", "acked", "expired", "dead", "deleted", "redelivered", "bytes",
)  # fmt: skip
TIMES: Final = tuple(
    f"{what}_{which}" for what in ("wait", "hold") for which in ("p50", "p95", "p99", "max")
)

NonNegativeCount = Annotated[int, Field(ge=0, lt=1 << 62)]
UnixMs = Annotated[int, Field(ge=0, lt=253_370_764_800_000)]  # Unix ms, before the year 9999
DurationMs = Annotated[float, Field(ge=0, lt=1 << 53, allow_inf_nan=False)]

IsQueueAllowed = Callable[[str], bool]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Named(_Part):
    queue: str = Field(description="name of the queue; (others): sum of omitted queues")


class ArchiveSummary(_Part):
    """The contents of the archive."""

    offset: NonNegativeCount | None = Field(None, description="last archived offset; null: none")
    rows: NonNegativeCount = Field(0, description="number of archived messages")
    dates: NonNegativeCount = Field(0, description="number of days with rows")
    bytes: NonNegativeCount = Field(0, description="size of the archive's files, bytes")
    outcomes: list[str] = Field([], description="archived outcomes; empty: all")
    gaps: NonNegativeCount = Field(0, description="number of accepted gaps")
    missing: NonNegativeCount = Field(0, description="maximum number of missing rows")


class AcceptedGap(_Part):
    """An accepted gap: rows above ``lo`` up to ``hi`` were removed before they were archived."""

    at_ms: UnixMs = Field(description="when the gap was accepted, Unix ms")
    lo: NonNegativeCount = Field(description="offset before the first that may be missing")
    hi: NonNegativeCount = Field(description="last offset that may be missing")
    rows: NonNegativeCount | None = Field(
        None, description="missing rows; null: unknown, at most hi - lo"
    )


class ArchiveLag(_Part):
    """How far the archive was behind the history when the summary was computed."""

    offset: NonNegativeCount | None = Field(
        None, description="last offset at finished_at; null: unknown"
    )
    rows: NonNegativeCount | None = Field(
        None, description="settled messages not archived; null: unknown"
    )


class PipelineJobState(_Part):
    """The last run of a job."""

    name: str = Field(description="archive, metrics, …")
    state: str = Field(description="done, running, failed or stopped")
    started_at: UnixMs | None = Field(None, description="when it began, Unix ms; null: not known")
    finished_at: UnixMs | None = Field(None, description="when it ended, Unix ms; null: not yet")
    offset: NonNegativeCount | None = Field(None, description="last processed offset; null: none")
    error: str | None = Field(None, description="why it failed; null: it did not, or hidden")


class StepFigures(_Part):
    """Figures of a step; times in ms, None if nothing was dispatched or settled."""

    published: NonNegativeCount = Field(0, description="messages published")
    dispatched: NonNegativeCount = Field(0, description="messages dispatched for the first time")
    acked: NonNegativeCount = Field(0, description="messages acknowledged")
    expired: NonNegativeCount = Field(0, description="messages expired")
    dead: NonNegativeCount = Field(0, description="messages dead-lettered")
    deleted: NonNegativeCount = Field(0, description="messages deleted or purged")
    redelivered: NonNegativeCount = Field(0, description="repeated deliveries")
    bytes: NonNegativeCount = Field(0, description="size of the published bodies, bytes")
    wait_p50: DurationMs | None = Field(
        None, description="publish to dispatch, ms: median; null: none"
    )
    wait_p95: DurationMs | None = Field(
        None, description="publish to dispatch, ms: p95; null: none"
    )
    wait_p99: DurationMs | None = Field(
        None, description="publish to dispatch, ms: p99; null: none"
    )
    wait_max: DurationMs | None = Field(
        None, description="publish to dispatch, ms: max; null: none"
    )
    hold_p50: DurationMs | None = Field(None, description="dispatch to end, ms: median; null: none")
    hold_p95: DurationMs | None = Field(None, description="dispatch to end, ms: p95; null: none")
    hold_p99: DurationMs | None = Field(None, description="dispatch to end, ms: p99; null: none")
    hold_max: DurationMs | None = Field(None, description="dispatch to end, ms: max; null: none")


class _Begun(_Named):
    at_ms: UnixMs = Field(
        validation_alias=AliasChoices("at_ms", "minute", "hour"),
        description="start of the minute or hour, Unix ms",
    )


class SummaryStep(StepFigures, _Begun):
    """Figures of one queue in the minute or hour that began at ``at_ms``."""


class QueueTotals(StepFigures, _Named):
    """Figures of one queue over a span; times are the maximum of its steps."""

    @property
    def settled(self) -> int:
        """The number of settled messages."""
        return self.acked + self.expired + self.dead + self.deleted

    @property
    def acked_share(self) -> float | None:
        """The acknowledged share of settled messages; None: none settled."""
        return self.acked / self.settled if self.settled else None


class UrnTotals(_Named):
    """Outcomes of the envelopes of one URN in one queue.

    ``failed`` counts dead letters by reason, ``attempts`` messages by attempts, ``retried``
    envelopes published again with more attempts, which are not successes.
    """

    urn: str | None = Field(None, description="URN of the envelope; null: none")
    acked: NonNegativeCount = Field(0, description="acknowledged messages, including retried")
    failed: dict[str, NonNegativeCount] = Field(
        default_factory=dict, description="dead letters by reason"
    )
    attempts: dict[str, NonNegativeCount] = Field(
        default_factory=dict, description="messages by attempts"
    )
    retried: NonNegativeCount = Field(
        0, description="acknowledged, then published again with more attempts"
    )

    @property
    def total(self) -> int:
        """The number of settled messages."""
        return self.acked + sum(self.failed.values())


class DeadLetterTotals(_Named):
    """Dead letters of one queue, URN and reason."""

    urn: str | None = Field(None, description="URN of the envelope; null: none")
    reason: str | None = Field(None, description="why they were dead-lettered; null: not known")
    count: NonNegativeCount = Field(0, description="number of dead letters")

    @property
    def total(self) -> int:
        """The number of dead letters."""
        return self.count


class TracePath(_Part):
    """Traces with the same path; each step is ``queue:urn``."""

    path: tuple[str, ...] = Field(description="steps in order of arrival, each queue:urn")
    traces: NonNegativeCount = Field(0, description="number of traces")
    p50_ms: DurationMs | None = Field(None, description="duration, ms: median; null: unknown")
    p95_ms: DurationMs | None = Field(None, description="duration, ms: p95; null: unknown")


class ExpiryTotals(_Named):
    """Expired messages: ``dispatched`` at least once, or ``never``."""

    dispatched: NonNegativeCount = Field(0, description="expired messages that had been dispatched")
    never: NonNegativeCount = Field(0, description="expired messages that were never dispatched")

    @property
    def total(self) -> int:
        """The number of expired messages."""
        return self.dispatched + self.never


class PipelineSummary(_Part):
    """The summary of the pipeline; ``finished_at`` is when it was computed."""

    version: Literal[1] = Field(description="version of this format: always 1")
    finished_at: UnixMs = Field(description="when it was computed, Unix ms")
    history_id: str | None = Field(None, description="id of the archived history; null: unknown")
    archive: ArchiveSummary = Field(ArchiveSummary(), description="contents of the archive")
    lag: ArchiveLag = Field(ArchiveLag(), description="how far the archive is behind the history")
    gaps: tuple[AcceptedGap, ...] = Field((), description="accepted gaps, newest first")
    jobs: tuple[PipelineJobState, ...] = Field((), description="last run of each job")
    last24h: tuple[SummaryStep, ...] = Field((), description="last 24 hours by queue and minute")
    last30d: tuple[SummaryStep, ...] = Field((), description="last 30 days by queue and hour")
    urns: tuple[UrnTotals, ...] = Field((), description="last 30 days by URN and queue")
    deaths: tuple[DeadLetterTotals, ...] = Field(
        (), description="last 30 days, most frequent first"
    )
    paths: tuple[TracePath, ...] = Field((), description="last 30 days, most frequent first")
    expiries: tuple[ExpiryTotals, ...] = Field((), description="last 30 days by queue")

    def queues(self) -> list[str]:
        """Return the queues in the summary, (others) last."""
        named: tuple[_Named, ...] = (
            *self.last24h,
            *self.last30d,
            *self.urns,
            *self.deaths,
            *self.expiries,
        )
        found = {part.queue for part in named}
        return sorted(found, key=lambda name: (name == REST, name))


def read_summary(raw: bytes) -> PipelineSummary:
    """Parse a summary; 2 MiB take about 30 ms.

    Raises:
        ValueError: it is not JSON, or invalid; the text names the member and the bound.
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
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"it is not JSON: {word} is not a number")


def visible_to(
    summary: PipelineSummary, allow: IsQueueAllowed, known: Iterable[str] = ()
) -> PipelineSummary:
    """Return the summary without queues that the caller may not see, and without the rest.

    Only paths over allowed queues remain.  A step is text, so its queue is the longest
    name it begins with, among the summary's and ``known``; a step without one is removed.
    """
    names = sorted({*summary.queues(), *known}, key=len, reverse=True)

    def is_shown(part: Any) -> bool:
        return part.queue != REST and allow(part.queue)

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
    """Return the queue of a step of a path; ``names`` are ordered longest first."""
    return next((name for name in names if step == name or step.startswith(f"{name}:")), None)


FOLDER: Final = "pipeline"
NAME: Final = "summary.json"

FileStamp = tuple[int, int, int]


class BadSummaryError(Exception):
    """The file exists but cannot be used; the text says why."""


class SummaryFile:
    """The file and its last parsed content, reused while the file is unchanged.

    The file is the source of truth: jobs on this machine write it too.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / FOLDER / NAME
        self._kept: tuple[FileStamp, PipelineSummary | BadSummaryError] | None = None
        self._writing = threading.Lock()  # all writers use one temporary file

    async def read(self) -> PipelineSummary | None:
        """Return the summary; None if no job has written one.

        Raises:
            BadSummaryError: it cannot be read, or is invalid.
        """
        return await asyncio.to_thread(self._read)

    async def write(self, raw: bytes) -> None:
        """Replace the file; concurrent readers see the old or the new one.

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

    def _read(self) -> PipelineSummary | None:
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

    def _bytes(self) -> tuple[FileStamp, bytes] | None:
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


def _judged(raw: bytes) -> PipelineSummary | BadSummaryError:
    try:
        return read_summary(raw)
    except ValueError as error:
        return BadSummaryError(str(error))


def _stamp_of(stat: os.stat_result) -> FileStamp:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
