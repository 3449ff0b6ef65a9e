"""Encodes the values of a batch as the parameters of PostgreSQL's statements.

Arrays of numbers and texts are sent as text, which Python encodes fastest; bodies as binary.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

_BYTEA_OID: Final = 17
_ARRAY: Final = struct.Struct(">IIIII")  # dimensions, has NULLs, type, length, lower bound
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
TEXT: Final = 0
BINARY: Final = 1


class Parameters(NamedTuple):
    """Encoded parameters and the format of each, as libpq expects them."""

    values: list[bytes | None]
    formats: list[int]


def encode(values: Sequence[Any]) -> Parameters:
    """Encode single values."""
    encoded = Parameters([], [])
    for value in values:
        is_binary = isinstance(value, bytes)
        encoded.values.append(value if is_binary or value is None else _text(value))
        encoded.formats.append(BINARY if is_binary else TEXT)
    return encoded


def encode_rows(flat: Sequence[Any], width: int, before: Sequence[Any]) -> Parameters:
    """Encode ``before``, then an array for each of ``width`` columns of the rows in ``flat``."""
    encoded = encode(before)
    for at in range(width):
        column = flat[at::width]
        is_binary = any(isinstance(value, bytes) for value in column)
        encoded.values.append(_bytea_array(column) if is_binary else _array(column))
        encoded.formats.append(BINARY if is_binary else TEXT)
    return encoded


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        # PostgreSQL's texts contain neither NUL nor lone surrogates.
        return value.replace("\0", "\ufffd").encode("utf-8", "replace")
    return b"%d" % value


def _array(column: Sequence[Any]) -> bytes:
    try:
        return b"{%b}" % b",".join([b"%d" % value for value in column])
    except TypeError:  # texts or NULLs
        return b"{%b}" % b",".join([_element(value) for value in column])


def _element(value: Any) -> bytes:
    if value is None:
        return b"NULL"
    text = _text(value)
    if isinstance(value, str):
        return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return text


def _bytea_array(column: Sequence[bytes | None]) -> bytes:
    pairs = ((_NULL, b"") if one is None else (_LENGTH.pack(len(one)), one) for one in column)
    head = _ARRAY.pack(1, None in column, _BYTEA_OID, len(column), 1)
    return head + b"".join(chain.from_iterable(pairs))
