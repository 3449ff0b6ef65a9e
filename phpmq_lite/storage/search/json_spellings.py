"""The spellings of a text in JSON: a catalogue of what the encoders of PHP and others escape."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, product
from typing import Final, NamedTuple

_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_PLAIN: Final = re.compile(r"[ !#$%()*,\-.0-9:;?@A-Z\[\]^_a-z{|}~]*")  # no encoder escapes these
_CONTROLS: Final = "".join(chr(code) for code in range(32) if chr(code) not in _SHORT)
_LINES: Final = "\u2028\u2029"
_NEVER: Final = 0x110000
_NOT_ASCII: Final = 0x80
_ASTRAL: Final = 0x10000


class _Style(NamedTuple):
    r"""What an encoder, with its flags, escapes: as ``\u00e9``, or in upper case as ``\u00E9``."""

    lower: str = ""
    lower_from: int = _NEVER  # the first code point that it always escapes
    upper: str = ""
    upper_from: int = _NEVER
    escapes_slash: bool = False

    def write(self, mark: str) -> str:
        if mark in self.upper or ord(mark) >= self.upper_from:
            return _hexadecimal(mark).upper().replace("\\U", "\\u")
        if mark in self.lower or ord(mark) >= self.lower_from:
            return _hexadecimal(mark)
        if mark == "/" and self.escapes_slash:
            return "\\/"
        return _SHORT.get(mark) or (_hexadecimal(mark) if mark in _CONTROLS else mark)


def _php_styles() -> Iterator[_Style]:
    r"""Yield PHP's flags: JSON_HEX_*, and unescaped Unicode, with or without lines, and slashes.

    Python, JavaScript and most others write the same as PHP with some of these flags; Laravel's
    queues use JSON_UNESCAPED_UNICODE, and its responses all of JSON_HEX_*.
    """
    kinds = ("<>", "&", "'", '"')
    flags = ["".join(chosen) for n in range(len(kinds) + 1) for chosen in combinations(kinds, n)]
    unicode = (("", _NOT_ASCII), (_LINES, _NEVER), ("", _NEVER))
    for upper, (lower, start), escapes_slash in product(flags, unicode, (True, False)):
        yield _Style(lower, start, upper, escapes_slash=escapes_slash)


_DOTNET: Final = _CONTROLS + "\x7f\x85" + _LINES
_STYLES: Final = (
    *_php_styles(),
    _Style("\x7f", _NOT_ASCII),  # Python
    _Style("\b\f<>&" + _LINES),  # Go before 1.22
    _Style("<>&" + _LINES),  # Go, Rails
    _Style("<>&='" + _LINES),  # Gson
    _Style("\x85" + _LINES),  # Newtonsoft; with EscapeHtml and EscapeNonAscii:
    *(_Style("<>&'\"\x85" + _LINES, start) for start in (_NEVER, _NOT_ASCII)),
    *(_Style("", _NEVER, _CONTROLS, _NOT_ASCII, slash) for slash in (False, True)),  # Jackson, …
    *(_Style("", _NEVER, "<>&'\"+`" + _DOTNET, start) for start in (_NOT_ASCII, _ASTRAL)),  # .NET
    _Style("", _NEVER, _DOTNET, _ASTRAL),  # .NET's relaxed encoder
)


@lru_cache(maxsize=256)
def json_spellings(text: str) -> tuple[bytes, ...]:
    r"""Return a text as it is and as encoders write it, such as with ``\u00e9`` and ``\/``."""
    if _PLAIN.fullmatch(text):
        return (text.encode(),)
    marks = {mark for mark in text if not _PLAIN.fullmatch(mark)}
    kinds = sorted(set(map(_kind, marks)))
    styles = {tuple(map(style.write, kinds)): style for style in _STYLES}.values()
    tables = ({ord(mark): style.write(mark) for mark in marks} for style in styles)
    forms = dict.fromkeys([text, *map(text.translate, tables)])
    # A dead-letter record may have the original body as a string, whose escapes it escapes.
    nested = [form.replace("\\", "\\\\").replace('"', '\\"') for form in forms]
    return tuple(form.encode() for form in dict.fromkeys([*forms, *nested]))


def _kind(mark: str) -> str:
    """Return a character that every encoder escapes in the same way as this one."""
    if mark < "\x80" or mark in _DOTNET:
        return mark
    return "\xe9" if ord(mark) < _ASTRAL else chr(_ASTRAL)  # both have letters in hexadecimal


def _hexadecimal(mark: str) -> str:
    units = mark.encode("utf-16-be").hex()
    return "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4))
