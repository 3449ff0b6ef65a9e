"""Where the members of a JSON object lie in its bytes: one is changed, none is rewritten.

Everything is linear in the size of the content.  Offsets are bytes.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from phpmq_lite.envelopes import strict_json

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA: Final = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


class JsonMember(NamedTuple):
    """One top-level member: byte offsets, ends exclusive."""

    name: str
    start: int  # of the quote of its name
    value_start: int
    end: int  # of its value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Values are only skipped: objects are dropped as they end, numbers stay texts.
_SKIPPER: Final = json.JSONDecoder(
    object_pairs_hook=len, parse_constant=_refuse_constant, parse_int=len, parse_float=len
)


def find_members(content: bytes) -> list[JsonMember]:
    """Find the top-level members, in order; repeated ones too.

    Raises:
        ValueError: it is not one JSON object, is not UTF-8, or is more than 256 levels deep.
    """
    if strict_json.is_too_deep(content):
        raise ValueError(f"more than {strict_json.DEPTH_LIMIT} levels")
    text = content.decode()
    try:
        found = _scan(text)
    except RecursionError:
        raise ValueError("nested too deeply for the stack that is left") from None
    return found if text.isascii() else _in_bytes(text, found)


def _scan(text: str) -> list[JsonMember]:
    """Find the members, offsets in characters."""
    found: list[JsonMember] = []
    read = _SKIPPER.raw_decode
    at = _past(_SPACE, text, 0)
    if not text.startswith("{", at):
        raise ValueError("it is no object")
    at = _past(_SPACE, text, at + 1)
    while not text.startswith("}", at):
        if found:
            at = _past(_COMMA, text, at)
        if not text.startswith('"', at):
            raise ValueError(f"no name at character {at}")
        name, name_end = read(text, at)
        value_start = _past(_COLON, text, name_end)
        _, end = read(text, value_start)
        found.append(JsonMember(name, at, value_start, end))
        at = end if text.startswith(",", end) else _past(_SPACE, text, end)
    if _past(_SPACE, text, at + 1) != len(text):
        raise ValueError(f"more than one value: character {at + 1}")
    return found


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"a sign is missing at character {at}")
    return found.end()


def _in_bytes(text: str, found: list[JsonMember]) -> list[JsonMember]:
    """Turn offsets in characters into offsets in bytes, each piece of text encoded once."""
    characters = 0
    size = 0

    def at(offset: int) -> int:
        nonlocal characters, size
        size += len(text[characters:offset].encode())
        characters = offset
        return size

    return [
        JsonMember(member.name, at(member.start), at(member.value_start), at(member.end))
        for member in found
    ]


def edit_members(
    content: bytes, found: list[JsonMember], changes: Mapping[str, bytes | None]
) -> bytes:
    """Give members new values, add them before the last brace or, for None, take them out.

    ``found`` is what ``find_members`` gave.  Where a changed name is repeated the last
    one gets the value and those before it are taken out, so that every parser reads the new value.
    """
    last = {member.name: index for index, member in enumerate(found) if member.name in changes}
    gone: list[int] = []
    cuts: list[_Cut] = []
    for index, member in enumerate(found):
        value = changes.get(member.name)
        if value is not None and last[member.name] == index:
            cuts.append((member.value_start, member.end, value))
        elif member.name in changes:
            gone.append(index)
    cuts += _removals(content, found, gone)
    added = [(name, value) for name, value in changes.items() if value and name not in last]
    if added:
        brace = content.rindex(b"}")
        written = b",".join(_name(name) + b":" + value for name, value in added)
        cuts.append((brace, brace, b"," + written if len(gone) < len(found) else written))
    return _cut(content, sorted(cuts)) if cuts else content


_Cut = tuple[int, int, bytes]  # start, end, what stands there instead


def _name(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


def _removals(content: bytes, found: list[JsonMember], gone: list[int]) -> list[_Cut]:
    """Give the cuts that take out the members at the indices ``gone``, which ascend."""
    leading = 0  # how many of the first members go
    while leading < len(gone) and gone[leading] == leading:
        leading += 1
    cuts = []
    if leading:
        is_all = leading == len(found)
        end = found[-1].end if is_all else found[leading].start
        cuts.append((found[0].start, end, b""))
    for index in gone[leading:]:
        comma = content.index(b",", found[index - 1].end)
        cuts.append((comma, found[index].end, b""))
    return cuts


def _cut(content: bytes, cuts: list[_Cut]) -> bytes:
    """Replace byte ranges, which ascend and do not overlap."""
    pieces: list[bytes] = []
    at = 0
    for start, end, value in cuts:
        pieces += (content[at:start], value)
        at = end
    pieces.append(content[at:])
    return b"".join(pieces)
