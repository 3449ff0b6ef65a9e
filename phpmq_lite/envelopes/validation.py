"""Envelope validation: returns a verdict on a body, with the reason if it is invalid. Pure."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeGuard
from uuid import UUID

import msgspec

from phpmq_lite.envelopes import strict_json
from phpmq_lite.envelopes.indexed_fields import (
    AFTER_BLANKS,
    BLANK,
    INT64_MAX,
    INT64_MIN,
    IndexedFields,
    Text,
    clamp_int64,
    indexed_text,
    is_blank,
    read_indexed_fields,
)
from phpmq_lite.model import Indexed

EmptyListData = Literal["php", "never", "always"]  # when to read ``data: []`` as ``{}``
UNSUPPORTED: Final = "unsupported_schema_version"
REASONS: Final = (  # kinds of problems in layers A and B; only the first problem is reported
    "poison",
    "too_deep",
    "missing_meta",
    UNSUPPORTED,
    "invalid_data",
    "missing_trace_id",
    "invalid_attempts",
    "schema_mismatch",
)
CONVENTION: Final = "convention"  # a hint about the form of a URN, reported only by lint
DEPTH_LIMIT: Final = strict_json.DEPTH_LIMIT  # maximum number of nesting levels
LANGUAGES: Final = ("php", "go", "python", "java", "dotnet", "node")  # known values of meta.lang
OUTDATED: Final = (  # (container, name) of members that consumers drop and producers must not write
    ("", "timestamp"),
    ("meta", "max_retries"),
    ("meta", "attempts"),
    ("meta", "source"),
    ("meta", "ts"),
)

_TOP: Final = {
    "trace_id": "text",
    "attempts": "integer",
    "data": "object",
    "meta": "object",
    "dead_letter": "object",
}
_NESTED: Final = {
    "meta": {
        "id": "text",
        "queue": "text",
        "lang": "text",
        "schema_version": "integer",
        "created_at": "integer",
    },
    "dead_letter": {
        "reason": "text",
        "error": "text",
        "exception": "text",
        "original_queue": "text",
        "lang": "text",
        "failed_at": "integer",
        "attempts": "integer",
    },
}
_EXPECTED: Final = {"text": "a string", "integer": "an integer", "object": "an object"}
_URN: Final = re.compile(r"urn:babel:[a-z0-9]+(?:[._-][a-z0-9]+)*:[a-z0-9]+(?:[._-][a-z0-9]+)*")
_CLASS: Final = re.compile(r"\\|^[A-Z]\w*(?:::\w+)*$")
_HINT_CHARACTERS: Final = 80  # longer URNs are truncated in hints
_Pairs = tuple[tuple[str, Any], ...]  # the members of a JSON object, including repeated ones


@dataclass(slots=True, frozen=True)
class EnvelopeProblem:
    """A rule that an envelope violates."""

    reason: str  # an item of REASONS, or a reason from layer C
    detail: str  # in words, such as "attempts is true, not an integer"
    pointer: str = ""  # JSON pointer (RFC 6901); empty for the document itself


@dataclass(slots=True, frozen=True)
class Verdict:
    """The result of checking layers A and B."""

    problem: EnvelopeProblem | None  # None if a consumer can handle the envelope
    index: IndexedFields | None  # None if the body is not a JSON object
    is_tolerated: bool = False  # whether ``data: []`` was read as ``{}``
    warnings: tuple[str, ...] = ()  # one warning for each ignored member


class _Body:
    """A body that is one strict JSON object; for a repeated member, the last value counts."""

    __slots__ = ("has_long_numbers", "members", "meta", "pairs", "tolerates_empty_list")

    def __init__(self, pairs: _Pairs, has_long_numbers: bool, mode: EmptyListData) -> None:
        self.pairs = pairs
        self.has_long_numbers = has_long_numbers
        self.members: dict[str, Any] = dict(pairs)
        meta = self.members.get("meta")
        self.meta: dict[str, Any] = dict(meta) if type(meta) is tuple else {}
        self.tolerates_empty_list = mode == "always" or (
            mode == "php" and self.meta.get("lang") == "php"
        )

    @property
    def is_tolerated(self) -> bool:
        return self.tolerates_empty_list and self.members.get("data") == []

    def index(self) -> IndexedFields:
        meta_id = self.meta.get("id")
        attempts = self.members.get("attempts")
        return IndexedFields(
            self._text("job") or self._text("urn"),
            self._text("trace_id"),
            indexed_text(meta_id) if type(meta_id) is str else None,
            clamp_int64(attempts) if type(attempts) is int else None,
        )

    def _text(self, name: str) -> str | None:
        value = self.members.get(name)
        return indexed_text(value) if type(value) is str else None


def _read(content: bytes, mode: EmptyListData) -> _Body | EnvelopeProblem:
    """Parse a body without checking member types; return a problem if it cannot be parsed."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return EnvelopeProblem("poison", f"byte {error.start} is not valid UTF-8")
    if strict_json.is_too_deep(content):
        return EnvelopeProblem("too_deep", f"nested more than {DEPTH_LIMIT} levels deep")
    may_overflow = strict_json.has_long_numbers(content)
    try:
        root = strict_json.parse_json(text, may_overflow=may_overflow)
    except ValueError as error:
        return EnvelopeProblem("poison", f"not a single JSON value: {error}")
    if type(root) is not tuple:
        return EnvelopeProblem("poison", f"the root is {_describe(root)}, not an object")
    if strict_json.has_lone_surrogate(content):
        return EnvelopeProblem("poison", "an escape sequence is a lone surrogate")
    return _Body(root, may_overflow, mode)


def _describe(value: Any) -> str:
    """Return a readable description of a value, or of its type if the value may be long."""
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return "an integer beyond 64 bits" if clamp_int64(value) != value else str(value)
    if type(value) is float:
        return "a number with a fraction or an exponent"
    return "a string" if type(value) is str else "a list" if type(value) is list else "an object"


def _type_problem(kind: str, value: Any, pointer: str) -> EnvelopeProblem | None:
    if value is None:
        return None
    if kind == "integer":
        is_valid = type(value) is int and INT64_MIN <= value <= INT64_MAX
    else:
        is_valid = type(value) is (str if kind == "text" else tuple)
    if is_valid:
        return None
    name = pointer[1:].replace("/", ".")
    detail = f"{name} is {_describe(value)}, not {_EXPECTED[kind]}"
    return EnvelopeProblem("poison", detail, pointer)


def _type_problems(body: _Body) -> Iterator[EnvelopeProblem]:
    """Yield a problem for each member of the wrong type, including repeated members."""
    for name, value in body.pairs:
        kind = _TOP.get(name)
        if kind is None or (name == "data" and value == [] and body.tolerates_empty_list):
            continue
        problem = _type_problem(kind, value, f"/{name}")
        if problem is not None:
            yield problem
        elif name == "data" and body.has_long_numbers and not strict_json.is_finite(value):
            yield EnvelopeProblem(
                "poison", "data contains a number that is not a finite double", "/data"
            )
        elif name in _NESTED and value is not None:
            nested = _NESTED[name]
            for inner, item in value:
                if inner in nested:
                    problem = _type_problem(nested[inner], item, f"/{name}/{inner}")
                    if problem is not None:
                        yield problem


def _has_text(value: Any) -> TypeGuard[str]:
    return type(value) is str and not is_blank(value)


def _is_text_missing(value: Any) -> bool:
    """Return whether a value is null, missing or blank; layer A rejects other types."""
    return value is None or (type(value) is str and is_blank(value))


def _layer_a(body: _Body) -> Iterator[EnvelopeProblem]:
    yield from _type_problems(body)
    if not (_has_text(body.members.get("job")) or _has_text(body.members.get("urn"))):
        yield EnvelopeProblem("poison", "missing_urn")


def _layer_b(body: _Body) -> Iterator[EnvelopeProblem]:
    """Yield problems that keep consumers from handling the envelope, other than wrong types."""
    members = body.members
    version = body.meta.get("schema_version")
    if members.get("meta") is None:
        yield EnvelopeProblem("missing_meta", _absence(members, "meta"), "/meta")
    elif version is None or (type(version) is int and version != 1):
        detail = _absence(body.meta, "schema_version")
        if version is not None:
            detail = f"schema_version is {_describe(version)}"
        pointer = "/meta/schema_version"
        yield EnvelopeProblem(UNSUPPORTED, f"meta.{detail}; only 1 is supported", pointer)
    if members.get("data") is None:
        yield EnvelopeProblem("invalid_data", _absence(members, "data"), "/data")
    if _is_text_missing(members.get("trace_id")):
        yield EnvelopeProblem("missing_trace_id", _absence(members, "trace_id"), "/trace_id")
    if members.get("attempts") is None:
        yield EnvelopeProblem("invalid_attempts", _absence(members, "attempts"), "/attempts")


def _absence(members: dict[str, Any], name: str) -> str:
    if name not in members:
        return f"{name} is missing"
    return f"{name} is null" if members[name] is None else f"{name} is blank"


def _warnings(body: _Body) -> tuple[str, ...]:
    members = body.members
    warnings = []
    job = members.get("job")
    if "job" in members and type(job) is not str:
        warnings.append(f"/job is {_describe(job)}, not a string, and is ignored")
    if "urn" in members and _has_text(job):
        warnings.append("/urn is ignored in favor of /job")
    warnings.extend(f"{pointer} is outdated and ignored" for pointer in _outdated(body))
    return tuple(warnings)


def _outdated(body: _Body) -> Iterator[str]:
    for container, name in OUTDATED:
        if name in (body.meta if container else body.members):
            yield f"/{container}/{name}" if container else f"/{name}"


def validate(content: bytes | str, empty_list_data: EmptyListData = "php") -> Verdict:
    """Check layers A and B of an envelope and return the verdict.

    Raises:
        EnvelopeError: the body is neither bytes nor a string.
    """
    content = strict_json.to_bytes(content)
    body = _read(content, empty_list_data)
    if isinstance(body, EnvelopeProblem):
        return Verdict(body, read_indexed_fields(content))
    problem = next(chain(_layer_a(body), _layer_b(body)), None)
    return Verdict(problem, body.index(), body.is_tolerated, _warnings(body))


def lint(
    content: bytes | str, empty_list_data: EmptyListData = "php"
) -> tuple[EnvelopeProblem, ...]:
    """Return all problems of an envelope, including violations of producer rules (layer C).

    The last problem may be ``CONVENTION``, which is only a hint.

    Raises:
        EnvelopeError: the body is neither bytes nor a string.
    """
    body = _read(strict_json.to_bytes(content), empty_list_data)
    if isinstance(body, EnvelopeProblem):
        return (body,)
    return tuple(chain(_layer_a(body), _layer_b(body), _layer_c(body)))


def _layer_c(body: _Body) -> Iterator[EnvelopeProblem]:
    """Yield violations of the rules that only producers must follow."""
    members, meta = body.members, body.meta
    job = members.get("job")
    if not _has_text(job):
        yield EnvelopeProblem("missing_job", "producers must write a non-blank job", "/job")
    elif job != job.strip(BLANK):
        yield EnvelopeProblem("untrimmed", "job begins or ends with whitespace", "/job")
    if "urn" in members:
        yield EnvelopeProblem("alias", "producers must write job instead of urn", "/urn")
    trace_id = members.get("trace_id")
    if _has_text(trace_id) and not _is_uuid(trace_id):
        yield EnvelopeProblem("not_uuid", "trace_id is not a UUID", "/trace_id")
    if body.is_tolerated:
        yield EnvelopeProblem(
            "empty_list_data", "data is [], which other languages reject", "/data"
        )
    if members.get("meta") is not None:
        yield from _layer_c_of_meta(meta)
    attempts = members.get("attempts")
    if type(attempts) is int and attempts < 0:
        yield EnvelopeProblem("negative", "attempts is negative", "/attempts")
    if "dead_letter" in members:
        yield EnvelopeProblem("dead_letter", "producers must not write dead_letter", "/dead_letter")
    for pointer in _outdated(body):
        yield EnvelopeProblem("outdated", f"{pointer[1:].replace('/', '.')} is outdated", pointer)
    yield from _repeated(body)
    yield from _convention(body)


def _layer_c_of_meta(meta: dict[str, Any]) -> Iterator[EnvelopeProblem]:
    for name in ("id", "queue", "lang"):
        if _is_text_missing(meta.get(name)):
            detail = f"meta.{_absence(meta, name)}"
            yield EnvelopeProblem(f"missing_{name}", detail, f"/meta/{name}")
    meta_id, lang, created_at = meta.get("id"), meta.get("lang"), meta.get("created_at")
    if _has_text(meta_id) and not _is_uuid(meta_id):
        yield EnvelopeProblem("not_uuid", "meta.id is not a UUID", "/meta/id")
    if _has_text(lang) and lang not in LANGUAGES:
        yield EnvelopeProblem(
            "unknown_lang", f"meta.lang is not one of {' '.join(LANGUAGES)}", "/meta/lang"
        )
    if created_at is None:
        yield EnvelopeProblem(
            "missing_created_at", f"meta.{_absence(meta, 'created_at')}", "/meta/created_at"
        )
    elif type(created_at) is int and created_at < 0:
        yield EnvelopeProblem("negative", "meta.created_at is negative", "/meta/created_at")


def _repeated(body: _Body) -> Iterator[EnvelopeProblem]:
    """Yield a problem for each repeated member, because not all parsers use the last value."""
    for prefix, pairs, names in (
        ("", body.pairs, _TOP.keys() | {"job", "urn"}),
        ("/meta", body.members.get("meta"), _NESTED["meta"].keys()),
    ):
        earlier: set[str] = set()
        for name, _ in pairs if type(pairs) is tuple else ():
            if name in earlier and name in names:
                yield EnvelopeProblem("repeated", f"{name} is repeated", f"{prefix}/{name}")
            earlier.add(name)


def _convention(body: _Body) -> Iterator[EnvelopeProblem]:
    """Yield a hint if the URN does not follow the recommended form."""
    name = "job" if _has_text(body.members.get("job")) else "urn"
    value = body.members.get(name)
    if not _has_text(value):
        return
    urn = value.strip(BLANK)
    if _URN.fullmatch(urn):
        return
    if _CLASS.search(urn):
        reason = "looks like a class name, which changes when the class is renamed"
    elif _URN.fullmatch(urn.lower()):
        reason = "contains capital letters"
    elif not urn.startswith("urn:babel:"):
        reason = "does not begin with urn:babel:"
    else:
        reason = "does not follow the convention"
    excerpt = urn if len(urn) <= _HINT_CHARACTERS else f"{urn[:_HINT_CHARACTERS]}…"
    yield EnvelopeProblem(
        CONVENTION,
        f"{excerpt} {reason}; use the form urn:babel:<context>:<event> in lowercase,"
        " with dots inside the event, such as urn:babel:orders:invoice.requested",
        f"/{name}",
    )


def _is_uuid(text: str) -> bool:
    """Return whether the text is an RFC 9562 UUID; ``UUID()`` also accepts other forms."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


_SHORT_BYTES: Final = 384  # bodies this short cannot have 257 levels or 309-digit numbers

# If the type were int alone, msgspec would accept 1.0 as 1, even in an ignored repeated member.
_NoFloat = Annotated[float, msgspec.Meta(gt=1.0, lt=1.0)]
_Integer = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)] | _NoFloat


class _Meta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=1)] | _NoFloat
    id: Text
    queue: str | None = None
    lang: str | None = None
    created_at: _Integer = 0


class _Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """An envelope as producers write it, without unknown or outdated members."""

    job: Text
    trace_id: Text
    data: dict[str, Any]
    meta: _Meta
    attempts: _Integer


_decode = msgspec.json.Decoder(_Envelope).decode


def fast_verdict(content: bytes) -> Indexed | None:
    """Return an ordinary valid envelope's indexed fields, or None if ``validate`` must decide."""
    try:
        envelope = _decode(content)
    except (ValueError, RecursionError):
        return None
    urn, trace_id, meta_id = envelope.job, envelope.trace_id, envelope.meta.id
    attempts = envelope.attempts
    if (
        urn > AFTER_BLANKS
        and trace_id > AFTER_BLANKS
        and meta_id > AFTER_BLANKS
        and type(attempts) is int
        and _is_plain(content)
    ):
        return urn, trace_id, meta_id, attempts
    return None


def _is_plain(content: bytes) -> bool:
    """Return whether ``strict_json`` accepts the content if msgspec does."""
    if b"\\" in content and b"\\u" in content:  # the first test is ten times faster than the second
        return False
    return len(content) <= _SHORT_BYTES or not (
        strict_json.is_too_deep(content) or strict_json.has_long_numbers(content)
    )


# -- data


class _Data(msgspec.Struct):
    data: Any = None


_DATA: Final = msgspec.json.Decoder(_Data)
_UNREADABLE: Final = ("poison", "too_deep", "invalid_data")  # reasons that concern ``data``


def data_of(content: bytes) -> Any:
    """Return the member ``data`` of a valid envelope, or None if it cannot be read."""
    try:
        return _DATA.decode(content).data
    except (ValueError, RecursionError):  # msgspec rejects some valid numbers
        pass
    try:
        return json.loads(content)["data"]
    except (ValueError, RecursionError, KeyError):
        return None  # passes only if the schema allows null


def read_payload(
    content: bytes, *, is_envelope: bool = True
) -> tuple[dict[str, Any], EnvelopeProblem | None]:
    """Return ``data`` of an envelope, or the object that a body is; and a problem, or None.

    An envelope may lack members other than ``data``: what they are for does not concern its data.
    """
    problem: EnvelopeProblem | None = None
    if not is_envelope:
        body = _read(content, "never")
        if isinstance(body, EnvelopeProblem):
            return {}, body
        if body.has_long_numbers and not strict_json.is_finite(body.pairs):
            return {}, EnvelopeProblem("poison", "a number is not a finite double")
        return json.loads(content), None
    if fast_verdict(content) is None:
        verdict = validate(content)
        problem = verdict.problem
        if problem is not None and problem.reason in _UNREADABLE:
            return {}, problem
        if verdict.is_tolerated:
            return {}, None
    data = data_of(content)
    if isinstance(data, dict):
        return data, None
    return {}, EnvelopeProblem("invalid_data", "data is not an object", "/data")
