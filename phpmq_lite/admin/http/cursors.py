"""Cursors: positions in a list, at which its next and its previous page begin."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Literal, NamedTuple
from zlib import crc32

from phpmq_lite.admin.http.problems import Problem

ReadDirection = Literal["after", "before"]
CursorPlace = int | list[int | float | str]


class ListCursor(NamedTuple):
    """A position in a list; a page begins after or before the row at this position."""

    direction: ReadDirection
    place: CursorPlace


def encode_cursor(scope: str, direction: ReadDirection, place: CursorPlace) -> str:
    """Return a position as an opaque cursor for the list, filter and order in ``scope``."""
    text = json.dumps([crc32(scope.encode()), direction, place], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(scope: str, text: str | None) -> ListCursor | None:
    """Parse a cursor, None if empty; raise a 422 ``Problem`` if it is not of the list ``scope``."""
    if not text:
        return None
    try:
        padded = text + "=" * (-len(text) % 4)
        check, direction, place = json.loads(urlsafe_b64decode(padded))
    except (ValueError, TypeError, RecursionError):
        raise _bad_cursor("is malformed") from None
    if direction not in ("after", "before") or not _is_place(place):
        raise _bad_cursor("is malformed")
    if check != crc32(scope.encode()):
        raise _bad_cursor("belongs to another list or filter")
    return ListCursor(direction, place)


def position_in(cursor: ListCursor | None) -> dict[str, int]:
    """Return a cursor's position in a numbered list as the argument ``after`` or ``before``."""
    if cursor is None:
        return {}
    if not isinstance(cursor.place, int) or not abs(cursor.place) < 1 << 62:
        raise _bad_cursor("is malformed")
    return {cursor.direction: cursor.place}


def pair_in(cursor: ListCursor | None, least: int = 0) -> tuple[int, int] | None:
    """Return a cursor's position in a list that is ordered by two numbers from ``least`` on."""
    if cursor is None:
        return None
    match cursor.place:
        case [int() as first, int() as second] if (
            min(first, second) >= least and max(first, second) <= 1 << 62
        ):
            return first, second
    raise _bad_cursor("is malformed")


def cursors_around(
    scope: str,
    onward: ReadDirection,
    cursor: ListCursor | None,
    ends: tuple[int | None, int | None],
    *,
    has_more: bool,
    searched_to: int | None = None,
) -> tuple[str | None, str | None]:
    """Return the cursors for the next and the previous page of a numbered list.

    ``onward`` is the direction of the list; ``ends`` are the numbers of the first and the last row.
    ``has_more`` says whether rows remain in the direction of ``cursor``. ``searched_to`` is the
    row at which a time limit ended the search; the next page starts there.
    """
    first, last = ends
    is_back = cursor is not None and cursor.direction != onward
    if searched_to is not None and (last is None or not is_back):
        last = searched_to
    has_next = is_back or has_more or searched_to is not None
    has_previous = has_more if is_back else cursor is not None
    back: ReadDirection = "after" if onward == "before" else "before"
    return (
        encode_cursor(scope, onward, last) if has_next and last is not None else None,
        encode_cursor(scope, back, first) if has_previous and first is not None else None,
    )


def _is_place(place: object) -> bool:
    if isinstance(place, list):
        return len(place) == 2 and all(isinstance(part, int | float | str) for part in place)
    return isinstance(place, int) and not isinstance(place, bool)


def _bad_cursor(fault: str) -> Problem:
    return Problem(422, "bad_cursor", f"The cursor {fault}. Go to the first page.", field="cursor")
