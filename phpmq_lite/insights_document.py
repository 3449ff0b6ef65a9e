"""The insights document: what the pipeline writes to ``summary.json`` and the Insights page shows.

Lists begin with the busiest entries, but ``last24h`` and ``last30d`` are in order of time; all
others cover the last 30 days. A minute or hour without an entry had no events. Retried messages are
included in ``acked``, but are not successes. Percentiles are exact, except in ``paths``, where they
are within 1 %. Entries that do not fit into 2 MiB are summed up under ``OTHER_QUEUES``, which has
maxima but no percentiles. Unknown fields are ignored.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

SUMMARY_BYTES: Final = 2 << 20  # maximum size of the document
OTHER_QUEUES: Final = "(others)"  # name for the sum of omitted queues
COUNTS: Final = (
    "published", "dispatched", "acked", "expired", "dead", "deleted", "redelivered", "bytes",
)  # fmt: skip
TIMES: Final = tuple(
    f"{what}_{which}" for what in ("wait", "hold") for which in ("p50", "p95", "p99", "max")
)

NonNegativeCount = Annotated[int, Field(ge=0, lt=1 << 62)]
UnixMs = Annotated[int, Field(ge=0, lt=253_370_764_800_000)]  # Unix ms, before the year 9999
DurationMs = Annotated[float, Field(ge=0, lt=1 << 53, allow_inf_nan=False)]


class _DocumentModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _QueueRow(_DocumentModel):
    queue: str = Field(description="name of the queue; (others) is the sum of omitted queues")


class ArchiveSummary(_DocumentModel):
    """Contents of the archive."""

    offset: NonNegativeCount | None = Field(None, description="last archived offset; null: none")
    rows: NonNegativeCount = Field(0, description="number of archived messages")
    dates: NonNegativeCount = Field(0, description="number of days with rows")
    bytes: NonNegativeCount = Field(0, description="size of the archive's files in bytes")
    outcomes: list[str] = Field([], description="archived outcomes; empty: all")
    gaps: NonNegativeCount = Field(0, description="number of accepted gaps")
    missing: NonNegativeCount = Field(0, description="maximum number of missing rows")


class AcceptedGap(_DocumentModel):
    """An accepted gap: rows of ``(lo, hi]`` that retention removed before they were archived."""

    at_ms: UnixMs = Field(description="when the gap was accepted, Unix ms")
    lo: NonNegativeCount = Field(description="offset before the first one that may be missing")
    hi: NonNegativeCount = Field(description="last offset that may be missing")
    rows: NonNegativeCount | None = Field(
        None, description="missing rows; null: unknown, at most hi - lo"
    )


class ArchiveLag(_DocumentModel):
    """How far the archive was behind the history when the document was written."""

    offset: NonNegativeCount | None = Field(
        None, description="last offset at finished_at; null: unknown"
    )
    rows: NonNegativeCount | None = Field(
        None, description="settled messages not yet archived; null: unknown"
    )


class PipelineJobState(_DocumentModel):
    """The last run of a job."""

    name: str = Field(description="archive, metrics, …")
    state: str = Field(description="done, running, failed or stopped")
    started_at: UnixMs | None = Field(None, description="when it began, Unix ms; null: not known")
    finished_at: UnixMs | None = Field(None, description="when it ended, Unix ms; null: not yet")
    offset: NonNegativeCount | None = Field(None, description="last processed offset; null: none")
    error: str | None = Field(None, description="why it failed; null: no failure, or hidden")


def _wait(statistic: str) -> Any:
    return Field(None, description=f"time from publish to dispatch in ms: {statistic}; null: none")


def _hold(statistic: str) -> Any:
    return Field(None, description=f"time from dispatch to end in ms: {statistic}; null: none")


class StepFigures(_DocumentModel):
    """Figures for a period; times are None if nothing was dispatched or settled."""

    published: NonNegativeCount = Field(0, description="messages published")
    dispatched: NonNegativeCount = Field(0, description="messages dispatched for the first time")
    acked: NonNegativeCount = Field(0, description="messages acknowledged")
    expired: NonNegativeCount = Field(0, description="messages expired")
    dead: NonNegativeCount = Field(0, description="messages dead-lettered")
    deleted: NonNegativeCount = Field(0, description="messages deleted or purged")
    redelivered: NonNegativeCount = Field(0, description="repeated deliveries")
    bytes: NonNegativeCount = Field(0, description="size of the published bodies in bytes")
    wait_p50: DurationMs | None = _wait("median")
    wait_p95: DurationMs | None = _wait("p95")
    wait_p99: DurationMs | None = _wait("p99")
    wait_max: DurationMs | None = _wait("max")
    hold_p50: DurationMs | None = _hold("median")
    hold_p95: DurationMs | None = _hold("p95")
    hold_p99: DurationMs | None = _hold("p99")
    hold_max: DurationMs | None = _hold("max")


class _PeriodRow(_QueueRow):
    at_ms: UnixMs = Field(
        validation_alias=AliasChoices("at_ms", "minute", "hour"),
        description="start of the minute or hour, Unix ms",
    )


class SummaryStep(StepFigures, _PeriodRow):
    """Figures for one queue in the minute or hour that began at ``at_ms``."""


class QueueTotals(StepFigures, _QueueRow):
    """Figures for one queue over a period; times are the maxima of its steps."""

    @property
    def settled(self) -> int:
        """Number of settled messages."""
        return self.acked + self.expired + self.dead + self.deleted

    @property
    def acked_share(self) -> float | None:
        """Fraction of settled messages that were acknowledged; None if none were settled."""
        return self.acked / self.settled if self.settled else None


class UrnTotals(_QueueRow):
    """Results for envelopes with one URN in one queue."""

    urn: str | None = Field(None, description="URN of the envelope; null: none")
    acked: NonNegativeCount = Field(0, description="acknowledged messages, including retried ones")
    failed: dict[str, NonNegativeCount] = Field(
        default_factory=dict, description="dead letters by reason"
    )
    attempts: dict[str, NonNegativeCount] = Field(
        default_factory=dict, description="messages by number of attempts"
    )
    retried: NonNegativeCount = Field(
        0, description="acknowledged, then published again with more attempts"
    )

    @property
    def total(self) -> int:
        """Number of acknowledged and failed messages."""
        return self.acked + sum(self.failed.values())


class DeadLetterTotals(_QueueRow):
    """Number of dead letters for one queue, URN and reason."""

    urn: str | None = Field(None, description="URN of the envelope; null: none")
    reason: str | None = Field(None, description="why they were dead-lettered; null: not known")
    count: NonNegativeCount = Field(0, description="number of dead letters")

    @property
    def total(self) -> int:
        """Number of dead letters."""
        return self.count


class TracePath(_DocumentModel):
    """Traces that have the same steps."""

    path: tuple[str, ...] = Field(description="steps in order of arrival, each as queue:urn")
    traces: NonNegativeCount = Field(0, description="number of traces")
    p50_ms: DurationMs | None = Field(None, description="duration in ms: median; null: unknown")
    p95_ms: DurationMs | None = Field(None, description="duration in ms: p95; null: unknown")


class ExpiryTotals(_QueueRow):
    """Number of expired messages in one queue."""

    dispatched: NonNegativeCount = Field(0, description="expired messages that had been dispatched")
    never: NonNegativeCount = Field(0, description="expired messages that were never dispatched")

    @property
    def total(self) -> int:
        """Number of expired messages."""
        return self.dispatched + self.never


class PipelineSummary(_DocumentModel):
    """The whole document."""

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
        """Return the names of all queues in the document, with ``OTHER_QUEUES`` last."""
        named: tuple[_QueueRow, ...] = (
            *self.last24h,
            *self.last30d,
            *self.urns,
            *self.deaths,
            *self.expiries,
        )
        found = {part.queue for part in named}
        return sorted(found, key=lambda name: (name == OTHER_QUEUES, name))
