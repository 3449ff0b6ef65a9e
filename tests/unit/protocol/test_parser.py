"""The parser: copies, limits, framing and width detection, and the offset of an error."""

from typing import Any

import pytest

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.fast_path import FastClientFrames
from phpmq_lite.protocol.frames import Acknowledge, Consume, Publish, WireLimits
from phpmq_lite.protocol.parser import Parser
from tests.support.builds import NEEDS_SOURCES

HEADER = b"H0100102"
QUEUE = b"P01%029dFoo" % 3


def parser_with(max_content: int = 8 << 20, pinned: int | None = None) -> Parser:
    return Parser(WireLimits(max_content), frames.FROM_CLIENT, FastClientFrames, pinned)


@pytest.fixture
def parser() -> Parser:
    return parser_with()


def error_of(parser: Parser) -> tuple[str, int] | None:
    return None if parser.error is None else (parser.error.code, parser.error.offset)


class Counted(bytes):
    """Bytes that count the bytes copied by slices and by joins."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        part: Any = super().__getitem__(index)
        Counted.copied += len(part) if isinstance(index, slice) else 0
        return part

    def __radd__(self, left: bytes) -> bytes:
        Counted.copied += len(left) + len(self)
        return left + bytes(self)


@pytest.mark.parametrize("read", [1, 7, 100, 4_096])
def test_parser_copies_each_byte_a_fixed_number_of_times(read: int) -> None:
    """R13: the work is linear in the body however it is cut.  No time is measured."""
    frame = HEADER + QUEUE + b"P02%029d" % 40_000 + bytes(40_000)
    Counted.copied = 0
    parser = parser_with()
    got = [
        taken
        for start in range(0, len(frame), read)
        for taken in parser.feed(Counted(frame[start : start + read]))
    ]
    assert got == [Publish("Foo", bytes(40_000), None, None)]
    assert Counted.copied < 2 * len(frame)


def test_parser_takes_a_whole_body_with_one_slice() -> None:
    frame = HEADER + QUEUE + b"P02%029d" % 40_000 + bytes(40_000)
    parser = parser_with()
    parser.feed(frame)
    Counted.copied = 0
    assert len(parser.feed(Counted(frame))) == 1
    assert Counted.copied < len(frame) + 200


def test_parser_keeps_nothing_of_a_content_that_is_too_long() -> None:
    parser = parser_with(max_content=10)
    assert parser.feed(HEADER + QUEUE + b"P02%029d" % 11 + b"x" * 11) == []
    assert error_of(parser) == (frames.TOO_LARGE, 8 + len(QUEUE) + 3)
    assert parser.partial_bytes == 0


def test_parser_refuses_a_length_of_29_nines_with_its_last_digit(parser: Parser) -> None:
    parser.feed(HEADER + b"P02" + b"9" * 28)
    assert error_of(parser) is None
    parser.feed(b"9")
    assert error_of(parser) == (frames.TOO_LARGE, 11)


def test_parser_takes_a_content_of_exactly_the_limit() -> None:
    parser = parser_with(max_content=10)
    frame = HEADER + QUEUE + b"P02%029d" % 10 + b"x" * 10
    assert len(parser.feed(frame * 2)) == 2


@pytest.mark.parametrize(
    ("beginning", "code", "offset"),
    [
        (b"G", frames.BAD_HEADER, 0),
        (b"H0x", frames.BAD_HEADER, 2),
        (b"H02", frames.BAD_VERSION, 2),
        (b"H01008", frames.UNKNOWN_TYPE, 3),
        (b"H01009", frames.UNKNOWN_TYPE, 3),
        (b"H01016", frames.UNKNOWN_TYPE, 3),
        (b"H01003", frames.UNEXPECTED_TYPE, 3),
        (b"H01013", frames.UNEXPECTED_TYPE, 3),
        (b"H01015", frames.UNEXPECTED_TYPE, 3),
        (b"H0101002", frames.BAD_PACKET_COUNT, 6),
        (b"H0101205", frames.BAD_PACKET_COUNT, 6),
        (b"H0101403", frames.BAD_PACKET_COUNT, 6),
        (b"H0101402P01", frames.BAD_PACKET_TYPE, 9),
        (b"H0100102P06", frames.BAD_PACKET_TYPE, 9),
        (b"H0101003P06" + b"%029d" % 16_385, frames.TOO_LARGE, 11),
        (b"H0100107", frames.BAD_PACKET_COUNT, 6),
        (b"H0100102Q", frames.BAD_FRAMING, 8),
        (b"H0100102P04", frames.BAD_PACKET_TYPE, 9),
        (b"H0100102P010x", frames.BAD_PACKET_HEADER, 12),
    ],
)
def test_parser_decides_at_the_first_wrong_byte(
    parser: Parser, beginning: bytes, code: str, offset: int
) -> None:
    parser.feed(beginning[:-1])
    assert error_of(parser) is None
    parser.feed(beginning[-1:])
    assert error_of(parser) == (code, offset)


@pytest.mark.parametrize(
    ("first", "protocol"),
    [(b"GET / HTTP/1.1", "HTTP"), (b"\x16\x03\x01", "TLS"), (b"hello", "hello")],
)
def test_error_names_the_protocol_it_resembles(parser: Parser, first: bytes, protocol: str) -> None:
    parser.feed(first)
    assert protocol in str(parser.error)


def test_partial_bytes_count_the_incomplete_frame_only(parser: Parser) -> None:
    frame = HEADER + QUEUE + b"P02%029dabc" % 3
    parser.feed(frame + frame[:50])
    assert parser.partial_bytes == 50
    parser.feed(frame[50:])
    assert parser.partial_bytes == 0
    parser = parser_with()
    parser.feed(b"H0100402\nP01%029d\nFoo\nP03%029d\nab\n\r\n\r" % (3, 2))
    assert parser.partial_bytes == 0
    assert parser.framing == "line"


@pytest.mark.parametrize("pinned", [32, 36])
def test_pinned_width_reads_a_large_first_packet(pinned: int) -> None:
    """R4: a first packet of at least 10,000 bytes is unambiguous only with a pinned width."""
    digits = pinned - 3
    frame = HEADER + b"P02%0*d" % (digits, 12_000) + bytes(12_000) + b"P01%0*dFoo" % (digits, 3)
    assert parser_with(pinned=pinned).feed(frame) == [Publish("Foo", bytes(12_000), None, None)]


def test_auto_width_uses_the_first_packet_only(parser: Parser) -> None:
    parser.feed(b"H0100202P01%033dFooP04%033d5" % (3, 1))
    assert parser.packet_header == 36
    assert parser.feed(b"H0100202P01%033dFooP04%033d7" % (3, 1)) == [Consume("Foo", 7)]


def test_line_answers_mirror_the_first_break(parser: Parser) -> None:
    parser.feed(b"H0100402\r\nP01%029d\nFoo\nP03%029d\nab\n" % (3, 2))
    assert parser.line_break == b"\r\n"


@NEEDS_SOURCES
def test_cached_queue_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpmq_lite.protocol.parser._MAX_NAMES", 256)
    parser = parser_with()
    names = [b"queue-%04d" % number for number in range(1_000)]
    got = parser.feed(b"".join(b"H0100402P01%029d%sP03%029da" % (10, name, 1) for name in names))
    assert got == [Acknowledge(name.decode(), b"a") for name in names]
    assert len(parser._names) <= 256


def test_first_evidence_of_a_revision_stays(parser: Parser) -> None:
    legacy = HEADER + QUEUE + b"P02%029dx" % 1
    newer = b"H0100103" + QUEUE + b"P02%029dxP05%029d9" % (1, 1)
    parser.feed(b"H0100202" + QUEUE + b"P04%029d5" % 1)
    assert parser.revision_seen is None
    parser.feed(newer + legacy)
    assert parser.revision_seen == "ttl"
