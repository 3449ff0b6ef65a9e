"""Text files: UTF-8 that people write, with or without a byte order mark, and lines of CSV."""

import codecs
import csv
import io
import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import PhpmqError

_OTHER_MARKS: Final = (  # the first of a file's beginning applies
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_BLANK: Final = "\u115f\u1160\u3164\uffa0\u2800"  # letters and symbols without a shape


class TextFileError(PhpmqError):
    """A file is not text, or its secret has an invisible character.

    The message continues the name of the file, as in ``is not UTF-8``.
    """


class NotUtf8Error(TextFileError):
    """A file is not UTF-8; ``encoding`` says what else it is, if that is known."""

    def __init__(self, encoding: str = "") -> None:
        super().__init__("is not UTF-8" + (f" but {encoding}" if encoding else ""))
        self.encoding = encoding


def has_mark(data: bytes) -> bool:
    """Return whether data begins with a byte order mark."""
    return data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def decode_text(data: bytes) -> str:
    """Return the text of a file without a byte order mark, or raise NotUtf8Error."""
    for mark, encoding in _OTHER_MARKS:
        if data.startswith(mark):
            raise NotUtf8Error(encoding)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        raise NotUtf8Error from None
    if "\0" in text[:2]:  # UTF-16 without a mark
        raise NotUtf8Error("UTF-16")
    return text


def read_text(path: Path) -> str:
    """Return the text of a file; see ``decode_text``."""
    return decode_text(path.read_bytes())


def decode_secret(data: bytes) -> str:
    """Return a secret without line breaks around it, or raise TextFileError without showing it."""
    text = decode_text(data).strip("\r\n")
    for position, character in enumerate(text, 1):
        is_blank = character in _BLANK or unicodedata.category(character) in _INVISIBLE
        if is_blank and character != " ":
            raise TextFileError(
                f"has an invisible character, U+{ord(character):04X}, at {position}"
            )
    return text


def read_secret(path: Path) -> str:
    """Return the secret in a file; see ``decode_secret``."""
    return decode_secret(path.read_bytes())


# Also the full-width signs, which spreadsheets with an Asian locale read like the others.
_CSV_FORMULA: Final = (*"=+-@\t\r\n\uff1d\uff0b\uff0d\uff20",)


def csv_line(values: Iterable[Any]) -> str:
    """Return values as a line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(map(csv_cell, values))
    return line.getvalue()


def csv_cell(value: Any) -> str:
    """Return a value as a CSV cell that no spreadsheet will interpret as a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_CSV_FORMULA) else text
