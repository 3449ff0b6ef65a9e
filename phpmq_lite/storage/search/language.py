"""The search language: terms, patterns, and parsing; see ``docs/guides/admin.md``.  Pure."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, NamedTuple, NoReturn

from phpmq_lite.durations import SHORT_UNITS_S, UNITS_MS
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.errors import SearchError
from phpmq_lite.model import ALIVE, OUTCOMES, STATE_NAMES, State
from phpmq_lite.storage.read.dead_letter_groups import DeadLetterGroup

QUERY_CHARACTERS: Final = 2_000
TERMS: Final = 20
WILDCARDS: Final = 8  # maximum number of wildcards in one pattern
PATH_STEPS: Final = 10

LIVE_STATES: Final = tuple(STATE_NAMES[state] for state in sorted(ALIVE))
STATES: Final = (*LIVE_STATES, *OUTCOMES)
# of messages that no consumer holds
WAITING_STATES: Final = tuple(STATE_NAMES[state] for state in sorted(ALIVE - {State.DISPATCHED}))
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
_WILDCARD_MARKS: Final = "*?"
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
        return SearchQuery(tuple(other for other in self.terms if other != term))

    def of(self, kind: str) -> list[SearchTerm]:
        return [term for term in self.terms if term.kind == kind]


def escape_pattern(text: str) -> str:
    """Escape a text so that the resulting pattern matches exactly this text."""
    return re.sub(r"([*?\\])", r"\\\1", text)


def is_pattern(pattern: str) -> bool:
    """Return whether a pattern contains an unescaped ``*`` or ``?``."""
    return any(mark in _WILDCARD_MARKS for mark in re.sub(r"\\.", "", pattern, flags=re.DOTALL))


def as_glob(pattern: str) -> str:
    glob: list[str] = []
    at = 0
    while at < len(pattern):
        mark = pattern[at]
        if mark == "\\" and at + 1 < len(pattern):
            at += 1
            glob.append(pattern[at].translate(_GLOB_MARKS))
        elif mark in _WILDCARD_MARKS:
            if not (mark == "*" and glob and glob[-1] == "*"):
                glob.append(mark)
        else:
            glob.append(mark.translate(_GLOB_MARKS))
        at += 1
    return "".join(glob)


def literal_prefix(pattern: str) -> str:
    """Return the literal prefix of a pattern, which precedes its first wildcard."""
    prefix = re.match(r"(?:[^*?\\]|\\.)*", pattern, flags=re.DOTALL)
    return unescape_pattern(prefix[0]) if prefix else ""


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


class Qualifier(NamedTuple):
    """A search qualifier, listed in the help and in the error about an unknown qualifier."""

    name: str
    example: str
    meaning: str


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
    """Parse a search; raise a SearchError that says what is invalid and what is allowed."""
    if len(text) > QUERY_CHARACTERS:
        _refuse(f"The search is too long: {len(text)} characters.", f"at most {QUERY_CHARACTERS}")
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


def _refuse(detail: str, bound: str) -> NoReturn:
    raise SearchError(detail, bound)


def _term(text: str, start: int) -> tuple[SearchTerm, int]:
    is_negated = text[start] == "-" and bool(text[start + 1 : start + 2].strip())
    name_start = start + is_negated
    qualifier = _NAME.match(text, name_start)
    name = qualifier[1] if qualifier else ""
    value, end, is_quoted = _value(text, qualifier.end() if qualifier else name_start)
    term_text = text[start:end]
    if not name:
        if not value:
            _refuse(f"{term_text!r} has no text.", "at least one character")
        return SearchTerm("text", value, is_negated), end
    if not value and not is_quoted:
        _refuse(f"{term_text!r} requires a value.", f'{name}:value, or "{term_text}" as text')
    root, _, path = name.partition(".")
    if path and root in _ROOTS:
        return _member(name, value, is_negated), end
    parse_value = _PARSERS.get(name)
    if parse_value is None:
        _refuse(
            f'There is no qualifier {name!r}. To search for this text, write "{term_text}".',
            " ".join(f"{q.name}:" for q in QUALIFIERS).replace("data.:", "data.path:"),
        )
    return parse_value(name, value, is_negated), end


def _value(text: str, start: int) -> tuple[str, int, bool]:
    """Parse a value, perhaps with escapes in quotes; return it, its end, and if it was quoted."""
    end = start
    if text[start : start + 1] != '"':
        while end < len(text) and not text[end].isspace():
            end += 1
        return text[start:end], end, False
    value = ""
    end += 1
    while end < len(text) and text[end] != '"':
        if text[end] == "\\" and text[end + 1 : end + 2] in ('"', "\\"):
            end += 1
        value += text[end]
        end += 1
    if end >= len(text):
        _refuse(f"{text[start:]!r} has no closing quote.", 'a closing "')
    end += 1
    if end < len(text) and not text[end].isspace():
        _refuse(f"A space is missing after {text[start:end]!r}.", 'a space after a closing "')
    return value, end, True


def _check_wildcards(name: str, pattern: str) -> None:
    unescaped = re.sub(r"\\.", "", pattern, flags=re.DOTALL)
    if unescaped.count("*") + unescaped.count("?") > WILDCARDS:
        _refuse(f"{name}: too many wildcards.", f"at most {WILDCARDS} of * and ?")


def _pattern(name: str, value: str, is_negated: bool) -> SearchTerm:
    if _HIDDEN.search(value):
        _refuse(f"{name}: the value has a control character.", "no controls except line feeds")
    if not value:
        _refuse(f"{name}: a value is required.", "at least one character")
    _check_wildcards(name, value)
    return SearchTerm(name, value, is_negated)


def _state(name: str, value: str, is_negated: bool) -> SearchTerm:
    if value.lower() not in STATES:
        _refuse(f"There is no state {value!r}.", ", ".join(STATES))
    return SearchTerm(name, value.lower(), is_negated)


def _id(name: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse a message id, the beginning of an id, or ``#`` followed by a message number."""
    digits = value.lower().removesuffix("*")
    if re.fullmatch(r"#[0-9]{1,18}", value):
        return SearchTerm(name, f"{int(value[1:]):016x}*", is_negated)
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        _refuse(f"{value!r} is not a valid message id.", "1 to 32 hex digits, or #number")
    return SearchTerm(name, digits if len(digits) == 32 else f"{digits}*", is_negated)


def _verdict(name: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse a verdict's reason, or a pattern that matches at least one reason."""
    term = _pattern(name, value.lower(), is_negated)
    if not any(fnmatchcase(reason, as_glob(term.value)) for reason in REASONS):
        _refuse(f"There is no verdict {value!r}.", ", ".join(REASONS))
    return term


def _attempts(name: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse an integer, which may be negative because an envelope may contain any integer."""
    comparison = re.fullmatch(r"(<=|>=|<|>|=)?(-?[0-9]{1,18})", value)
    if comparison is None:
        _refuse(f"{name}: {value!r} is not valid.", "a number: 3, >3, <=3")
    return SearchTerm(name, value, is_negated, sign=comparison[1] or "=", number=int(comparison[2]))


def _time(name: str, value: str, is_negated: bool) -> SearchTerm:
    if name == "ttl" and value.lower() == "never":
        return SearchTerm(name, "never", is_negated)
    return _compared(name, value, is_negated, _TIMES_MS, "a time: <60s, >5m, >1h, <2d")


def _compared(
    name: str, value: str, is_negated: bool, units: dict[str, int], allowed: str
) -> SearchTerm:
    comparison = _COMPARISON.fullmatch(value)
    if comparison is None:
        _refuse(f"{name}: {value!r} is not valid.", allowed)
    sign, digits, unit = comparison[1] or "=", comparison[2], comparison[3].lower()
    if units is _SIZES and len(unit) > 1:
        unit = unit.removesuffix("ib").removesuffix("b")
    if unit not in units:
        _refuse(f"{name}: {comparison[3]!r} is not a unit.", allowed)
    integer, _, fraction = digits.partition(".")
    number = (int(integer) * 1_000 + int(fraction.ljust(3, "0"))) * units[unit] // 1_000
    return SearchTerm(name, value, is_negated, sign=sign, number=min(number, _LARGEST))


def _member(path: str, value: str, is_negated: bool) -> SearchTerm:
    """Parse a term such as ``data.order_id:1042``, which matches a member of a JSON body."""
    steps = path.split(".")
    if len(steps) > PATH_STEPS or not all(map(_PATH_STEP.fullmatch, steps[1:])):
        _refuse(f"{path!r} is not a valid path.", f"data.a.b, at most {PATH_STEPS} steps")
    if "\0" in value:
        _refuse(f"{path}: the value contains a NUL character.", "no NUL")
    _check_wildcards(path, value)
    comparison = re.fullmatch(r"(<=|>=|<|>)(-?[0-9]{1,18})", value)
    if comparison:
        return SearchTerm("data", value, is_negated, path, comparison[1], int(comparison[2]))
    return SearchTerm("data", value, is_negated, path)


_PARSERS: Final[dict[str, Callable[[str, str, bool], SearchTerm]]] = {
    **dict.fromkeys(("queue", "urn", "trace", "meta", "reason", "origin", "client"), _pattern),
    **dict.fromkeys(("ttl", "age"), _time),
    "verdict": _verdict,
    "attempts": _attempts,
    "state": _state,
    "id": _id,
    "deliveries": partial(_compared, units={"": 1}, allowed="a number: 3, >3, <=3"),
    "size": partial(_compared, units=_SIZES, allowed="bytes: >100k, <1m"),
}


def queue_search(name: str, states: Sequence[str] = ()) -> SearchQuery:
    """Return a search for a queue's messages, with the queue name in quotes if necessary."""
    queue = SearchTerm("queue", escape_pattern(name))
    return SearchQuery((queue, *(SearchTerm("state", state) for state in states)))


def ids_search(ids: Iterable[str]) -> SearchQuery:
    return SearchQuery(tuple(SearchTerm("id", message_id) for message_id in ids))


def states_search(states: Iterable[str]) -> SearchQuery:
    return SearchQuery(tuple(SearchTerm("state", state) for state in states))


def traces_search(*trace_ids: str) -> SearchQuery:
    return SearchQuery(tuple(SearchTerm("trace", escape_pattern(id_)) for id_ in trace_ids))


def meta_search(meta_id: str) -> SearchQuery:
    """Return a search for a meta.id, which a message and its retries have in common."""
    return SearchQuery((SearchTerm("meta", escape_pattern(meta_id)),))


def verdict_search(queue: str, reason: str = "*") -> SearchQuery:
    return SearchQuery((*queue_search(queue, ("dead",)).terms, SearchTerm("verdict", reason)))


def group_search(group: DeadLetterGroup) -> SearchQuery:
    """Return a search for a group's dead-letter records; ``*`` in the cause is a wildcard."""
    terms = list(queue_search(group.queue, WAITING_STATES).terms)
    origin, reason = (None, None) if group.stated else (group.origin, group.reason)
    for kind, value in (("origin", origin), ("urn", group.urn), ("reason", reason)):
        if value is None:
            terms.append(SearchTerm(kind, "*", is_negated=True))
        elif not _HIDDEN.search(value):
            terms.append(SearchTerm(kind, escape_pattern(value)))
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
