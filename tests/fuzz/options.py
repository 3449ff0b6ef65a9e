"""The options of a frame, under any bytes: valid values or one refusal, and never an exception.

What must hold of every packet 06:

- nothing is raised but ``OptionError``, and its text can be logged, sent and stored;
- what is accepted is an object for ``json`` too, of options that exist, each within its bounds;
- what is accepted is the same after it was written and read again;
- a hello keeps what is valid in it, whatever the rest is.
"""

import json
import re
from random import Random
from typing import Any, Final

from phpmq_lite.frame_options import (
    CONSUME,
    HELLO,
    LATEST_DATE_MS,
    PUBLISH,
    SETTLE,
    Fields,
    OptionError,
    PublishOptions,
    facts_of,
    read_options,
    write_options,
)
from tests.fuzz.target import Target

_FIELDS: Final[dict[str, Fields]] = {
    "publish": PUBLISH, "consume": CONSUME, "hello": HELLO,
    **{action: fields for action, fields in SETTLE.items()},
}  # fmt: skip


def check_options(content: bytes) -> str:
    outcomes = []
    for name, fields in _FIELDS.items():
        try:
            options = read_options(content, fields)
            if name == "publish":
                PublishOptions.of(options)
        except OptionError as error:
            _check_text(str(error))
            outcomes.append(error.field if error.field in fields else "refused")
            continue
        assert isinstance(json.loads(content), dict)
        for option, value in options.items():
            _check_value(fields, option, value)
        assert read_options(write_options(options), fields) == options, "not the same again"
        outcomes.append(f"accepted-{len(options)}")
    for option, value in facts_of(content).items():
        _check_value(HELLO, option, value)
    return "-".join(sorted(set(outcomes)))


def _check_value(fields: Fields, option: str, value: Any) -> None:
    field = fields[option]
    match field.kind:
        case "seconds":
            assert field.lowest <= value <= field.highest
        case "whole":
            assert type(value) is int
            assert field.lowest <= value <= field.highest
        case "text":
            _check_text(value)
            assert field.is_cut or len(value.encode()) >= field.lowest
            assert len(value.encode()) <= field.highest
        case "date":
            assert type(value) is int
            assert 0 <= value <= LATEST_DATE_MS
        case "choice":
            assert value in field.choices
        case _:
            assert type(value) is bool


def _check_text(text: str) -> None:
    assert "\0" not in text.encode().decode(), "a text that no database takes"


# -- where inputs come from

_NAMES: Final = tuple(
    dict.fromkeys(["action", "x", *(name for fields in _FIELDS.values() for name in fields)])
)
_VALUES: Final = (
    "0", "1", "5", "128", "255", "256", "-1", "-0.0", "1.5", "1e3", "1e400", "-1e400", "NaN",
    "Infinity", "9" * 19, "9" * 400, "9" * 5_000, "null", "true", "false", '""', '"a"', '"keep"',
    '"replace"', '"1700000000000"', '"2027-01-01T08:00+01:00"', '"2027-01-01T08:00"', '"9"',
    '"0001-01-01T00:00:00+23:59"', '"' + "9" * 5_000 + '"', '"' + "x" * 9_000 + '"', '"\\ud800"',
    '"\\u0000"', '"\u00e4"', '"' + "\u00e4" * 200 + '"', "[]", "{}", "[1]", '{"a":{"a":1}}',
    "[" * 300 + "]" * 300, '"\u0662"', "\ufeff",
)  # fmt: skip


def _fresh(dice: Random) -> bytes:
    """Draw an object of options of one frame, some of them invalid, unknown or repeated."""
    fields = dice.choice(list(_FIELDS.values()))
    names = [dice.choice(list(fields)) for _ in range(dice.choice((0, 1, 1, 2, 4)))]
    if dice.random() < 0.1:
        names.append(dice.choice(_NAMES))
    members = [f'"{name}":{dice.choice(_VALUES)}' for name in names]
    if dice.random() < 0.3:
        members.append(f'"action":"{dice.choice(list(SETTLE))}"')
    return ("{" + ",".join(members) + "}").encode()


OPTIONS: Final = Target(
    "options",
    check_options,
    _fresh,
    lambda: [b"{}", b"", b"[]", b"null", b"\xff", b"{", b'{"a":1,"a":2}', b"[" * 10_000],
    re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}:,]|[^\[\]{}:,"]+', re.DOTALL),
    tuple(value.encode() for value in _VALUES)
    + tuple(f'"{name}"'.encode() for name in _NAMES)
    + tuple(bytes([byte]) for byte in b'{}[]:,"\\\xff\xc3\0 \ne-'),
)
