"""The two ends of a connection under any bytes: frames or a refusal, the same at any cut.

What must hold of every stream:

- nothing is raised; what is wrong shows in ``error``, and nothing is taken behind it;
- whole, in small pieces and at any cut it gives the same, so the quick way for whole frames agrees
  with the steps for all others;
- the frames are those of ``grammar.py``;
- what is in front of ``error.offset`` is right, and gives the same frames;
- what is kept of a frame that is not whole is bounded;
- the frames survive being written and read again, in another style;
- with the http guard a browser's request gives nothing, and all else gives the same.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, cast
from zlib import crc32

from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import (
    HTTP_REQUEST,
    BrokerFrame,
    ClientFrame,
    Dispatch,
    Frame,
    WireLimits,
)
from tests.fuzz import grammar
from tests.fuzz.options import OPTIONS
from tests.fuzz.target import Target
from tests.support.frame_bytes import (
    append_broker_frame,
    encode_frame,
    forever,
    packets_of,
    split_at,
)

LIMITS: Final = WireLimits(max_content=300, max_queue=40, max_options=100)
MOST_KEPT: Final = 10 + 4 * 40 + sum(LIMITS.by_packet().values())  # bytes of one whole frame
LATE: Final = ClientSide().publish("late", b"late")
LATE_ANSWER: Final = b"H0100702P01%029dlateP03%029dkey" % (4, 3)
_WIRE_CASES: Final = Path(__file__).parents[1] / "conformance" / "wire_cases.json"

Side = ServerSide | ClientSide


class Reading(NamedTuple):
    frames: list[Frame]
    code: str | None  # of the error
    offset: int  # of the first wrong byte; -1: there is none
    partial: int
    framing: str
    width: int  # of the packet headers; 0: not known


def read(side: Side, pieces: list[bytes]) -> Reading:
    """Feed all pieces to a side, and check its bounds after each."""
    frames: list[Frame] = []
    for piece in pieces:
        frames += side.receive(piece)
        assert side.parser.partial_bytes <= MOST_KEPT, (
            f"keeps {side.parser.partial_bytes} bytes of a frame"
        )
    if isinstance(side, ServerSide):
        frames += side.release()
    error, parser = side.error, side.parser
    style = parser.framing or "unframed", parser.packet_header or 0
    if error is None:
        return Reading(frames, None, -1, side.parser.partial_bytes, *style)
    late = LATE if isinstance(side, ServerSide) else LATE_ANSWER
    assert side.receive(late) == [], "reads on behind an error"
    assert side.parser.partial_bytes == 0, "keeps bytes behind an error"
    return Reading(frames, error.code, error.offset, 0, *style)


def check_reading(data: bytes, made: Callable[[], Side], right: Any, width: int | None) -> Reading:
    """Check the outcome of a stream at any cut; ``right`` are the shapes of the grammar."""
    dice = Random(crc32(data))
    whole = read(made(), [data])
    few = dice.choice((1, 5, 7, 11))  # bytes: less than any frame, so it takes the slow way
    by_few = [data[at : at + few] for at in range(0, len(data), few)]
    places = [dice.randrange(1 << 16) for _ in range(dice.randrange(1, 5))]
    for pieces in (by_few, split_at(data, places)):
        assert read(made(), pieces) == whole, "another result at another cut"
    frames, end = grammar.read(data, right, LIMITS, width)
    assert whole.frames == frames, "other frames than the grammar has"
    if end == "wrong":
        assert whole.code is not None, "a wrong stream is not refused"
    elif end == "whole":
        assert (whole.code, whole.partial) == (None, 0), "a right stream is refused"
    if whole.code is not None:
        assert 0 <= whole.offset <= len(data), "the wrong byte is not in the stream"
        before = read(made(), [data[: whole.offset]])
        assert before.frames == frames, "the wrong byte is further ahead"
        assert before.code in (None, whole.code)  # a number of no bytes is wrong where it begins
    return whole


def check_guard(data: bytes, without: Reading) -> None:
    """Check that the guard refuses HTTP requests and changes nothing else."""
    dice = Random(crc32(data))
    for pieces in ([data], split_at(data, [dice.randrange(1 << 16) for _ in range(3)])):
        guarded = read(ServerSide(LIMITS), pieces)
        if not grammar.is_http(data):
            assert guarded == without, "the guard changes a stream that is not a request"
        else:
            assert (guarded.frames, guarded.code is None) == ([], False), "a request is taken"
            assert guarded.code == HTTP_REQUEST or without.code is not None


def check_parser(data: bytes) -> str:
    whole = check_reading(
        data, lambda: ServerSide(LIMITS, http_guard=False), grammar.FROM_CLIENT, None
    )
    check_guard(data, whole)
    if crc32(data) % 8 == 0:  # seldom asked for
        for width in (32, 36):
            check_reading(
                data,
                lambda: ServerSide(LIMITS, packet_header=f"{width}", http_guard=False),  # noqa: B023
                grammar.FROM_CLIENT,
                width,
            )
    frames = cast("list[ClientFrame]", whole.frames)
    if frames:
        dice = Random(crc32(data))
        style = dice.choice((32, 36)), forever(dice.choice(([b""], [b"\n"], [b"\r\n", b"\n"])))
        again = b"".join(encode_frame(*packets_of(frame), *style) for frame in frames)
        side = ServerSide(LIMITS, http_guard=False)
        assert read(side, [again]).frames == frames, "frames do not survive"
    return "request" if grammar.is_http(data) and frames else _outcome(whole)


def check_answers(data: bytes) -> str:
    whole = check_reading(data, lambda: ClientSide(LIMITS), grammar.FROM_BROKER, None)
    for revision in ("ttl", "legacy"):
        server = ServerSide(WireLimits(), revision=revision, http_guard=False)
        said = cast("list[BrokerFrame]", whole.frames)
        frames = [
            frame
            for frame in said
            if not isinstance(frame, Dispatch) or (frame.ttl_s is None) == (revision == "legacy")
        ]
        parts: list[bytes] = []
        for frame in frames:
            append_broker_frame(server, parts, frame)
        again = ClientSide()
        assert again.receive(b"".join(parts)) == frames, "frames do not survive"
    return _outcome(whole)


def _outcome(whole: Reading) -> str:
    """Return the framing, the last frame, and the end."""
    last = type(whole.frames[-1]).__name__.removesuffix("Frame").lower() if whole.frames else "none"
    return f"{whole.framing}-{last}-{whole.code or ('partial' if whole.partial else 'whole')}"


# -- where inputs come from


def _packet(dice: Random, kind: int) -> tuple[int, bytes]:
    """Draw a packet, usually a valid one of its kind."""
    match kind if dice.random() < 0.98 else dice.randrange(8):
        case 1:
            return kind, dice.choice((b"a", b"orders", b"\xc3\xa4", b"", b"x" * 40, b"x" * 41))
        case 2:
            size = dice.choice((0, 0, 1, 5, 31, 32, 80, 299, 300, 301))
            return kind, dice.choice((dice.randbytes(size), b"x" * size, LATE))
        case 3:
            return kind, dice.choice((b"k", b"0" * 32, b"0" * 32, b"k" * 64, b"k" * 65, b""))
        case 6:
            plain = dice.choice((b"{}", b'{"info":true}', b"", b"x" * 100, b"x" * 101, LATE))
            return kind, OPTIONS.fresh(dice) if dice.random() < 0.5 else plain
        case _:
            return kind, dice.choice((b"0", b"1", b"60", b"9" * 19, b"9" * 20, b"", b"1.0"))


def _fresh(shapes: dict[bytes, Any], dice: Random) -> bytes:
    """Draw a stream of a few frames in one style, usually valid ones."""
    width = dice.choice((32, 32, 32, 36))
    breaks = dice.choice(([b""], [b""], [b""], [b"\n"], [b"\r\n"], [b"\n", b"\r\n"]))
    style = width, forever(breaks)
    stream = b""
    kinds = dice.sample(list(shapes), dice.choice((1, 1, 2, 3)))  # few: a peer repeats itself
    for _ in range(dice.choice((1, 1, 2, 3, 5))):
        kind = dice.choice(kinds)
        packets = [_packet(dice, int(packet)) for packet in sorted(shapes[kind][0])]
        if dice.random() < 0.2:
            dice.shuffle(packets)
        stream += encode_frame(int(kind[:3]), packets, *style)
    return stream + b" / HTTP/1.1\r\nHost: a\r\n\r\n" * (dice.random() < 0.05)


def _seeds(side: str) -> list[bytes]:
    """Return the streams of the wire cases that are not too long."""
    cases = json.loads(_WIRE_CASES.read_text(encoding="utf-8"))["cases"]
    texts = [case["bytes"] for case in cases if case["from"] == side]
    return [text.encode("latin-1") for text in texts if isinstance(text, str)]


_PARTS: Final = re.compile(rb"H[0-9]{7}[\r\n]*|P[0-9]{2}[0-9]{29,33}[\r\n]*|[^HP]+|.", re.DOTALL)
_WORDS: Final = b"""
H P H01 H0100103 H0100104 H0100202 H0100402 H0100304 H0100702 H0101003 H0101104 H0101203 H0101305
H0101402 H0101502 P01 P02 P03 P04 P05 P06 P07 0 9 0000
"""
_TOKENS: Final = (
    *_WORDS.split(),
    b"\n",
    b"\r\n",
    b"\r",
    b"0" * 29,
    b"\0",
    b"\xff",
    b"\xc3",
    b" ",
    b" / HTTP/1.1\r\n",
    b"GET ",
    LATE,
    LATE_ANSWER,
)

PARSER: Final = Target(
    "parser",
    check_parser,
    lambda dice: _fresh(grammar.FROM_CLIENT, dice),
    lambda: _seeds("client"),
    _PARTS,
    _TOKENS,
)
ANSWERS: Final = Target(
    "answers",
    check_answers,
    lambda dice: _fresh(grammar.FROM_BROKER, dice),
    lambda: _seeds("broker"),
    _PARTS,
    _TOKENS,
)
