"""Many frames at once: publishes encoded ahead, receipts and dispatches counted in bulk.

What a client of a benchmark does per message must cost far less than what the broker does, so the
frames are built once by ``protocol/encoder.py`` and then repeated; all have the same length.
"""

import os
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
