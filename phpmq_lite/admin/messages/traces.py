"""The page and the API of a trace, whose messages may be in any queue, and its timeline."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from aiohttp import web

from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints, From
from phpmq_lite.admin.http.fields import LIMIT_MAX, OutputFormat
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.listing import (
    FoundMessagesView,
    MessagePage,
    SearchPageInput,
    describe_searched,
    read_search_page,
)
from phpmq_lite.admin.messages.message_life import Retry
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import MessageRow
from phpmq_lite.storage.search.language import traces_search

TRACE_CHARACTERS: Final = 512
LANES: Final = 24  # maximum number of queues shown, each in its own lane
_DIED: Final = 1 << 63  # stands for a dead-letter record; no envelope has this many attempts
_BAR_WIDTH_MIN: Final = 0.8  # in percent
endpoints: Final = Endpoints()


class Repeat(StrEnum):
    """How a message relates to earlier messages with the same meta.id."""

    RETRY = "retried"
    COPY = "sent again"
    DEAD_LETTER = "dead letter"


@dataclass(slots=True, frozen=True)
class TraceBar:
    """The bar for a message; start and width are percentages of the trace's duration."""

    row: MessageRow
    start: float
    width: float
    is_failed: bool = False  # whether the worker failed although the message was acked
    failures: Sequence[float] = ()  # where its attempts failed, in percent


@dataclass(slots=True, frozen=True)
class TraceStep:
    """A message in a group; ``repeat`` says how it relates to earlier messages, if any."""

    bar: TraceBar
    repeat: Repeat | None = None

    @property
    def row(self) -> MessageRow:
        return self.bar.row


@dataclass(slots=True)
class TraceGroup:
    """All messages with the same meta.id, oldest first, or a single message without a meta.id."""

    meta_id: str | None
    steps: list[TraceStep] = field(default_factory=list)

    @property
    def retries(self) -> int:
        """The number of retries: of a message, and by copies with more attempts than before."""
        return sum((step.repeat is Repeat.RETRY) + (step.row.retries or 0) for step in self.steps)

    @property
    def deaths(self) -> int:
        return sum(step.repeat is Repeat.DEAD_LETTER for step in self.steps)


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


def build_trace(
    rows: Iterable[MessageRow],
    others: frozenset[str] = frozenset(),
    retries: Mapping[int, Sequence[Retry]] | None = None,
) -> TraceView:
    """Return the view of a trace's messages; ``others`` are dead-letter queues from settings.

    ``retries`` are the failed attempts of messages, by seq.
    """
    ordered = sorted(rows, key=lambda row: (row.published_at, row.seq))
    if not ordered:
        return TraceView([], [], 0, 0, 0)
    first_at = ordered[0].published_at
    last_at = max(row.settled_at or row.last_dispatched_at or row.published_at for row in ordered)
    failed = find_failed_attempts(ordered, others)
    times = {seq: [retry.at_ms for retry in attempts] for seq, attempts in (retries or {}).items()}
    bars = [
        _bar(row, first_at, last_at, row.seq in failed, times.get(row.seq, ())) for row in ordered
    ]
    by_queue: dict[int, TraceLane] = {}
    for bar in bars:
        by_queue.setdefault(bar.row.queue_id, TraceLane(bar.row.queue, [])).bars.append(bar)
    lanes = list(by_queue.values())
    hidden = max(0, len(lanes) - LANES)
    return TraceView(_groups(bars, others), lanes[:LANES], hidden, first_at, last_at)


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


def _bar(
    row: MessageRow, first_at: int, last_at: int, is_failed: bool, failures: Iterable[int]
) -> TraceBar:
    """Return the bar for a message; a live message's bar ends where the trace ends."""
    duration = max(1, last_at - first_at)

    def place(at_ms: int) -> float:
        return min((at_ms - first_at) / duration * 100, 100 - _BAR_WIDTH_MIN)

    start = place(row.published_at)
    width = ((row.settled_at or last_at) - row.published_at) / duration * 100
    width = min(max(width, _BAR_WIDTH_MIN), 100 - start)
    return TraceBar(row, start, width, is_failed, [place(at_ms) for at_ms in failures])


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
        group.steps.append(TraceStep(bar, _repeat_of(bar.row, group.steps, others)))
    return groups


def _repeat_of(
    row: MessageRow, earlier: Sequence[TraceStep], others: frozenset[str]
) -> Repeat | None:
    if row.source_seq is not None or has_records(row.queue or "", others):
        return Repeat.DEAD_LETTER
    if not earlier:
        return None
    attempts = max(step.row.attempts or 0 for step in earlier)
    return Repeat.RETRY if (row.attempts or 0) > attempts else Repeat.COPY


# -- reading


async def read_retries(call: Call, rows: Iterable[MessageRow]) -> dict[int, list[Retry]]:
    """Return the attempts of messages that their workers reported as failed, by seq."""
    events = await call.context.reader.retries(rows)
    return {seq: [Retry.of(event) for event in rows] for seq, rows in events.items()}


async def read_failed_attempts(call: Call, rows: Iterable[MessageRow]) -> frozenset[int]:
    """Return the seqs of acked messages whose trace shows that the attempt failed."""
    traces = {
        row.trace_id
        for row in rows
        if row.state == State.ACKED and row.trace_id is not None and row.meta_id is not None
    }
    if not traces:
        return frozenset()
    page = await read_search_page(call, traces_search(*sorted(traces)), None, LIMIT_MAX)
    return find_failed_attempts(page.rows, dead_letter_queues_named(call.queues))


def _find_trace_id(call: Call) -> str:
    trace_id = call.path("trace")
    if len(trace_id) > TRACE_CHARACTERS or not trace_id.isprintable():
        raise Problem(404, "unknown_trace", "The trace id is too long or not printable.")
    return trace_id


TraceIdInPath = Annotated[str, From(_find_trace_id)]


class TracePageQuery(SearchPageInput):
    """Query for a page of a trace's messages."""

    limit: int = LIMIT_MAX
    format: OutputFormat = "html"


@endpoints.api("GET /traces/{trace}", "api-trace", cli="trace")
async def get_trace(
    call: Call, trace_id: TraceIdInPath, query: SearchPageInput
) -> FoundMessagesView:
    """List a trace's messages across all queues, newest first."""
    return FoundMessagesView.of_page(await _read_page(call, trace_id, query))


async def _read_page(call: Call, trace_id: str, query: SearchPageInput) -> MessagePage:
    limit = min(query.limit, LIMIT_MAX)
    return await read_search_page(call, traces_search(trace_id), query.cursor, limit)


@endpoints.page("/trace/{trace}", "trace", data=get_trace)
async def show_trace(call: Call, trace_id: TraceIdInPath, query: TracePageQuery) -> web.Response:
    """List a trace's messages across all queues, newest first."""
    page = await _read_page(call, trace_id, query)
    retries = await read_retries(call, page.rows)
    return await call.render(
        "trace.html",
        retries=retries,
        query=query,
        listed=page,
        trace_id=trace_id,
        trace=build_trace(page.rows, dead_letter_queues_named(call.queues), retries),
        progress=describe_searched(page),
        q=str(traces_search(trace_id)),
    )
