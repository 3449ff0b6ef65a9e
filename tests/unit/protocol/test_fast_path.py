"""The fast path takes only complete common frames, and returns what the parser returns."""

from itertools import product

import pytest

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.fast_path import FastBrokerFrames, FastClientFrames, read_length
from phpmq_lite.protocol.frames import Acknowledge, Frame, Publish, ReceiptFrame, WireLimits

CLIENT = ClientSide()
ID = b"0123456789abcdef0123456789abcdef"


def client_frames() -> FastClientFrames:
    """Return a fast path that knows two queues and every header."""
    made = FastClientFrames({b"Foo": "Foo", b"Bar": "Bar"}, WireLimits(1_000))
    made.headers.update(frames.FROM_CLIENT)
    return made


def broker_frames(max_content: int = 1_000) -> FastBrokerFrames:
    made = FastBrokerFrames({b"Foo": "Foo"}, WireLimits(max_content))
    made.headers.update(frames.FROM_BROKER)
    return made


def parse(fast: FastClientFrames | FastBrokerFrames, data: bytes) -> tuple[int, list[Frame]]:
    """Return the number of bytes taken, and the frames."""
    found: list[Frame] = []
    return fast.parse(data, 0, found), found


def test_common_frames_are_taken_in_order() -> None:
    stream = (
        CLIENT.publish("Foo", b"one", 60)
        + CLIENT.publish("Bar", b"two", 60, b"key1")
        + CLIENT.acknowledge("Foo", ID)
        + b"H0100102P01%029dFooP02%029d" % (3, 0)
        + CLIENT.publish("Foo", b"three", 61)
        + CLIENT.publish("Foo", b"", 0, b"longer key")
    )
    size, found = parse(client_frames(), stream)
    assert size == len(stream)
    assert found == [
        Publish("Foo", b"one", 60, None),
        Publish("Bar", b"two", 60, b"key1"),
        Acknowledge("Foo", ID),
        Publish("Foo", b"", None, None),
        Publish("Foo", b"three", 61, None),
        Publish("Foo", b"", 0, b"longer key"),
    ]


def test_many_queues_give_the_same_frames_however_they_are_cut() -> None:
    stream = b"".join(
        CLIENT.publish(queue, b"x" * (number % 3), ttl_s, key) + CLIENT.acknowledge(queue, ID)
        for number, (queue, (ttl_s, key)) in enumerate(
            product(("a", "bb", "a queue", "bb"), [(0, None), (60, b"key"), (0, b"longer key")])
        )
    )
    found = ServerSide(WireLimits(), http_guard=False).receive(stream)
    assert len(found) == 24
    for cut in range(len(stream)):
        side = ServerSide(WireLimits(), http_guard=False)
        assert side.receive(stream[:cut]) + side.receive(stream[cut:]) == found, cut


@pytest.mark.parametrize(
    "frame",
    [
        CLIENT.publish("Foo", b"one", 60),
        CLIENT.publish("Foo", b"one", 60, b"key"),
        CLIENT.acknowledge("Foo", ID),
        b"H0100102P01%029dFooP02%029dx" % (3, 1),
    ],
)
def test_no_part_of_a_frame_is_taken(frame: bytes) -> None:
    fast = client_frames()
    for _ in range(2):  # the second time, its parts are remembered
        for size in range(len(frame)):
            assert parse(fast, frame[:size]) == (0, [])
        fast.parse(frame, 0, [])


@pytest.mark.parametrize(
    "frame",
    [
        CLIENT.publish("unknown", b"x"),
        CLIENT.publish("Foo", bytes(1_001)),
        CLIENT.consume("Foo", 5),
        CLIENT.requeue("Foo", ID, 5),
        CLIENT.acknowledge("Foo", b"x" * 64).replace(b"P03", b"P02"),
        CLIENT.publish("Foo", b"x", 60).replace(b"P05", b"P04"),
        CLIENT.publish("Foo", b"x", 60)[:-2] + b"6x",
        CLIENT.publish("Foo", b"x", 60, b"key").replace(b"3key", b"0key"),
        CLIENT.publish("Foo", b"x").replace(b"P02" + b"0" * 28, b"P02" + b"_" * 28),
        b"\0" * 200,
        b"H0100102\nP01%029d\nFoo\n" % 3,
    ],
)
def test_unusual_or_wrong_frame_is_left_to_the_parser(frame: bytes) -> None:
    fast = client_frames()
    for _ in range(2):
        assert parse(fast, frame) == (0, [])
        parse(fast, CLIENT.publish("Foo", b"x", 60) + CLIENT.acknowledge("Foo", ID))


def test_header_is_taken_only_after_the_parser_has_read_it() -> None:
    fast = client_frames()
    fast.headers.clear()
    assert fast.parse(CLIENT.publish("Foo", b"x"), 0, []) == 0


def test_incomplete_broker_frame_is_left() -> None:
    fast = broker_frames()
    dispatch = b"H0100304P01%029dFooP02%029dxP03%029d%sP05%029d17" % (3, 1, 32, ID, 2)
    for _ in range(2):
        for size in range(len(dispatch)):
            assert fast.parse(dispatch[:size], 0, []) == 0
        taken, found = parse(fast, dispatch * 2)
        assert (taken, len(found)) == (2 * len(dispatch), 2)


def test_dispatch_beyond_the_limit_is_left_to_the_parser() -> None:
    fast = broker_frames(max_content=10)
    for size, taken in ((10, True), (11, False)):
        head = b"H0100304P01%029dFooP02%029d" % (3, size)
        dispatch = head + bytes(size) + b"P03%029d%sP05%029d9" % (32, ID, 1)
        assert fast.parse(dispatch, 0, []) == (len(dispatch) if taken else 0)


def test_receipts_without_reason_are_taken() -> None:
    fast = broker_frames()
    receipts = b"".join(b"H0100702P01%029dFooP03%029dk%d" % (3, 2, n) for n in range(5))
    for size in range(10):
        assert parse(fast, receipts[: 60 + size]) == (0, [])
    frames = [ReceiptFrame("Foo", b"k%d" % n, None) for n in range(5)]
    assert parse(fast, receipts) == (len(receipts), frames)


@pytest.mark.parametrize(
    ("digits", "value"),
    [
        (b"%029d" % 7, 7),
        (b"%028d" % 7, -1),
        (b"%030d" % 7, -1),
        (b"0" * 27 + b"+7", -1),
        (b"0" * 27 + "٧".encode(), -1),
        (b"0" * 26 + b"1_0", -1),
        (b"9" * 29, 10**29 - 1),
    ],
)
def test_length_is_29_ascii_digits(digits: bytes, value: int) -> None:
    for _ in range(2):  # lengths are cached
        assert read_length(digits) == value
