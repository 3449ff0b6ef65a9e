"""Edits members of a serialized JSON object, leaving the bytes of all other members unchanged.

All functions take linear time. Offsets are in bytes.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from phpmq_lite.envelopes import strict_json

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
    object_pairs_hook=len,
    parse_constant=strict_json.refuse_constant,
    parse_int=len,
    parse_float=len,
)


def find_members(content: bytes) -> list[JsonMember]:
    """Return a JSON object's top-level members in order, including repeated members.

    Raises:
        ValueError: the content is not one JSON object, is not UTF-8, or has more than 256 levels.
    """
    if strict_json.is_too_deep(content):
        raise ValueError(f"nested more than {strict_json.DEPTH_LIMIT} levels deep")
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
    return _apply_cuts(content, sorted(cuts)) if cuts else content


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


def _apply_cuts(content: bytes, cuts: list[_Cut]) -> bytes:
    """Replace non-overlapping byte ranges, given in ascending order."""
    pieces: list[bytes] = []
    position = 0
    for start, end, value in cuts:
        pieces += (content[position:start], value)
        position = end
    pieces.append(content[position:])
    return b"".join(pieces)
