"""What is said of envelopes, under any bytes: a verdict always, and never two opinions.

What must hold of every body:

- nothing is raised, by none of the functions that the broker is given;
- the quick ways say what the long ones say, or nothing;
- what a consumer may handle is an object for ``json`` too, with its members of the right types;
- what is no JSON object for ``json`` is refused;
- what is indexed has its bounds, so that SQLite and the pages can take it;
- a dead-letter record names its message and its cause, and gives back what died.
"""

import json
import re
from random import Random
from typing import Any, Final

from phpmq_lite.envelopes import dead_letter_record, indexed_fields, validation
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.envelopes.strict_json import find_members
from phpmq_lite.model import DeadLetterCause
from phpmq_lite.queue_settings import QueueSettings
from tests.fuzz.target import LONGEST, Target
from tests.support.envelope_cases import CASES, MEMBERS, META, PIECES, to_json

_INTAKE: Final = BabelQueueInspector()
_MODES: Final[tuple[validation.EmptyListData, ...]] = ("php", "never", "always")
_DEATH: Final = DeadLetterCause("orders", b"0" * 32, "max_deliveries", "21 \ud800 deliveries", 1)
_INT64: Final = range(-(1 << 63), 1 << 63)


def check_body(content: bytes) -> str:
    found = validation.validate(content)
    assert indexed_fields.read_indexed(content) == indexed_fields._read_unusual(content), (
        "two ways of indexing differ"
    )
    right = validation.fast_verdict(content)
    for mode in _MODES:
        judged = validation.validate(content, mode)
        if right is not None:
            said = judged.problem, judged.is_tolerated, judged.warnings, judged.index
            assert said == (None, False, (), right), "the quick verdict differs"
        looked = _INTAKE.validate(content, QueueSettings(empty_list_data=mode))
        assert looked.reason == (judged.problem and judged.problem.reason)
        for text in looked.indexed[:3]:
            assert text is None or 0 < len(text) <= indexed_fields.INDEX_CHARACTERS
        assert looked.indexed[3] is None or looked.indexed[3] in _INT64
        assert bool(validation.lint(content, mode)) or judged.problem is None
    _INTAKE.origin_queue(content)
    _check_against_json(content, found)
    _check_record(content, found)
    return _outcome(content, found, is_quick=right is not None)


def _as_json(content: bytes) -> Any:
    """Read it as the standard library does, which is wider; None where it is nothing."""
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError):
        return None


def _check_against_json(content: bytes, found: validation.Verdict) -> None:
    value = _as_json(content)
    if not isinstance(value, dict):
        assert found.problem is not None, "a body that json does not read as an object is accepted"
        assert found.problem.reason in ("poison", "too_deep")
    elif found.problem is None:
        assert type(value["attempts"]) is int
        assert value["attempts"] in _INT64
        assert type(value["trace_id"]) is str
        assert value["meta"]["schema_version"] == 1
        assert type(value["data"]) is dict or (found.is_tolerated and value["data"] == [])
        json.dumps(value["data"], allow_nan=False).encode()
        assert _levels(value) <= validation.DEPTH_LIMIT, "a body that is too deep is accepted"


def _levels(value: Any) -> int:
    """Count how deep it is nested, the root included."""
    levels, inner = 0, [value]
    while inner := [one for one in inner if isinstance(one, list | dict)]:
        levels += 1
        inner = [each for one in inner for each in (one.values() if type(one) is dict else one)]
    return levels


def _check_record(content: bytes, found: validation.Verdict) -> None:
    """Check that a record names the message and the reason, and returns the original body."""
    settings = QueueSettings(payload_policy="envelope")
    made = _INTAKE.make_record(content, settings, _DEATH)
    assert _INTAKE.make_record(content, QueueSettings(payload_policy="opaque"), _DEATH) == content
    if found.problem is not None and found.problem.reason == "unsupported_schema_version":
        assert made == content, "what may not be changed was changed"
        assert _INTAKE.read_only_reason(content) is not None
        return
    source = _INTAKE.record_source(made)
    assert source is not None, "the record has no block"
    assert source[:2] == (_DEATH.message_id, _DEATH.reason)
    assert _INTAKE.origin_queue(made) == _DEATH.queue
    assert isinstance(_as_json(made), dict), "the record is not a JSON object"
    back = _INTAKE.redrive_content(made)
    if found.problem is None:
        assert validation.validate(back).problem is None, "what was right is not right again"
    elif not _has_block(content):
        assert back in (content, _without_attempts(content)), "what died does not come back"


def _has_block(content: bytes) -> bool:
    try:
        return any(member.name == "dead_letter" for member in find_members(content))
    except ValueError:
        return False


def _without_attempts(content: bytes) -> bytes:
    try:
        return dead_letter_record.with_attempts(content, 0)
    except ValueError:
        return content


def _outcome(content: bytes, found: validation.Verdict, *, is_quick: bool) -> str:
    """Return the reason and member, or the kind of a valid body."""
    problem = found.problem
    if problem is None:
        return "right-" + ("quick" if is_quick else "tolerated" if found.is_tolerated else "slow")
    if problem.pointer:
        return f"{problem.reason}{problem.pointer.replace('/', '-')}"
    indexed = "indexed" if found.index is not None else "not-indexed"
    kind = "object" if content.lstrip(b" \t\r\n").startswith(b"{") else "no-object"
    return f"{problem.reason}-{kind}-{indexed}"


# -- where inputs come from

_NAMES: Final = (*MEMBERS, "urn", "dead_letter", "raw", "raw_encoding", "timestamp", "x", "JOB")


def _fresh(dice: Random) -> bytes:
    """Draw an envelope with a few members that are invalid, missing or repeated."""
    meta = dict(META)
    for _ in range(dice.choice((0, 0, 1, 2))):
        meta[dice.choice((*META, "max_retries", "x"))] = dice.choice(PIECES)
    pieces = [f'"{name}":{value}' for name, value in {**MEMBERS, "meta": to_json(meta)}.items()]
    for _ in range(dice.choice((0, 1, 1, 2))):
        at = dice.randrange(len(pieces) + 1)
        pieces.insert(at, f'"{dice.choice(_NAMES)}":{dice.choice(PIECES)}')
        if dice.random() < 0.5:
            del pieces[dice.randrange(len(pieces))]
    between = dice.choice((",", ",", " ,\n"))
    return ("{" + between.join(pieces) + "}").encode()


BODIES: Final = Target(
    "envelopes",
    check_body,
    _fresh,
    lambda: [case.content for case in CASES if len(case.content) <= LONGEST],
    re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}:,]|[^\[\]{}:,"]+', re.DOTALL),
    tuple(value.encode() for value in PIECES)
    + tuple(f'"{name}"'.encode() for name in (*_NAMES, *META))
    + tuple(bytes([byte]) for byte in b'{}[]:,"\\\xff\xc3\0 \n\ve-')
    + (b"\\u", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{}{}"),
)
