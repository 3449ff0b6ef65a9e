"""The seven frames of the protocol, as plain slotted objects.

Not frozen: on the hot path one is made per message, and a frozen one costs four times as much.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Publish:
    """001: store ``content`` in ``queue``.

    ``ttl_s`` is None where there was no TTL packet (the older revision), 0 means never.
    With a ``key`` the sender waits for a receipt.
    """

    queue: str
    content: bytes
    ttl_s: int | None
    key: bytes | None


@dataclass(slots=True)
class Consume:
    """002: from now on at most ``count`` unacknowledged messages of ``queue``; 0 gives back."""

    queue: str
    count: int


@dataclass(slots=True)
class Dispatch:
    """003: a message for a consumer; ``ttl_s`` is None in the older revision, 0 means never."""

    queue: str
    content: bytes
    message_id: bytes
    ttl_s: int | None


@dataclass(slots=True)
class Acknowledge:
    """004: the message is done."""

    queue: str
    message_id: bytes


@dataclass(slots=True)
class Requeue:
    """005: to the end of its queue, with a new time to live (0: never expires)."""

    queue: str
    message_id: bytes
    ttl_s: int


@dataclass(slots=True)
class DeadLetter:
    """006: off its queue, to the dead letters."""

    queue: str
    message_id: bytes


@dataclass(slots=True)
class ReceiptFrame:
    """007: the answer to a publish with a key: stored, or refused where ``reason`` is given."""

    queue: str
    key: bytes
    reason: str | None


ClientFrame = Publish | Consume | Acknowledge | Requeue | DeadLetter
BrokerFrame = Dispatch | ReceiptFrame
Frame = ClientFrame | BrokerFrame
