"""JSON as RFC 8259 has it and no wider, for bodies of strangers.

Objects come back as tuples of pairs, so that repeated members survive; arrays as lists.  All of it
is linear in the size of the content (measured up to 16 MiB in tests/unit/envelopes/test_growth.py).
"""

import json
import re
from itertools import accumulate
from typing import Any, Final

from phpmq_lite.errors import EnvelopeError

DEPTH_LIMIT: Final = 256  # levels; the root is the first
DIGITS_LIMIT: Final = 4300  # of one integer; CPython turns no longer text into an int

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # the last one may be unfinished
_STEPS: Final = bytes(
    1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256)
)  # read as signed: 1 and -1
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_WITHOUT_LONE: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F])*+", re.DOTALL
)
# Digits as 0, e and E as e, + as it is, all else as a space: long numbers become plain to see.
_NUMBER_SIGNS: Final = bytes(
    48 if byte in b"0123456789" else 101 if byte in b"eE" else 43 if byte == 43 else 32
    for byte in range(256)
)
_LONG_NUMBERS: Final = (b"0" * 200, b"e000", b"e+000")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read_integer(literal: str) -> int:
    if len(literal) > DIGITS_LIMIT:
        raise ValueError(f"an integer has more than {DIGITS_LIMIT} digits")
    return int(literal)


_PLAIN: Final = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_refuse_constant)
_WARY: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_constant=_refuse_constant, parse_int=_read_integer
)


def to_bytes(content: object) -> bytes:
    """Return a body as bytes; text as UTF-8, where half of a surrogate pair stays invalid.

    Raises:
        EnvelopeError: it is neither bytes nor text.
    """
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise EnvelopeError(
        f"the body is a {type(content).__name__}, not bytes or text: "
        "encode(envelope) returns the bytes of an envelope"
    )


def is_too_deep(content: bytes) -> bool:
    """Tell whether more than ``DEPTH_LIMIT`` brackets are open at once; any bytes, JSON or not."""
    if content.count(b"[") + content.count(b"{") <= DEPTH_LIMIT:
        return False
    steps = _STRING.sub(b"", content).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEPTH_LIMIT


def has_long_numbers(content: bytes) -> bool:
    """Tell whether a number may be beyond a double; texts that look like one count too.

    Numbers in content without are finite and quick to read, so C does all of it.
    """
    signs = content.translate(_NUMBER_SIGNS)
    return any(sign in signs for sign in _LONG_NUMBERS)


def parse_json(text: str, *, is_wary: bool) -> Any:
    """Read one value; ask ``is_too_deep`` first, and ``has_long_numbers`` for ``is_wary``.

    Raises:
        ValueError: it is not exactly one value; an integer is longer than ``DIGITS_LIMIT``.
    """
    try:
        return (_WARY if is_wary else _PLAIN).decode(text)
    except RecursionError:  # the caller itself is deep in the stack
        raise ValueError("nested too deeply for the stack that is left") from None


def has_lone_surrogate(content: bytes) -> bool:
    """Tell whether an escape is half of a surrogate pair; ``content`` is valid JSON."""
    if _SURROGATE.search(content) is None:
        return False
    found = _WITHOUT_LONE.match(content)
    return found is None or found.end() != len(content)


def is_finite(value: Any) -> bool:
    """Tell whether every number in a parsed value is a finite double."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) is tuple:
            waiting.extend(member for _, member in item)
        elif type(item) is list:
            waiting.extend(item)
        elif type(item) is float:
            if item - item != 0.0:  # infinite
                return False
        elif type(item) is int and item.bit_length() > 1023 and not _fits_double(item):
            return False
    return True


def _fits_double(value: int) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True
