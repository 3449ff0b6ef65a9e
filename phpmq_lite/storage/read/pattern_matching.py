"""Text and patterns in large bodies: linear in the body, and stopped between two pieces of it.

SQLite's ``instr`` and ``GLOB`` compare the whole pattern at each place of a body: 8 MiB of one
letter and a pattern of 2,000 of it take half a minute, and nothing can interrupt a function.

``check`` is called once for each piece and raises where the time is over.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import AnyStr, Final

PIECE: Final = 1 << 16  # bytes or characters: 20 µs where texts are found by their bytes
_GLOB_MARK: Final = re.compile(r"\[(.)\]|(\*)|(\?)|(.)", re.DOTALL)

Check = Callable[[], object]
PatternSegment = tuple[str | None, ...]  # the characters between two stars; None: any


def has_text(content: bytes, text: bytes, check: Check) -> bool:
    """Return whether ``text`` is anywhere in ``content``."""
    return _find(content, text, 0, len(content), check) >= 0


def matches_glob(content: bytes, glob: str, check: Check) -> bool:
    """Return whether the whole of ``content`` matches; ``glob`` is as ``terms.as_glob`` writes it.

    Each part between two stars is searched once, after the previous part: if a match exists, there
    is one that has each part as early as possible.
    """
    first, *others = segments(glob)
    check()
    text = content.decode("utf-8", "surrogateescape")
    if not others:
        return len(text) == len(first) and _is_at(text, 0, first)
    *inner, last = others
    start, end = len(first), len(text) - len(last)
    if start > end or not _is_at(text, 0, first) or not _is_at(text, end, last):
        return False
    for segment in inner:
        found = _find_segment(text, segment, start, end, check)
        if found < 0:
            return False
        start = found + len(segment)
    return True


@lru_cache(maxsize=64)
def segments(glob: str) -> tuple[PatternSegment, ...]:
    """Split a glob at its stars: one part more than it has stars."""
    parts: list[list[str | None]] = [[]]
    for quoted, star, any_one, plain in _GLOB_MARK.findall(glob):
        if star:
            parts.append([])
        else:
            parts[-1].append(None if any_one else quoted or plain)
    return tuple(map(tuple, parts))


def _is_at(text: str, start: int, segment: PatternSegment) -> bool:
    return all(mark is None or text[at] == mark for at, mark in enumerate(segment, start))


def _find_segment(text: str, segment: PatternSegment, start: int, end: int, check: Check) -> int:
    if None not in segment:
        return _find(text, "".join(filter(None, segment)), start, end, check)
    return _find_with_gaps(text, segment, start, end, check)


def _find(text: AnyStr, part: AnyStr, start: int, end: int, check: Check) -> int:
    """Return where ``part`` begins first in ``text[start:end]``, -1 for nowhere."""
    for piece in range(start, end, PIECE):
        check()
        found = text.find(part, piece, min(end, piece + PIECE + len(part) - 1))
        if found >= 0:
            return found
    return -1 if part else start


def _find_with_gaps(text: str, segment: PatternSegment, start: int, end: int, check: Check) -> int:
    """Return where a part with ``?`` begins first, -1 for nowhere (the Shift-And algorithm).

    Bit n of ``state`` says that the last characters are the first n + 1 of the part.
    """
    gaps = sum(1 << at for at, mark in enumerate(segment) if mark is None)
    masks: dict[str, int] = {}
    for at, mark in enumerate(segment):
        if mark is not None:
            masks[mark] = masks.get(mark, gaps) | 1 << at
    whole = 1 << len(segment) - 1
    state = 0
    for piece in range(start, end, PIECE):
        check()
        for at in range(piece, min(end, piece + PIECE)):
            state = (state << 1 | 1) & masks.get(text[at], gaps)
            if state & whole:
                return at - len(segment) + 1
    return -1
