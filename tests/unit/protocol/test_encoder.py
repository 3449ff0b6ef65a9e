"""Frames as the broker writes them in every style, and as a client must not write them."""

from collections.abc import Callable

import pytest

from phpmq_lite.errors import LocalProtocolError
from phpmq_lite.protocol.encoder import BrokerEncoder, ClientEncoder, encoder_for
from phpmq_lite.protocol.frames import WireLimits

ID = b"0123456789abcdef0123456789abcdef"
CLIENT = ClientEncoder(WireLimits(max_content=100))


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
    ],
)
def test_client_refuses_to_write_invalid_frames(write: Callable[[], bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        write()
