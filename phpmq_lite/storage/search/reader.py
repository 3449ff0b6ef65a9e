"""Searches live and settled messages, newest first, in time-limited slices.

Searches have their own connection, so they never delay a page.  Nothing stays open between two
slices, so checkpoints and other searches can run.
"""

import json
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from phpmq_lite.errors import ReadTooLongError
from phpmq_lite.model import ALIVE, STATE_NAMES, State
from phpmq_lite.storage.read.messages import PAGE_ROWS, MessageReader, MessageRow
from phpmq_lite.storage.read.read_pool import Page, Readers, Row, RowReader
from phpmq_lite.storage.search.language import SearchQuery, as_glob
from phpmq_lite.storage.search.plan import SearchPlan, make_plan, trace_ranges

SEARCH_LIMIT_S: Final = 1.6  # time limit for all slices; the last one may run longer
SLICE_LIMIT_S: Final = 0.4  # time limit for one slice
FROZEN_LIMIT: Final = 1_000_000
FROZEN_LIMIT_S: Final = 20.0
_FIRST_WIDTH: Final = 2_000  # initial slice width, which grows while slices are fast
_LAST_WIDTH: Final = 1 << 40
_FAST_S: Final = 0.025
_SLOW_S: Final = 0.1
_SLICE_ROWS: Final = 1_000  # maximum number of rows per slice, which the event loop counts in 2 ms
_LONG_TAIL: Final = 50_000  # maximum number of unindexed messages, except after `store copy`
_MAX_TRACED: Final = 2_000  # maximum number of messages in a trace to look up individually
_MAX_SEQS: Final = 500  # maximum number of seqs per statement
_MAX_URNS: Final = 20  # number of URNs listed separately in a summary
_URNS_COUNTED: Final = 10_000

_LOWEST: Final = -(1 << 61)  # below every position

SearchCursor = tuple[int, int]  # (highest position when the search began, where to continue)


@dataclass(slots=True)
class FrozenSelection:
    """All matches at a given moment, with a summary.

    If the query names queues, ``seqs`` are in order of position for live messages and of offset
    for settled messages; otherwise, or for both kinds together, in order of seq.
    """

    seqs: "array[int]" = field(default_factory=lambda: array("Q"))
    is_complete: bool = True  # False if the match limit or the time limit was reached
    upto: int = 0  # highest seq at that moment; later messages are excluded
    oldest_at: int | None = None  # publish time of the oldest match, in Unix ms
    newest_at: int | None = None
    size: int = 0  # total size of the bodies in bytes
    held: int = 0  # number of currently dispatched messages
    expired: int = 0  # number of settled messages whose deadline has passed
    by_queue: dict[str, int] = field(default_factory=dict)
    by_state: dict[str, int] = field(default_factory=dict)
    by_urn: dict[str, int] = field(default_factory=dict)  # "": no URN; "~other": all other URNs
    samples: list[MessageRow] = field(default_factory=list)  # the first, middle and last match


@dataclass(slots=True, frozen=True)
class _SearchEnds:
    """Where a search can start and end; None if there is nothing to search."""

    next_seq: int
    first_live_seq: int | None
    first_settled_seq: int | None
    first_offset: int | None
    last_offset: int | None
    first_position: int | None  # in the queues of the query; beyond all positions if they are empty
    last_position: int | None
    live: int | None  # number of messages in all queues
    live_in_queues: int | None
    indexed_upto: int  # last offset whose number is indexed
    untraced: int | None  # number of live messages whose traces are not indexed


@dataclass(slots=True)
class _SearchRun:
    """A plan and the range to search; ``low`` and ``high`` are exclusive."""

    plan: SearchPlan
    low: int
    high: int
    total: int
    upto: int
    skip_statement: str = ""  # as in the plan; empty if nothing is skipped
    place: int = 0  # position that the search has reached
    is_done: bool = False

    def searched(self) -> int:
        """Estimate how many messages have been searched so far, starting with the newest."""
        if self.is_done or self.high - self.low < 2:
            return self.total
        return round(self.total * (self.high - self.place) / (self.high - 1 - self.low))


class Search(RowReader):
    """Runs searches, at most one slice at a time.

    Methods raise StorageError if the database cannot be read.  ``queues`` are the queue_ids that
    the caller can see; None means all.
    """

    file = "search"

    def __init__(
        self, readers: Readers, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        super().__init__(readers)
        self._now_ms = now_ms
        self._rows_of = MessageReader(readers).rows

    async def page(
        self,
        query: SearchQuery,
        *,
        queues: frozenset[int] | None = None,
        place: SearchCursor | None = None,
        limit: int = 50,
        limit_s: float = SEARCH_LIMIT_S,
    ) -> Page[MessageRow, SearchCursor]:
        """Return the newest matches, starting at ``place``, that are found in the time limit.

        The search is done if the page has no ``next``.
        """
        limit = max(1, min(limit, PAGE_ROWS))
        run = await self._begin(query, queues, place[0] if place else None)
        if run is None:
            return Page([])
        run.place = min(place[1], run.high) if place else run.high
        rows: list[Row] = []
        async for part in self._slices(run, limit_s, limit + 1):
            rows += part
            if len(rows) > limit:
                run.place, run.is_done = int(rows[limit - 1][0]), False
                break
        return Page(
            await self._rows_of([row[1] for row in rows[:limit]]),
            None if run.is_done else (run.high - 1, run.place),
            is_cut=not run.is_done and len(rows) < limit,
            searched=run.searched(),
            total=run.total,
        )

    async def neighbour(
        self,
        query: SearchQuery,
        row: MessageRow,
        *,
        is_newest_first: bool,
        queues: frozenset[int] | None = None,
        limit_s: float = SLICE_LIMIT_S,
    ) -> MessageRow | None:
        """Return the next older or newer match, or None if none was found in time."""
        run = await self._begin(query, queues, None)
        if run is None:
            return None
        places = {"seq": row.seq, "position": row.position, "offset": row.offset}
        place = places[run.plan.order]
        if place is None:
            return None
        run.place = place
        async for part in self._slices(run, limit_s, 1, is_newest_first=is_newest_first):
            if part:
                return next(iter(await self._rows_of([part[0][1]])), None)
        return None

    async def matches(
        self, query: SearchQuery, seqs: Sequence[int], queues: frozenset[int] | None
    ) -> list[MessageRow]:
        """Return those of the given messages (at most 500) that match, in order of seq."""
        if not seqs:
            return []
        searched, excluded = await self._queues(query, queues)
        plan = self._plan(query, searched, excluded, seqs=seqs[:_MAX_SEQS])
        if plan is None:
            return []
        values = plan.parameters | {"low": plan.low, "high": plan.high, "limit": _MAX_SEQS}
        rows = await self._readers.run("search", plan.text(is_newest_first=False), values)
        numbers = [row[1] for row in rows]
        return [
            row
            for at in range(0, len(numbers), PAGE_ROWS)
            for row in await self._rows_of(numbers[at : at + PAGE_ROWS])
        ]

    async def freeze(
        self,
        query: SearchQuery,
        *,
        queues: frozenset[int] | None = None,
        limit: int = FROZEN_LIMIT,
        time_s: float = FROZEN_LIMIT_S,
    ) -> FrozenSelection:
        """Return all current matches, up to ``limit``, with a summary."""
        frozen = FrozenSelection()
        run = await self._begin(query, queues, None)
        if run is None:
            return frozen
        frozen.upto, run.place = run.upto, run.low
        summary = _MatchSummary(frozen, self._now_ms())
        async for part in self._slices(run, time_s, _SLICE_ROWS, is_newest_first=False):
            remaining = limit - len(frozen.seqs)
            if len(part) > remaining:
                run.is_done = False
                part = part[:remaining]
            summary.add(part)
            if len(part) == remaining and not run.is_done:
                break
        frozen.is_complete = run.is_done
        rows = await self._read("names", queues=json.dumps(list(summary.queues)))
        names: dict[int, str] = dict(rows)
        frozen.by_queue = {
            names.get(queue_id, f"~{queue_id}"): n for queue_id, n in summary.queues.most_common()
        }
        frozen.by_state = {STATE_NAMES[state]: n for state, n in summary.states.most_common()}
        frozen.by_urn = summary.by_urn()
        if seqs := frozen.seqs:
            samples = dict.fromkeys((seqs[0], seqs[len(seqs) // 2], seqs[-1]))
            frozen.samples = await self._rows_of(list(samples))
        return frozen

    async def newest_contents(self, limit: int = 200) -> list[Row]:
        """Return the URN and body (None if over 4 KiB) of the newest live and settled messages."""
        return await self._read("newest_contents", limit=limit)

    async def _begin(
        self, query: SearchQuery, allowed: frozenset[int] | None, upto: int | None
    ) -> _SearchRun | None:
        queues, others = await self._queues(query, allowed)
        names = json.dumps(list(queues or ()))
        [row] = await self._read("search_ends", queues=names, after=_LOWEST, before=-_LOWEST)
        ends = _SearchEnds(*row)
        has_numbers = (ends.last_offset or 0) - ends.indexed_upto <= _LONG_TAIL
        has_traces = has_numbers and (ends.untraced or 0) <= _LONG_TAIL
        plan = self._plan(query, queues, others, has_traces=has_traces)
        if plan is not None and plan.order == "seq" and has_traces:
            seqs = await self._traced_seqs(query, plan)
            if seqs is not None:
                plan = self._plan(query, queues, others, seqs=seqs) if seqs else None
        if plan is None:
            return None
        if plan.skip_statement == "next_seq" and not has_numbers:
            plan = self._plan(query, queues, others, has_numbers=False) or plan
        return _search_range(plan, ends, upto, has_queues=queues is not None)

    def _plan(
        self, query: SearchQuery, queues: list[int] | None, others: list[int], **more: Any
    ) -> SearchPlan | None:
        engine = self._readers.engine
        return make_plan(query, queues, others, self._now_ms(), engine=engine, **more)

    async def _traced_seqs(self, query: SearchQuery, plan: SearchPlan) -> list[int] | None:
        """Return the seqs of messages whose traces may match the query; None if too many."""
        seqs: set[int] = set()
        ranges = trace_ranges(query)
        bounds = {"low": plan.low, "high": plan.high, "limit": _MAX_TRACED + 1}
        for start, end in ranges:
            rows = await self._read("few_traced", start=start, end=end, **bounds)
            seqs.update(seq for (seq,) in rows)
            if len(seqs) > _MAX_TRACED:
                return None
        return sorted(seqs) if ranges else None

    async def _queues(
        self, query: SearchQuery, allowed: frozenset[int] | None
    ) -> tuple[list[int] | None, list[int]]:
        """Return the queues to search (None means all) and the queues to exclude."""
        terms = query.of("queue")
        included = await self._matching(term.value for term in terms if not term.is_negated)
        excluded = await self._matching(term.value for term in terms if term.is_negated) or set()
        if included is None and allowed is None:
            return None, sorted(excluded)
        searched = set(allowed or ()) if included is None else included
        if allowed is not None:
            searched &= allowed
        return sorted(searched - excluded), []

    async def _matching(self, patterns: Iterable[str]) -> set[int] | None:
        globs = [as_glob(pattern) for pattern in patterns]
        if not globs:
            return None
        rows = await self._read("queues", globs=json.dumps(globs))
        return {queue_id for (queue_id,) in rows}

    async def _slices(
        self, run: _SearchRun, limit_s: float, limit: int, *, is_newest_first: bool = True
    ) -> AsyncIterator[list[Row]]:
        """Yield the matches in slices of at most ``limit``; ``run`` tracks the progress.

        The width of a slice adapts to the duration of the previous one.
        """
        text = run.plan.text(is_newest_first=is_newest_first)
        width = _FIRST_WIDTH
        end = run.low + 1 if is_newest_first else run.high - 1
        ends_s = time.monotonic() + limit_s
        while not run.is_done:
            if is_newest_first:
                low, high = max(run.place - width - 1, run.low), run.place
            else:
                low, high = run.place, min(run.place + width + 1, run.high)
            slice_ = {"low": low, "high": high, "limit": limit}
            began_s = time.monotonic()
            rows: list[Row] | None = None
            with suppress(ReadTooLongError):
                rows = await self._readers.run("search", text, run.plan.parameters | slice_)
            took_s = time.monotonic() - began_s
            if rows is None and width > 1:
                width = max(1, width // 16)
            else:
                rows = rows or []  # skip a message whose body takes too long
                is_full = len(rows) >= limit
                slice_end = low + 1 if is_newest_first else high - 1
                run.place = int(rows[-1][0]) if is_full else slice_end
                run.is_done = run.place <= end if is_newest_first else run.place >= end
                yield rows
                if not rows and not run.is_done:
                    if run.plan.order == "position":
                        await self._skip_gap(run, is_newest_first=is_newest_first)
                    elif run.skip_statement and is_newest_first:
                        await self._skip_ahead(run)
                if is_full:  # a full slice sorts more rows than it returns
                    searched = high - run.place if is_newest_first else run.place - low
                    width = min(width, 2 * searched)
                elif took_s < _FAST_S:
                    width = min(width * 4, _LAST_WIDTH)
                elif took_s > _SLOW_S:
                    width = max(1, width // 2)
            if time.monotonic() > ends_s:
                return

    async def _skip_gap(self, run: _SearchRun, *, is_newest_first: bool) -> None:
        """Go on to the next message in the queues, because priorities are far apart."""
        name = "previous_position" if is_newest_first else "next_position"
        low, high = (run.low, run.place) if is_newest_first else (run.place, run.high)
        queues = run.plan.parameters["queues"]
        [(place,)] = await self._read(name, queues=queues, after=low, before=high)
        run.is_done = not low < place < high
        run.place = int(place) + (1 if is_newest_first else -1)

    async def _skip_ahead(self, run: _SearchRun) -> None:
        """Skip any number of messages in other queues, newest first.

        If skipping takes too long, the search continues without it.
        """
        parameters = {name: run.plan.parameters[name] for name in ("queues", "outcomes")}
        parameters |= {"low": run.low, "high": run.place}
        try:
            [(place,)] = await self._read(run.skip_statement, **parameters)
            run.place = (run.low if place is None else int(place)) + 1
        except ReadTooLongError:
            run.skip_statement = ""


def _search_range(
    plan: SearchPlan, ends: _SearchEnds, upto: int | None, *, has_queues: bool
) -> _SearchRun | None:
    """Return the range that a plan searches, or None if it is empty."""
    last_seq = ends.next_seq - 1
    first: int | None
    last: int | None
    match plan.order:
        case "offset":
            first, last = ends.first_offset, ends.last_offset
        case "position":
            first, last = ends.first_position, ends.last_position
        case "seq":
            starts = (
                ends.first_live_seq if plan.has_alive else None,
                ends.first_settled_seq if plan.has_settled else None,
            )
            first, last = min((seq for seq in starts if seq is not None), default=None), last_seq
    if first is None or last is None:
        return None
    live = ends.live_in_queues if has_queues else ends.live
    total = (live or 0) if plan.has_alive else 0
    if plan.has_settled and ends.first_offset is not None and ends.last_offset is not None:
        total += ends.last_offset - ends.first_offset + 1
    low, high = first - 1, last + 1
    if plan.order == "seq":
        low, high = max(low, plan.low), min(high, plan.high)
    if upto is not None:
        high = min(high, upto + 1)
    if high - low < 2:
        return None
    return _SearchRun(plan, low, high, total, last_seq, plan.skip_statement)


class _MatchSummary:
    """Adds matches to a selection as the search finds them."""

    def __init__(self, frozen: FrozenSelection, now_ms: int) -> None:
        self._frozen = frozen
        self._now_ms = now_ms
        self.queues: Counter[int] = Counter()
        self.states: Counter[int] = Counter()
        self.urns: Counter[str] = Counter()

    def add(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        _, seqs, queues, states, urns, published, sizes, deadlines = zip(*rows, strict=True)
        self.queues.update(queues)
        self.states.update(states)
        self.urns.update(urn or "" for urn in urns)
        if len(self.urns) > _URNS_COUNTED:
            self.urns = Counter(self.by_urn())
        frozen = self._frozen
        frozen.seqs.extend(seqs)
        oldest_at = min(published)
        frozen.oldest_at = min(frozen.oldest_at or oldest_at, oldest_at)
        frozen.newest_at = max(frozen.newest_at or 0, max(published))
        frozen.size += sum(sizes)
        frozen.held += states.count(State.DISPATCHED)
        frozen.expired += sum(
            state not in ALIVE and at is not None and at <= self._now_ms
            for state, at in zip(states, deadlines, strict=True)
        )

    def by_urn(self) -> dict[str, int]:
        """Return counts for the most frequent URNs, and one count for all other URNs."""
        largest = [item for item in self.urns.most_common(_MAX_URNS + 1) if item[0] != "~other"]
        counts = dict(largest[:_MAX_URNS])
        remaining = self.urns.total() - sum(counts.values())
        return counts | ({"~other": remaining} if remaining else {})
