"""The insights document, which the pipeline writes to ``summary.json`` for the Insights page.

``last24h`` and ``last30d`` are ordered by time; all other lists start with the busiest entries and
cover the last 30 days. If a minute or hour has no entry, it had no events. Retried messages are
included in ``acked``, but do not count as successes. Percentiles are exact, except in ``paths``:
these are within 1 %. Entries that do not fit into 2 MiB are summed under ``OTHER_QUEUES``, with
maxima instead of percentiles. Unknown fields are ignored.
"""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

SUMMARY_BYTES: Final = 2 << 20  # maximum size of the document in bytes
OTHER_QUEUES: Final = "(others)"  # represents all omitted queues together
ALL_QUEUES: Final = "(all)"  # represents all queues that the caller can see


def encode(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def merge_summaries(stored: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return a stored document with new figures: absent ones are kept, jobs replaced by name."""
    merged = stored | document
    jobs = {job["name"]: job for part in (stored, document) for job in part.get("jobs") or ()}
    merged["jobs"] = list(jobs.values())
    if stored and document.keys() <= {"version", "finished_at", "jobs"}:
        merged["finished_at"] = stored["finished_at"]  # the figures are as old as before
    return merged


NonNegativeCount = Annotated[int, Field(ge=0, lt=1 << 62)]
UnixMs = Annotated[int, Field(ge=0, lt=253_370_764_800_000)]  # Unix time in ms before the year 9999
DurationMs = Annotated[float, Field(ge=0, lt=1 << 53, allow_inf_nan=False)]


class _DocumentModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _QueueRow(_DocumentModel):
    queue: str = Field(
        description="queue name; (others) is the sum of all omitted queues, (all) of all queues"
    )


class ArchiveSummary(_DocumentModel):
    """A summary of the rows in the archive; all figures are null if no archive is known."""

    offset: NonNegativeCount | None = Field(None, description="last archived offset; null if none")
    rows: NonNegativeCount | None = Field(None, description="number of archived messages")
    dates: NonNegativeCount | None = Field(
        None, description="number of days with archived messages"
    )
    bytes: NonNegativeCount | None = Field(None, description="size of the archive's files in bytes")
    outcomes: list[str] = Field([], description="archived outcomes; an empty list means all")
    gaps: NonNegativeCount | None = Field(None, description="number of accepted gaps")
    missing: NonNegativeCount | None = Field(
        None, description="maximum number of rows that may be missing"
    )


class AcceptedGap(_DocumentModel):
    """A range of offsets ``(lo, hi]`` with rows that retention removed before archival."""

    at_ms: UnixMs = Field(description="when the gap was accepted, Unix ms")
    lo: NonNegativeCount = Field(description="last offset before the gap")
    hi: NonNegativeCount = Field(description="last offset of the gap")
    rows: NonNegativeCount | None = Field(
        None, description="number of missing rows; null if unknown (at most hi - lo)"
    )


class ArchiveLag(_DocumentModel):
    """How far the archive was behind the history when the document was written."""

    offset: NonNegativeCount | None = Field(
        None, description="last history offset at finished_at; null if unknown"
    )
    rows: NonNegativeCount | None = Field(
        None, description="number of settled messages not yet archived; null if unknown"
    )


class PipelineJobState(_DocumentModel):
    """The most recent run of a pipeline job."""

    name: str = Field(description="job name: archive, metrics, …")
    state: str = Field(description="done, running, failed or stopped")
    started_at: UnixMs | None = Field(None, description="start time, Unix ms; null if unknown")
    finished_at: UnixMs | None = Field(None, description="end time, Unix ms; null if not finished")
    offset: NonNegativeCount | None = Field(None, description="last processed offset; null if none")
    error: str | None = Field(None, description="error message; null if none or hidden")


def _time(statistic: str, span: str) -> Any:
    return Field(None, description=f"{statistic} time from {span} in ms, or null")


_WAIT: Final = "publish to dispatch"
_HOLD: Final = "dispatch to settlement"


class StepFigures(_DocumentModel):
    """Statistics for one period; times are None if no message was dispatched or settled."""

    published: NonNegativeCount = Field(0, description="messages published")
    dispatched: NonNegativeCount = Field(0, description="messages dispatched for the first time")
    acked: NonNegativeCount = Field(0, description="messages acknowledged")
    expired: NonNegativeCount = Field(0, description="messages expired")
    dead: NonNegativeCount = Field(0, description="messages dead-lettered")
    deleted: NonNegativeCount = Field(0, description="messages deleted or purged")
    redelivered: NonNegativeCount = Field(0, description="redeliveries of messages")
    bytes: NonNegativeCount | None = Field(
        0, description="total size of published bodies in bytes; null if it was not counted"
    )
    wait_p50: DurationMs | None = _time("median", _WAIT)
    wait_p95: DurationMs | None = _time("p95", _WAIT)
    wait_p99: DurationMs | None = _time("p99", _WAIT)
    wait_max: DurationMs | None = _time("maximum", _WAIT)
    hold_p50: DurationMs | None = _time("median", _HOLD)
    hold_p95: DurationMs | None = _time("p95", _HOLD)
    hold_p99: DurationMs | None = _time("p99", _HOLD)
    hold_max: DurationMs | None = _time("maximum", _HOLD)


TIMES: Final = tuple(name for name in StepFigures.model_fields if "_" in name)
COUNTS: Final = tuple(name for name in StepFigures.model_fields if name not in TIMES)


class _PeriodRow(_QueueRow):
    at_ms: UnixMs = Field(
        validation_alias=AliasChoices("at_ms", "minute", "hour"),
        description="start of the minute, quarter hour or hour, Unix ms",
    )


class SummaryStep(StepFigures, _PeriodRow):
    """Statistics for one queue in the minute, quarter hour or hour that began at ``at_ms``."""


class QueueTotals(StepFigures, _QueueRow):
    """Statistics for one queue over a period; in the summary, times are those of its worst hour."""

    @property
    def settled(self) -> int:
        """The number of settled messages."""
        return self.acked + self.expired + self.dead + self.deleted

    @property
    def acked_share(self) -> float | None:
        """The fraction of settled messages that were acknowledged, or None if none were settled."""
        return self.acked / self.settled if self.settled else None


class UrnTotals(_QueueRow):
    """The numbers of messages with one URN in one queue, by result."""

    urn: str | None = Field(None, description="URN of the envelope; null if none")
    acked: NonNegativeCount = Field(0, description="acknowledged messages, including retried ones")
    failed: dict[str, NonNegativeCount] = Field(
        default_factory=dict, description="number of dead letters by reason"
    )
    attempts: dict[str, NonNegativeCount] = Field(
        default_factory=dict, description="number of messages by attempt count"
    )
    retried: NonNegativeCount = Field(
        0, description="acknowledged messages published again with a higher attempt count"
    )

    @property
    def total(self) -> int:
        """The number of messages that were acknowledged or failed."""
        return self.acked + sum(self.failed.values())


class DeadLetterTotals(_QueueRow):
    """The number of dead letters with the same queue, URN and reason."""

    urn: str | None = Field(None, description="URN of the envelope; null if none")
    reason: str | None = Field(None, description="dead-letter reason; null if unknown")
    count: NonNegativeCount = Field(0, description="number of dead letters")

    @property
    def total(self) -> int:
        """The number of dead letters."""
        return self.count


class TracePath(_DocumentModel):
    """Statistics for traces that consist of the same steps."""

    path: tuple[str, ...] = Field(description="steps as queue:urn, in order of arrival")
    traces: NonNegativeCount = Field(0, description="number of traces")
    p50_ms: DurationMs | None = Field(None, description="median duration in ms; null if unknown")
    p95_ms: DurationMs | None = Field(None, description="p95 duration in ms; null if unknown")
    newest: str | None = Field(None, description="newest of these traces; null if unknown")


class ExpiryTotals(_QueueRow):
    """The numbers of expired messages in one queue."""

    dispatched: NonNegativeCount = Field(0, description="expired messages that had been dispatched")
    never: NonNegativeCount = Field(0, description="expired messages that were never dispatched")
    unknown: NonNegativeCount = Field(0, description="expired messages counted without this detail")

    @property
    def total(self) -> int:
        """The number of expired messages."""
        return self.dispatched + self.never + self.unknown


class PipelineSummary(_DocumentModel):
    """The complete insights document."""

    version: Literal[1] = Field(description="format version, always 1")
    finished_at: UnixMs = Field(description="when the document was computed, Unix ms")
    history_id: str | None = Field(None, description="id of the archived history; null if unknown")
    archive: ArchiveSummary = Field(ArchiveSummary(), description="contents of the archive")
    lag: ArchiveLag = Field(ArchiveLag(), description="lag of the archive behind the history")
    gaps: tuple[AcceptedGap, ...] = Field((), description="accepted gaps, newest first")
    jobs: tuple[PipelineJobState, ...] = Field((), description="most recent run of each job")
    last24h: tuple[SummaryStep, ...] = Field((), description="last 24 hours, by queue and minute")
    last30d: tuple[SummaryStep, ...] = Field((), description="last 30 days, by queue and hour")
    urns: tuple[UrnTotals, ...] = Field((), description="last 30 days, by URN and queue")
    deaths: tuple[DeadLetterTotals, ...] = Field(
        (), description="dead letters of the last 30 days, highest count first"
    )
    paths: tuple[TracePath, ...] = Field((), description="last 30 days, most traces first")
    expiries: tuple[ExpiryTotals, ...] = Field((), description="last 30 days, by queue")

    def queues(self) -> list[str]:
        """Return the names of all queues in the document; ``OTHER_QUEUES``, if present, is last."""
        tables = (self.last24h, self.last30d, self.urns, self.deaths, self.expiries)
        names = {row.queue for table in tables for row in table}
        return sorted(names, key=lambda name: (name == OTHER_QUEUES, name))
