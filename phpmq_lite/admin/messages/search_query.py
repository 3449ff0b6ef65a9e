"""Pure functions that parse and build searches; see ``docs/guides/admin.md`` for the syntax."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, NoReturn

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.durations import SHORT_UNITS_S, UNITS_MS
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.model import State
from phpmq_lite.storage.read.dead_letter_groups import DeadLetterGroup
from phpmq_lite.storage.read.search_plan import (
    SearchQuery,
    SearchTerm,
    as_glob,
    escape_pattern,
    is_pattern,
)

QUERY_CHARACTERS: Final = 2_000
TERMS: Final = 20
WILDCARDS: Final = 8  # maximum number of wildcards in one pattern
PATH_STEPS: Final = 10

STATES: Final = tuple(state.name.lower() for state in State)
_ROOTS: Final = ("data", "meta", "dead_letter", "$")
_NAME: Final = re.compile(r"([A-Za-z$_][\w.$-]*):")
_COMPARISON: Final = re.compile(r"(<=|>=|<|>|=)?([0-9]{1,18}(?:\.[0-9]{1,3})?)([a-zA-Z]*)")
_PATH_STEP: Final = re.compile(r'[^."\\\[\]]+')
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES_MS: Final = {
    **UNITS_MS,
    **{unit: seconds * 1_000 for unit, seconds in SHORT_UNITS_S.items()},
    "": 1_000,
}
_LARGEST: Final = 1 << 62
_HIDDEN: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # queue names may contain line feeds


@dataclass(slots=True, frozen=True)
class Qualifier:
    """A search qualifier, listed in the help and in the error about an unknown qualifier."""

    name: str
    example: str
    says: str


QUALIFIERS: Final = (
    Qualifier("queue", "queue:mail*", "queue name; * and ? are wildcards"),
    Qualifier("state", "state:dead", ", ".join(STATES)),
    Qualifier("urn", "urn:orders:*", "URN; urn: and urn:babel: may be omitted"),
    Qualifier("trace", "trace:7b3f*", "trace id of an envelope"),
    Qualifier("meta", "meta:c0ffee*", "meta.id of an envelope, shared by its retries"),
    Qualifier("attempts", "attempts:>1", "attempts in the envelope, not the broker's deliveries"),
    Qualifier("verdict", "verdict:poison", "reason why the envelope was rejected; * for any"),
    Qualifier("id", "id:d7e7*", "message id, the beginning of one, or #number"),
    Qualifier(
        "data.",
        "data.order_id:1042",
        "a member of an envelope's data, or of the body; also meta. and $.",
    ),
    Qualifier("deliveries", "deliveries:>3", "number of deliveries"),
    Qualifier("size", "size:>100k", "body size in bytes"),
    Qualifier("ttl", "ttl:<60s", "time left until expiry, or never"),
    Qualifier("age", "age:>1h", "time since publishing"),
    Qualifier("reason", "reason:crc", "reason for settling or dead-lettering, or verdict detail"),
    Qualifier("origin", "origin:orders", "original queue of a dead-letter record"),
    Qualifier("client", "client:10.0.0.7", "address or number of the publisher or consumer"),
)


def parse_search(text: str) -> SearchQuery:
    """Parse a search; raise a 422 ``Problem`` that says what is invalid and what is allowed."""
    if len(text) > QUERY_CHARACTERS:
        raise Problem(
            422, "bad_query", f"The search is too long: {len(text)} characters.", field="q",
            bound=f"at most {QUERY_CHARACTERS}",
        )  # fmt: skip
    if any("\ud800" <= mark <= "\udfff" for mark in text):
        _refuse("The search contains an unpaired surrogate.", "UTF-8")
    terms: dict[SearchTerm, None] = {}
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        term, at = _term(text, at)
        terms[term] = None
    if len(terms) > TERMS:
        _refuse(f"The search has too many terms: {len(terms)}.", f"at most {TERMS}")
    return SearchQuery(tuple(terms))


def queue_search(name: str, states: Sequence[str] = ()) -> SearchQuery:
    """Return a search for a queue's messages, with the queue name in quotes if necessary."""
    queue = SearchTerm("queue", escape_pattern(name))
    return SearchQuery((queue, *(SearchTerm("state", state) for state in states)))


def ids_search(ids: Iterable[str]) -> SearchQuery:
    """Return a search for messages with any of the given ids."""
    return SearchQuery(tuple(SearchTerm("id", message_id) for message_id in ids))


def _refuse(detail: str, bound: str) -> NoReturn:
    raise Problem(422, "bad_query", detail, field="q", bound=bound)


def _term(text: str, at: int) -> tuple[SearchTerm, int]:
    """Parse the term that starts at index ``at``; return the term and the index of its end."""
    start = at
    is_negated = text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace()
    at += is_negated
    named = _NAME.match(text, at)
    name = named[1] if named else ""
    value, end, is_quoted = _value(text, named.end() if named else at)
    piece = text[start:end]
    if not name:
        if not value:
            _refuse(f"{piece!r} has no text.", "at least one character")
        return SearchTerm("text", value, is_negated), end
    if not value and not is_quoted:
        _refuse(f"{piece!r} requires a value.", f'{name}:value, or "{piece}" as text')
    root, _, path = name.partition(".")
    if path and root in _ROOTS:
        return _member(name, value, is_negated), end
    reader = _READERS.get(name)
    if reader is None:
        _refuse(
            f'There is no qualifier {name!r}. To search for this text, write "{piece}".',
            " ".join(f"{known.name}:" for known in QUALIFIERS).replace("data.:", "data.path:"),
        )
    return reader(name, value, is_negated), end


def _value(text: str, at: int) -> tuple[str, int, bool]:
    """Parse a value; return the value, the index of its end, and whether it was quoted.

    In quotes, a backslash escapes a quote or a backslash.
    """
    if at >= len(text) or text[at] != '"':
        end = at
        while end < len(text) and not text[end].isspace():
            end += 1
        return text[at:end], end, False
    out = []
    end = at + 1
    while end < len(text) and text[end] != '"':
        if text[end] == "\\" and text[end + 1 : end + 2] in ('"', "\\"):
            end += 1
        out.append(text[end])
        end += 1
    if end >= len(text):
        _refuse(f"{text[at:]!r} has no closing quote.", 'a closing "')
    end += 1
    if end < len(text) and not text[end].isspace():
        _refuse(f"A space is missing after {text[at:end]!r}.", 'a space after a closing "')
    return "".join(out), end, True


# -- one parser for each kind of qualifier


def _wildcards(pattern: str) -> int:
    bare = re.sub(r"\\.", "", pattern, flags=re.DOTALL)
    return bare.count("*") + bare.count("?")


def _pattern(name: str, value: str, is_negated: bool) -> SearchTerm:
    if _HIDDEN.search(value):
        _refuse(f"{name}: the value has a control character.", "no controls except line feeds")
    if not value:
        _refuse(f"{name}: a value is required.", "at least one character")
    if _wildcards(value) > WILDCARDS:
        _refuse(f"{name}: too many wildcards.", f"at most {WILDCARDS} of * and ?")
    return SearchTerm(name, value, is_negated)


def _state(name: str, value: str, is_negated: bool) -> SearchTerm:
    if value.lower() not in STATES:
        _refuse(f"There is no state {value!r}.", ", ".join(STATES))
    return SearchTerm(name, value.lower(), is_negated)


def _id(name: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse a message id, the beginning of an id, or ``#`` followed by a message number."""
    plain = value.lower().removesuffix("*")
    if re.fullmatch(r"#[0-9]{1,18}", plain) and value == plain:
        return SearchTerm(name, f"{int(plain[1:]):016x}*", is_negated)
    if not re.fullmatch(r"[0-9a-f]{1,32}", plain):
        _refuse(f"{value!r} is not a valid message id.", "1 to 32 hex digits, or #number")
    return SearchTerm(name, plain if len(plain) == 32 else f"{plain}*", is_negated)


def _verdict(name: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse a verdict's reason, or a pattern that matches at least one reason."""
    term = _pattern(name, value.lower(), is_negated)
    if not any(fnmatchcase(reason, as_glob(term.value)) for reason in REASONS):
        _refuse(f"There is no verdict {value!r}.", ", ".join(REASONS))
    return term


def _attempts(name: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse an integer, which may be negative because an envelope may contain any integer."""
    found = re.fullmatch(r"(<=|>=|<|>|=)?(-?[0-9]{1,18})", value)
    if found is None:
        _refuse(f"{name}: {value!r} is not valid.", "a number: 3, >3, <=3")
    return SearchTerm(name, value, is_negated, sign=found[1] or "=", number=int(found[2]))


def _time(name: str, value: str, is_negated: bool) -> SearchTerm:
    if name == "ttl" and value.lower() == "never":
        return SearchTerm(name, "never", is_negated)
    return _compared(name, value, is_negated, _TIMES_MS, "a time: <60s, >5m, >1h, <2d")


def _compared(
    name: str, value: str, is_negated: bool, units: dict[str, int], possible: str
) -> SearchTerm:
    found = _COMPARISON.fullmatch(value)
    if found is None:
        _refuse(f"{name}: {value!r} is not valid.", possible)
    sign, digits, unit = found[1] or "=", found[2], found[3].lower()
    if units is _SIZES and len(unit) > 1:
        unit = unit.removesuffix("ib").removesuffix("b")
    if unit not in units:
        _refuse(f"{name}: {found[3]!r} is not a unit.", possible)
    whole, _, part = digits.partition(".")
    number = int(whole) * units[unit] + int(part.ljust(3, "0") or 0) * units[unit] // 1_000
    return SearchTerm(name, value, is_negated, sign=sign, number=min(number, _LARGEST))


def _member(path: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse a term such as ``data.order_id:1042``, which matches a member of a JSON body."""
    steps = path.split(".")
    if len(steps) > PATH_STEPS or not all(map(_PATH_STEP.fullmatch, steps[1:])):
        _refuse(f"{path!r} is not a valid path.", f"data.a.b, at most {PATH_STEPS} steps")
    if "\0" in value:
        _refuse(f"{path}: the value contains a NUL character.", "no NUL")
    if _wildcards(value) > WILDCARDS:
        _refuse(f"{path}: too many wildcards.", f"at most {WILDCARDS} of * and ?")
    compared = re.fullmatch(r"(<=|>=|<|>)(-?[0-9]{1,18})", value)
    if compared and not is_pattern(value):
        return SearchTerm("data", value, is_negated, path, compared[1], int(compared[2]))
    return SearchTerm("data", value, is_negated, path)


_READERS: Final[dict[str, Callable[[str, str, bool], SearchTerm]]] = {
    "queue": _pattern,
    "urn": _pattern,
    "trace": _pattern,
    "meta": _pattern,
    "verdict": _verdict,
    "attempts": _attempts,
    "reason": _pattern,
    "origin": _pattern,
    "client": _pattern,
    "state": _state,
    "id": _id,
    "deliveries": partial(_compared, units={"": 1}, possible="a number: 3, >3, <=3"),
    "size": partial(_compared, units=_SIZES, possible="bytes: >100k, <1m"),
    "ttl": _time,
    "age": _time,
}


def states_search(states: Iterable[str]) -> SearchQuery:
    """Return a search for messages in any of the given states."""
    return SearchQuery(tuple(SearchTerm("state", state) for state in states))


def traces_search(*trace_ids: str) -> SearchQuery:
    """Return a search for messages that belong to any of the given traces."""
    return SearchQuery(
        tuple(SearchTerm("trace", escape_pattern(trace_id)) for trace_id in trace_ids)
    )


def meta_search(meta_id: str) -> SearchQuery:
    """Return a search for a meta.id, which a message and its retries have in common."""
    return SearchQuery((SearchTerm("meta", escape_pattern(meta_id)),))


def verdict_search(queue: str, reason: str = "*") -> SearchQuery:
    """Return a search for a queue's messages that validation rejected."""
    terms = (
        SearchTerm("queue", escape_pattern(queue)),
        SearchTerm("state", "dead"),
        SearchTerm("verdict", reason),
    )
    return SearchQuery(terms)


def group_search(group: DeadLetterGroup) -> SearchQuery:
    """Return a search for a group's dead-letter records; ``*`` in the cause is a wildcard."""
    terms = [SearchTerm("queue", escape_pattern(group.queue)), SearchTerm("state", "ready")]
    tied = (None, None) if group.stated else (group.origin, group.reason)
    pairs = (("origin", tied[0]), ("urn", group.urn), ("reason", tied[1]))
    for kind, value in pairs:
        if value is not None and not _HIDDEN.search(value):
            terms.append(SearchTerm(kind, escape_pattern(value)))
        elif value is None:
            terms.append(SearchTerm(kind, "*", is_negated=True))
    for name, value in group.stated:
        terms.append(SearchTerm("data", escape_pattern(value), path=f"dead_letter.{name}"))
    path = "dead_letter.error"
    if group.cause is None:
        terms.append(SearchTerm("data", "*", is_negated=True, path=path))
    else:
        pattern = "*".join(map(escape_pattern, group.cause.split("*")))
        if pattern.startswith(("<", ">")):
            pattern = "\\" + pattern  # escaped, so that it is not interpreted as a comparison
        if not group.is_whole:  # the cause is truncated
            pattern = pattern.rstrip("*") + "*"
        terms.append(SearchTerm("data", pattern, path=path))
    return SearchQuery(tuple(terms))
