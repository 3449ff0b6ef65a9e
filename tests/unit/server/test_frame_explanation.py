"""Explained bytes: examples of the published documents, and invalid ones."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import WireLimits
from phpmq_lite.server.frame_explanation import (
    Encoding,
    UnreadableError,
    as_data,
    explain_bytes,
    pasted_bytes,
)

ID = "d7e7f68761d34838494b233148b5486c"
FOO = ["P0100000000000000000000000000003", "Foo"]
HELLO = ["P0200000000000000000000000000011", "Hello World"]
MESSAGE = ["P0300000000000000000000000000032", ID]
TTL = ["P0500000000000000000000000000004", "3600"]
CREDIT = "P0400000000000000000000000000001"
KEY = ["P0300000000000000000000000000003", "k-1"]
PAUSED = ["P0200000000000000000000000000006", "paused"]
NEWER, OLDER, UNKNOWN = "newer", "older", "unknown"


@pytest.mark.parametrize("line_break", ["", "\n", "\r\n"], ids=["compact", "LF", "CR LF"])
@pytest.mark.parametrize(
    ("pieces", "kind", "revision", "outcome"),
    [
        (["H0100103", *FOO, *HELLO, *TTL], "publish", NEWER, "it expires after 3,600 s"),
        (["H0100102", *FOO, *HELLO], "publish", OLDER, "default_ttl_s"),
        (["H0100202", *FOO, CREDIT, "5"], "consume", UNKNOWN, "at most 5 unacknowledged"),
        (["H0100202", *FOO, CREDIT, "0"], "consume", UNKNOWN, "messages it holds are returned"),
        (["H0100304", *FOO, *HELLO, *MESSAGE, TTL[0], "3300"], "dispatch", NEWER, "3,300 s left"),
        (["H0100303", *FOO, *HELLO, *MESSAGE], "dispatch", OLDER, "until it sends 004"),
        (["H0100402", *FOO, *MESSAGE], "acknowledge", UNKNOWN, f"Settle {ID} in 'Foo' as acked"),
        (["H0100503", *FOO, *MESSAGE, *TTL], "requeue", NEWER, "to the end of 'Foo'"),
        (["H0100602", *FOO, *MESSAGE], "dead letter", NEWER, "dead-letter queue"),
        (
            ["H0100104", *FOO, *HELLO, *TTL, *KEY],
            "publish",
            NEWER,
            "a receipt (007) for the key k-1",
        ),
        (["H0100702", *FOO, *KEY], "receipt", NEWER, "with the key k-1 is on disk"),
        (["H0100703", *FOO, *KEY, *PAUSED], "receipt", NEWER, "k-1: paused"),
    ],
)
def test_frame_is_named_and_its_effect_explained(
    pieces: list[str], kind: str, revision: str, outcome: str, line_break: str
) -> None:
    """The examples of the published documents, with line breaks and without."""
    found = explain_bytes(line_break.join(pieces).encode())
    assert [frame.kind for frame in found.frames] == [kind]
    assert outcome in found.outcomes[0]
    assert found.revision.startswith(revision)
    assert found.sender == ("broker" if kind in ("dispatch", "receipt") else "client")
    expected = {"": "compact: no line breaks", "\n": "line framing, LF", "\r\n": "line framing, CR"}
    assert found.framing.startswith(expected[line_break])
    assert (found.packet_header, found.wrong_byte, found.begun) == (32, None, None)
    assert found.conclusion == "Every frame is complete; the connection stays open."
    shown = [piece.raw.decode() for piece in found.frames[0].pieces]
    packets = [line_break.join(pair) for pair in zip(pieces[1::2], pieces[2::2], strict=True)]
    assert shown == [pieces[0], *packets]


@pytest.mark.parametrize("line_break", ["", "\n"])
def test_packet_headers_of_36_bytes_are_recognised(line_break: str) -> None:
    pieces = ["H0100202", f"P01{3:033}", "Foo", f"P04{1:033}", "5"]
    found = explain_bytes(line_break.join(pieces).encode())
    assert (found.packet_header, len(found.frames), found.wrong_byte) == (36, 1, None)


def test_message_receipt_of_an_earlier_revision_is_named() -> None:
    found = explain_bytes("".join(["H0100502", *FOO, *MESSAGE]).encode())
    assert found.wrong_byte is not None
    assert (found.wrong_byte.code, found.wrong_byte.offset) == (frames.BAD_PACKET_COUNT, 6)
    assert "message receipt of an earlier revision" in found.wrong_byte.detail
    assert "closes the connection without a reply" in found.conclusion


def test_wrong_byte_is_shown_after_the_valid_ones() -> None:
    good = "".join(["H0100102", *FOO, *HELLO])
    found = explain_bytes(f"{good}H0100102{FOO[0]}FooX02".encode())
    assert [frame.kind for frame in found.frames] == ["publish"]
    assert found.begun is not None
    assert [piece.meaning for piece in found.begun.pieces] == ["publish, 2 packets", "queue Foo"]
    assert found.wrong_byte is not None
    assert (found.wrong_byte.offset, found.wrong_byte.received) == (len(good) + 8 + 32 + 3, b"X02")
    assert found.wrong_byte.before.endswith(b"Foo")


@pytest.mark.parametrize(
    ("data", "last", "conclusion"),
    [
        (b"", None, "No bytes were given."),
        (b"H0", "message header, 2 of 8 bytes", "only 2 bytes have arrived"),
        (b"H0100102", "publish, 2 packets", "only 8 bytes have"),
        (b"H0100102P01", "incomplete packet header", "only 11 bytes have"),
        (b"H0100102" + FOO[0].encode() + b"F", "content, 1 of 3 bytes", "only 41 bytes have"),
    ],
)
def test_incomplete_frame_is_explained(data: bytes, last: str | None, conclusion: str) -> None:
    found = explain_bytes(data)
    assert (None if found.begun is None else found.begun.pieces[-1].meaning) == last
    assert conclusion in found.conclusion
    assert found.wrong_byte is None


def test_http_request_is_recognised() -> None:
    found = explain_bytes(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert found.frames == ()
    assert found.wrong_byte is not None
    assert "looks like HTTP" in found.wrong_byte.detail


HEADER = b"H0100202"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (HEADER, "auto"),
        (HEADER.hex().encode(), "auto"),
        (HEADER.hex(" ").upper().encode() + b"\n", "auto"),
        (b"0x48, 0x30, 0x31, 0x30, 0x30, 0x32, 0x30, 0x32", "auto"),
        (rb"\x48\x30\x31\x30\x30\x32\x30\x32", "auto"),
        (base64.b64encode(HEADER), "auto"),
        (base64.b64encode(HEADER) + b"\r\n", "base64"),
        (HEADER.hex().encode(), "hex"),
    ],
)
def test_pasted_text_is_read_as_hex_base64_or_itself(text: bytes, encoding: Encoding) -> None:
    assert pasted_bytes(text, encoding) == HEADER


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1", b"P0100000000000000000000000000003Foo", b"x"])
def test_other_text_is_raw(text: bytes) -> None:
    assert pasted_bytes(text) == text


@pytest.mark.parametrize(
    ("text", "encoding", "words"),
    [(b"4", "hex", "valid hex"), (b"zz", "hex", "valid hex"), (b"a", "base64", "valid base64"),
     (b"\xff", "base64", "valid base64"), (b"\xff", "hex", "valid hex")],
)  # fmt: skip
def test_text_in_another_encoding_is_refused(text: bytes, encoding: Encoding, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        pasted_bytes(text, encoding)


PIECES = [
    b"H0100102", b"H0100304", b"H0100502", b"H0100202", b"\n", b"\r\n", b"x", b"\xff", b"0",
    *(piece.encode() for piece in (*FOO, *HELLO, *MESSAGE, *TTL)),
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)))
def test_any_bytes_are_explained_as_the_parser_reads_them(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    found = explain_bytes(data)
    json.dumps(as_data(found))
    side = ClientSide() if found.sender == "broker" else ServerSide(WireLimits())
    parsed = len(side.receive(data))
    if isinstance(side, ServerSide):
        parsed += len(side.release())
    assert len(found.frames) == len(found.outcomes) == parsed
    assert (found.wrong_byte is None) == (side.error is None)
    assert bool(found.begun) == bool(side.parser.partial_bytes) or found.wrong_byte is not None
