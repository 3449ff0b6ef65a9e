"""The summary that the pipeline leaves: its shape, and what of it somebody may see.  Pure.

It comes from outside, so each number has its bounds; members that are not known are passed over
and lists that are missing count as empty.
"""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from phpmq_lite.settings.wording import explain

SUMMARY_BYTES: Final = 2 << 20
REST: Final = "(others)"  # what the jobs call all queues that found no room
COUNTS: Final = (
    "published", "dispatched", "acked", "expired", "dead", "deleted", "redelivered", "bytes",
)  # fmt: skip
TIMES: Final = tuple(
    f"{what}_{which}" for what in ("wait", "hold") for which in ("p50", "p95", "p99", "max")
)

Count = Annotated[int, Field(ge=0, lt=1 << 62)]
At = Annotated[int, Field(ge=0, lt=253_370_764_800_000)]  # Unix ms, before the year 9999
Ms = Annotated[float, Field(ge=0, lt=1 << 53, allow_inf_nan=False)]

Allow = Callable[[str], bool]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Named(_Part):
    queue: str


class Archive(_Part):
    """What lies in the archive; ``offset`` is the last one in it, None: nothing is yet."""

    offset: Count | None = None
    rows: Count = 0
    dates: Count = 0
    bytes: Count = 0
    outcomes: list[str] = []  # that it has; empty: all
    gaps: Count = 0  # accepted ones
    missing: Count = 0  # rows that they lack, at most


class Gap(_Part):
    """Offsets above ``lo`` up to ``hi`` whose rows left before they were archived; accepted."""

    at_ms: At
    lo: Count
    hi: Count
    rows: Count | None = None  # missing; None: not known


class Lag(_Part):
    """How far the archive was behind the history when the summary was made; None: not known."""

    offset: Count | None = None
    rows: Count | None = None


class Job(_Part):
    """The last run of a job; ``offset`` is how far it came."""

    name: str
    state: str
    started_at: At | None = None
    finished_at: At | None = None
    offset: Count | None = None
    error: str | None = None


class Figures(_Part):
    """What happened; times in ms, None where nothing was dispatched or settled."""

    published: Count = 0
    dispatched: Count = 0
    acked: Count = 0
    expired: Count = 0
    dead: Count = 0
    deleted: Count = 0
    redelivered: Count = 0
    bytes: Count = 0
    wait_p50: Ms | None = None
    wait_p95: Ms | None = None
    wait_p99: Ms | None = None
    wait_max: Ms | None = None
    hold_p50: Ms | None = None
    hold_p95: Ms | None = None
    hold_p99: Ms | None = None
    hold_max: Ms | None = None


class _Begun(_Named):
    at_ms: At = Field(validation_alias=AliasChoices("at_ms", "minute", "hour"))


class Step(Figures, _Begun):
    """What happened to one queue within the minute, or the hour, that began at ``at_ms``."""


class QueueTotals(Figures, _Named):
    """What happened to one queue over a span; times are the highest of its steps."""

    @property
    def settled(self) -> int:
        """How many messages came to an end."""
        return self.acked + self.expired + self.dead + self.deleted

    @property
    def acked_share(self) -> float | None:
        """The part of what came to an end that was acknowledged; None: nothing did."""
        return self.acked / self.settled if self.settled else None


class Urn(_Named):
    """What became of the envelopes of one URN in one queue.

    ``failed`` counts dead letters by reason, ``attempts`` messages by their attempts, ``retried``
    envelopes that came again with more attempts; those count for no success.
    """

    urn: str | None = None
    acked: Count = 0
    failed: dict[str, Count] = Field(default_factory=dict)
    attempts: dict[str, Count] = Field(default_factory=dict)
    retried: Count = 0

    @property
    def total(self) -> int:
        """How many came to an end."""
        return self.acked + sum(self.failed.values())


class Deaths(_Named):
    """Dead letters of one queue, URN and reason."""

    urn: str | None = None
    reason: str | None = None
    count: Count = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return self.count


class Path(_Part):
    """Traces that took the same way; each step is ``queue:urn``."""

    path: tuple[str, ...]
    traces: Count = 0
    p50_ms: Ms | None = None
    p95_ms: Ms | None = None


class Expiries(_Named):
    """Messages that expired: ``dispatched`` once at least, or ``never``."""

    dispatched: Count = 0
    never: Count = 0

    @property
    def total(self) -> int:
        """How many expired."""
        return self.dispatched + self.never


class Summary(_Part):
    """The file; ``finished_at`` is when it was computed, Unix ms."""

    version: Literal[1]
    finished_at: At
    history_id: str | None = None
    archive: Archive = Archive()
    lag: Lag = Lag()
    gaps: tuple[Gap, ...] = ()  # the newest first
    jobs: tuple[Job, ...] = ()
    last24h: tuple[Step, ...] = ()  # by minute
    last30d: tuple[Step, ...] = ()  # by hour
    urns: tuple[Urn, ...] = ()
    deaths: tuple[Deaths, ...] = ()
    paths: tuple[Path, ...] = ()
    expiries: tuple[Expiries, ...] = ()

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


def read_summary(raw: bytes) -> Summary:
    """Read a summary; takes some 30 ms for 2 MiB.

    Raises:
        ValueError: it is no JSON, or not of this shape; the text names the member and the bound.
    """
    try:
        return Summary.model_validate(_read(raw))
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


def seen_by(summary: Summary, allow: Allow, known: Iterable[str] = ()) -> Summary:
    """Leave out what is about queues that somebody may not see, the joint rest too.

    Of paths those stay that touch allowed queues only.  A step is text, so its queue is the longest
    name it may begin with, of the summary's and of ``known``; who knows none of them is left out.
    """
    names = sorted({*summary.queues(), *known}, key=len, reverse=True)

    def is_shown(part: Any) -> bool:
        return part.queue != REST and allow(part.queue)

    def is_walked(path: Path) -> bool:
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
