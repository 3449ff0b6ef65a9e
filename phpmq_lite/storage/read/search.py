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
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import PAGE_ROWS, MessageReader, MessageRow
from phpmq_lite.storage.read.read_pool import Readers, Row, RowReader
from phpmq_lite.storage.read.search_plan import (
    SearchPlan,
    SearchQuery,
    as_glob,
    make_plan,
    trace_ranges,
)

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

SearchCursor = tuple[int, int]  # (highest position when the search began, where to continue)


@dataclass(slots=True, frozen=True)
class SearchHits:
    """A page of search results.

    About ``searched`` of ``total`` messages have been searched since the search began, or all of
    them if ``is_done``.  ``next`` says where to continue, or is None at the end.
    """

    rows: list[MessageRow]
    next: SearchCursor | None
    searched: int
    total: int
    is_done: bool


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
        self,
        readers: Readers,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
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
    ) -> SearchHits:
        """Return the newest matches, starting at ``place``, that are found in the time limit."""
        limit = max(1, min(limit, PAGE_ROWS))
        run = await self._begin(query, queues, place[0] if place else None)
        if run is None:
            return SearchHits([], None, 0, 0, True)
        run.place = min(place[1], run.high) if place else run.high
        rows: list[Row] = []
        async for part in self._slices(run, limit_s, wanted=limit + 1):
            rows += part
            if len(rows) > limit:
                run.place, run.is_done = int(rows[limit - 1][0]), False
                break
        found = await self._rows_of([row[1] for row in rows[:limit]])
        goes_on = None if run.is_done else (run.high - 1, run.place)
        return SearchHits(found, goes_on, run.searched(), run.total, run.is_done)

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
        place = places[run.plan.line]
        if place is None:
            return None
        run.place = place
        async for part in self._slices(run, limit_s, wanted=1, is_newest_first=is_newest_first):
            if part:
                return next(iter(await self._rows_of([part[0][1]])), None)
        return None

    async def matches(
        self, query: SearchQuery, seqs: Sequence[int], queues: frozenset[int] | None
    ) -> list[MessageRow]:
        """Return those of the given messages (at most 500) that match, in order of seq."""
        if not seqs:
            return []
        only, others = await self._queues(query, queues)
        plan = self._plan(query, only, others, seqs=seqs[:_MAX_SEQS])
        if plan is None:
            return []
        rows = await self._readers.run(
            "search",
            plan.text(is_newest_first=False),
            plan.parameters | {"low": plan.low, "high": plan.high, "limit": _MAX_SEQS},
        )
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
        count = _MatchSummary(frozen, self._now_ms())
        async for part in self._slices(run, time_s, wanted=_SLICE_ROWS, is_newest_first=False):
            room = limit - len(frozen.seqs)
            if len(part) > room:
                run.is_done = False
                part = part[:room]
            count.add(part)
            if len(part) == room and not run.is_done:
                break
        frozen.is_complete = run.is_done
        await self._finish(frozen, count)
        return frozen

    async def _finish(self, frozen: FrozenSelection, count: "_MatchSummary") -> None:
        by_id: dict[int, str] = dict(
            await self._read("names", queues=json.dumps(list(count.queues)))
        )
        frozen.by_queue = {
            by_id.get(queue_id, f"~{queue_id}"): n for queue_id, n in count.queues.most_common()
        }
        frozen.by_state = {State(state).name.lower(): n for state, n in count.states.most_common()}
        frozen.by_urn = count.by_urn()
        seqs = frozen.seqs
        if seqs:
            asked = dict.fromkeys((seqs[0], seqs[len(seqs) // 2], seqs[-1]))
            frozen.samples = await self._rows_of(list(asked))

    async def newest_contents(self, limit: int = 200) -> list[Row]:
        """Return the URN and body (None if over 4 KiB) of the newest live and settled messages."""
        return await self._read("lately", limit=limit)

    # -- slices

    async def _begin(
        self, query: SearchQuery, allowed: frozenset[int] | None, upto: int | None
    ) -> _SearchRun | None:
        queues, others = await self._queues(query, allowed)
        asked = json.dumps(list(queues or ()))
        line = (await self._read("line", queues=asked))[0]
        has_numbers = (line[4] or 0) - line[8] <= _LONG_TAIL
        has_traces = has_numbers and (line[9] or 0) <= _LONG_TAIL
        plan = self._plan(query, queues, others, has_traces=has_traces)
        if plan is not None and plan.line == "seq" and has_traces:
            seqs = await self._traced_seqs(query, plan)
            if seqs is not None:
                plan = self._plan(query, queues, others, seqs=seqs) if seqs else None
        if plan is None:
            return None
        if plan.skip_statement == "next_seq" and not has_numbers:
            plan = self._plan(query, queues, others, has_numbers=False) or plan
        return _search_range(plan, line, upto, has_queues=queues is not None)

    def _plan(
        self, query: SearchQuery, queues: list[int] | None, others: list[int], **more: Any
    ) -> SearchPlan | None:
        engine = self._readers.engine
        return make_plan(query, queues, others, self._now_ms(), engine=engine, **more)

    async def _traced_seqs(self, query: SearchQuery, plan: SearchPlan) -> list[int] | None:
        """Return the seqs of messages whose traces may match the query; None if too many."""
        found: set[int] = set()
        ranges = trace_ranges(query)
        given = {"low": plan.low, "high": plan.high, "limit": _MAX_TRACED + 1}
        for start, end in ranges:
            rows = await self._read("few_traced", start=start, end=end, **given)
            found.update(seq for (seq,) in rows)
            if len(found) > _MAX_TRACED:
                return None
        return sorted(found) if ranges else None

    async def _queues(
        self, query: SearchQuery, allowed: frozenset[int] | None
    ) -> tuple[list[int] | None, list[int]]:
        """Return the queues to search (None means all) and the queues to exclude."""
        terms = query.of("queue")
        wanted = await self._matching(term.value for term in terms if not term.is_negated)
        others = await self._matching(term.value for term in terms if term.is_negated) or set()
        if wanted is None and allowed is None:
            return None, sorted(others)
        only = set(allowed or ()) if wanted is None else wanted
        if allowed is not None:
            only &= allowed
        return sorted(only - others), []

    async def _matching(self, patterns: Iterable[str]) -> set[int] | None:
        globs = [as_glob(pattern) for pattern in patterns]
        if not globs:
            return None
        rows = await self._read("queues", globs=json.dumps(globs))
        return {queue_id for (queue_id,) in rows}

    async def _slices(
        self, run: _SearchRun, limit_s: float, *, wanted: int, is_newest_first: bool = True
    ) -> AsyncIterator[list[Row]]:
        """Yield the matches in slices of at most ``wanted``; ``run`` tracks the progress.

        The width of a slice adapts to the duration of the previous one.
        """
        text = run.plan.text(is_newest_first=is_newest_first)
        width = _FIRST_WIDTH
        ends_s = time.monotonic() + limit_s
        while not run.is_done:
            if is_newest_first:
                low, high = max(run.place - width - 1, run.low), run.place
            else:
                low, high = run.place, min(run.place + width + 1, run.high)
            given = {"low": low, "high": high, "limit": wanted}
            began_s = time.monotonic()
            rows: list[Row] | None = None
            with suppress(ReadTooLongError):
                rows = await self._readers.run("search", text, run.plan.parameters | given)
            took_s = time.monotonic() - began_s
            if rows is None and width > 1:
                width = max(1, width // 16)
            else:
                rows = rows or []  # skip a message whose body takes too long
                full = len(rows) >= wanted
                ahead = low + 1 if is_newest_first else high - 1
                run.place = int(rows[-1][0]) if full else ahead
                run.is_done = (
                    run.place <= run.low + 1 if is_newest_first else run.place >= run.high - 1
                )
                yield rows
                if run.skip_statement and is_newest_first and not rows and not run.is_done:
                    await self._skip_ahead(run)
                if full:  # a full slice sorts more rows than it returns
                    width = min(
                        width, 2 * (high - run.place if is_newest_first else run.place - low)
                    )
                elif took_s < _FAST_S:
                    width = min(width * 4, _LAST_WIDTH)
                elif took_s > _SLOW_S:
                    width = max(1, width // 2)
            if time.monotonic() > ends_s:
                return

    async def _skip_ahead(self, run: _SearchRun) -> None:
        """Skip any number of messages in other queues, newest first.

        If skipping takes too long, the search continues without it.
        """
        asked = {name: run.plan.parameters[name] for name in ("queues", "outcomes")}
        asked |= {"low": run.low, "high": run.place}
        try:
            [(place,)] = await self._read(run.skip_statement, **asked)
            run.place = (run.low if place is None else int(place)) + 1
        except ReadTooLongError:
            run.skip_statement = ""


def _search_range(
    plan: SearchPlan, line: Row, upto: int | None, *, has_queues: bool
) -> _SearchRun | None:
    """Return the range that a plan searches, or None if it is empty."""
    next_number, alive, settled, first, last, position, live, live_there, *_ = line
    top = next_number - 1
    if plan.line == "offset":
        ends = (first, last)
    elif plan.line == "position":
        ends = (position, top)
    else:
        starts = ((alive, plan.has_alive), (settled, plan.has_settled))
        numbers = [start for start, is_wanted in starts if is_wanted and start is not None]
        ends = (min(numbers, default=None), top)
    if ends[0] is None or ends[1] is None:
        return None
    total = ((live_there if has_queues else live) or 0) if plan.has_alive else 0
    if plan.has_settled and first is not None and last is not None:
        total += last - first + 1
    low, high = ends[0] - 1, ends[1] + 1
    if plan.line == "seq":
        low, high = max(low, plan.low), min(high, plan.high)
    if upto is not None:
        high = min(high, upto + 1)
    return None if high - low < 2 else _SearchRun(plan, low, high, total, top, plan.skip_statement)


class _MatchSummary:
    """Adds matches to a selection as the search finds them."""

    def __init__(self, frozen: FrozenSelection, now_ms: int) -> None:
        self._frozen = frozen
        self._now_ms = now_ms
        self.queues: Counter[int] = Counter()
        self.states: Counter[int] = Counter()
        self.urns: Counter[str] = Counter()

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows to the selection and count them."""
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
            state > State.DISPATCHED and at is not None and at <= self._now_ms
            for state, at in zip(states, deadlines, strict=True)
        )

    def by_urn(self) -> dict[str, int]:
        """Return counts for the most frequent URNs, and one count for all other URNs."""
        most = {urn: n for urn, n in self.urns.most_common(_MAX_URNS + 1) if urn != "~other"}
        kept = dict(list(most.items())[:_MAX_URNS])
        rest = self.urns.total() - sum(kept.values())
        return kept | ({"~other": rest} if rest else {})
