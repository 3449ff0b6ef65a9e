"""Clients of a benchmark, which send frames that were encoded before."""

import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from phpmq_lite.errors import ClientError
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.encoder import encoder_for

KEY_BYTES: Final = 16
ID_BYTES: Final = 32  # of every message id this broker gives
_BODY: Final = b"x"
_LAST_BODY: Final = b"y"  # says to the consumer that nothing follows

PLAIN: Final = "plain"
ENVELOPE: Final = "envelope"
CONTENTS: Final = (PLAIN, ENVELOPE)
_ENVELOPE: Final = (
    b'{"job":"urn:babel:bench:made","trace_id":"7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b",'
    b'"data":{"text":"?"},"meta":{"id":"f1e2d3c4-b5a6-4789-90ab-cdef01234567","queue":"bench",'
    b'"lang":"python","schema_version":1,"created_at":1749132727000},"attempts":0}'
)

_client: Final = ClientSide()
_broker: Final = encoder_for(b"", 32, "ttl")


def body_of(content: str, size: int, *, is_last: bool = False) -> bytes:
    """Make a body of ``size`` bytes, or the least that an envelope takes if that is more.

    The last one differs in one byte.  All have the same trace_id, so that an index of it costs
    less than with real ones.
    """
    mark = _LAST_BODY if is_last else _BODY
    if content == PLAIN:
        return mark * size
    head, tail = _ENVELOPE.split(b"?")
    return head + mark * max(1, size - len(head) - len(tail)) + tail


class PublishStream:
    """Publishes of one body to one queue that never expire, confirmed or plain.

    Confirmed ones carry keys that were never used before, in any process.
    """

    __slots__ = ("_head", "_is_confirmed", "_last_head", "_numbers", "_receipt", "_rest",
                 "receipt_bytes")  # fmt: skip

    def __init__(
        self, queue: str, size: int, *, is_confirmed: bool = True, content: str = PLAIN
    ) -> None:
        key = bytes(KEY_BYTES) if is_confirmed else None
        end = -KEY_BYTES if is_confirmed else None
        self._head = _client.publish(queue, body_of(content, size), 0, key)[:end]
        self._last_head = _client.publish(queue, body_of(content, size, is_last=True), 0, key)[:end]
        self._is_confirmed = is_confirmed
        self._numbers = count(int.from_bytes(os.urandom(5), "big") << 24)
        parts: list[bytes] = []
        _broker.append_receipts(parts, queue, (bytes(KEY_BYTES),), None)
        self._receipt = b"".join(parts)[:-KEY_BYTES]
        self.receipt_bytes = len(self._receipt) + KEY_BYTES
        self._rest = b""

    def encode(self, number: int, *, is_last: bool = False) -> bytes:
        """Return ``number`` publishes; with ``is_last`` the last one tells the consumer so."""
        if is_last:
            return self.encode(number - 1) + self._last_head + self._keys(1)[0]
        if not self._is_confirmed:
            return self._head * number
        head = self._head
        return b"".join([head + key for key in self._keys(number)])

    def feed(self, data: bytes) -> int:
        """Take bytes of the broker; return how many publishes they confirm.

        Raises:
            ClientError: there is something else than receipts, or a refusal.
        """
        data = self._rest + data
        size = self.receipt_bytes
        whole = len(data) // size
        end = whole * size
        self._rest = data[end:]
        if data.count(self._receipt, 0, end) != whole:
            raise ClientError(f"the broker answered a publish with {data[:200]!r}")
        return whole

    def is_answered(self, data: bytes) -> bool:
        """Tell whether a receipt has begun among frames of another kind."""
        return self._receipt in data

    def _keys(self, number: int) -> list[bytes]:
        if not self._is_confirmed:
            return [b""] * number
        return [b"%016x" % next(self._numbers) for _ in range(number)]


class DispatchStream:
    """Dispatches of what a ``PublishStream`` published, and their acknowledgements."""

    __slots__ = ("_ack_head", "_head", "_last_head", "_parts", "_size", "consume", "frame_bytes",
                 "is_complete", "received")  # fmt: skip

    def __init__(self, queue: str, size: int, window: int, content: str = PLAIN) -> None:
        self.consume = _client.consume(queue, window)  # the frame that opens the window
        self.received = 0
        self.is_complete = False  # the last message was received
        self._ack_head = _client.acknowledge(queue, bytes(ID_BYTES))[:-ID_BYTES]
        self._head = _dispatch_head(queue, body_of(content, size))
        self._last_head = _dispatch_head(queue, body_of(content, size, is_last=True))
        self.frame_bytes = len(self._head) + ID_BYTES + len(_dispatch_tail())  # of a dispatch
        self._parts: list[bytes] = []  # of a frame that has begun
        self._size = 0  # of them

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the broker; return the acknowledgements of the dispatches in them.

        Raises:
            ClientError: there is something else, or a message behind the last one.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self.frame_bytes:
            return b""  # a large one comes in many pieces: joining them each time cost a core
        data = b"".join(self._parts)
        head, size, ids = self._head, self.frame_bytes, []
        end = len(data) // size * size
        for at in range(0, end, size):
            if not data.startswith(head, at):
                self._take_last(data, at, end)
            id_at = at + len(head)
            ids.append(data[id_at : id_at + ID_BYTES])
        self._parts = [data[end:]]
        self._size = len(data) - end
        self.received += len(ids)
        return self._ack_head + self._ack_head.join(ids) if ids else b""

    def _take_last(self, data: bytes, at: int, end: int) -> None:
        if not data.startswith(self._last_head, at) or at + self.frame_bytes != end:
            raise ClientError(f"the broker dispatched {data[at : at + 200]!r}")
        self.is_complete = True


def _dispatch(queue: str, body: bytes) -> bytes:
    parts: list[bytes] = []
    _broker.append_dispatch(parts, queue, body, bytes(ID_BYTES), 0)
    return b"".join(parts)


def _dispatch_head(queue: str, body: bytes) -> bytes:
    """Return everything ahead of the id: the tail has no zero byte."""
    return _dispatch(queue, body).removesuffix(_dispatch_tail())[:-ID_BYTES]


def _dispatch_tail() -> bytes:
    return _dispatch("q", b"").rpartition(bytes(ID_BYTES))[2]


Address = tuple[str, int]

UNCONFIRMED: Final = 1_000  # publishes under way on one connection, at most
BARRIER_QUEUE: Final = "bench.barrier"
STALL_S: Final = 30.0
_UNCONFIRMED_BYTES: Final = 32 << 20  # of their bodies
_AT_ONCE: Final = 200  # publishes in one piece, at most
_RECEIVE_BYTES: Final = 1 << 18
_FRAME_BYTES: Final = 256  # more than a receipt has


def unconfirmed_limit(size: int) -> int:
    """Return how many messages of so many bytes may be under way: as many as memory bears."""
    return max(2, min(UNCONFIRMED, _UNCONFIRMED_BYTES // size))


def publishes_per_write(size: int) -> int:
    """Return how many publishes of so many bytes go out in one piece."""
    return max(1, min(_AT_ONCE, unconfirmed_limit(size) // 5))


@contextmanager
def connect(address: Address) -> Iterator[socket.socket]:
    """Open a connection; waiting for the broker ends with an error after 30 s of silence."""
    with socket.create_connection(address, STALL_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield link


def receive(link: socket.socket) -> bytes:
    """Wait for the next bytes of the broker."""
    try:
        data = link.recv(_RECEIVE_BYTES)
    except TimeoutError:
        raise ClientError(f"nothing came from the broker for {STALL_S:.0f} s") from None
    if not data:
        raise ClientError("the broker closed the connection")
    return data


def wait_until_stored(link: socket.socket, before: bytes = b"") -> None:
    """Send ``before`` and wait until the broker has stored its effect.

    Acknowledgements have no answer, but commands of one connection are stored in order: so a
    confirmed publish behind them proves that they are.  Nothing else may be on its way to us.
    """
    barrier = PublishStream(BARRIER_QUEUE, 1)
    link.sendall(before + barrier.encode(1))
    while not barrier.feed(receive(link)):
        pass


def publish(
    address: Address,
    queue: str,
    size: int,
    seconds: float,
    is_confirmed: bool,
    content: str = PLAIN,
    most: int | None = None,
) -> Generator[None, None, int]:
    """Publish for ``seconds``, and until all is stored; return how many messages.

    It ends earlier where ``most`` messages have gone out, rounded up to whole pieces.
    """
    stream = PublishStream(queue, size, is_confirmed=is_confirmed, content=content)
    with connect(address) as link:
        wait_until_stored(link)
        yield
        end_s = time.monotonic() + seconds

        def is_over(sent: int) -> bool:
            return time.monotonic() >= end_s or (most is not None and sent >= most)

        if is_confirmed:
            return _publish_confirmed(link, stream, size, is_over)
        sent = _publish_plain(link, stream, size, is_over)
        wait_until_stored(link)
        return sent


def publish_number(
    address: Address, queue: str, size: int, number: int, content: str = PLAIN
) -> Generator[None, None, int]:
    """Publish ``number`` messages, confirmed, rounded up to whole pieces; return how many.

    They are not marked as the last: more may follow.
    """
    stream = PublishStream(queue, size, content=content)
    piece, most = publishes_per_write(size), unconfirmed_limit(size)
    with connect(address) as link:
        yield
        sent = confirmed = 0
        while confirmed < sent or sent < number:
            if sent < number and sent - confirmed <= most - piece:
                link.sendall(stream.encode(piece))
                sent += piece
            else:
                confirmed += stream.feed(receive(link))
        return sent


def _publish_confirmed(
    link: socket.socket, stream: PublishStream, size: int, is_over: Callable[[int], bool]
) -> int:
    piece, most = publishes_per_write(size), unconfirmed_limit(size)
    sent = confirmed = 0
    is_last = False
    while not is_last or confirmed < sent:
        if not is_last and sent - confirmed <= most - piece:
            is_last = is_over(sent + piece)
            link.sendall(stream.encode(piece, is_last=is_last))
            sent += piece
        else:
            confirmed += stream.feed(receive(link))
    return sent


def _publish_plain(
    link: socket.socket, stream: PublishStream, size: int, is_over: Callable[[int], bool]
) -> int:
    number = publishes_per_write(size)
    piece = stream.encode(number)
    sent = 0
    while not is_over(sent):
        link.sendall(piece)  # waits while the broker does not read
        sent += number
    link.sendall(stream.encode(1, is_last=True))
    return sent + 1


def consume(
    address: Address, queue: str, size: int, window: int, content: str = PLAIN
) -> Generator[None, None, int]:
    """Receive and acknowledge up to the last message of a ``publish``, until all is stored.

    Returns the number of messages; an empty queue is assumed at the start.
    """
    stream = DispatchStream(queue, size, window, content)
    with connect(address) as link:
        wait_until_stored(link, stream.consume)
        yield
        while not stream.is_complete:
            answer = stream.feed(receive(link))
            if answer:
                link.sendall(answer)
        wait_until_stored(link)
        return stream.received


def one_in_flight(
    address: Address, queue: str, size: int, seconds: float, content: str = PLAIN
) -> Generator[None, None, tuple[list[float], list[float]]]:
    """Publish one message at a time; the next one when the last is acknowledged and stored.

    Returns the seconds from publish to dispatch, and from publish to receipt.  Rounds take turns
    in which of both they wait for first, so that neither is read late.
    """
    stream = PublishStream(queue, size, content=content)
    dispatches = DispatchStream(queue, size, 1, content)
    receive_s: list[float] = []
    receipt_s: list[float] = []
    with connect(address) as publisher, connect(address) as consumer:
        wait_until_stored(publisher)
        wait_until_stored(consumer, dispatches.consume)
        yield
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            message = stream.encode(1)
            is_receipt_first = len(receive_s) > len(receipt_s)
            began_s = time.perf_counter()
            publisher.sendall(message)
            if is_receipt_first:
                _wait_receipt(publisher, stream)
                receipt_s.append(time.perf_counter() - began_s)
                answer = _wait_dispatch(consumer, dispatches)
            else:
                answer = _wait_dispatch(consumer, dispatches)
                receive_s.append(time.perf_counter() - began_s)
                _wait_receipt(publisher, stream)
            wait_until_stored(consumer, answer)
    return receive_s, receipt_s


def _wait_receipt(link: socket.socket, stream: PublishStream) -> None:
    while not stream.feed(receive(link)):
        pass


def _wait_dispatch(link: socket.socket, stream: DispatchStream) -> bytes:
    answer = b""
    while not answer:
        answer = stream.feed(receive(link))
    return answer


def drain(
    address: Address,
    queue: str,
    size: int,
    number: int,
    window: int = UNCONFIRMED,
    content: str = PLAIN,
) -> Generator[None, None, int]:
    """Take ``number`` messages out of a queue, until that is stored; return how many it was.

    Where there are more, up to ``window`` of them are taken too, and as many go back to their
    place: they were on their way.
    """
    stream = DispatchStream(queue, size, window, content)
    barrier = PublishStream(BARRIER_QUEUE, 1)
    with connect(address) as link:
        yield
        link.sendall(stream.consume)
        while stream.received < number:
            answer = stream.feed(receive(link))
            if answer:
                link.sendall(answer)
        link.sendall(barrier.encode(1))
        tail = b""
        while not barrier.is_answered(tail):
            tail = tail[-_FRAME_BYTES:] + receive(link)
        return stream.received
