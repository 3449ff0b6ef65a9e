"""The protocol under any input: cuts change nothing, frames survive, garbage is only refused."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import (
    Acknowledge,
    BrokerFrame,
    ClientFrame,
    Consume,
    ConsumeWithOptions,
    DeadLetter,
    Dispatch,
    DispatchWithInfo,
    Hello,
    Publish,
    PublishWithOptions,
    ReceiptFrame,
    Requeue,
    Revision,
    Settle,
    Welcome,
    WireLimits,
    decode_queue,
)
from tests.support.frame_bytes import (
    append_broker_frame,
    encode_frame,
    forever,
    packets_of,
    split_at,
)

LIMITS: Final = WireLimits(max_content=4_096, max_options=400)

queues = st.text(min_size=1, max_size=40).filter(
    lambda name: decode_queue(name.encode(errors="surrogatepass")) == name
)
contents = st.binary(max_size=200) | st.sampled_from([b"\r\n", b"H0100102P01", b"0" * 40])
ids = st.binary(min_size=1, max_size=64) | st.binary(min_size=32, max_size=32)
numbers = st.integers(0, 10**19 - 1)
options = st.sampled_from([b"{}", b'{"info":true}']) | contents
client_frames = st.one_of(
    st.builds(Publish, queues, contents, numbers, st.none() | ids),
    st.builds(Publish, queues, contents, st.none(), st.none()),
    st.builds(Consume, queues, numbers),
    st.builds(Acknowledge, queues, ids),
    st.builds(Requeue, queues, ids, numbers),
    st.builds(DeadLetter, queues, ids),
    st.builds(PublishWithOptions, queues, contents, options, st.none() | ids),
    st.builds(Settle, queues, ids, options, st.none() | contents),
    st.builds(ConsumeWithOptions, queues, numbers, options),
    st.builds(Hello, ids, options),
)
broker_frames = st.one_of(
    st.builds(Dispatch, queues, contents, ids, numbers),
    st.builds(ReceiptFrame, queues, ids, st.none() | st.text(max_size=40)),
    st.builds(DispatchWithInfo, queues, contents, ids, numbers, options),
    st.builds(Welcome, ids, options),
)
# Line breaks in the order they are used; none is compact.
breaks = st.just([b""]) | st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=1, max_size=7)
widths = st.sampled_from([32, 36])


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
        stream += encode_frame(message_type, order, width, each)
    side = ServerSide(LIMITS, http_guard=guard)
    assert read(side, split_at(stream, places)) == (sent, None)
    assert side.parser.partial_bytes == 0
    if sent:
        assert side.packet_header == width
        assert side.parser.framing == ("compact" if breaks == [b""] else "line")


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
    stream = b"".join(encode_frame(*packets_of(frame), 32, forever([b""])) for frame in sent)
    where %= len(stream) + 1
    stream = stream[:where] + garbage + stream[where + (len(garbage) if overwrite else 0) :]
    whole = read(ServerSide(LIMITS, http_guard=guard), [stream])
    assert read(ServerSide(LIMITS, http_guard=guard), split_at(stream, places)) == whole
    by_bytes = [stream[index : index + 1] for index in range(len(stream))]
    assert read(ServerSide(LIMITS, http_guard=guard), by_bytes) == whole


@given(
    sent=st.lists(broker_frames, max_size=6),
    width=widths,
    line_break=st.sampled_from([b"", b"\n", b"\r\n"]),
    revision=st.sampled_from(["ttl", "legacy"]),
    places=st.lists(st.integers(0, 1 << 16), max_size=8),
)
def test_client_side_reads_what_server_side_writes(
    sent: list[BrokerFrame],
    width: int,
    line_break: bytes,
    revision: Revision,
    places: list[int],
) -> None:
    server = ServerSide(LIMITS, revision=revision, http_guard=False)
    server.receive(encode_frame(2, [(1, b"orders"), (4, b"5")], width, forever([line_break])))
    parts: list[bytes] = []
    for frame in sent:
        append_broker_frame(server, parts, frame)
        if isinstance(frame, Dispatch) and revision == "legacy":
            frame.ttl_s = None
    client = ClientSide(LIMITS)
    pieces = split_at(b"".join(parts), places)
    assert [frame for piece in pieces for frame in client.receive(piece)] == sent
    assert client.error is None
    assert client.parser.partial_bytes == 0


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
            case PublishWithOptions(queue, content, options, key):
                stream += client.publish_with_options(queue, content, options, key)
            case Settle(queue, identity, options, new):
                stream += client.settle(queue, identity, options, new)
            case ConsumeWithOptions(queue, count, options):
                stream += client.consume_with_options(queue, count, options)
            case Hello(key, options):
                stream += client.hello(key, options)
    assert read(ServerSide(LIMITS), [stream]) == (sent, None)
