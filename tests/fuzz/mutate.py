"""Mutations of inputs that use knowledge of their structure.

Bits and bytes, numbers by one or by twenty digits, whole parts lost, doubled and exchanged, two
inputs in one: a few such steps, one after the other.
"""

import re
from collections.abc import Callable
from random import Random
from typing import Final

from tests.fuzz.target import LONGEST, Target

_NUMBER: Final = re.compile(rb"[0-9]+")
_NUMERALS: Final = b"0 1 -1 32 64 255 256 1000 1001 4096 65536 1e400 1.0 +1 1_0"
_ODD_NUMBERS: Final = (
    *_NUMERALS.split(),
    b"9" * 18,
    b"9" * 19,
    b"9" * 20,
    b"9" * 29,
    b"1" + b"0" * 33,
    b"9" * 310,
    "٣".encode(),
    "²".encode(),
    b" 1",
    b"",
)
_STEPS: Final = (1, 1, 1, 2, 2, 3, 6)


def mutant(target: Target, dice: Random, data: bytes, other: bytes) -> bytes:
    """Return ``data`` after a few steps, perhaps mixed with parts of ``other``."""
    for _ in range(dice.choice(_STEPS)):
        data = dice.choice(_WAYS)(target, dice, data, other)
    return data[:LONGEST]


def _flip(_target: Target, dice: Random, data: bytes, _other: bytes) -> bytes:
    if not data:
        return data
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def _insert(target: Target, dice: Random, data: bytes, _other: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + _piece(target, dice) + data[at:]


def _overwrite(target: Target, dice: Random, data: bytes, _other: bytes) -> bytes:
    at, piece = dice.randrange(len(data) + 1), _piece(target, dice)
    return data[:at] + piece + data[at + len(piece) :]


def _piece(target: Target, dice: Random) -> bytes:
    return dice.choice(target.tokens) if dice.random() < 0.7 else dice.randbytes(dice.randrange(9))


def _lose(_target: Target, dice: Random, data: bytes, _other: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[at + dice.choice((1, 1, 4, 36, 100)) :]


def _end(_target: Target, dice: Random, data: bytes, _other: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _number(_target: Target, dice: Random, data: bytes, _other: bytes) -> bytes:
    """Change a number by one or to an edge case, with the same width if possible."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    one = dice.choice(found)
    digits = one[0]
    if dice.random() < 0.6:
        number = b"%d" % max(0, int(digits[-400:]) + dice.choice((-1, 1, -4, 4)))
    else:
        number = dice.choice(_ODD_NUMBERS)
    if dice.random() < 0.8:
        number = number.rjust(len(digits), b"0")
    return data[: one.start()] + number + data[one.end() :]


def _parts(target: Target, dice: Random, data: bytes, other: bytes) -> bytes:
    """Remove, double, exchange or borrow whole parts."""
    parts = target.parts.findall(data)
    lent = target.parts.findall(other)
    if not parts or not lent:
        return other
    at, to = dice.randrange(len(parts)), dice.randrange(len(parts))
    match dice.randrange(4):
        case 0:
            del parts[at]
        case 1:
            parts.insert(to, parts[at])
        case 2:
            parts[at], parts[to] = parts[to], parts[at]
        case _:
            parts.insert(to, dice.choice(lent))
    return b"".join(parts)


def _mix(_target: Target, dice: Random, data: bytes, other: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _follow(_target: Target, _dice: Random, data: bytes, other: bytes) -> bytes:
    return data + other


_WAYS: Final[tuple[Callable[[Target, Random, bytes, bytes], bytes], ...]] = (
    _flip, _insert, _overwrite, _lose, _end, _number, _number, _parts, _parts, _mix, _follow,
)  # fmt: skip
