"""Frames as the broker writes them in every style, and as a client must not write them."""

from collections.abc import Callable
from itertools import product

import pytest

from phpmq_lite.errors import LocalProtocolError
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.encoder import BrokerEncoder, ClientEncoder, encoder_for
from phpmq_lite.protocol.frames import (
    BrokerFrame,
    Dispatch,
    DispatchWithInfo,
    ReceiptFrame,
    Revision,
    Welcome,
    WireLimits,
)
from tests.support.frame_bytes import append_broker_frame

ID = b"0123456789abcdef0123456789abcdef"
CLIENT = ClientEncoder(WireLimits(max_content=100))
INFO = b'{"attempt":1}'
STYLES = list(product((b"", b"\n", b"\r\n"), (32, 36), ("ttl", "legacy")))


def test_dispatch_appends_the_content_itself() -> None:
    content = b"a body"
    parts: list[bytes] = []
    encoder_for(b"", 32, "ttl").append_dispatch(parts, "orders", content, ID, 0)
    assert any(part is content for part in parts)


def test_legacy_dispatch_has_three_packets() -> None:
    parts: list[bytes] = []
    encoder_for(b"", 36, "legacy").append_dispatch(parts, "Foo", b"x", ID, 77)
    expected = b"H0100303P01%033dFooP02%033dxP03%033d%s" % (3, 1, 32, ID)
    assert b"".join(parts) == expected


def test_dispatch_carries_an_id_of_any_length() -> None:
    parts: list[bytes] = []
    encoder_for(b"\n", 32, "ttl").append_dispatch(parts, "Foo", b"x", b"short", 5)
    assert b"\nP03%029d\nshort\nP05%029d\n5\n" % (5, 1) in b"".join(parts)


def test_same_style_gives_the_same_encoder() -> None:
    assert encoder_for(b"\r\n", 32, "ttl") is encoder_for(b"\r\n", 32, "ttl")


@pytest.mark.parametrize(("line_break", "width", "revision"), STYLES)
def test_client_reads_every_frame_in_each_style_at_any_cut(
    line_break: bytes, width: int, revision: Revision
) -> None:
    """A 013 always has its TTL: its consumer has shown the newer revision, or both (R7)."""
    ttl_s = 9 if revision == "ttl" else None
    sent: list[BrokerFrame] = [
        Dispatch("Foo", b"x", ID, ttl_s),
        DispatchWithInfo("Foo", b"", ID, 0, INFO),
        DispatchWithInfo("\u00e4", b"H0101305", b"short", 3_598, b"{}"),
        ReceiptFrame("Foo", b"key", "bad_option: priority"),
        Welcome(b"key", b'{"frames":[7]}'),
    ]
    parts: list[bytes] = []
    for frame in sent:
        append_broker_frame(encoder_for(line_break, width, revision), parts, frame)
    stream = b"".join(parts)
    for cut in range(len(stream)):
        client = ClientSide()
        assert client.receive(stream[:cut]) + client.receive(stream[cut:]) == sent, cut
        assert (client.error, client.parser.partial_bytes) == (None, 0)


def test_dispatch_with_info_appends_the_content_itself() -> None:
    content = b"a body"
    parts: list[bytes] = []
    encoder_for(b"", 32, "ttl").append_dispatch_with_info(parts, "orders", content, ID, 0, INFO)
    assert any(part is content for part in parts)


def test_cached_heads_are_bounded() -> None:
    encoder = BrokerEncoder(b"", 32, "ttl")
    for number in range(10_500):
        encoder.append_dispatch([], f"queue-{number}", b"", ID, 0)
    assert len(encoder._heads) <= 10_000


def test_client_writes_the_newer_revision() -> None:
    queue = b"P01%029dFoo" % 3
    head = b"P02%029dx" % 1
    assert CLIENT.publish("Foo", b"x") == b"H0100103" + queue + head + b"P05%029d0" % 1
    assert CLIENT.publish("Foo", b"x", 60, b"k") == (
        b"H0100104" + queue + head + b"P05%029d60P03%029dk" % (2, 1)
    )
    assert CLIENT.consume("Foo", 25) == b"H0100202" + queue + b"P04%029d25" % 2
    assert CLIENT.acknowledge("Foo", b"a") == b"H0100402" + queue + b"P03%029da" % 1
    assert CLIENT.requeue("Foo", b"a", 9) == b"H0100503" + queue + b"P03%029daP05%029d9" % (1, 1)
    assert CLIENT.dead_letter("Foo", b"a") == b"H0100602" + queue + b"P03%029da" % 1


def test_client_writes_options_in_packet_06() -> None:
    queue, empty = b"P01%029dFoo" % 3, b"P06%029d{}" % 2
    content, key = b"P02%029dx" % 1, b"P03%029dk" % 1
    published = b"H0101003" + queue + content + empty
    assert CLIENT.publish_with_options("Foo", b"x", b"{}") == published
    with_key = b"H0101004" + queue + content + empty + key
    assert CLIENT.publish_with_options("Foo", b"x", b"{}", b"k") == with_key
    assert CLIENT.settle("Foo", b"k", b"{}", None) == b"H0101103" + queue + key + empty
    assert CLIENT.settle("Foo", b"k", b"{}", b"x") == b"H0101104" + queue + key + empty + content
    no_content = b"H0101104" + queue + key + empty + b"P02%029d" % 0
    assert CLIENT.settle("Foo", b"k", b"{}", b"") == no_content
    consume = b"H0101203" + queue + b"P04%029d5" % 1 + empty
    assert CLIENT.consume_with_options("Foo", 5, b"{}") == consume
    assert CLIENT.hello(b"k", b"{}") == b"H0101402" + key + empty
    assert CLIENT.hello(b"k", bytes(16_384)).endswith(b"P06%029d" % 16_384 + bytes(16_384))


@pytest.mark.parametrize(
    "write",
    [
        lambda: CLIENT.publish("", b"x"),
        lambda: CLIENT.publish("q" * 256, b"x"),
        lambda: CLIENT.publish("q" * 256 + ".dlq", b"x"),
        lambda: CLIENT.publish("é" * 128, b"x"),
        lambda: CLIENT.publish("a\x00b", b"x"),
        lambda: CLIENT.publish("\udc80", b"x"),
        lambda: CLIENT.publish("Foo", bytes(101)),
        lambda: CLIENT.publish("Foo", b"x", -1),
        lambda: CLIENT.publish("Foo", b"x", 10**19),
        lambda: CLIENT.publish("Foo", b"x", 0, b""),
        lambda: CLIENT.publish("Foo", b"x", 0, b"k" * 65),
        lambda: CLIENT.consume("Foo", -1),
        lambda: CLIENT.acknowledge("Foo", b""),
        lambda: CLIENT.requeue("Foo", ID, -5),
        lambda: CLIENT.dead_letter("Foo", b"i" * 65),
        lambda: CLIENT.publish_with_options("", b"x", b"{}"),
        lambda: CLIENT.publish_with_options("Foo", bytes(101), b"{}"),
        lambda: CLIENT.publish_with_options("Foo", b"x", bytes(16_385)),
        lambda: CLIENT.publish_with_options("Foo", b"x", b"{}", b""),
        lambda: CLIENT.settle("Foo", b"", b"{}", None),
        lambda: CLIENT.settle("Foo", ID, bytes(16_385), None),
        lambda: CLIENT.settle("Foo", ID, b"{}", bytes(101)),
        lambda: CLIENT.consume_with_options("Foo", -1, b"{}"),
        lambda: CLIENT.consume_with_options("Foo", 1, bytes(16_385)),
        lambda: CLIENT.hello(b"k" * 65, b"{}"),
        lambda: CLIENT.hello(b"k", bytes(16_385)),
    ],
)
def test_client_refuses_to_write_invalid_frames(write: Callable[[], bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        write()
