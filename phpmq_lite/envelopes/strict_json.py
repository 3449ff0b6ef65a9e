"""Strict JSON (RFC 8259) for untrusted bodies.

Objects become tuples of pairs, to preserve repeated members; arrays become lists. All functions
take linear time (measured up to 16 MiB in tests/unit/envelopes/test_growth.py).
"""

import json
import re
from itertools import accumulate
from typing import Any, Final

from phpmq_lite.errors import EnvelopeError

DEPTH_LIMIT: Final = 256  # maximum number of nesting levels, including the root
DIGITS_LIMIT: Final = 4300  # maximum number of digits of an integer, as in CPython's int()

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # the end quote may be missing
_STEPS: Final = bytes(
    1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256)
)  # signed bytes: 1 for an opening bracket, -1 for a closing one
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_WITHOUT_LONE: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F])*+", re.DOTALL
)
# To find long numbers, map each digit to 0, e and E to e, + to +, and other bytes to a space.
_NUMBER_SIGNS: Final = bytes(
    48 if byte in b"0123456789" else 101 if byte in b"eE" else 43 if byte == 43 else 32
    for byte in range(256)
)
_DOUBLE_LIMIT: Final = 2**1024 - 2**970  # the smallest integer that rounds to infinity
_LONG_NUMBERS: Final = (b"0" * 200, b"e000", b"e+000")


def refuse_constant(name: str) -> Any:
    """Raise ValueError for NaN and Infinity, which the module ``json`` accepts by default."""
    raise ValueError(f"{name} is not valid JSON")


def _read_integer(literal: str) -> int:
    if len(literal) > DIGITS_LIMIT:
        raise ValueError(f"an integer has more than {DIGITS_LIMIT} digits")
    return int(literal)


_PLAIN: Final = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=refuse_constant)
_CHECKED: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_constant=refuse_constant, parse_int=_read_integer
)


def to_bytes(content: object) -> bytes:
    """Return a body as bytes; a string with lone surrogates is encoded as invalid UTF-8.

    Raises:
        EnvelopeError: the body is neither bytes nor a string.
    """
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise EnvelopeError(
        f"the body is a {type(content).__name__}, not bytes or a string; "
        "encode(envelope) returns the bytes of an envelope"
    )


def is_too_deep(content: bytes) -> bool:
    """Return whether brackets are nested more than ``DEPTH_LIMIT`` deep, even in invalid JSON."""
    if content.count(b"[") + content.count(b"{") <= DEPTH_LIMIT:
        return False
    steps = _STRING.sub(b"", content).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEPTH_LIMIT


def has_long_numbers(content: bytes) -> bool:
    """Return whether a number may exceed the range of a double; strings can cause false positives.

    Numbers in other content are finite and fast to parse, so that content can be parsed in C.
    """
    signs = content.translate(_NUMBER_SIGNS)
    return any(sign in signs for sign in _LONG_NUMBERS)


def parse_json(text: str, *, may_overflow: bool) -> Any:
    """Parse a JSON value that is not too deep; ``may_overflow`` comes from ``has_long_numbers``.

    Raises:
        ValueError: the text is not exactly one value, or an integer has too many digits.
    """
    try:
        return (_CHECKED if may_overflow else _PLAIN).decode(text)
    except RecursionError:  # possible if the caller's stack is already deep
        raise ValueError("nested too deeply for the remaining stack") from None


def has_lone_surrogate(content: bytes) -> bool:
    """Return whether valid JSON contains an escaped lone surrogate."""
    if _SURROGATE.search(content) is None:
        return False
    match = _WITHOUT_LONE.match(content)
    return match is None or match.end() != len(content)


def child_pointer(parent: str, name: str) -> str:
    """Return the JSON pointer (RFC 6901) of a member of the object at ``parent``."""
    return f"{parent}/{name.replace('~', '~0').replace('/', '~1')}"


def is_finite(value: Any) -> bool:
    """Return whether every number in a parsed value is a finite double."""
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is tuple:
            pending.extend(member for _, member in item)
        elif type(item) is list:
            pending.extend(item)
        elif type(item) is float:
            if item - item != 0.0:  # True for infinity and NaN
                return False
        elif type(item) is int and abs(item) >= _DOUBLE_LIMIT:
            return False
    return True
