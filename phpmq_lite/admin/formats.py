"""Pure functions that format numbers, sizes, times, counts and untrusted text for pages."""

import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from phpmq_lite.durations import UNITS_MS

DASH: Final = "–"
SPANS_MAX: Final = 2_000  # maximum number of pieces into which a text is split

# Matches control, bidi, zero-width and line-separating characters, and noncharacters.
# Section 7 of docs/operate/security.md explains why these are escaped.
_HIDDEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
HIDDEN_RUN: Final = re.compile(f"[{_HIDDEN}]+")
_HIDDEN_OR_BREAK_RUN: Final = re.compile(f"[{_HIDDEN}\t\n]+")
_SHORT_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


class TextPiece(NamedTuple):
    """A piece of text; ``kind``, its CSS class, is ``esc`` for escapes and empty for plain text."""

    text: str
    kind: str = ""


class TimeText(NamedTuple):
    """A point in time, formatted for the ``<time>`` element."""

    iso: str
    text: str
    title: str


def format_number(value: int) -> str:
    """Format a count with thousands separators: ``12,408``."""
    return f"{value:,}"


def format_rate(per_s: float) -> str:
    """Format a rate, with one decimal from 0.1 to 9.9 and without decimals otherwise."""
    if per_s >= 9.95:
        return f"{per_s:,.0f}"
    return "0" if per_s < 0.05 else f"{per_s:.1f}"


def format_size(count: int) -> str:
    """Format a number of bytes in binary units, as in ``256 B``, ``1.4 KiB`` or ``8 MiB``."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95 or unit == "TiB":
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def format_duration(ms: int, *, with_seconds: bool = True) -> str:
    """Format a duration in one or two units, such as ``340 ms``, ``12 s`` or ``3 h 12 min``.

    With ``with_seconds``, durations below ten minutes include seconds.
    """
    ms = max(ms, 0)
    for unit, smaller in pairwise(UNITS_MS):
        count, remaining_ms = divmod(ms, UNITS_MS[unit])
        more = remaining_ms // UNITS_MS[smaller]
        if count and more and count < 10 and smaller != "ms" and (with_seconds or smaller != "s"):
            return f"{count} {unit} {more} {smaller}"
        if count:
            return f"{count:,} {unit}"
    return f"{ms} ms"


def format_ago(at_ms: int, now_ms: int) -> str:
    """Format how long ago a time was, or how far ahead it is, by the server's clock."""
    gap = now_ms - at_ms
    if abs(gap) < 1_000:
        return "just now"
    text = format_duration(abs(gap), with_seconds=False)
    return f"{text} ago" if gap > 0 else f"in {text}"


def format_time(at_ms: int, now_ms: int) -> TimeText:
    """Format a time for the ``<time>`` element, as relative text with the UTC time as its title."""
    try:
        at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):  # the time is after the year 9999
        return TimeText("", "far away", f"{at_ms} ms since 1970")
    iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return TimeText(
        iso, format_ago(at_ms, now_ms), f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1_000:03} UTC"
    )


def escape_character(character: str) -> str:
    r"""Return a character's escape, such as ``\n``, ``\x1b``, ``\u202e`` or ``\U000e0001``."""
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape_hidden(text: str) -> str:
    """Escape hidden characters and line breaks in a name, id, address or error."""
    return _HIDDEN_OR_BREAK_RUN.sub(lambda run: "".join(map(escape_character, run[0])), text)


def escape_hidden_lines(text: str) -> str:
    """Escape hidden characters in a note or error, but keep its line breaks and tabs."""
    text = text.replace("\r\n", "\n")
    return HIDDEN_RUN.sub(lambda run: "".join(map(escape_character, run[0])), text)


def split_hidden(text: str, kind: str = "") -> list[TextPiece]:
    """Split text into plain pieces and pieces of escapes, keeping line breaks and tabs.

    After ``SPANS_MAX`` pieces, the remaining text is one piece whose escapes are not highlighted.
    """
    pieces: list[TextPiece] = []
    at = 0
    for run in HIDDEN_RUN.finditer(text):
        if len(pieces) >= SPANS_MAX:
            break
        if run.start() > at:
            pieces.append(TextPiece(text[at : run.start()], kind))
        pieces.append(TextPiece("".join(map(escape_character, run[0])), "esc"))
        at = run.end()
    if at < len(text):
        remaining = HIDDEN_RUN.sub(lambda run: "".join(map(escape_character, run[0])), text[at:])
        pieces.append(TextPiece(remaining, kind))
    return pieces


def plural(count: int, singular: str, many: str) -> str:
    """Return ``singular`` for a count of one, and ``many`` for any other count."""
    return singular if count == 1 else many


def client_name(number: int | None, kind: str | None, address: str | None) -> str:
    """Return a client's number, followed by its kind and address if its row still exists."""
    if number is None:
        return "nobody"
    if number == 0:  # client 0 stands for the admin pages and the API
        return "the admin page or API"
    if address is None:
        return f"client {number}"
    return f"client {number} · {kind} {address}"


def count_messages(count: int) -> str:
    """Format a count of messages: ``1 message``, ``12,408 messages``."""
    return count_of(count, "message", "messages")


def count_of(count: int, singular: str, many: str) -> str:
    """Format a count, followed by its noun in the singular or plural (``many``)."""
    return f"{format_number(count)} {plural(count, singular, many)}"
