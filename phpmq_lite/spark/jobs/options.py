"""What a job is asked, and what it answers.  Imports no pyspark: mistakes are told before a JVM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phpmq_lite.spark.source_options import SourceConnection

ReportProgress = Callable[[str, int, int | None], None]
"""``report(phase, done, total)``: rows or offsets of this phase; None where no end is known."""

ShouldStop = Callable[[], bool]
"""True once the job shall end after the batch it is at; it then answers with ``is_stopped``."""


def report_nothing(phase: str, done: int, total: int | None) -> None:
    """Report to nobody."""


def never_stop() -> bool:
    """Never ask to stop."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job did in this run, not what it did before."""

    job: str
    rows: int
    offset: int | None = None  # of the history, done up to here
    batches: int = 0
    is_stopped: bool = False  # more is to do: run it again
    notes: tuple[str, ...] = ()
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What every job needs; ``out`` is a folder, or a URI that Hadoop's file systems know."""

    connection: "SourceConnection | None"  # None: nothing is asked of the broker
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(JobOptions):
    """History to Parquet, of some queues and outcomes; others than before need another ``out``."""

    bodies: bool = False
    queues: tuple[str, ...] = ()  # none and no pattern: all
    queue_pattern: str | None = None
    outcomes: tuple[str, ...] = ()  # none: all
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = 1_000_000
    num_partitions: int | None = None
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions(JobOptions):
    """Archive to metrics; no ``dates``: those that rows new since the last run touch."""

    dates: tuple[date, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions(JobOptions):
    """Small files of closed dates to few."""

    target_bytes: int = 128 << 20  # of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(JobOptions):
    """What is sent again.  Members of one selection are or-ed, selections are and-ed.

    ``name`` is the name of the stored plan: a run with the same name goes on with it.  None makes
    it from the selection, so the same selection is sent once; another name sends it once more.
    ``goes_on`` takes the selection of the plan that is stored under ``name``, and none from here.
    """

    source: Literal["archive", "history"] = "archive"
    name: str | None = None
    goes_on: bool = False
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    since_ms: int | None = None  # settled_at, [since, until)
    until_ms: int | None = None
    outcomes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    urns: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    where: str | None = None  # SQL over the history's columns
    to_queue: str | None = None  # None: each to the queue it was in
    ttl_s: int | None = None  # None: that of the queue
    rate: float | None = None  # messages a second
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions(JobOptions):
    """A queue to Parquet; its messages are acknowledged once they are written."""

    queue: str
    subscription: str
    max_messages: int = 10_000  # a batch
    max_bytes: int = 64 << 20  # a batch
    fail_on_data_loss: bool = True  # where claims of a batch under way were released by hand
