"""Bulk frames are valid PHPMQ, and replies are counted however they are split."""

import pytest

from phpmq_lite.bench.traffic import (
    DispatchStream,
    PublishStream,
    publishes_per_write,
    unconfirmed_limit,
)
from phpmq_lite.errors import ClientError
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import Acknowledge, ClientFrame, Consume, Publish, WireLimits


def read(data: bytes) -> list[ClientFrame]:
    side = ServerSide(WireLimits(), http_guard=False)
    frames = side.receive(data)
    assert side.error is None
    assert side.parser.partial_bytes == 0
    return frames


def dispatches(bodies: list[bytes]) -> bytes:
    parts: list[bytes] = []
    side = ServerSide(WireLimits())
    for number, body in enumerate(bodies):
        side.append_dispatch(parts, "orders", body, b"%032x" % number, 0)
    return b"".join(parts)


def receipts(keys: list[bytes], reason: str | None = None) -> bytes:
    parts: list[bytes] = []
    side = ServerSide(WireLimits())
    for key in keys:
        side.append_receipts(parts, "orders", (key,), reason)
    return b"".join(parts)


def test_publishes_carry_different_keys_and_never_expire() -> None:
    frames = read(PublishStream("orders", 5).encode(3))
    assert all(isinstance(f, Publish) and f.content == b"xxxxx" and f.ttl_s == 0 for f in frames)
    assert len({f.key for f in frames if isinstance(f, Publish)}) == 3


def test_plain_publishes_carry_no_key() -> None:
    frames = read(PublishStream("orders", 2, is_confirmed=False).encode(2))
    assert frames == [Publish("orders", b"xx", 0, None)] * 2


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_last_publish_is_marked(is_confirmed: bool) -> None:
    frames = read(PublishStream("orders", 2, is_confirmed=is_confirmed).encode(3, is_last=True))
    assert [f.content for f in frames if isinstance(f, Publish)] == [b"xx", b"xx", b"yy"]


@pytest.mark.parametrize("cut", [1, 7, 64, 1_000_000])
def test_receipts_are_counted_at_any_cut(cut: int) -> None:
    stream = PublishStream("orders", 1)
    frames = read(stream.encode(5))
    keys = [f.key for f in frames if isinstance(f, Publish) and f.key is not None]
    data = receipts(keys)
    pieces = (data[at : at + cut] for at in range(0, len(data), cut))
    assert sum(stream.feed(piece) for piece in pieces) == 5


def test_receipt_is_found_among_dispatches() -> None:
    stream = PublishStream("orders", 1)
    others = dispatches([b"x", b"x"])
    assert not stream.has_receipt(others + receipts([b"0123456789abcdef"], "queue full"))
    assert stream.has_receipt(others + receipts([b"0123456789abcdef"]))


def test_refusal_is_an_error() -> None:
    stream = PublishStream("orders", 1)
    with pytest.raises(ClientError, match="responded to a publish with b'H0100703"):
        stream.feed(receipts([b"0123456789abcdef"], "queue full: messages"))


@pytest.mark.parametrize("cut", [1, 7, 300, 1_000_000])
def test_dispatches_are_acknowledged_in_order_at_any_cut(cut: int) -> None:
    stream = DispatchStream("orders", 256, 10)
    data = dispatches([b"x" * 256] * 4)
    answer = b"".join(stream.feed(data[at : at + cut]) for at in range(0, len(data), cut))
    assert read(answer) == [Acknowledge("orders", b"%032x" % number) for number in range(4)]
    assert (stream.received, stream.is_complete) == (4, False)


def test_consume_opens_the_window() -> None:
    assert read(DispatchStream("orders", 1, 10).consume) == [Consume("orders", 10)]


def test_stream_is_complete_after_the_marked_message() -> None:
    stream = DispatchStream("orders", 3, 10)
    answer = stream.feed(dispatches([b"xxx", b"yyy"]))
    assert len(read(answer)) == 2
    assert stream.is_complete


@pytest.mark.parametrize("bodies", [[b"xxx", b"zzz"], [b"yyy", b"xxx"]])
def test_unexpected_dispatch_is_an_error(bodies: list[bytes]) -> None:
    with pytest.raises(ClientError, match="the broker dispatched an unexpected"):
        DispatchStream("orders", 3, 10).feed(dispatches(bodies))


@pytest.mark.parametrize(
    ("size", "unconfirmed", "per_write"),
    [(1, 1_000, 200), (256, 1_000, 200), (100_000, 335, 67), (1_000_000, 33, 6), (1 << 30, 2, 1)],
)
def test_unconfirmed_bytes_are_bounded(size: int, unconfirmed: int, per_write: int) -> None:
    assert unconfirmed_limit(size) == unconfirmed
    assert publishes_per_write(size) == per_write
