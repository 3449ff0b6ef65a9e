"""Strict JSON (RFC 8259) for untrusted bodies, and edits that leave other members unchanged.

Objects become tuples of pairs, to preserve repeated members; arrays become lists. Offsets are in
bytes. All functions take linear time (measured up to 16 MiB in
tests/unit/envelopes/test_growth.py).
"""

import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

from phpmq_lite.errors import EnvelopeError

DEPTH_LIMIT: Final = 256  # maximum number of nesting levels, including the root
POINTER_CHARACTERS: Final = 200  # maximum length of a JSON pointer in a message
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
    """Return a body as bytes, or raise EnvelopeError; lone surrogates become invalid UTF-8."""
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
    """Parse one value that is not too deep, or raise ValueError; see ``has_long_numbers``."""
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


_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA: Final = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


class JsonMember(NamedTuple):
    """Byte offsets of a top-level member; ``end`` is exclusive."""

    name: str
    start: int  # offset of the quotation mark before the name
    value_start: int
    end: int  # offset just after the value


# Skips over values without building them: discards objects and does not convert numbers.
_SKIPPER: Final = json.JSONDecoder(
    object_pairs_hook=len, parse_constant=refuse_constant, parse_int=len, parse_float=len
)


def find_members(content: bytes) -> list[JsonMember]:
    """Return an object's top-level members in order, also repeated ones, or raise ValueError."""
    if is_too_deep(content):
        raise ValueError(f"nested more than {DEPTH_LIMIT} levels deep")
    text = content.decode()
    try:
        members = _scan(text)
    except RecursionError:
        raise ValueError("nested too deeply for the remaining stack") from None
    return members if text.isascii() else _in_bytes(text, members)


def _scan(text: str) -> list[JsonMember]:
    """Return the top-level members, with offsets in characters."""
    members: list[JsonMember] = []
    decode = _SKIPPER.raw_decode
    position = _skip(_SPACE, text, 0)
    if not text.startswith("{", position):
        raise ValueError("not a JSON object")
    position = _skip(_SPACE, text, position + 1)
    while not text.startswith("}", position):
        if members:
            position = _skip(_COMMA, text, position)
        if not text.startswith('"', position):
            raise ValueError(f"expected a member name at character {position}")
        name, name_end = decode(text, position)
        value_start = _skip(_COLON, text, name_end)
        _, end = decode(text, value_start)
        members.append(JsonMember(name, position, value_start, end))
        position = end if text.startswith(",", end) else _skip(_SPACE, text, end)
    if _skip(_SPACE, text, position + 1) != len(text):
        raise ValueError(f"unexpected data after the object, at character {position + 1}")
    return members


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    if match is None:
        raise ValueError(f"expected a delimiter at character {position}")
    return match.end()


def _in_bytes(text: str, members: list[JsonMember]) -> list[JsonMember]:
    """Convert character offsets to byte offsets; encode each part of the text only once."""
    characters = 0
    size = 0

    def at(offset: int) -> int:
        nonlocal characters, size
        size += len(text[characters:offset].encode())
        characters = offset
        return size

    return [
        JsonMember(member.name, at(member.start), at(member.value_start), at(member.end))
        for member in members
    ]


def edit_members(
    content: bytes, members: list[JsonMember], changes: Mapping[str, bytes | None]
) -> bytes:
    """Return the content with members replaced, added at the end, or removed if set to None.

    ``members`` is the result of ``find_members``. If a changed name is repeated, the last member
    receives the value and the others are removed, so that every parser reads the new value.
    """
    last_index = {member.name: index for index, member in enumerate(members)}
    removed_indices: list[int] = []
    cuts: list[_Cut] = []
    for index, member in enumerate(members):
        value = changes.get(member.name)
        if value is not None and last_index[member.name] == index:
            cuts.append((member.value_start, member.end, value))
        elif member.name in changes:
            removed_indices.append(index)
    cuts += _removals(content, members, removed_indices)
    new_members = b",".join(
        json.dumps(name, ensure_ascii=False).encode() + b":" + value
        for name, value in changes.items()
        if value and name not in last_index
    )
    if new_members:
        brace = content.rindex(b"}")
        comma = b"," if len(removed_indices) < len(members) else b""
        cuts.append((brace, brace, comma + new_members))
    pieces: list[bytes] = []
    position = 0
    for start, end, value in sorted(cuts):
        pieces += (content[position:start], value)
        position = end
    return b"".join([*pieces, content[position:]])


_Cut = tuple[int, int, bytes]  # start offset, end offset, replacement bytes


def _removals(content: bytes, members: list[JsonMember], removed_indices: list[int]) -> list[_Cut]:
    """Return the cuts that remove the members at the given ascending indices."""
    leading = 0  # number of removed members at the start of the object
    while leading < len(removed_indices) and removed_indices[leading] == leading:
        leading += 1
    cuts = []
    if leading:
        is_all = leading == len(members)
        end = members[-1].end if is_all else members[leading].start
        cuts.append((members[0].start, end, b""))
    for index in removed_indices[leading:]:
        comma = content.index(b",", members[index - 1].end)
        cuts.append((comma, members[index].end, b""))
    return cuts
