"""Where a list goes on: opaque, and good for the list it was made for only."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Literal, NamedTuple
from zlib import crc32

from phpmq_lite.admin.problems import Problem

Direction = Literal["after", "before"]
Place = int | list[int | float | str]


class Cursor(NamedTuple):
    """A place in a list (exclusive) and which way to read from it."""

    direction: Direction
    place: Place


def encode(scope: str, direction: Direction, place: Place) -> str:
    """Make a cursor; ``scope`` names the list with its filter and order."""
    text = json.dumps([crc32(scope.encode()), direction, place], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(scope: str, text: str | None) -> Cursor | None:
    """Read a cursor of this list; None for none.

    Raises:
        Problem: 422 where it is malformed or of another list.
    """
    if not text:
        return None
    try:
        padded = text + "=" * (-len(text) % 4)
        check, direction, place = json.loads(urlsafe_b64decode(padded))
    except (ValueError, TypeError, RecursionError):
        raise _bad("is malformed") from None
    if direction not in ("after", "before") or not _is_place(place):
        raise _bad("is malformed")
    if check != crc32(scope.encode()):
        raise _bad("belongs to another list or filter")
    return Cursor(direction, place)


def position(cursor: Cursor | None) -> dict[str, int]:
    """Give the cursor of a list that is numbered as a keyword: ``after`` or ``before``."""
    if cursor is None:
        return {}
    if not isinstance(cursor.place, int) or not 0 <= cursor.place < 1 << 62:
        raise _bad("is malformed")
    return {cursor.direction: cursor.place}


def _is_place(place: object) -> bool:
    if isinstance(place, list):
        return len(place) == 2 and all(isinstance(part, int | float | str) for part in place)
    return isinstance(place, int) and not isinstance(place, bool)


def _bad(what: str) -> Problem:
    return Problem(422, "bad_cursor", f"The cursor {what}. Start the list again.", field="cursor")
