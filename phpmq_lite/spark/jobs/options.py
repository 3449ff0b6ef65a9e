"""Job options and results, without pyspark so that errors are reported before a JVM starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final, Literal

from phpmq_lite.spark.ledger import KEEP_REPLACED_MS

if TYPE_CHECKING:
    from phpmq_lite.spark.source_options import SourceConnection


@dataclass(frozen=True, slots=True)
class JobControl:
    """Callbacks through which a job reports its progress and learns whether to stop.

    ``report(phase, done, total)`` receives rows or offsets; ``total`` is None if unknown.
    ``stop`` returns True to end the job after the current batch; its result has ``is_stopped``.
    """

    report: Callable[[str, int, int | None], None] = lambda phase, current, total: None
    stop: Callable[[], bool] = lambda: False


UNCONTROLLED: Final = JobControl()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a single run of a job."""

    job: str
    rows: int
    offset: int | None = None  # last processed history offset
    batches: int = 0
    is_stopped: bool = False  # if True, the run is incomplete and must be repeated
    notes: tuple[str, ...] = ()
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options common to all jobs; ``out`` is a folder or a URI that Hadoop supports."""

    connection: "SourceConnection | None"  # None if the job does not contact a broker
    out: str
    keep_replaced_ms: int = KEEP_REPLACED_MS  # for readers of older lists of the archive's files

    @property
    def connection_options(self) -> dict[str, str]:
        """The connection as options of the data source; empty if there is none."""
        return self.connection.as_options() if self.connection else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(JobOptions):
    """Options for archiving; each selection of queues and outcomes needs its own ``out`` folder."""

    bodies: bool = False
    queues: tuple[str, ...] = ()  # all queues if empty and there is no pattern
    queue_pattern: str | None = None
    outcomes: tuple[str, ...] = ()  # all outcomes if empty
    masks: tuple[str, ...] = ()  # members of bodies to replace by null, such as data.email
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = 1_000_000
    num_partitions: int | None = None
    broker: str | None = None  # value of the column ``broker``; None means the history_id
    fail_on_data_loss: bool = True
    format: Literal["parquet", "delta"] = "parquet"  # delta: the same files, and a Delta log
    backfill: bool = False  # if the selection is wider than before, add what it lacked


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions(JobOptions):
    """Options for metrics; if ``dates`` is empty, the dates affected by new rows are computed."""

    dates: tuple[date, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions(JobOptions):
    """Options for merging the small files of closed dates into a few large ones."""

    target_bytes: int = 128 << 20  # intended size of each file


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions(JobOptions):
    """Options for removing old dates from the archive."""

    older_than_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(JobOptions):
    """Options for a replay. A message must match at least one value of every filter.

    ``name`` is the name of the stored plan, which a run with the same name continues. If None, it
    is derived from the selection, so the same selection is sent only once; another name sends it
    again. With ``is_continuation``, the selection is taken from the stored plan ``name``.
    """

    source: Literal["archive", "history"] = "archive"
    name: str | None = None
    is_continuation: bool = False
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    since_ms: int | None = None  # selects messages settled within [since, until)
    until_ms: int | None = None
    outcomes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    urns: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    where: str | None = None  # SQL condition on the history's columns
    to_queue: str | None = None  # None means the original queue
    ttl_s: int | None = None  # None means the queue's default
    rate: float | None = None  # messages per second
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions(JobOptions):
    """Options for consuming a queue; messages are acknowledged once they are written."""

    queue: str
    subscription: str
    max_messages: int = 10_000  # maximum number of messages per batch
    max_bytes: int = 64 << 20  # maximum total body size per batch
    fail_on_data_loss: bool = True  # fail if claims in a batch have been released manually


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions(JobOptions):
    """Options for typed tables, one for each URN or queue."""

    by: Literal["urn", "queue"] = "urn"
    rebuild: tuple[str, ...] = ()  # tables to create again from the whole archive


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseOptions(JobOptions):
    """Options for erasing the data of messages, selected by traces or by a condition."""

    traces: tuple[str, ...] = ()
    where: str | None = None  # SQL condition on the history's columns
    live: bool = False  # delete live messages first, instead of refusing
    now: bool = False  # remove replaced files of the archive now
    dry_run: bool = False

    @property
    def selection(self) -> ReplayOptions:
        """The same selection of settled messages, for a replay."""
        return ReplayOptions(connection=None, out=self.out, traces=self.traces, where=self.where)
