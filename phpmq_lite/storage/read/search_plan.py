"""Translates a search query to SQL, choosing which indexes to read and which conditions to add.

The statement is composed of parts of ``sql/search.sql``; values are parameters.  No I/O.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from phpmq_lite.model import ALIVE, State
from phpmq_lite.storage.read.json_spellings import json_spellings
from phpmq_lite.storage.statements import parts

WILDCARDS: Final = "*?"
_GLOB_MARKS: Final = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
_QUOTED: Final = re.compile(r'\s|^"|^$|^-')


@dataclass(slots=True, frozen=True)
class SearchTerm:
    """One condition in a query.

    ``kind`` is its qualifier, or ``text`` for free text; ``value`` is the text after the colon, as
    typed.  Comparisons have a ``sign``, and a ``number`` in the column's unit: bytes, ms or none.
    """

    kind: str
    value: str
    is_negated: bool = False
    path: str = ""  # path to a body member, such as "data.order_id"
    sign: str = ""  # one of = < <= > >=
    number: int = 0

    def __str__(self) -> str:
        """Return the term as typed by the user."""
        value = self.value
        if self.kind == "text":
            is_plain = not _QUOTED.search(value) and ":" not in value
        else:
            is_plain = not _QUOTED.search(value.lstrip("-"))
        if not is_plain:
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        name = "" if self.kind == "text" else f"{self.path or self.kind}:"
        return f"{'-' if self.is_negated else ''}{name}{value}"


@dataclass(slots=True, frozen=True)
class SearchQuery:
    """A complete query; without terms, it matches every message."""

    terms: tuple[SearchTerm, ...] = ()

    def __str__(self) -> str:
        """Return the query as typed by the user; parsing the result returns the same query."""
        return " ".join(map(str, self.terms))

    def without(self, term: SearchTerm) -> "SearchQuery":
        """Return a copy of the query without one of its terms."""
        return SearchQuery(tuple(other for other in self.terms if other != term))

    def of(self, kind: str) -> list[SearchTerm]:
        """Return all terms of one kind."""
        return [term for term in self.terms if term.kind == kind]


def escape_pattern(text: str) -> str:
    """Escape a text so that the resulting pattern matches exactly this text."""
    return re.sub(r"([*?\\])", r"\\\1", text)


def is_pattern(pattern: str) -> bool:
    """Return whether a pattern contains an unescaped ``*`` or ``?``."""
    return any(mark in WILDCARDS for mark in re.sub(r"\\.", "", pattern, flags=re.DOTALL))


def as_glob(pattern: str) -> str:
    """Convert a pattern to SQLite's GLOB syntax."""
    out = []
    at = 0
    while at < len(pattern):
        mark = pattern[at]
        if mark == "\\" and at + 1 < len(pattern):
            at += 1
            out.append(pattern[at].translate(_GLOB_MARKS))
        elif mark in WILDCARDS:
            if not (mark == "*" and out and out[-1] == "*"):
                out.append(mark)
        else:
            out.append(mark.translate(_GLOB_MARKS))
        at += 1
    return "".join(out)


def literal_prefix(pattern: str) -> str:
    """Return the literal prefix of a pattern, which precedes its first wildcard."""
    found = re.match(r"(?:[^*?\\]|\\.)*", pattern, flags=re.DOTALL)
    return unescape_pattern(found[0]) if found else ""


def prefix_end(start: str) -> str | None:
    """Return the smallest text greater than every text with this prefix, if one exists."""
    text = start.rstrip("\U0010ffff")
    if not text:
        return None
    code = ord(text[-1]) + 1
    return text[:-1] + chr(0xE000 if 0xD800 <= code < 0xE000 else code)  # avoid lone surrogates


def unescape_pattern(pattern: str) -> str:
    """Return the literal text of a pattern without wildcards."""
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)


_SETTLED: Final = frozenset(State) - ALIVE
# If a query has several terms of such a kind, a message has to match only one of them.
_ANY_OF: Final = ("urn", "trace", "meta", "verdict", "reason", "origin", "client", "id")
_COLUMNS: Final = (  # columns whose names differ between live and settled messages
    {
        **{"{state}": "state", "{why}": "source_reason", "{ended}": ":now_ms"},
        "{step}": "live_step",  # the name of a part
    },
    {
        **{"{state}": "outcome", "{why}": "reason", "{ended}": "m.settled_at"},
        "{step}": "settled_step",
    },
)
_OF_QUEUES: Final = frozenset(  # sources that use an index on queues
    {
        *("ready_queues", "held_queues", "ready_numbers", "held_numbers", "alive_moved"),
        *("settled_queues", "settled_numbers"),
    }
)
_INTEGER: Final = re.compile(r"-?[1-9][0-9]{18,}")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_WORDS: Final = ("true", "false", "null")


@dataclass(slots=True, frozen=True)
class SearchPlan:
    """A plan for executing a query.

    ``line`` is the order in which messages are read: ``seq``, ``position`` or ``offset``.  ``low``
    and ``high`` (exclusive) bound the search if the query names ids.  ``skip_statement`` finds the
    next message in the queues of the query; if it is empty, nothing is skipped.
    """

    line: str
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
        order = parts("search", self.engine)["newest" if is_newest_first else "oldest"]
        return "\nUNION ALL\n".join(self.sources) + f"\n{order}"


def make_plan(
    query: SearchQuery,
    queues: Sequence[int] | None,
    others: Sequence[int],
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
        queues: queue_ids to search; None means all except ``others``.
        others: queue_ids to exclude.
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
    builder = _ConditionBuilder(now_ms, parts("search", engine))
    known = builder.parameters
    known["queues"] = json.dumps(list(queues or ()))
    if queues is not None and len(queues) == 1:
        known["queue"] = queues[0]
    known["other_queues"] = json.dumps(list(others))
    known["outcomes"] = json.dumps(sorted(states - ALIVE))
    conditions, has_body = builder.conditions(query)
    if seqs is not None:
        conditions.insert(0, builder.part("in_seqs", json.dumps(list(seqs))))
    traces = _exact_traces(query) if seqs is None and has_traces else []
    has_ids = low >= 0 or high < 1 << 62 or bool(trace_ranges(query))
    alive, settled, line = _sources(
        states, queues is not None, has_ids=has_ids, has_traces=bool(traces),
        has_numbers=has_numbers and seqs is None,
    )  # fmt: skip
    named, texts = ", ".join(f":{builder.bind(trace)}" for trace in traces), []
    for source, columns in (*((name, _COLUMNS[0]) for name in alive),
                            *((name, _COLUMNS[1]) for name in settled)):  # fmt: skip
        if source in builder.parts:  # an engine that indexes rows at once has no tails to read
            wanted = states & (ALIVE if columns is _COLUMNS[0] else _SETTLED)
            own = _source_conditions(source, wanted, queues is not None, bool(others), builder)
            text = builder.source(source, [*own, *conditions], has_body=has_body)
            marks = {"{traces}": named, "{step}": builder.parts[columns["{step}"]]}
            texts.append(_fill(text, columns | marks))
    skip = "next_seq" if line == "seq" else "next_offset"
    if _OF_QUEUES.isdisjoint(settled):
        skip = ""
    return SearchPlan(
        line, tuple(texts), known, bool(alive), bool(settled), low, high, skip, engine
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
) -> tuple[list[str], list[str], str]:
    """Choose sources for live and settled messages, and the order in which they are read."""
    alive, settled = states & ALIVE, states & _SETTLED
    of_alive = ["alive_held" if alive == {State.DISPATCHED} else "alive"]
    of_settled = ["settled_seq"]
    if has_traces:
        of_alive = ["alive_traces", "alive_untraced"]
        of_settled = ["settled_traces", "settled_untraced"]
    elif not has_ids and not settled and has_queues and of_alive == ["alive"]:
        return ["ready_queues", "held_queues"], [], "position"
    elif not has_ids and not alive:
        if has_queues:
            return [], ["settled_queues", "settled_tail"], "offset"
        return [], ["settled" if State.ACKED in settled else "settled_unusual"], "offset"
    elif has_queues and has_numbers:
        if of_alive == ["alive"]:
            of_alive = ["ready_numbers", "held_numbers", "alive_moved"]
        of_settled = ["settled_numbers", "settled_unnumbered"]
    return of_alive if alive else [], of_settled if settled else [], "seq"


def _source_conditions(
    source: str,
    states: frozenset[State],
    has_queues: bool,
    has_others: bool,
    builder: "_ConditionBuilder",
) -> Iterator[str]:
    """Yield conditions on queues and states that the source does not already include."""
    if has_queues and source not in _OF_QUEUES:
        yield f"m.queue_id {_queue_condition(builder)}"
    if has_others:
        yield builder.parts["not_in_queues"]
    is_whole = states in (ALIVE, _SETTLED)
    if not is_whole and source == "settled_numbers":
        yield builder.parts["in_outcomes"]
    elif not is_whole and source not in ("alive_held", "settled_unusual", "settled_queues"):
        yield builder.part("in_states", json.dumps(sorted(states)))


def _queue_condition(builder: "_ConditionBuilder") -> str:
    """Return the condition on queues; for one queue, a comparison is three times faster."""
    return builder.parts["this_queue" if "queue" in builder.parameters else "these_queues"]


def _fill(text: str, columns: dict[str, str]) -> str:
    for mark, column in columns.items():
        text = text.replace(mark, column)
    return text


def _states(query: SearchQuery) -> frozenset[State]:
    terms = query.of("state")
    only = {State[term.value.upper()] for term in terms if not term.is_negated}
    never = {State[term.value.upper()] for term in terms if term.is_negated}
    return frozenset(only or set(State)) - never


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

    def __init__(self, now_ms: int, parts: dict[str, str]) -> None:
        self.parts = parts
        self.parameters: dict[str, Any] = {"now_ms": now_ms}

    def bind(self, value: Any) -> str:
        name = f"v{len(self.parameters)}"
        self.parameters[name] = value
        return name

    def part(self, name: str, value: Any) -> str:
        """Return a condition on a value, which becomes its parameter."""
        return self.parts[name].replace("{v}", self.bind(value))

    def source(self, name: str, conditions: list[str], *, has_body: bool) -> str:
        """Return the SELECT of a source, with the conditions."""
        text = " AND ".join([self.parts[name], *conditions])
        text = text.replace("{join}", self.parts["body"] if has_body else "")
        return text.replace("{these}", _queue_condition(self))

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
        plain = unescape_pattern(term.value)
        if term.sign:
            then = self.part("member_compared", term.number).replace("{sign}", term.sign)
        elif plain in _WORDS:
            then = self.part("member_word", plain)
        else:
            then = self.part("member", as_glob(term.value))
            if _INTEGER.fullmatch(plain):
                then = f"({then}) OR ({self.part('member_large', plain)})"
        either = [then.replace("{p}", self.bind(path)) for path in json_paths(term.path)]
        then = " OR ".join(f"({one})" for one in either)
        text = self.parts["is_json"].replace("{then}", then)
        if not term.sign and not is_pattern(term.value) and _WORD.fullmatch(plain):
            # Searching the bytes first is three times faster than only parsing JSON.
            seen = " OR ".join(self.part("text", part) for part in (plain.encode(), b"\\u"))
            text = f"({seen}) AND {text}"
        return text


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
    whole = "$" + "".join(steps)
    return [whole, "$" + "".join(steps[1:])] if path.startswith("data.") else [whole]
