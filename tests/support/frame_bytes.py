"""Encode frames in any style, valid or not, and cut streams into pieces."""

from collections.abc import Iterable
from itertools import pairwise

from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.encoder import BrokerEncoder
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
    Settle,
    Welcome,
)


def packets_of(frame: ClientFrame) -> tuple[int, list[tuple[int, bytes]]]:
    """Return message type and packets of a frame, in our order."""
    queue = (1, b"" if isinstance(frame, Hello) else frame.queue.encode())
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
        case PublishWithOptions(_, content, options, key):
            return 10, [queue, (2, content), (6, options), *([] if key is None else [(3, key)])]
        case Settle(_, identity, options, content):
            new = [] if content is None else [(2, content)]
            return 11, [queue, (3, identity), (6, options), *new]
        case ConsumeWithOptions(_, count, options):
            return 12, [queue, (4, b"%d" % count), (6, options)]
        case Hello(key, options):
            return 14, [(3, key), (6, options)]


def append_broker_frame(
    side: ServerSide | BrokerEncoder, parts: list[bytes], frame: BrokerFrame
) -> None:
    """Append the parts of a frame in the style of a connection; without a TTL, it has 0."""
    match frame:
        case Dispatch(queue, content, message_id, ttl_s):
            side.append_dispatch(parts, queue, content, message_id, ttl_s or 0)
        case DispatchWithInfo(queue, content, message_id, ttl_s, info):
            side.append_dispatch_with_info(parts, queue, content, message_id, ttl_s, info)
        case ReceiptFrame(queue, key, reason):
            side.append_receipts(parts, queue, (key,), reason)
        case Welcome(key, options):
            side.append_welcome(parts, key, options)


def encode_frame(
    message_type: int, packets: list[tuple[int, bytes]], width: int, breaks: Iterable[bytes]
) -> bytes:
    """Encode a frame with its packets in this order; the last break ends it."""
    each = iter(breaks)
    parts = [b"H01%03d%02d" % (message_type, len(packets)), next(each)]
    for kind, content in packets:
        parts += [b"P%02d%0*d" % (kind, width - 3, len(content)), next(each), content, next(each)]
    return b"".join(parts)


def forever(breaks: list[bytes]) -> Iterable[bytes]:
    """Repeat the line breaks endlessly."""
    while True:
        yield from breaks


def split_at(data: bytes, places: list[int]) -> list[bytes]:
    """Cut a stream at places, taken modulo its length."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]
