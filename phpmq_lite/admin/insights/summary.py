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
from phpmq_lite.settings.wording import explain
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, write_whole

SUMMARY_BYTES: Final = 2 << 20
REST: Final = "(others)"  # what the jobs call all queues that found no room
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
    queue: str


class ArchiveSummary(_Part):
    """What lies in the archive; ``offset`` is the last one in it, None: nothing is yet."""

    offset: NonNegativeCount | None = None
    rows: NonNegativeCount = 0
    dates: NonNegativeCount = 0
    bytes: NonNegativeCount = 0
    outcomes: list[str] = []  # that it has; empty: all
    gaps: NonNegativeCount = 0  # accepted ones
    missing: NonNegativeCount = 0  # rows that they lack, at most


class AcceptedGap(_Part):
    """Offsets above ``lo`` up to ``hi`` whose rows left before they were archived; accepted."""

    at_ms: UnixMs
    lo: NonNegativeCount
    hi: NonNegativeCount
    rows: NonNegativeCount | None = None  # missing; None: not known


class ArchiveLag(_Part):
    """How far the archive was behind the history when the summary was made; None: not known."""

    offset: NonNegativeCount | None = None
    rows: NonNegativeCount | None = None


class PipelineJobState(_Part):
    """The last run of a job; ``offset`` is how far it came."""

    name: str
    state: str
    started_at: UnixMs | None = None
    finished_at: UnixMs | None = None
    offset: NonNegativeCount | None = None
    error: str | None = None


class StepFigures(_Part):
    """What happened; times in ms, None where nothing was dispatched or settled."""

    published: NonNegativeCount = 0
    dispatched: NonNegativeCount = 0
    acked: NonNegativeCount = 0
    expired: NonNegativeCount = 0
    dead: NonNegativeCount = 0
    deleted: NonNegativeCount = 0
    redelivered: NonNegativeCount = 0
    bytes: NonNegativeCount = 0
    wait_p50: DurationMs | None = None
    wait_p95: DurationMs | None = None
    wait_p99: DurationMs | None = None
    wait_max: DurationMs | None = None
    hold_p50: DurationMs | None = None
    hold_p95: DurationMs | None = None
    hold_p99: DurationMs | None = None
    hold_max: DurationMs | None = None


class _Begun(_Named):
    at_ms: UnixMs = Field(validation_alias=AliasChoices("at_ms", "minute", "hour"))


class SummaryStep(StepFigures, _Begun):
    """What happened to one queue within the minute, or the hour, that began at ``at_ms``."""


class QueueTotals(StepFigures, _Named):
    """What happened to one queue over a span; times are the highest of its steps."""

    @property
    def settled(self) -> int:
        """How many messages came to an end."""
        return self.acked + self.expired + self.dead + self.deleted

    @property
    def acked_share(self) -> float | None:
        """The part of what came to an end that was acknowledged; None: nothing did."""
        return self.acked / self.settled if self.settled else None


class UrnTotals(_Named):
    """What became of the envelopes of one URN in one queue.

    ``failed`` counts dead letters by reason, ``attempts`` messages by their attempts, ``retried``
    envelopes that came again with more attempts; those count for no success.
    """

    urn: str | None = None
    acked: NonNegativeCount = 0
    failed: dict[str, NonNegativeCount] = Field(default_factory=dict)
    attempts: dict[str, NonNegativeCount] = Field(default_factory=dict)
    retried: NonNegativeCount = 0

    @property
    def total(self) -> int:
        """How many came to an end."""
        return self.acked + sum(self.failed.values())


class DeadLetterTotals(_Named):
    """Dead letters of one queue, URN and reason."""

    urn: str | None = None
    reason: str | None = None
    count: NonNegativeCount = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return self.count


class TracePath(_Part):
    """Traces that took the same way; each step is ``queue:urn``."""

    path: tuple[str, ...]
    traces: NonNegativeCount = 0
    p50_ms: DurationMs | None = None
    p95_ms: DurationMs | None = None


class ExpiryTotals(_Named):
    """Messages that expired: ``dispatched`` once at least, or ``never``."""

    dispatched: NonNegativeCount = 0
    never: NonNegativeCount = 0

    @property
    def total(self) -> int:
        """How many expired."""
        return self.dispatched + self.never


class PipelineSummary(_Part):
    """The file; ``finished_at`` is when it was computed, Unix ms."""

    version: Literal[1]
    finished_at: UnixMs
    history_id: str | None = None
    archive: ArchiveSummary = ArchiveSummary()
    lag: ArchiveLag = ArchiveLag()
    gaps: tuple[AcceptedGap, ...] = ()  # the newest first
    jobs: tuple[PipelineJobState, ...] = ()
    last24h: tuple[SummaryStep, ...] = ()  # by minute
    last30d: tuple[SummaryStep, ...] = ()  # by hour
    urns: tuple[UrnTotals, ...] = ()
    deaths: tuple[DeadLetterTotals, ...] = ()
    paths: tuple[TracePath, ...] = ()
    expiries: tuple[ExpiryTotals, ...] = ()

    def queues(self) -> list[str]:
        """Give the queues that anything is said about, the rest of them last."""
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
    """Read a summary; takes some 30 ms for 2 MiB.

    Raises:
        ValueError: it is no JSON, or not of this shape; the text names the member and the bound.
    """
    try:
        return PipelineSummary.model_validate(_read(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(explain(where, first)) from None


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
    raise ValueError(f"it is not JSON: {word} is no number")


def visible_to(
    summary: PipelineSummary, allow: IsQueueAllowed, known: Iterable[str] = ()
) -> PipelineSummary:
    """Leave out what is about queues that somebody may not see, the joint rest too.

    Of paths those stay that touch allowed queues only.  A step is text, so its queue is the longest
    name it may begin with, of the summary's and of ``known``; who knows none of them is left out.
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
    """Give the queue of a step of a path; ``names`` come the longest first."""
    return next((name for name in names if step == name or step.startswith(f"{name}:")), None)


FOLDER: Final = "pipeline"
NAME: Final = "summary.json"

FileStamp = tuple[int, int, int]


class BadSummaryError(Exception):
    """The file is there and cannot be used; the text says why."""


class SummaryFile:
    """The file, and what was read from it last: a page does not read it anew while it stays.

    The truth is the disk: jobs on this machine write there too.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / FOLDER / NAME
        self._kept: tuple[FileStamp, PipelineSummary | BadSummaryError] | None = None
        self._writing = threading.Lock()  # all who write here go by way of one temporary file

    async def read(self) -> PipelineSummary | None:
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
