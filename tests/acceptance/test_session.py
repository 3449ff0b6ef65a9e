"""The guarantees of a connection, tested with sockets on a broker process.

The rules are those of ``docs/reference/wire.md`` (R1 to R16, and "Queues on the wire").
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from phpmq_lite.model import State
from phpmq_lite.protocol.frames import Dispatch
from tests.support.fork_server import BrokerProcess, broker_process, broker_with_all_listeners
from tests.support.socket_client import (
    AdminApi,
    SocketClient,
    assert_closed_without_reply,
    connect,
    new_key,
)
from tests.support.stored_rows import stored_rows

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker with the default settings and all listeners."""
    with broker_with_all_listeners(tmp_path_factory.mktemp("session") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker whose queues have room for three messages."""
    data = tmp_path_factory.mktemp("small") / "data"
    flags = ("--admin", "127.0.0.1:0", "--set", "queues.max_messages=3")
    with broker_process(data, *flags) as running:
        yield running


# -- order


def test_broker_applies_commands_of_a_connection_in_order(small: BrokerProcess, queue: str) -> None:
    """``pushBack`` of the PHP client: its 004 frees the room that the next 001 needs."""
    with SocketClient(small.port) as peer:
        assert [peer.confirm(queue, body) for body in (b"a", b"b", b"c")] == [None] * 3
        peer.consume(queue, 1)
        (first,) = peer.dispatches(1)
        side = peer.side
        peer.send(
            side.acknowledge(queue, first.message_id)
            + side.publish(queue, first.content, key=new_key())
            + side.publish(queue, b"one too many", key=new_key())
        )
        assert [peer.receipt().reason, peer.receipt().reason] == [None, "queue full: messages"]
        rest = []
        for _ in range(3):
            rest += peer.dispatches(1)
            peer.ack(rest[-1])
    assert [dispatch.content for dispatch in rest] == [b"b", b"c", b"a"]
    assert rest[-1].message_id != first.message_id


def test_receipts_come_in_the_order_of_the_publishes(small: BrokerProcess, queue: str) -> None:
    """Including refusals, and over several queues."""
    names = [queue, f"{queue}-more"]
    sent = [(names[number % 2], b"%s %d" % (queue.encode(), number)) for number in range(12)]
    with SocketClient(small.port) as peer:
        peer.send(b"".join(peer.side.publish(name, b"", key=key) for name, key in sent))
        receipts = [peer.receipt() for _ in sent]
    assert [(receipt.queue, receipt.key) for receipt in receipts] == sent
    assert [receipt.reason for receipt in receipts] == [None] * 6 + ["queue full: messages"] * 6


def test_publisher_is_refused_when_the_queue_is_full(small: BrokerProcess, queue: str) -> None:
    """An acknowledgement makes room again."""
    with SocketClient(small.port) as peer:
        results = [peer.confirm(queue, b"body") for _ in range(5)]
        assert results == [None, None, None, "queue full: messages", "queue full: messages"]
        assert AdminApi(small.admin[0]).queue(queue)["ready"] == 3
        peer.consume(queue, 1)
        peer.ack(*peer.dispatches(1))
        assert peer.confirm(queue, b"body") is None


def test_publisher_without_key_waits_if_queue_is_full(small: BrokerProcess, queue: str) -> None:
    """It is not read until there is room, and nobody else waits with it."""
    more = f"{queue}-more"
    with (
        SocketClient(small.port) as peer,
        SocketClient(small.port) as other,
        SocketClient(small.port) as third,
    ):
        assert [peer.confirm(queue, b"%d" % number) for number in range(3)] == [None] * 3
        peer.send(peer.side.publish(queue, b"3") + peer.side.publish(more, b"behind"))
        third.consume(more, 5)
        assert other.confirm(more, b"meanwhile") is None
        assert third.bodies(1) == [b"meanwhile"]
        other.consume(queue, 1)
        for number in range(4):
            (dispatch,) = other.dispatches(1)
            assert dispatch.content == b"%d" % number
            other.ack(dispatch)
        assert third.bodies(1) == [b"behind"]


def test_dispatch_leaves_in_one_write(peer: SocketClient, other: SocketClient, queue: str) -> None:
    """The PHP client fails if the header of a dispatch arrives in two pieces."""
    other.store(queue, b"one", b"two", b"three")
    peer.consume(queue, 10)
    frames = peer.side.receive(peer.socket.recv(1 << 16))
    assert [frame.content for frame in frames if isinstance(frame, Dispatch)] == [
        b"one", b"two", b"three",
    ]  # fmt: skip
    assert peer.side.parser.partial_bytes == 0


# -- framing of replies

COMPACT = {"digits": 29, "line": b""}


def frame(header: bytes, *packets: tuple[bytes, bytes], digits: int, line: bytes) -> bytes:
    """Return a frame in any style, without the encoder; a break ends every part."""
    parts = [header]
    for kind, content in packets:
        parts += (b"P" + kind + b"%0*d" % (digits, len(content)), content)
    return line.join([*parts, b""])


@pytest.mark.parametrize("line", [b"", b"\n", b"\r\n"], ids=["compact", "LF", "CRLF"])
@pytest.mark.parametrize("digits", [29, 33], ids=["32", "36"])
@pytest.mark.parametrize("revision", ["ttl", "legacy"])
def test_dispatch_mirrors_the_framing_of_its_consumer(
    broker: BrokerProcess, queue: str, line: bytes, digits: int, revision: str
) -> None:
    """R7 and R9: line breaks, width and revision are those of the frames of the client."""
    name = queue.encode()
    ttl = [(b"05", b"3600")] if revision == "ttl" else []
    publish = frame(
        b"H010010%d" % (2 + len(ttl)), (b"01", name), (b"02", b"Hello World"), *ttl,
        digits=digits, line=line,
    )  # fmt: skip
    consume = frame(b"H0100202", (b"01", name), (b"04", b"5"), digits=digits, line=line)
    with SocketClient(broker.port) as peer:
        peer.send(publish + consume)
        got = peer.socket.recv(1 << 16)
    found = re.search(b"P03%0*d%s([0-9a-f]{32})" % (digits, 32, line), got)
    assert found is not None, got
    assert got == frame(
        b"H010030%d" % (3 + len(ttl)),
        *((b"01", name), (b"02", b"Hello World"), (b"03", found[1]), *ttl),
        digits=digits,
        line=line,
    )


@pytest.mark.parametrize(("listener", "header"), [(0, b"H0100304"), (1, b"H0100303")])
def test_listener_decides_the_revision_of_a_consumer(
    broker: BrokerProcess, other: SocketClient, queue: str, listener: int, header: bytes
) -> None:
    """R7: a 002 does not show the revision of its sender."""
    other.store(queue, b"body")
    with SocketClient(broker.phpmq[listener]) as peer:
        peer.consume(queue, 1)
        assert peer.socket.recv(1 << 16).startswith(header)


def test_receipt_mirrors_line_framing(broker: BrokerProcess, queue: str) -> None:
    name, style = queue.encode(), {"digits": 29, "line": b"\n"}
    packets = ((b"01", name), (b"02", b"body"), (b"05", b"0"), (b"03", b"my-key"))
    with connect(broker.port) as raw:
        raw.sendall(frame(b"H0100104", *packets, **style))  # type: ignore[arg-type]
        got = raw.recv(1 << 16)
    assert got == frame(b"H0100702", (b"01", name), (b"03", b"my-key"), **style)  # type: ignore[arg-type]


def test_log_hints_at_the_other_listener_when_a_consumer_leaves_after_its_first_dispatch(
    broker: BrokerProcess, other: SocketClient, queue: str
) -> None:
    """R7: the wrong listener loses no messages, and the log explains the fix."""
    other.store(queue, b"body")
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 1)
        peer.dispatches(1)
        port = peer.socket.getsockname()[1]
    other.consume(queue, 1)
    assert other.bodies(1) == [b"body"]  # returned by now, and the log is written
    (line,) = [
        line
        for line in broker.log.read_text(encoding="utf-8").splitlines()
        if "consumer_left_after_first_dispatch" in line and f":{port}" in line
    ]
    assert "tcp.legacy_listen" in line


# -- keys


def test_key_is_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as peer:
            keyed = [peer.side.publish("orders", b"first", key=b"k") for _ in range(3)]
            peer.send(b"".join(keyed))  # in one batch
            assert [peer.receipt().reason for _ in keyed] == [None] * 3
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"first", key=b"k") is None
            assert peer.confirm("orders", b"again", key=b"k") == "key conflict"
            assert peer.confirm("refunds", b"another queue", key=b"k") is None
        broker.kill()
        broker.start()
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"first", key=b"k") is None
            assert peer.confirm("orders", b"after the restart", key=b"k") == "key conflict"
            peer.consume("orders", 10)
            peer.barrier()
            assert [dispatch.content for dispatch in peer.got] == [b"first"]
        assert AdminApi(broker.admin[0]).queue("refunds")["ready"] == 1


def test_key_is_known_also_after_a_restart_when_a_neighbour_publishes_with_many(
    tmp_path: Path,
) -> None:
    """The neighbour's keys within its share are known too, and all others are forgotten."""
    limit, own, many = 60, [b"own-%d" % n for n in range(15)], [b"n-%d" % n for n in range(1_000)]
    share = many[len(own) - limit :]
    flags = ("--admin", "127.0.0.1:0", "--set", f"receipts.limit={limit}")
    with broker_process(tmp_path / "data", *flags) as broker:
        with SocketClient(broker.port) as peer:
            for queue, keys in (("orders", own), ("neighbour", many)):
                peer.send(b"".join(peer.side.publish(queue, key, key=key) for key in keys))
                assert [peer.receipt().reason for _ in keys] == [None] * len(keys)
        usage = AdminApi(broker.admin[0]).metrics()
        assert usage['phpmq_limit_used{limit="receipts"}'] == limit
        assert usage['phpmq_limit_reached_total{limit="receipts"}'] == len(own + many) - limit
        for _ in range(2):
            with SocketClient(broker.port) as peer:
                for queue, keys in (("orders", own), ("neighbour", share)):
                    for key in keys:
                        assert peer.confirm(queue, key, key=key) is None
                        assert peer.confirm(queue, b"other", key=key) == "key conflict"
            broker.kill()
            broker.start()
        admin = AdminApi(broker.admin[0])
        assert admin.queue("orders")["ready"] == len(own)
        assert admin.queue("neighbour")["ready"] == len(many)
        with SocketClient(broker.port) as peer:
            assert peer.confirm("neighbour", b"forgotten", key=many[0]) is None
        assert admin.queue("neighbour")["ready"] == len(many) + 1


# -- errors


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(b"\n", id="a line break between compact frames"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"H0100303P01", id="a dispatch from a client"),
        pytest.param(b"H0100102P01" + b"9" * 29, id="29 digits"),
        pytest.param(b"\x16\x03\x01", id="a TLS hello"),
    ],
)
def test_broker_closes_without_reply_at_the_first_wrong_byte(
    broker: BrokerProcess, admin: AdminApi, other: SocketClient, queue: str, wrong: bytes
) -> None:
    """R16: complete frames before it are executed, later ones are not."""
    other.confirm(queue, b"earlier")
    with SocketClient(broker.port) as peer:
        side = peer.side
        peer.send(side.publish(queue, b"before {}") + wrong + side.publish(queue, b"behind"))
        assert_closed_without_reply(peer)
    other.consume(queue, 10)
    assert other.bodies(2) == [b"earlier", b"before {}"]
    other.barrier()
    assert not other.got
    assert admin.queue(queue)["dispatched"] == 2


def test_frames_before_the_wrong_byte_are_confirmed(peer: SocketClient, queue: str) -> None:
    peer.send(peer.side.publish(queue, b"{}", key=b"k") + b"garbage")
    assert peer.side.receive(peer.rest()) != []


def test_held_messages_return_after_a_protocol_error(
    peer: SocketClient, other: SocketClient, queue: str
) -> None:
    other.store(queue, b"a", b"b", b"c")
    peer.consume(queue, 3)
    held = peer.dispatches(3)
    peer.send(peer.side.acknowledge(queue, held[1].message_id) + b"garbage")
    assert_closed_without_reply(peer)
    other.consume(queue, 3)
    assert [d.message_id for d in other.dispatches(2)] == [held[0].message_id, held[2].message_id]


# -- the end of a connection


def test_everything_sent_before_the_end_is_stored(broker: BrokerProcess, queue: str) -> None:
    """The client reads no reply: it sends and closes, as PHP scripts do."""
    with SocketClient(broker.port) as peer:
        peer.send(b"".join(peer.side.publish(queue, b"%d" % number) for number in range(500)))
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 1_000)
        assert peer.bodies(500) == [b"%d" % number for number in range(500)]


def test_receipts_arrive_after_the_publisher_half_closed(peer: SocketClient, queue: str) -> None:
    peer.send(b"".join(peer.side.publish(queue, b"", key=b"%d" % n) for n in range(100)))
    peer.half_close()
    assert [peer.receipt().key for _ in range(100)] == [b"%d" % n for n in range(100)]
    assert_closed_without_reply(peer)


def test_consumer_gets_messages_after_it_closed_its_side(
    peer: SocketClient, other: SocketClient, queue: str
) -> None:
    """``nc -N`` sends its 002 and closes its side at once."""
    other.store(queue, b"body")
    peer.consume(queue, 1)
    peer.half_close()
    assert peer.bodies(1) == [b"body"]
    assert_closed_without_reply(peer)


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
def test_incomplete_frame_is_not_stored(
    peer: SocketClient, other: SocketClient, queue: str, how: str
) -> None:
    whole = peer.side.publish(queue, b"{whole}")
    peer.send(whole + whole[:-1])
    if how == "reset":  # or else the kernel may drop unread bytes
        other.consume(queue, 1)
        other.dispatches(1)
    getattr(peer, how)()
    other.consume(queue, 0)
    other.consume(queue, 5)
    other.dispatches(1)
    other.barrier()
    assert not other.got


# -- durability


def test_everything_before_a_confirmed_publish_is_stored_with_it(
    broker: BrokerProcess, peer: SocketClient, queue: str
) -> None:
    """Including dead letters, whose record needs the body from disk."""
    peer.store(queue, *(b"%d" % number for number in range(60)))
    peer.consume(queue, 60)
    held = peer.dispatches(60)
    side = peer.side
    for first, second, third in zip(held[::3], held[1::3], held[2::3], strict=True):
        ends = [
            side.acknowledge(queue, first.message_id),
            side.dead_letter(queue, second.message_id),
            side.dead_letter(queue, third.message_id),
        ]
        key = new_key()
        peer.send(b"".join(ends) + side.publish("barrier", b"", key=key))
        assert peer.receipt().key == key
        seqs = [int(dispatch.message_id[:16], 16) for dispatch in (first, second, third)]
        text = "SELECT outcome FROM history WHERE seq IN (?, ?, ?) ORDER BY seq"
        assert stored_rows(broker.data, text, *seqs) == [
            (State.ACKED,),
            (State.DEAD,),
            (State.DEAD,),
        ]


# -- sizes and numbers


def test_content_up_to_the_maximum_size_is_accepted(peer: SocketClient, queue: str) -> None:
    largest = b"{" * (8 << 20)
    assert peer.confirm(queue, largest) is None
    peer.consume(queue, 5)
    (dispatch,) = peer.dispatches(1)
    assert dispatch.content == largest
    peer.ack(dispatch)
    peer.barrier()
    peer.send(b"H0100102P01%029d%sP02%029d" % (len(queue), queue.encode(), len(largest) + 1))
    assert_closed_without_reply(peer)


def test_publishes_to_too_many_queues_are_refused(tmp_path: Path) -> None:
    """With a receipt if they have a key; otherwise, and after a 002, by closing."""
    flags = ("--admin", "none", "--set", "limits.max_queues=2")
    with broker_process(tmp_path / "data", *flags) as broker, SocketClient(broker.port) as peer:
        results = [peer.confirm(name, b"") for name in ("a", "b", "c", "a")]
        assert results == [None, None, "too many queues", None]
        with SocketClient(broker.port) as other:
            other.send(other.side.publish("a", b"{stands}") + other.side.publish("c", b""))
            assert_closed_without_reply(other)
        with SocketClient(broker.port) as other:
            other.consume("c", 1)
            assert_closed_without_reply(other)
        peer.consume("a", 5)
        assert peer.bodies(3) == [b"", b"", b"{stands}"]
