"""The view of a trace, which shows the messages of each queue on a timeline.  Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from phpmq_lite.admin.dead_letter_queues import has_records
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import MessageRow

LANES: Final = 24  # maximum number of queues shown, each in its own lane
_DIED: Final = 1 << 63  # stands for a dead-letter record; no envelope has this many attempts
_LEAST: Final = 0.8  # minimum width of a bar, in percent


@dataclass(slots=True, frozen=True)
class TraceBar:
    """The bar for a message; start and width are percentages of the trace's duration."""

    row: MessageRow
    start: float
    width: float
    is_failed: bool = False  # whether the worker failed although the message was acked


@dataclass(slots=True, frozen=True)
class TraceStep:
    """A message in a group; ``what`` says how it relates to earlier messages, if any."""

    bar: TraceBar
    what: str = ""

    @property
    def row(self) -> MessageRow:
        """The message of this step."""
        return self.bar.row


@dataclass(slots=True)
class TraceGroup:
    """All messages with the same meta.id, oldest first, or a single message without a meta.id."""

    meta_id: str | None
    turns: list[TraceStep] = field(default_factory=list)

    @property
    def retries(self) -> int:
        """The number of messages that have more attempts than all earlier ones in the group."""
        return sum(turn.what == "retried" for turn in self.turns)

    @property
    def deaths(self) -> int:
        """The number of dead-letter records in the group."""
        return sum(turn.what == "dead letter" for turn in self.turns)


@dataclass(slots=True, frozen=True)
class TraceLane:
    """The messages of one queue; ``queue`` is None if the queue no longer exists."""

    queue: str | None
    bars: list[TraceBar]


@dataclass(slots=True, frozen=True)
class TraceView:
    """A trace or one page of it; times are in Unix ms, or 0 if there are no messages."""

    groups: list[TraceGroup]
    lanes: list[TraceLane]
    hidden: int  # number of queues without a lane
    first_at: int
    last_at: int


def build_trace(rows: Iterable[MessageRow], others: frozenset[str] = frozenset()) -> TraceView:
    """Return the view of a trace's messages; ``others`` are dead-letter queues from settings."""
    ordered = sorted(rows, key=lambda row: (row.published_at, row.seq))
    if not ordered:
        return TraceView([], [], 0, 0, 0)
    first_at = ordered[0].published_at
    last_at = max(row.settled_at or row.last_dispatched_at or row.published_at for row in ordered)
    failed = find_failed_attempts(ordered, others)
    bars = [replace(_bar(row, first_at, last_at), is_failed=row.seq in failed) for row in ordered]
    lanes: dict[int, TraceLane] = {}
    for bar in bars:
        lanes.setdefault(bar.row.queue_id, TraceLane(bar.row.queue, [])).bars.append(bar)
    shown = list(lanes.values())
    return TraceView(
        _groups(bars, others), shown[:LANES], max(0, len(shown) - LANES), first_at, last_at
    )


def find_failed_attempts(rows: Iterable[MessageRow], others: frozenset[str]) -> frozenset[int]:
    """Return the seqs of messages that were acknowledged although their attempt failed.

    A failing worker republishes the envelope, with one more attempt or as a dead-letter record, and
    acknowledges the message.  Therefore, acked does not mean handled successfully.
    """
    failed = set()
    later: dict[str, int] = {}  # meta.id -> highest number of attempts of any later message
    for row in sorted(rows, key=lambda row: -row.seq):
        if row.meta_id is None:
            continue
        attempts = row.attempts or 0
        if has_records(row.queue or "", others):
            later[row.meta_id] = _DIED
            continue
        if row.state == State.ACKED and later.get(row.meta_id, 0) > attempts:
            failed.add(row.seq)
        later[row.meta_id] = max(later.get(row.meta_id, 0), attempts)
    return frozenset(failed)


def _bar(row: MessageRow, first_at: int, last_at: int) -> TraceBar:
    """Return the bar for a message; a live message's bar ends where the trace ends."""
    whole = max(1, last_at - first_at)
    start = min((row.published_at - first_at) / whole * 100, 100 - _LEAST)
    width = ((row.settled_at or last_at) - row.published_at) / whole * 100
    return TraceBar(row, start, min(max(width, _LEAST), 100 - start))


def _groups(bars: Sequence[TraceBar], others: frozenset[str]) -> list[TraceGroup]:
    groups: list[TraceGroup] = []
    by_id: dict[str, TraceGroup] = {}
    for bar in bars:
        meta_id = bar.row.meta_id
        group = by_id.get(meta_id) if meta_id is not None else None
        if group is None:
            group = TraceGroup(meta_id)
            groups.append(group)
            if meta_id is not None:
                by_id[meta_id] = group
        group.turns.append(TraceStep(bar, _describe_step(bar.row, group.turns, others)))
    return groups


def _describe_step(row: MessageRow, before: Sequence[TraceStep], others: frozenset[str]) -> str:
    """Return how a message is related to earlier messages with the same meta.id."""
    if row.source_seq is not None or has_records(row.queue or "", others):
        return "dead letter"
    if not before:
        return ""
    most = max((turn.row.attempts or 0 for turn in before), default=0)
    if (row.attempts or 0) > most:
        return "retried"
    return "sent again"
