"""Translates a search query to SQL, choosing which indexes to read and which conditions to add.

The statement is composed of parts of ``sql/search.sql``; values are parameters.  No I/O.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from phpmq_lite.model import ALIVE, STATE_NAMES, State
from phpmq_lite.storage.search.json_spellings import json_spellings
from phpmq_lite.storage.search.language import (
    SearchQuery,
    SearchTerm,
    as_glob,
    is_pattern,
    literal_prefix,
    prefix_end,
    unescape_pattern,
)
from phpmq_lite.storage.statements import parts

_SETTLED: Final = frozenset(State) - ALIVE
# If a query has several terms of such a kind, a message has to match only one of them.
_ANY_OF: Final = ("urn", "trace", "meta", "verdict", "reason", "origin", "client", "id")
# Columns whose names differ between live and settled messages, and the name of a part.
_LIVE_COLUMNS: Final = {
    "{state}": "state",
    "{why}": "source_reason",
    "{ended}": ":now_ms",
    "{step}": "live_step",
}
_SETTLED_COLUMNS: Final = {
    "{state}": "outcome",
    "{why}": "reason",
    "{ended}": "m.settled_at",
    "{step}": "settled_step",
}
# Sources that read an index on queues and live states, by state.
_BY_POSITION: Final = {state: f"{STATE_NAMES[state]}_queues" for state in sorted(ALIVE)}
_BY_NUMBER: Final = {state: f"{STATE_NAMES[state]}_numbers" for state in sorted(ALIVE)}
_BY_STATE: Final = (*_BY_POSITION.values(), *_BY_NUMBER.values())
# Sources that use an index on queues, and sources of one state or of the given outcomes.
_OF_QUEUES: Final = frozenset((*_BY_STATE, "alive_moved", "settled_queues", "settled_numbers"))
_STATED: Final = frozenset((*_BY_STATE, "alive_held", "settled_unusual", "settled_queues"))
_SKIP_STATEMENTS: Final = {"seq": "next_seq", "offset": "next_offset"}
_INTEGER: Final = re.compile(r"-?[1-9][0-9]{18,}")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_WORDS: Final = ("true", "false", "null")

SearchOrder = Literal["seq", "position", "offset"]


@dataclass(slots=True, frozen=True, kw_only=True)
class SearchPlan:
    """A plan for executing a query.

    ``order`` says in which order messages are read.  ``low`` and ``high`` (exclusive) bound the
    search if the query names ids.  ``skip_statement`` finds the next message in the queues of the
    query; if it is empty, nothing is skipped.  By position, the search reads no gaps between
    priorities at all.
    """

    order: SearchOrder
    sources: tuple[str, ...]
    parameters: dict[str, Any]
    has_alive: bool
    has_settled: bool
    low: int = 0
    high: int = 1 << 62
    skip_statement: str = ""
    engine: str = "sqlite"

    def text(self, *, is_newest_first: bool) -> str:
        """Return the statement, which takes ``parameters`` plus ``low``, ``high`` and ``limit``."""
        order_by = parts("search", self.engine)["newest" if is_newest_first else "oldest"]
        return "\nUNION ALL\n".join(self.sources) + f"\n{order_by}"


def make_plan(
    query: SearchQuery,
    queues: Sequence[int] | None,
    excluded: Sequence[int],
    now_ms: int,
    *,
    seqs: Sequence[int] | None = None,
    has_numbers: bool = True,
    has_traces: bool = True,
    engine: str = "sqlite",
) -> SearchPlan | None:
    """Choose the sources and compose the statement; return None if nothing can match.

    Args:
        query: the query, whose terms about queues are ignored.
        queues: queue_ids to search; None means all except ``excluded``.
        excluded: queue_ids to exclude.
        now_ms: the current time in Unix ms, to which ages are relative.
        seqs: messages to search; None means all.
        has_numbers: whether the index by number is nearly complete; the rest can be scanned.
        has_traces: whether the index by trace is nearly complete as well.
        engine: the engine that executes the statement.
    """
    states = _states(query)
    low, high = _seq_bounds(query)
    if seqs is not None:
        low, high = max(low, min(seqs) - 1), min(high, max(seqs) + 1)
    if not states or (queues is not None and not queues) or high - low < 2:
        return None
    builder = _ConditionBuilder(engine, now_ms, queues, excluded, states)
    conditions, has_body = builder.conditions(query)
    if seqs is not None:
        conditions.insert(0, builder.part("in_seqs", json.dumps(list(seqs))))
    traces = _exact_traces(query) if seqs is None and has_traces else []
    has_ids = low >= 0 or high < 1 << 62 or bool(trace_ranges(query))
    has_queues, has_numbers = queues is not None, has_numbers and seqs is None
    alive, settled, order = _sources(
        states, has_queues, has_ids=has_ids, has_traces=bool(traces), has_numbers=has_numbers
    )
    sources = [(name, states & ALIVE, _LIVE_COLUMNS) for name in alive]
    sources += [(name, states & _SETTLED, _SETTLED_COLUMNS) for name in settled]
    trace_names = ", ".join(f":{builder.bind(trace)}" for trace in traces)
    statements = []
    for name, own_states, columns in sources:
        if name in builder.parts:  # an engine that indexes rows at once has no tails to read
            own = _source_conditions(name, own_states, has_queues, bool(excluded), builder)
            text = builder.source(name, [*own, *conditions], columns, has_body=has_body)
            statements.append(text.replace("{traces}", trace_names))
    skip = "" if _OF_QUEUES.isdisjoint(settled) else _SKIP_STATEMENTS.get(order, "")
    return SearchPlan(
        order=order,
        sources=tuple(statements),
        parameters=builder.parameters,
        has_alive=bool(alive),
        has_settled=bool(settled),
        low=low,
        high=high,
        skip_statement=skip,
        engine=engine,
    )


def trace_ranges(query: SearchQuery) -> list[tuple[str, str]]:
    """Return ranges (end exclusive) that cover the query's traces; an empty list covers all."""
    terms = [term for term in query.of("trace") if not term.is_negated]
    starts = [literal_prefix(term.value) for term in terms]
    ranges = [(start, end) for start in starts if (end := prefix_end(start)) is not None]
    return ranges if len(ranges) == len(terms) else []


def _exact_traces(query: SearchQuery) -> list[str]:
    """Return the only traces that can match; an empty list means any trace."""
    terms = [term for term in query.of("trace") if not term.is_negated]
    if any(is_pattern(term.value) for term in terms):
        return []
    return [unescape_pattern(term.value) for term in terms] if trace_ranges(query) else []


def _sources(
    states: frozenset[State],
    has_queues: bool,
    *,
    has_ids: bool,
    has_traces: bool,
    has_numbers: bool,
) -> tuple[list[str], list[str], SearchOrder]:
    alive, settled = states & ALIVE, states & _SETTLED
    of_alive = ["alive_held" if alive == {State.DISPATCHED} else "alive"]
    of_settled = ["settled_seq"]
    if has_traces:
        of_alive = ["alive_traces", "alive_untraced"]
        of_settled = ["settled_traces", "settled_untraced"]
    elif not has_ids and not settled and has_queues and of_alive == ["alive"]:
        return [_BY_POSITION[state] for state in sorted(alive)], [], "position"
    elif not has_ids and not alive:
        if has_queues:
            return [], ["settled_queues", "settled_tail"], "offset"
        return [], ["settled" if State.ACKED in settled else "settled_unusual"], "offset"
    elif has_queues and has_numbers:
        if of_alive == ["alive"]:
            of_alive = [*(_BY_NUMBER[state] for state in sorted(alive)), "alive_moved"]
        of_settled = ["settled_numbers", "settled_unnumbered"]
    return of_alive if alive else [], of_settled if settled else [], "seq"


def _source_conditions(
    source: str,
    states: frozenset[State],
    has_queues: bool,
    has_excluded: bool,
    builder: "_ConditionBuilder",
) -> Iterator[str]:
    """Yield conditions on queues and states that the source does not already include."""
    if has_queues and source not in _OF_QUEUES:
        yield f"m.queue_id {_queue_condition(builder)}"
    if has_excluded:
        yield builder.parts["not_in_queues"]
    if states in (ALIVE, _SETTLED):
        return
    if source == "settled_numbers":
        yield builder.parts["in_outcomes"]
    elif source not in _STATED:
        yield builder.part("in_states", json.dumps(sorted(states)))


def _queue_condition(builder: "_ConditionBuilder") -> str:
    """Return the condition on queues; for one queue, a comparison is three times faster."""
    return builder.parts["this_queue" if "queue" in builder.parameters else "these_queues"]


def _states(query: SearchQuery) -> frozenset[State]:
    terms = query.of("state")
    included = {State[term.value.upper()] for term in terms if not term.is_negated}
    excluded = {State[term.value.upper()] for term in terms if term.is_negated}
    return frozenset(included or State) - excluded


def _seq_bounds(query: SearchQuery) -> tuple[int, int]:
    """Return exclusive bounds for the seqs that the query's ids allow."""
    ranges = []
    for term in query.of("id"):
        if not term.is_negated:
            digits = term.value.removesuffix("*")[:16]
            first = int(digits.ljust(16, "0"), 16)
            last = int(digits.ljust(16, "f"), 16)
            ranges.append((first, last))
    if not ranges:
        return -1, 1 << 62
    low, high = min(first for first, _ in ranges) - 1, max(last for _, last in ranges) + 1
    return min(low, 1 << 62), min(high, 1 << 62)


class _ConditionBuilder:
    """Composes conditions from an engine's parts and collects their parameters."""

    def __init__(
        self,
        engine: str,
        now_ms: int,
        queues: Sequence[int] | None,
        excluded: Sequence[int],
        states: frozenset[State],
    ) -> None:
        self.parts = parts("search", engine)
        self.parameters: dict[str, Any] = {
            "now_ms": now_ms,
            "queues": json.dumps(list(queues or ())),
            "other_queues": json.dumps(list(excluded)),
            "outcomes": json.dumps(sorted(states - ALIVE)),
        }
        if queues is not None and len(queues) == 1:
            self.parameters["queue"] = queues[0]

    def bind(self, value: Any) -> str:
        name = f"v{len(self.parameters)}"
        self.parameters[name] = value
        return name

    def part(self, name: str, value: Any) -> str:
        """Return a condition on a value, which becomes its parameter."""
        return self.parts[name].replace("{v}", self.bind(value))

    def source(
        self, name: str, conditions: list[str], columns: dict[str, str], *, has_body: bool
    ) -> str:
        text = " AND ".join([self.parts[name], *conditions])
        text = text.replace("{join}", self.parts["body"] if has_body else "")
        text = text.replace("{these}", _queue_condition(self))
        for mark, column in (columns | {"{step}": self.parts[columns["{step}"]]}).items():
            text = text.replace(mark, column)
        return text

    def conditions(self, query: SearchQuery) -> tuple[list[str], bool]:
        """Return the conditions, with those on bodies last, and whether there are any on bodies."""
        cheap: list[str] = []
        expensive: list[str] = []
        for terms in _groups(query):
            text = " OR ".join(f"({self._condition(term)})" for term in terms)
            text = f"NOT coalesce({text}, false)" if terms[0].is_negated else f"({text})"
            (expensive if terms[0].kind in ("text", "data") else cheap).append(text)
        return cheap + expensive, bool(expensive)

    def _condition(self, term: SearchTerm) -> str:
        match term.kind:
            case "text":
                spellings = json_spellings(term.value)
                return " OR ".join(self.part("text", spelling) for spelling in spellings)
            case "data":
                return self._member_condition(term)
            case "id":
                return self.part("id", as_glob(term.value))
            case "urn":
                globs = [start + as_glob(term.value) for start in ("", "urn:", "urn:babel:")]
                return " OR ".join(self.part("urn", glob) for glob in globs)
            case "trace" if not is_pattern(term.value):
                return self.part("trace_exact", unescape_pattern(term.value))
            case "trace" | "meta" | "verdict" | "reason" | "origin" | "client":
                return self.part(term.kind, as_glob(term.value))
            case "ttl" if term.value == "never":
                return self.parts["ttl_never"]
            case _:
                return self.part(term.kind, term.number).replace("{sign}", term.sign)

    def _member_condition(self, term: SearchTerm) -> str:
        text = unescape_pattern(term.value)
        if term.sign:
            match = self.part("member_compared", term.number).replace("{sign}", term.sign)
        elif text in _WORDS:
            match = self.part("member_word", text)
        else:
            match = self.part("member", as_glob(term.value))
            if _INTEGER.fullmatch(text):
                match = f"({match}) OR ({self.part('member_large', text)})"
        at_paths = (match.replace("{p}", self.bind(path)) for path in json_paths(term.path))
        any_path = " OR ".join(f"({condition})" for condition in at_paths)
        condition = self.parts["is_json"].replace("{then}", any_path)
        if not term.sign and not is_pattern(term.value) and _WORD.fullmatch(text):
            # Searching the bytes first is three times faster than only parsing JSON.
            in_bytes = " OR ".join(self.part("text", part) for part in (text.encode(), b"\\u"))
            condition = f"({in_bytes}) AND {condition}"
        return condition


def _groups(query: SearchQuery) -> Iterator[list[SearchTerm]]:
    """Yield groups of terms that are alternatives; each negated term forms its own group."""
    for kind in _ANY_OF:
        terms = [term for term in query.of(kind) if not term.is_negated]
        if terms:
            yield terms
    for term in query.terms:
        if term.kind not in ("queue", "state") and (term.is_negated or term.kind not in _ANY_OF):
            yield [term]


def json_paths(path: str) -> list[str]:
    """Convert ``data.items.0.sku`` to SQLite's JSON path syntax, treating numbers as indexes.

    ``data`` means a member of an envelope, or else the complete body, because most bodies are not
    envelopes.
    """
    steps = [
        f"[{step}]" if step.isascii() and step.isdecimal() and len(step) < 10 else f'."{step}"'
        for step in path.removeprefix("$.").split(".")
    ]
    member = "$" + "".join(steps)
    return [member, "$" + "".join(steps[1:])] if path.startswith("data.") else [member]
