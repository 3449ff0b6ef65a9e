"""The checksums of many frames at once equal those computed word by word, as SQLite does."""

import io
import random
import struct
from typing import get_args

import pytest

from phpmq_lite.storage.sqlite.integrity.wal_check import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    Checksum,
    Order,
    checksum_of_words,
    frame_sums,
    read_frames,
    read_header,
)

ORDERS = get_args(Order)


def word_by_word(data: bytes, order: Order, seed: Checksum) -> Checksum:
    """Follow https://www.sqlite.org/fileformat2.html#checksum_algorithm."""
    first, second = seed
    for x, y in struct.iter_unpack("<II" if order == "little" else ">II", data):
        first = (first + x + second) % 2**32
        second = (second + y + first) % 2**32
    return first, second


def frame(order: Order, seed: Checksum, page: int, commit: int, content: bytes) -> bytes:
    head = struct.pack(">II", page, commit)
    stored = word_by_word(content, order, word_by_word(head, order, seed))
    return head + b"saltsalt" + struct.pack(">II", *stored) + content


def wal(order: Order, page_size: int, frames: int) -> bytes:
    magic = 0x377F0682 if order == "little" else 0x377F0683
    whole = struct.pack(">IIII", magic, 3_007_000, page_size, 0) + b"saltsalt"
    seed = word_by_word(whole, order, (0, 0))
    whole += struct.pack(">II", *seed)
    dice = random.Random(page_size)
    for number in range(frames):
        one = frame(order, seed, number + 1, number % 2 * 9, dice.randbytes(page_size))
        seed = struct.unpack_from(">II", one, 16)
        whole += one
    return whole


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("content", [b"\0", b"\xff"], ids=["zeros", "ones"])
def test_lanes_hold_the_largest_sums(order: Order, content: bytes) -> None:
    raw = content * (FRAME_HEADER_BYTES + 65_536)
    expected = word_by_word(raw[:8] + raw[FRAME_HEADER_BYTES:], order, (0, 0))
    assert frame_sums(raw * 3, len(raw), order) == [expected] * 3


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", [512, 4_096, 65_536])
def test_frames_follow_each_other(order: Order, page_size: int) -> None:
    raw = wal(order, page_size, 9)
    header = read_header(raw)
    assert header.is_valid
    assert checksum_of_words(raw[:24], order) == header.seeds[0]
    seed = header.seeds[0]
    found = list(read_frames(io.BytesIO(raw), header))
    for each in found:
        assert each.follows(seed)
        assert not each.follows((seed[0] ^ 1, seed[1]))
        seed = each.stored
    assert [each.page for each in found] == list(range(1, 10))
    assert [each.commit for each in found] == [0, 9, 0, 9, 0, 9, 0, 9, 0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("number", "commit"), [(0, 0), (1, 9)])
def test_damaged_commit_is_recovered_from_the_checksum(
    order: Order, number: int, commit: int
) -> None:
    raw = bytearray(wal(order, 512, 2))
    at = HEADER_BYTES + number * (FRAME_HEADER_BYTES + 512)
    was = bytes(raw[at + 4 : at + 8])
    raw[at + 4 : at + 8] = b"\x12\0\x34\xff"
    header = read_header(bytes(raw))
    found = list(read_frames(io.BytesIO(bytes(raw)), header))
    seed = header.seeds[0] if number == 0 else found[0].stored
    assert found[number].commit_before_damage(seed) == int.from_bytes(was, order)
    assert (int.from_bytes(was, order) > 0) == (commit > 0)


def test_commit_is_not_recovered_if_the_content_is_damaged() -> None:
    raw = bytearray(wal("little", 512, 1))
    raw[HEADER_BYTES + FRAME_HEADER_BYTES + 100] ^= 4
    header = read_header(bytes(raw))
    (found,) = read_frames(io.BytesIO(bytes(raw)), header)
    assert found.commit_before_damage(header.seeds[0]) is None


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_header_is_invalid_when_any_byte_is_wrong(at: int) -> None:
    raw = bytearray(wal("little", 512, 0))
    raw[at] ^= 0x10
    assert not read_header(bytes(raw)).is_valid


def test_incomplete_frame_is_not_read() -> None:
    raw = wal("little", 512, 2)
    assert len(list(read_frames(io.BytesIO(raw[:-1]), read_header(raw)))) == 1
