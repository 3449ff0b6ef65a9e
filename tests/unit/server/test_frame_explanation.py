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


def packet(kind: int, content: str) -> list[str]:
    return [f"P{kind:02}{len(content.encode()):029}", content]


TTL = ["P0500000000000000000000000000004", "3600"]
CREDIT = "P0400000000000000000000000000001"
KEY = ["P0300000000000000000000000000003", "k-1"]
PAUSED = ["P0200000000000000000000000000006", "paused"]
INFO = packet(6, '{"attempt":2}')
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
    assert found.sender == ("broker" if kind in FROM_BROKER else "client")
    expected = {"": "compact: no line breaks", "\n": "line framing, LF", "\r\n": "line framing, CR"}
    assert found.framing.startswith(expected[line_break])
    assert (found.packet_header, found.wrong_byte, found.begun) == (32, None, None)
    assert found.conclusion == "Every frame is complete; the connection stays open."
    shown = [piece.raw.decode() for piece in found.frames[0].pieces]
    packets = [line_break.join(pair) for pair in zip(pieces[1::2], pieces[2::2], strict=True)]
    assert shown == [pieces[0], *packets]


OURS = [
    (
        10, [*FOO, *HELLO], '{"delay_s":60,"priority":0}', "publish with options",
        'Store a message of 11 bytes in \'Foo\' as the options say: {"delay_s":60,"priority":0}. '
        "There is no reply.",
    ),
    (
        10, [*FOO, *HELLO, *KEY], '{"priority":300}', "publish with options",
        "Store nothing, because the options are invalid: priority: must be a whole number from 0 to"
        " 255, not 300. Reply with a receipt (007) for k-1.",
    ),
    (
        10, [*FOO, *HELLO], '{"if_exists":"replace"}', "publish with options",
        "invalid: if_exists: replace needs a unique_key.",
    ),
    (
        11, [*FOO, *MESSAGE], '{"action":"retry","delay_s":1.5}', "settle",
        f"Deliver {ID} in 'Foo' again in 1.5 s. If another connection holds the message, the",
    ),
    (
        11, [*FOO, *MESSAGE, *HELLO], '{"action":"retry"}', "settle",
        f"Deliver {ID} in 'Foo' again in 0 s, with 11 bytes of new content. ",
    ),
    (
        11, [*FOO, *MESSAGE], '{"action":"dead_letter","reason":"unknown urn"}', "settle",
        "store a record in the dead-letter queue; the reason is unknown urn. ",
    ),
    (
        11, [*FOO, *MESSAGE], '{"action":"extend","hold_s":600}', "settle",
        f"End the hold of {ID} in 'Foo' 600 s from now. ",
    ),
    (
        11, [*FOO, *MESSAGE], '{"action":"extend"}', "settle",
        "Change nothing, because the options are invalid: hold_s: is missing.",
    ),
    (
        11, [*FOO, *MESSAGE], '{"action":"retry","delay_s":-1}', "settle",
        f"Return {ID} in 'Foo' as 005 does, because the options are invalid: delay_s: must be",
    ),
    (
        12, [*FOO, CREDIT, "5"], '{"info":true}', "consume with options",
        "Dispatch messages from 'Foo', at most 5 unacknowledged at a time, as the options say: "
        '{"info":true}.',
    ),
    (
        12, [*FOO, CREDIT, "5"], '{"info":1}', "consume with options",
        "Close the connection, because the options are invalid: info: must be true or false, not",
    ),
    (
        13, [*FOO, *HELLO, *MESSAGE, *TTL], '{"attempt":2}', "dispatch with info",
        f"The client holds {ID} from 'Foo' (3,600 s left) until it settles it or the connection "
        'ends. Of this delivery it learns {"attempt":2}.',
    ),
    (
        14, KEY, '{"name":"worker","pid":5}', "hello",
        "a welcome (015) for the key k-1. The client says of itself: name worker, pid 5.",
    ),
    (14, KEY, "[]", "hello", "The client says nothing of itself."),
    (
        15, KEY, '{"frames":[7]}', "welcome",
        'The broker answers the hello with the key k-1: {"frames":[7]}.',
    ),
]  # fmt: skip
FROM_BROKER = ("dispatch", "receipt", "dispatch with info", "welcome")


@pytest.mark.parametrize("line_break", ["", "\r\n"], ids=["compact", "CR LF"])
@pytest.mark.parametrize(("number", "packets", "options", "kind", "outcome"), OURS)
def test_frame_with_options_is_explained_also_if_they_are_invalid(
    number: int, packets: list[str], options: str, kind: str, outcome: str, line_break: str
) -> None:
    pieces = [f"H01{number:03}{len(packets) // 2 + 1:02}", *packets, *packet(6, options)]
    found = explain_bytes(line_break.join(pieces).encode())
    assert [frame.kind for frame in found.frames] == [kind]
    assert outcome in found.outcomes[0]
    assert found.revision.startswith(NEWER)
    assert found.sender == ("broker" if kind in FROM_BROKER else "client")
    label = "info" if number == 13 else "options"
    assert found.frames[0].pieces[-1].meaning == f"{label} {options}"
    assert found.conclusion == "Every frame is complete; the connection stays open."


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
    b"H0101003", b"H0101103", b"H0101203", b"H0101305", b"H0101402", b"H0101502",
    *(piece.encode() for piece in (*FOO, *HELLO, *MESSAGE, *TTL, *INFO)),
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
