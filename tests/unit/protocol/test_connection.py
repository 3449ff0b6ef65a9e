"""Both ends of a connection: the style of replies, and frames held back by the HTTP guard."""

import pytest

from phpmq_lite.protocol.connection import (
    GUARDED_BYTES,
    HTTP,
    OTHER,
    UNDECIDED,
    ClientSide,
    HttpRequestDetector,
    ServerSide,
)
from phpmq_lite.protocol.frames import (
    Dispatch,
    DispatchWithInfo,
    Hello,
    Publish,
    ReceiptFrame,
    Revision,
    WireLimits,
)

ID = b"0123456789abcdef0123456789abcdef"
CLIENT = ClientSide()
LEGACY = b"H0100102P01%029dFooP02%029dx" % (3, 1)
TOKENS = CLIENT.publish("Foo", b"planted")
PLANTED = Publish("Foo", b"planted", 0, None)


@pytest.fixture
def side() -> ServerSide:
    return ServerSide(WireLimits())


def code_of(side: ServerSide | ClientSide) -> str | None:
    return None if side.error is None else side.error.code


def is_waiting(side: ServerSide) -> bool:
    return side.is_waiting  # a type checker would assume that the attribute does not change


def dispatched_header(side: ServerSide) -> bytes:
    parts: list[bytes] = []
    side.append_dispatch(parts, "Foo", b"x", ID, 0)
    return b"".join(parts)[:8]


@pytest.mark.parametrize(
    ("sent", "setting", "header"),
    [
        (CLIENT.consume("Foo", 1), "ttl", b"H0100304"),
        (CLIENT.consume("Foo", 1), "legacy", b"H0100303"),
        (LEGACY + CLIENT.consume("Foo", 1), "ttl", b"H0100303"),
        (CLIENT.publish("Foo", b"x"), "legacy", b"H0100304"),
        (CLIENT.requeue("Foo", ID, 0), "legacy", b"H0100304"),
        (CLIENT.dead_letter("Foo", ID), "legacy", b"H0100304"),
        (CLIENT.acknowledge("Foo", ID), "legacy", b"H0100303"),
        (CLIENT.publish_with_options("Foo", b"x", b"{}"), "legacy", b"H0100304"),
        (CLIENT.publish_with_options("Foo", b"x", b"{}", b"k"), "legacy", b"H0100304"),
        (CLIENT.settle("Foo", ID, b"{}", None), "legacy", b"H0100304"),
        (CLIENT.settle("Foo", ID, b"{}", b"x"), "legacy", b"H0100304"),
        (CLIENT.consume_with_options("Foo", 1, b"{}"), "legacy", b"H0100304"),
        (CLIENT.hello(b"k", b"{}"), "legacy", b"H0100304"),
        (LEGACY + CLIENT.hello(b"k", b"{}"), "ttl", b"H0100303"),
    ],
)
def test_dispatch_is_of_the_revision_shown_else_of_the_setting(
    sent: bytes, setting: Revision, header: bytes
) -> None:
    """R7."""
    side = ServerSide(WireLimits(), revision=setting, http_guard=False)
    side.receive(sent)
    assert dispatched_header(side) == header


def test_dispatch_keeps_the_revision_of_the_first_one() -> None:
    """R7: the first dispatch fixes the revision, whatever the client shows later."""
    side = ServerSide(WireLimits(), revision="ttl", http_guard=False)
    side.receive(CLIENT.consume("Foo", 1))
    dispatched_header(side)
    side.receive(LEGACY)
    assert side.parser.revision_seen == "legacy"
    assert dispatched_header(side) == b"H0100304"


@pytest.mark.parametrize("legacy", [b"", LEGACY])
def test_dispatch_with_info_has_one_form_in_both_revisions(legacy: bytes) -> None:
    side = ServerSide(WireLimits(), revision="legacy", http_guard=False)
    side.receive(legacy + CLIENT.consume_with_options("Foo", 1, b'{"info":true}'))
    parts: list[bytes] = []
    side.append_dispatch_with_info(parts, "Foo", b"x", ID, 0, b"{}")
    assert ClientSide().receive(b"".join(parts)) == [DispatchWithInfo("Foo", b"x", ID, 0, b"{}")]
    assert dispatched_header(side) == (b"H0100303" if legacy else b"H0100304")


def test_new_connection_has_no_style_except_a_pinned_width(side: ServerSide) -> None:
    assert (side.parser.framing, side.parser.revision_seen, side.packet_header) == (None, None, 32)
    assert (side.parser.partial_bytes, side.error, side.is_waiting) == (0, None, False)
    assert ServerSide(WireLimits(), packet_header="36").packet_header == 36


def test_client_side_reads_what_server_side_writes() -> None:
    side = ServerSide(WireLimits(), http_guard=False)
    side.receive(CLIENT.consume("Foo", 5))
    parts: list[bytes] = []
    side.append_dispatch(parts, "Foo", b"body", ID, 17)
    side.append_receipts(parts, "Foo", (b"key",), None)
    side.append_receipts(parts, "Foo", (b"key",), "queue is paused")
    client = ClientSide()
    assert client.receive(b"".join(parts)) == [
        Dispatch("Foo", b"body", ID, 17),
        ReceiptFrame("Foo", b"key", None),
        ReceiptFrame("Foo", b"key", "queue is paused"),
    ]


def test_client_side_rejects_other_protocols() -> None:
    client = ClientSide()
    assert client.receive(b"HTTP/1.1 400 Bad Request\r\n") == []
    assert code_of(client) == "bad-header"
    assert client.parser.partial_bytes == 0


def test_frames_of_token_characters_wait_until_released(side: ServerSide) -> None:
    """docs/operate/security.md 8: they are released after 20 ms of silence."""
    assert side.receive(TOKENS) == []
    assert is_waiting(side)
    assert side.release() == [PLANTED]
    assert not is_waiting(side)
    assert side.receive(TOKENS) == [PLANTED]


def test_frames_wait_until_another_byte_comes(side: ServerSide) -> None:
    side.receive(TOKENS)
    assert side.receive(CLIENT.publish("Foo", b'{"a":1}')) == [
        PLANTED,
        Publish("Foo", b'{"a":1}', 0, None),
    ]
    assert not is_waiting(side)


@pytest.mark.parametrize("body", [b'{"job": "x"}', b"a/b", b"\n"])
def test_frames_with_other_bytes_never_wait(side: ServerSide, body: bytes) -> None:
    assert side.receive(CLIENT.publish("Foo", body)) == [Publish("Foo", body, 0, None)]


def test_hello_never_waits_for_the_guard(side: ServerSide) -> None:
    """Its JSON has bytes that no request method has; without, it waits like any frame."""
    assert side.receive(CLIENT.hello(b"k", b"{}")) == [Hello(b"k", b"{}")]


def test_line_framing_never_waits(side: ServerSide) -> None:
    assert len(side.receive(b"H0100402\nP01%029d\nFoo\nP03%029d\nab" % (3, 2))) == 1


HEAD = b" / HTTP/1.1\r\nHost: rebound.example\r\nContent-Length: 300\r\n\r\n"
SWALLOW = b"H0100103P01%029dFooP02%029d" % (3, len(HEAD))  # the head becomes content
REST = b"P05%029d0" % 1 + TOKENS  # the body of the request continues


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("method", [TOKENS + SWALLOW, TOKENS, SWALLOW, TOKENS + b"GET"])
def test_no_frame_of_an_http_request_is_accepted(method: bytes, size: int) -> None:
    """docs/operate/security.md 8: a request with a frame as its method closes the connection."""
    request = method + HEAD + REST
    side = ServerSide(WireLimits())
    for start in range(0, len(request), size):
        assert side.receive(request[start : start + size]) == []
    assert code_of(side) == "http-request"
    assert (side.release(), side.is_waiting) == ([], False)
    assert side.receive(TOKENS) == []


def test_guard_switched_off_accepts_everything() -> None:
    side = ServerSide(WireLimits(), http_guard=False)
    assert len(side.receive(TOKENS + SWALLOW + HEAD + REST)) == 3


def test_error_waits_with_the_frames_before_it(side: ServerSide) -> None:
    """R16: the frames are accepted, unless a browser sent them."""
    assert side.receive(TOKENS + b"GARBAGE") == []
    assert code_of(side) is None
    assert side.receive(TOKENS) == []
    assert side.release() == [PLANTED]
    assert code_of(side) == "bad-header"


def test_error_is_reported_at_once_when_no_frame_waits(side: ServerSide) -> None:
    side.receive(b"GET / HTTP/1.1\r\n")
    assert code_of(side) == "bad-header"


def test_waiting_frames_are_bounded(side: ServerSide) -> None:
    reads = [TOKENS * 1_000] * (GUARDED_BYTES // (len(TOKENS) * 1_000) + 1)
    got = [len(side.receive(read)) for read in reads]
    assert sum(got) == len(reads) * 1_000
    assert not is_waiting(side)


def test_release_without_waiting_frames_leaves_the_guard_on(side: ServerSide) -> None:
    assert side.release() == []
    side.receive(TOKENS[:20])
    assert side.release() == []
    side.receive(TOKENS[20:])
    assert is_waiting(side)


METHOD = CLIENT.publish("orders", b"planted")
VERDICTS = [
    (b"", UNDECIDED),
    (METHOD, UNDECIDED),
    (METHOD + b" ", UNDECIDED),
    (METHOD + b" /", UNDECIDED),
    (METHOD + b" /path?x=1", UNDECIDED),
    (METHOD + b" / HTTP/1", UNDECIDED),
    (METHOD + b" / HTTP/1.", HTTP),
    (METHOD + b" / HTTP/1.1\r\nHost: evil\r\n\r\n", HTTP),
    (METHOD + b" http://127.0.0.1:9100/ HTTP/1.1\r\n", HTTP),
    (METHOD + b" * HTTP/1.0", HTTP),
    (METHOD + b" / HTTP/2", OTHER),
    (METHOD + b" / http/1.1", OTHER),
    (METHOD + b"  HTTP/1.1", OTHER),
    (METHOD + b" /\t HTTP/1.1", OTHER),
    (METHOD + b" /\xff HTTP/1.1", OTHER),
    (METHOD + b" text of a body", OTHER),
    (METHOD + b"\n", OTHER),
    (METHOD + b"{", OTHER),
    (b'H0100103{"a": 1} / HTTP/1.1', OTHER),
]


@pytest.mark.parametrize(("data", "verdict"), VERDICTS)
def test_guard_gives_its_verdict_at_any_cut(data: bytes, verdict: str) -> None:
    for size in (1, 3, 1_000):
        guard = HttpRequestDetector()
        for start in range(0, len(data), size):
            guard.inspect(data[start : start + size])
        assert guard.verdict == verdict


def test_verdict_is_final() -> None:
    guard = HttpRequestDetector()
    assert guard.inspect(b"{") == OTHER
    assert guard.inspect(b"GET / HTTP/1.1") == OTHER
