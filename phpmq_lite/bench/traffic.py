"""Benchmark clients that send frames encoded in advance."""

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
ID_BYTES: Final = 32  # length of a message id from the broker
_BODY: Final = b"x"
_LAST_BODY: Final = b"y"  # marks the last message for the consumer

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
    """Return a body of ``size`` bytes, or a larger envelope; the last one differs in its filler.

    All envelopes have one ``trace_id``, so indexing them is cheaper than indexing real messages.
    """
    mark = _LAST_BODY if is_last else _BODY
    if content == PLAIN:
        return mark * size
    head, tail = _ENVELOPE.split(b"?")
    return head + mark * max(1, size - len(head) - len(tail)) + tail


class PublishStream:
    """Encodes publish frames with one body, and with keys that are unique across processes."""

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
        self._remainder = b""

    def encode(self, number: int, *, is_last: bool = False) -> bytes:
        if is_last:
            return self.encode(number - 1) + self._last_head + self._keys(1)[0]
        if not self._is_confirmed:
            return self._head * number
        head = self._head
        return b"".join([head + key for key in self._keys(number)])

    def feed(self, data: bytes) -> int:
        """Return how many messages these bytes confirm; raise ClientError for other frames."""
        data = self._remainder + data
        size = self.receipt_bytes
        count = len(data) // size
        end = count * size
        self._remainder = data[end:]
        if data.count(self._receipt, 0, end) != count:
            raise ClientError(f"the broker responded to a publish with {data[:200]!r}")
        return count

    def has_receipt(self, data: bytes) -> bool:
        """Return whether a receipt begins anywhere in the data, even between other frames."""
        return self._receipt in data

    def _keys(self, number: int) -> list[bytes]:
        if not self._is_confirmed:
            return [b""] * number
        return [b"%016x" % next(self._numbers) for _ in range(number)]


class DispatchStream:
    """Decodes dispatched messages of a ``PublishStream`` and encodes the acknowledgements."""

    def __init__(self, queue: str, size: int, window: int, content: str = PLAIN) -> None:
        self.consume = _client.consume(queue, window)  # frame that requests the first messages
        self.received = 0
        self.is_complete = False  # whether the message marked as the last has been received
        self._ack_head = _client.acknowledge(queue, bytes(ID_BYTES))[:-ID_BYTES]
        self._head = _dispatch_head(queue, body_of(content, size))
        self._last_head = _dispatch_head(queue, body_of(content, size, is_last=True))
        self.frame_bytes = len(self._head) + ID_BYTES + len(_dispatch_tail())  # size of a dispatch
        self._parts: list[bytes] = []  # parts of an incomplete frame
        self._size = 0  # total number of bytes in `_parts`

    def feed(self, data: bytes) -> bytes:
        """Return the acknowledgements for the messages in these bytes, or raise ClientError."""
        self._parts.append(data)
        self._size += len(data)
        if self._size < self.frame_bytes:
            return b""  # joining the parts on each call would use an entire core
        data = b"".join(self._parts)
        head, size, ids = self._head, self.frame_bytes, []
        end = len(data) // size * size
        for at in range(0, end, size):
            if not data.startswith(head, at):
                if not data.startswith(self._last_head, at) or at + size != end:
                    raise ClientError(
                        f"the broker dispatched an unexpected {data[at : at + 200]!r}"
                    )
                self.is_complete = True
            id_at = at + len(head)
            ids.append(data[id_at : id_at + ID_BYTES])
        self._parts = [data[end:]]
        self._size = len(data) - end
        self.received += len(ids)
        return self._ack_head + self._ack_head.join(ids) if ids else b""


def _dispatch(queue: str, body: bytes) -> bytes:
    parts: list[bytes] = []
    _broker.append_dispatch(parts, queue, body, bytes(ID_BYTES), 0)
    return b"".join(parts)


def _dispatch_head(queue: str, body: bytes) -> bytes:
    return _dispatch(queue, body).removesuffix(_dispatch_tail())[:-ID_BYTES]


def _dispatch_tail() -> bytes:
    # The message id is the last run of zeros, because no byte after it is zero.
    return _dispatch("q", b"").rpartition(bytes(ID_BYTES))[2]


Address = tuple[str, int]

UNCONFIRMED: Final = 1_000  # maximum number of unconfirmed messages on one connection
BARRIER_QUEUE: Final = "bench.barrier"
RECEIVE_TIMEOUT_S: Final = 30.0
_UNCONFIRMED_BYTES: Final = 32 << 20  # maximum total size of unconfirmed bodies
_MAX_PER_WRITE: Final = 200  # maximum number of messages per write
_RECEIVE_BYTES: Final = 1 << 18
_RECEIPT_BYTES: Final = 256  # maximum size of a receipt


def unconfirmed_limit(size: int) -> int:
    """Return how many messages of ``size`` bytes can wait for confirmation at the same time."""
    return max(2, min(UNCONFIRMED, _UNCONFIRMED_BYTES // size))


def publishes_per_write(size: int) -> int:
    return max(1, min(_MAX_PER_WRITE, unconfirmed_limit(size) // 5))


@contextmanager
def connect(address: Address) -> Iterator[socket.socket]:
    """Open a connection on which reads and writes time out after 30 s."""
    with socket.create_connection(address, RECEIVE_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def receive(connection: socket.socket) -> bytes:
    try:
        data = connection.recv(_RECEIVE_BYTES)
    except TimeoutError:
        raise ClientError(f"the broker sent nothing for {RECEIVE_TIMEOUT_S:.0f} s") from None
    if not data:
        raise ClientError("the broker closed the connection")
    return data


def wait_until_stored(connection: socket.socket, before: bytes = b"") -> None:
    """Send the frames in ``before`` and wait until the broker has stored their effects.

    Acknowledgements have no reply, but the commands of a connection are stored in order, so the
    receipt of a later publish proves that the acknowledgements are stored. The broker must not be
    about to send anything else.
    """
    barrier = PublishStream(BARRIER_QUEUE, 1)
    connection.sendall(before + barrier.encode(1))
    while not barrier.feed(receive(connection)):
        pass


def publish(
    address: Address,
    queue: str,
    size: int,
    seconds: float,
    is_confirmed: bool,
    content: str = PLAIN,
    limit: int | None = None,
) -> Generator[None, None, int]:
    """Publish for ``seconds`` or until ``limit``; return the number of stored messages."""
    stream = PublishStream(queue, size, is_confirmed=is_confirmed, content=content)
    with connect(address) as connection:
        wait_until_stored(connection)
        yield
        end_s = time.monotonic() + seconds

        def is_finished(sent: int) -> bool:
            return time.monotonic() >= end_s or (limit is not None and sent >= limit)

        if is_confirmed:
            return _publish_confirmed(connection, stream, size, is_finished)
        per_write, sent = publishes_per_write(size), 0
        publishes = stream.encode(per_write)
        while not is_finished(sent):
            connection.sendall(publishes)  # blocks until the broker reads data
            sent += per_write
        wait_until_stored(connection, stream.encode(1, is_last=True))
        return sent + 1


def publish_number(
    address: Address, queue: str, size: int, number: int
) -> Generator[None, None, int]:
    """Publish ``number`` messages, rounded up to full writes, none of them marked as the last."""
    stream = PublishStream(queue, size)
    with connect(address) as connection:
        yield
        return _publish_confirmed(
            connection, stream, size, lambda sent: sent >= number, marks_last=False
        )


def _publish_confirmed(
    connection: socket.socket,
    stream: PublishStream,
    size: int,
    is_finished: Callable[[int], bool],
    *,
    marks_last: bool = True,
) -> int:
    per_write, limit = publishes_per_write(size), unconfirmed_limit(size)
    sent = confirmed = 0
    is_last = False
    while not is_last or confirmed < sent:
        if not is_last and sent - confirmed <= limit - per_write:
            is_last = is_finished(sent + per_write)
            connection.sendall(stream.encode(per_write, is_last=is_last and marks_last))
            sent += per_write
        else:
            confirmed += stream.feed(receive(connection))
    return sent


def consume(
    address: Address, queue: str, size: int, window: int, content: str = PLAIN
) -> Generator[None, None, int]:
    """Acknowledge the messages of ``publish`` up to its last one; return how many are stored."""
    stream = DispatchStream(queue, size, window, content)
    with connect(address) as connection:
        wait_until_stored(connection, stream.consume)
        yield
        while not stream.is_complete:
            answer = stream.feed(receive(connection))
            if answer:
                connection.sendall(answer)
        wait_until_stored(connection)
        return stream.received


def one_in_flight(
    address: Address, queue: str, size: int, seconds: float, content: str = PLAIN
) -> Generator[None, None, tuple[list[float], list[float]]]:
    """Publish messages one at a time, each once the previous one's acknowledgement is stored.

    Returns the seconds from publishing to dispatch, and those from publishing to the receipt. Each
    round waits for one of the two first (in alternation) and measures only that one.
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


def _wait_receipt(connection: socket.socket, stream: PublishStream) -> None:
    while not stream.feed(receive(connection)):
        pass


def _wait_dispatch(connection: socket.socket, stream: DispatchStream) -> bytes:
    answer = b""
    while not answer:
        answer = stream.feed(receive(connection))
    return answer


def drain(
    address: Address, queue: str, size: int, number: int, window: int, content: str = PLAIN
) -> Generator[None, None, int]:
    """Consume ``number`` messages from a queue; return the number of stored acknowledgements.

    If the queue has more messages, up to ``window`` more are acknowledged, and up to ``window``
    messages in flight are returned to the queue.
    """
    stream = DispatchStream(queue, size, window, content)
    barrier = PublishStream(BARRIER_QUEUE, 1)
    with connect(address) as connection:
        yield
        connection.sendall(stream.consume)
        while stream.received < number:
            answer = stream.feed(receive(connection))
            if answer:
                connection.sendall(answer)
        connection.sendall(barrier.encode(1))
        tail = b""
        while not barrier.has_receipt(tail):
            tail = tail[-_RECEIPT_BYTES:] + receive(connection)
        return stream.received
