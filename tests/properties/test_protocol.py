"""The protocol under any input: cuts change nothing, frames survive, garbage is only refused."""

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Dispatch,
    Publish,
    ReceiptFrame,
    Requeue,
)
from phpmq_lite.protocol.wire import WireLimits, decode_queue

LIMITS: Final = WireLimits(max_content=4_096)
MUTANTS: Final = 20_000

queues = st.text(min_size=1, max_size=40).filter(
    lambda name: decode_queue(name.encode(errors="surrogatepass")) == name
)
contents = st.binary(max_size=200) | st.sampled_from([b"\r\n", b"H0100102P01", b"0" * 40])
ids = st.binary(min_size=1, max_size=64) | st.binary(min_size=32, max_size=32)
numbers = st.integers(0, 10**19 - 1)
client_frames = st.one_of(
    st.builds(Publish, queues, contents, numbers, st.none() | ids),
    st.builds(Publish, queues, contents, st.none(), st.none()),
    st.builds(Consume, queues, numbers),
    st.builds(Acknowledge, queues, ids),
    st.builds(Requeue, queues, ids, numbers),
    st.builds(DeadLetter, queues, ids),
)
# Line breaks in the order they are used; none is compact.
breaks = st.just([b""]) | st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=1, max_size=7)
widths = st.sampled_from([32, 36])


def packets_of(frame: ClientFrame) -> tuple[int, list[tuple[int, bytes]]]:
    """Return message type and packets of a frame, in our order."""
    queue = (1, frame.queue.encode())
    match frame:
        case Publish(_, content, ttl_s, key):
            ttl = [] if ttl_s is None else [(5, b"%d" % ttl_s)]
            return 1, [queue, (2, content), *ttl, *([] if key is None else [(3, key)])]
        case Consume(_, count):
            return 2, [queue, (4, b"%d" % count)]
        case Acknowledge(_, identity):
            return 4, [queue, (3, identity)]
        case Requeue(_, identity, ttl_s):
            return 5, [queue, (3, identity), (5, b"%d" % ttl_s)]
        case DeadLetter(_, identity):
            return 6, [queue, (3, identity)]


def written(
    message_type: int, packets: list[tuple[int, bytes]], width: int, breaks: Iterable[bytes]
) -> bytes:
    """Write a frame in any style, packet order as given; the last break stands behind it."""
    each = iter(breaks)
    parts = [b"H01%03d%02d" % (message_type, len(packets)), next(each)]
    for kind, content in packets:
        parts += [b"P%02d%0*d" % (kind, width - 3, len(content)), next(each), content, next(each)]
    return b"".join(parts)


def forever(breaks: list[bytes]) -> Iterable[bytes]:
    while True:
        yield from breaks


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def read(side: ServerSide, pieces: list[bytes]) -> tuple[list[ClientFrame], tuple[str, int] | None]:
    got = [frame for piece in pieces for frame in side.receive(piece)]
    got += side.release()
    error = side.error
    return got, None if error is None else (error.code, error.offset)


@given(
    sent=st.lists(client_frames, max_size=6),
    width=widths,
    breaks=breaks,
    places=st.lists(st.integers(0, 1 << 16), max_size=8),
    guard=st.booleans(),
    data=st.data(),
)
def test_server_side_reads_what_was_written_in_any_style(
    sent: list[ClientFrame],
    width: int,
    breaks: list[bytes],
    places: list[int],
    guard: bool,
    data: st.DataObject,
) -> None:
    stream = b""
    each = iter(forever(breaks))
    for frame in sent:
        message_type, packets = packets_of(frame)
        order = data.draw(st.permutations(packets)) if stream else packets
        stream += written(message_type, order, width, each)
    side = ServerSide(LIMITS, http_guard=guard)
    assert read(side, cut(stream, places)) == (sent, None)
    assert side.partial_bytes == 0
    if sent:
        assert side.packet_header == width
        assert side.framing == ("compact" if breaks == [b""] else "line")


@given(
    sent=st.lists(client_frames, min_size=1, max_size=4),
    garbage=st.binary(max_size=60),
    where=st.integers(0, 1 << 16),
    overwrite=st.booleans(),
    places=st.lists(st.integers(0, 1 << 16), max_size=12),
    guard=st.booleans(),
)
def test_server_side_gives_the_same_for_broken_streams_at_any_cut(
    sent: list[ClientFrame],
    garbage: bytes,
    where: int,
    overwrite: bool,
    places: list[int],
    guard: bool,
) -> None:
    stream = b"".join(written(*packets_of(frame), 32, forever([b""])) for frame in sent)
    where %= len(stream) + 1
    stream = stream[:where] + garbage + stream[where + (len(garbage) if overwrite else 0) :]
    whole = read(ServerSide(LIMITS, http_guard=guard), [stream])
    assert read(ServerSide(LIMITS, http_guard=guard), cut(stream, places)) == whole
    by_bytes = [stream[index : index + 1] for index in range(len(stream))]
    assert read(ServerSide(LIMITS, http_guard=guard), by_bytes) == whole


@given(
    sent=st.lists(
        st.builds(Dispatch, queues, contents, ids, numbers)
        | st.builds(ReceiptFrame, queues, ids, st.none() | st.text(max_size=40)),
        max_size=6,
    ),
    width=widths,
    line_break=st.sampled_from([b"", b"\n", b"\r\n"]),
    revision=st.sampled_from(["ttl", "legacy"]),
    places=st.lists(st.integers(0, 1 << 16), max_size=8),
)
def test_client_side_reads_what_server_side_writes(
    sent: list[Dispatch | ReceiptFrame],
    width: int,
    line_break: bytes,
    revision: str,
    places: list[int],
) -> None:
    server = ServerSide(LIMITS, dispatch=revision, http_guard=False)
    server.receive(written(2, [(1, b"orders"), (4, b"5")], width, forever([line_break])))
    parts: list[bytes] = []
    for frame in sent:
        if isinstance(frame, Dispatch):
            assert frame.ttl_s is not None
            args = (frame.queue, frame.content, frame.message_id, frame.ttl_s)
            server.append_dispatch(parts, *args)
            frame.ttl_s = None if revision == "legacy" else frame.ttl_s
        else:
            server.append_receipt(parts, frame.queue, frame.key, frame.reason)
    client = ClientSide(LIMITS)
    pieces = cut(b"".join(parts), places)
    assert [frame for piece in pieces for frame in client.receive(piece)] == sent
    assert client.error is None
    assert client.partial_bytes == 0


@given(sent=st.lists(client_frames, max_size=6))
def test_server_side_reads_what_client_side_writes(sent: list[ClientFrame]) -> None:
    client = ClientSide(LIMITS)
    stream = b""
    for frame in sent:
        match frame:
            case Publish(queue, content, ttl_s, key):
                stream += client.publish(queue, content, ttl_s or 0, key)
                frame.ttl_s = ttl_s or 0  # clients always write a TTL
            case Consume(queue, count):
                stream += client.consume(queue, count)
            case Acknowledge(queue, identity):
                stream += client.acknowledge(queue, identity)
            case Requeue(queue, identity, ttl_s):
                stream += client.requeue(queue, identity, ttl_s)
            case DeadLetter(queue, identity):
                stream += client.dead_letter(queue, identity)
    assert read(ServerSide(LIMITS), [stream]) == (sent, None)


def mutant(dice: random.Random) -> bytes:
    """Return garbage, or frames of which some bytes were changed, lost, repeated or inserted."""
    if dice.random() < 0.15:
        return dice.randbytes(dice.randrange(120))
    width = dice.choice([32, 32, 36])
    each = forever(dice.choice([[b""], [b""], [b"\n"], [b"\r\n"], [b"\n", b"\r\n"]]))
    stream = b""
    for _ in range(dice.randrange(1, 4)):
        packets = [(dice.randrange(7), dice.randbytes(dice.randrange(5))) for _ in range(2)]
        frame = dice.choice(
            [
                (1, [(1, b"Foo"), (2, dice.randbytes(dice.randrange(30)))]),
                (1, [(1, b"Foo"), (2, b"x"), (5, b"60")]),
                (1, [(1, b"Foo"), (2, b"x"), (5, b"60"), (3, b"key")]),
                (2, [(1, b"Foo"), (4, b"10")]),
                (4, [(1, b"Foo"), (3, b"a" * 32)]),
                (dice.randrange(9), packets),
            ]
        )
        stream += written(*frame, width, each)
    damaged = bytearray(stream)
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(damaged) + 1)
        few = dice.choice([b"", b"\0", b"9", b"P", b"H", b"\n", b" ", "٣".encode(), b"_", b"+"])
        damaged[at : at + dice.choice([0, 1, 1, 5])] = few
    return bytes(damaged)


@pytest.mark.parametrize("seed", range(4))
def test_server_side_gives_frames_or_a_protocol_error_for_mutants(seed: int) -> None:
    """20,000 inputs in all: nothing else is raised, and nothing runs after the error."""
    dice = random.Random(seed)
    errors = complete = 0
    known = tuple(frame for frame in vars(frames).values() if isinstance(frame, type))
    late = ClientSide().publish("late", b"late")
    for _ in range(MUTANTS // 4):
        stream = mutant(dice)
        side = ServerSide(LIMITS, http_guard=dice.random() < 0.5)
        got, error = read(side, cut(stream, [dice.randrange(1 << 16) for _ in range(3)]))
        assert all(isinstance(frame, known) for frame in got)
        if error is not None:
            errors += 1
            assert 0 <= error[1] <= len(stream)
            assert (side.receive(late), side.release(), side.partial_bytes) == ([], [], 0)
        else:
            complete += 1
    assert errors > 100
    assert complete > 100
