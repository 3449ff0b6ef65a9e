"""The protocol's frames, as slotted objects: 001 to 006 as published, and ours.

They are not frozen: one is created per message, and a frozen one costs four times as much.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

VERSION: Final = b"01"  # set by rule R1
HEADER_BYTES: Final = 8  # H, version, type, packet count

# Message types.  005 to 007 are unknown to the older revision, and from 007 on they are ours.
PUBLISH: Final = 1
CONSUME: Final = 2
DISPATCH: Final = 3
ACKNOWLEDGE: Final = 4
REQUEUE: Final = 5
DEAD_LETTER: Final = 6
RECEIPT: Final = 7
PUBLISH_WITH_OPTIONS: Final = 10
SETTLE: Final = 11
CONSUME_WITH_OPTIONS: Final = 12
DISPATCH_WITH_INFO: Final = 13
HELLO: Final = 14
WELCOME: Final = 15
OUR_FRAMES: Final = (
    RECEIPT, PUBLISH_WITH_OPTIONS, SETTLE, CONSUME_WITH_OPTIONS, DISPATCH_WITH_INFO, HELLO, WELCOME
)  # fmt: skip

# Packet types.
QUEUE: Final = 1
CONTENT: Final = 2
ID: Final = 3  # a message id, or the key of a confirmed publish
COUNT: Final = 4
TTL: Final = 5
OPTIONS: Final = 6  # a JSON object; see frame_options.py


def message_header(message_type: int, packets: int) -> bytes:
    """Return the 8 bytes that begin a frame."""
    return b"H%s%03d%02d" % (VERSION, message_type, packets)


Shapes = dict[bytes, tuple[int, ...]]  # message header -> packet types in our order (R2, R12)


def _shapes(*shapes: tuple[int, tuple[int, ...]]) -> Shapes:
    return {message_header(kind, len(packets)): packets for kind, packets in shapes}


FROM_CLIENT: Final = _shapes(
    (PUBLISH, (QUEUE, CONTENT)),
    (PUBLISH, (QUEUE, CONTENT, TTL)),
    (PUBLISH, (QUEUE, CONTENT, TTL, ID)),
    (CONSUME, (QUEUE, COUNT)),
    (ACKNOWLEDGE, (QUEUE, ID)),
    (REQUEUE, (QUEUE, ID, TTL)),
    (DEAD_LETTER, (QUEUE, ID)),
    (PUBLISH_WITH_OPTIONS, (QUEUE, CONTENT, OPTIONS)),
    (PUBLISH_WITH_OPTIONS, (QUEUE, CONTENT, OPTIONS, ID)),
    (SETTLE, (QUEUE, ID, OPTIONS)),
    (SETTLE, (QUEUE, ID, OPTIONS, CONTENT)),
    (CONSUME_WITH_OPTIONS, (QUEUE, COUNT, OPTIONS)),
    (HELLO, (ID, OPTIONS)),
)
FROM_BROKER: Final = _shapes(
    (DISPATCH, (QUEUE, CONTENT, ID)),
    (DISPATCH, (QUEUE, CONTENT, ID, TTL)),
    (RECEIPT, (QUEUE, ID)),
    (RECEIPT, (QUEUE, ID, CONTENT)),
    (DISPATCH_WITH_INFO, (QUEUE, CONTENT, ID, TTL, OPTIONS)),
    (WELCOME, (ID, OPTIONS)),
)


# Only the newer revision, ``ttl``, has a TTL in publish and dispatch frames.  The first frame that
# differs between them shows which one a client speaks (R7).  A client that only consumes sends no
# such frame, so the listener that it connected to decides.
Revision = Literal["ttl", "legacy"]

# Client frame headers that differ; 002 and 004 are the same in both revisions.
_OF_BOTH: Final = (message_header(CONSUME, 2), message_header(ACKNOWLEDGE, 2))
REVISION_OF_HEADER: Final[dict[bytes, Revision]] = {
    **{header: "ttl" for header in FROM_CLIENT if header not in _OF_BOTH},
    message_header(PUBLISH, 2): "legacy",
}

DISPATCH_HEADERS: Final[dict[Revision, bytes]] = {
    "ttl": message_header(DISPATCH, 4),  # queue, content, id, TTL
    "legacy": message_header(DISPATCH, 3),
}

DESCRIPTIONS: Final[dict[Revision | None, str]] = {
    "ttl": "newer, with TTL; dispatches have 4 packets",
    "legacy": "older, without TTL; dispatches have 3 packets",
    None: "unknown; the listener determines it: tcp.listen is for newer clients, tcp.legacy_listen "
    "for older ones",
}


def wrong_count(shapes: Shapes, message_type: int, count: int) -> str:
    """Return the error text for a wrong packet count, with its likely cause (R18)."""
    counts = " or ".join(str(int(h[6:])) for h in shapes if int(h[3:6]) == message_type)
    detail = f"a message of type {message_type:03} must have {counts} packets, not {count}"
    if (message_type, count) == (REQUEUE, 2):
        detail += (
            ": with 2 packets, 005 was the message receipt of an earlier revision;"
            " now it is a requeue with queue, message id and TTL"
        )
    return detail


# RemoteProtocolError codes, which also appear in counters.
BAD_HEADER: Final = "bad-header"
BAD_VERSION: Final = "bad-version"
UNKNOWN_TYPE: Final = "unknown-type"
UNEXPECTED_TYPE: Final = "unexpected-type"
BAD_PACKET_COUNT: Final = "bad-packet-count"
BAD_FRAMING: Final = "bad-framing"
BAD_PACKET_HEADER: Final = "bad-packet-header"
BAD_PACKET_TYPE: Final = "bad-packet-type"
DUPLICATE_PACKET: Final = "duplicate-packet"
TOO_LARGE: Final = "too-large"
EMPTY_QUEUE: Final = "empty-queue"
BAD_QUEUE: Final = "bad-queue"
EMPTY_ID: Final = "empty-id"
BAD_NUMBER: Final = "bad-number"
HTTP_REQUEST: Final = "http-request"

DEFAULT_MAX_CONTENT: Final = 8 << 20  # bytes; of brokers and clients
DEAD_LETTER_SUFFIX: Final = b".dlq"  # R17: a name with this suffix may be longer

_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(slots=True, frozen=True)
class WireLimits:
    """The maximum content size of each packet type, in bytes; exceeding it ends the connection."""

    max_content: int = DEFAULT_MAX_CONTENT
    max_queue: int = 255  # plus 4 if the name ends in .dlq; see max_name_bytes
    max_id: int = 64  # for ids and keys
    max_number_digits: int = 19  # set by rule R14
    max_options: int = 16 << 10

    def by_packet(self) -> dict[int, int]:
        """Return the maximum content size by packet type (R13), including ``.dlq`` for queues."""
        return {
            QUEUE: self.max_queue + len(DEAD_LETTER_SUFFIX),
            CONTENT: self.max_content,
            ID: self.max_id,
            COUNT: self.max_number_digits,
            TTL: self.max_number_digits,
            OPTIONS: self.max_options,
        }

    def max_name_bytes(self, queue: bytes) -> int:
        """Return the maximum length of a name with the same suffix as this one (R17)."""
        is_longer = queue.endswith(DEAD_LETTER_SUFFIX)
        return self.max_queue + (len(DEAD_LETTER_SUFFIX) if is_longer else 0)


def decode_queue(raw: bytes) -> str | None:
    """Return the queue's name, or None if it is not UTF-8 or contains a control character.

    Line feeds are allowed: in the published examples, the queue of a compact frame begins with one,
    to show that framing is never detected from content.
    """
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(name) else name


@dataclass(slots=True)
class Publish:
    """001: store ``content`` in ``queue``.

    ``ttl_s`` is None if there is no TTL packet (the older revision); 0 means that the message never
    expires.  With a ``key``, the sender expects a receipt.
    """

    queue: str
    content: bytes
    ttl_s: int | None
    key: bytes | None


@dataclass(slots=True)
class Consume:
    """002: set the credit on ``queue`` to ``count`` unacknowledged messages; 0 stops consuming."""

    queue: str
    count: int


@dataclass(slots=True)
class Dispatch:
    """003: a message for a consumer; ``ttl_s`` is None in the older revision, 0 if unlimited."""

    queue: str
    content: bytes
    message_id: bytes
    ttl_s: int | None


@dataclass(slots=True)
class Acknowledge:
    """004: settle the message."""

    queue: str
    message_id: bytes


@dataclass(slots=True)
class Requeue:
    """005: move the message to the end of its queue, with a new TTL (0 means no expiry)."""

    queue: str
    message_id: bytes
    ttl_s: int


@dataclass(slots=True)
class DeadLetter:
    """006: dead-letter the message."""

    queue: str
    message_id: bytes


@dataclass(slots=True)
class ReceiptFrame:
    """007: the reply to a publish with a key: stored, or refused with a ``reason``."""

    queue: str
    key: bytes
    reason: str | None


@dataclass(slots=True)
class PublishWithOptions:
    """010: store ``content`` with options; with a ``key``, the sender expects a receipt."""

    queue: str
    content: bytes
    options: bytes
    key: bytes | None


@dataclass(slots=True)
class Settle:
    """011: retry, dead-letter or hold the message longer; a retry may replace its content."""

    queue: str
    message_id: bytes
    options: bytes
    content: bytes | None


@dataclass(slots=True)
class ConsumeWithOptions:
    """012: set the credit on ``queue``, with options."""

    queue: str
    count: int
    options: bytes


@dataclass(slots=True)
class DispatchWithInfo:
    """013: a dispatch with what is known of the delivery, for consumers that ask for it."""

    queue: str
    content: bytes
    message_id: bytes
    ttl_s: int
    info: bytes


@dataclass(slots=True)
class Hello:
    """014: who the client is; the broker answers with a welcome under the same key."""

    key: bytes
    options: bytes


@dataclass(slots=True)
class Welcome:
    """015: which frames the broker knows, and its limits."""

    key: bytes
    options: bytes


ClientFrame = (
    Publish
    | Consume
    | Acknowledge
    | Requeue
    | DeadLetter
    | PublishWithOptions
    | Settle
    | ConsumeWithOptions
    | Hello
)
BrokerFrame = Dispatch | ReceiptFrame | DispatchWithInfo | Welcome
Frame = ClientFrame | BrokerFrame
