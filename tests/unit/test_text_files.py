"""Texts and secrets in files that people and their editors have written."""

import codecs
from pathlib import Path

import pytest

from phpmq_lite.text_files import NotUtf8Error, TextFileError, decode_secret, read_text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_text_is_read_without_its_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file"
    path.write_text("größe = 1\n", encoding=encoding)
    assert read_text(path) == "größe = 1\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_other_encodings_are_named(encoding: str) -> None:
    with pytest.raises(NotUtf8Error) as refused:
        decode_secret("größe".encode(encoding))
    assert refused.value.encoding in encoding.upper()
    assert str(refused.value).startswith("is not UTF-8")


@pytest.mark.parametrize(
    "letter", ["\ufeff", "\u200b", "\u00a0", "\u00ad", "\u202e", "\t", "\x7f", "\u3164", "\u2028"]
)
@pytest.mark.parametrize("place", [1, 3, 6])
def test_no_secret_keeps_an_invisible_character(letter: str, place: int) -> None:
    with pytest.raises(TextFileError, match=f"U\\+{ord(letter):04X}, at {place + 1}") as refused:
        decode_secret(f"{'secret'[:place]}{letter}{'secret'[place:]}\r\n".encode())
    assert "secret" not in str(refused.value)


def test_a_secret_keeps_spaces_and_loses_line_breaks() -> None:
    assert decode_secret(codecs.BOM_UTF8 + " pass wörd \r\n".encode()) == " pass wörd "
