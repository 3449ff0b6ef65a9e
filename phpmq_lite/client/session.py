"""Client state that outlives connections, without I/O."""

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

from phpmq_lite.client.publishes import AnswerCallback, PendingPublishes
from phpmq_lite.errors import LocalProtocolError
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import CONTENT, TOO_LARGE, Dispatch, WireLimits
from phpmq_lite.sockets import ALERT, tls_needed

_OPENING: Final = 8  # bytes that show which protocol a server speaks


class Settler(Protocol):
    """A client, as seen by its deliveries."""

    session: "ClientSession"

    def settle(self, frame: bytes, generation: int) -> None:
        """Send the settlement of a delivery from connection number ``generation``."""


class Delivery:
    """A received message, to be settled with :meth:`ack`, :meth:`requeue` or :meth:`dead_letter`.

    Further settlements are ignored.  A delivery from an earlier connection can still be settled:
    the broker has returned the message to its queue, and accepts the settlement if no other client
    holds the message.
    """

    __slots__ = ("_client", "_id", "body", "generation", "is_settled", "queue", "ttl_s")

    def __init__(self, client: Settler, frame: Dispatch, generation: int) -> None:
        self.queue = frame.queue
        self.body = frame.content
        self.ttl_s = frame.ttl_s  # time left when the broker sent the message; 0 means no expiry
        self.is_settled = False
        self._id = frame.message_id
        self._client = client
        self.generation = generation  # number of the connection over which the message came

    @property
    def message_id(self) -> str:
        """Return the message id (32 hex digits), which redelivery does not change."""
        return self._id.decode("latin-1")

    def ack(self) -> None:
        """Acknowledge the message as processed."""
        self._end(self._client.session.side.acknowledge(self.queue, self._id))

    def requeue(self, ttl_s: int = 0) -> None:
        """Move the message to the end of its queue with a new TTL in seconds (0: no expiry)."""
        self._end(self._client.session.side.requeue(self.queue, self._id, ttl_s))

    def dead_letter(self) -> None:
        """Dead-letter the message."""
        self._end(self._client.session.side.dead_letter(self.queue, self._id))

    def _end(self, frame: bytes) -> None:
        if not self.is_settled:
            self._client.settle(frame, self.generation)
            self.is_settled = True

    def __repr__(self) -> str:
        return f"<Delivery {self.message_id} of {self.queue}, {len(self.body)} bytes>"


@dataclass(slots=True, eq=False)
class ConsumedQueue:
    """A consumed queue, its credit, and received messages that the caller has not seen yet."""

    queue: str
    credit: int
    wake: Callable[[], None]  # called whenever messages arrive
    dispatches: deque[Dispatch] = field(default_factory=deque)


class ClientSession:
    """Consumed queues, unanswered publishes, and the current connection's protocol state.

    For each connection, call :meth:`connected` first, :meth:`receive` per read, :meth:`lost` last.
    """

    def __init__(self, max_content: int) -> None:
        self._limits = WireLimits(max_content)
        self._keys = count()
        self.side = ClientSide(self._limits)
        self.is_connected = False
        self.generation = 0  # number of connections opened so far
        self.has_received = False  # whether the broker has sent a frame on this connection
        self.opening = b""  # what the broker has sent before its first frame
        self.windows: dict[str, ConsumedQueue] = {}
        self.begin_anew()
        self.late_settlement_count = 0  # settlements made after the delivery's connection ended

    def begin_anew(self) -> None:
        """Start a new prefix for keys and drop all requests, which belong to the parent process.

        Nobody is notified: in a forked child, the callers are those of the parent process.
        """
        self.lost()
        self._prefix = secrets.token_bytes(8).hex().encode()  # prefix of generated keys
        self.pending = PendingPublishes()
        self.windows = {}
        self.late_settlements: list[bytes] = []  # settlements to send on the next connection

    def protocol_problem(self, peer: object) -> str | None:
        """Describe what is wrong with the broker's data and how to fix it, or return None."""
        if (error := self.side.error) is None:
            return None
        if self.opening.startswith(ALERT):
            return tls_needed(peer)
        if self.opening.startswith(b"HTTP/"):
            return (
                f"{peer} does not speak PHPMQ: it answers in HTTP, as the port of the admin does; "
                "use the port of PHPMQ, such as 9100"
            )
        if error.code == TOO_LARGE and error.detail.startswith(f"packet {CONTENT:02} "):
            return (
                f"{peer} sent a message that is too large for this client: {error.detail}. Set the "
                "client's max_content, or limits.max_content on the command line (--set), "
                "to the broker's limits.max_content."
            )
        return f"{peer} does not speak PHPMQ: {error}"

    def connected(self) -> bytes:
        """Start using a new connection; return the frames to send first.

        The frames are, in this order: late settlements, so that finished messages are not delivered
        again; the credits of consumed queues; and unanswered publishes with their keys.
        """
        self.side = ClientSide(self._limits)
        self.is_connected = True
        self.has_received = False
        self.opening = b""
        self.generation += 1
        parts, self.late_settlements = self.late_settlements, []
        parts += [self.side.consume(w.queue, w.credit) for w in self.windows.values()]
        for entry in self.pending.to_repeat():
            entry.sent += 1
            parts.append(self.side.publish(entry.queue, entry.content, entry.ttl_s, entry.key))
        return b"".join(parts)

    def lost(self) -> None:
        """Stop using a connection; drop unseen messages, which the broker will deliver again."""
        self.is_connected = False
        for window in self.windows.values():
            window.dispatches.clear()

    def receive(self, data: bytes) -> None:
        """Process received bytes; check :meth:`protocol_problem` afterwards."""
        filled: ConsumedQueue | None = None
        if not self.has_received:
            self.opening = (self.opening + data)[:_OPENING]
        for frame in self.side.receive(data):
            self.has_received = True
            if not isinstance(frame, Dispatch):
                self.pending.answered(frame.queue, frame.key, frame.reason)
                continue
            if filled is None or filled.queue != frame.queue:
                if filled is not None:
                    filled.wake()
                filled = self.windows.get(frame.queue)
            if filled is not None:  # otherwise, the broker returns the message to its queue
                filled.dispatches.append(frame)
        if filled is not None:
            filled.wake()

    def confirm(
        self, queue: str, content: bytes, ttl_s: int, key: bytes | None, answer: AnswerCallback
    ) -> tuple[bytes, bytes]:
        """Begin a confirmed publish; return its key and a frame that must be sent if connected."""
        if key is None:
            key = b"%s%016x" % (self._prefix, next(self._keys))
        frame = self.side.publish(queue, content, ttl_s, key)
        entry = self.pending.add(queue, content, ttl_s, key, answer)
        entry.sent += self.is_connected
        return key, frame

    def start_consuming(self, queue: str, credit: int, wake: Callable[[], None]) -> ConsumedQueue:
        """Start consuming, or raise LocalProtocolError; the caller sends ``side.consume``."""
        if queue in self.windows:
            raise LocalProtocolError(f"this client already consumes {queue!r}")
        if credit < 1:
            raise LocalProtocolError(f"credit must be at least 1, not {credit}")
        self.side.consume(queue, credit)  # raises if the name or credit is invalid
        window = self.windows[queue] = ConsumedQueue(queue, credit, wake)
        return window

    def stop_consuming(self, window: ConsumedQueue) -> bytes:
        """Stop consuming a queue; return the frame that returns unsettled messages, if any."""
        if self.windows.get(window.queue) is not window:  # it was consumed before a fork
            return b""
        del self.windows[window.queue]
        return self.side.consume(window.queue, 0)

    def settlement_to_send(self, frame: bytes, generation: int) -> bytes:
        """Return the frame if it can be sent now; otherwise, keep it for the next connection."""
        self.late_settlement_count += generation != self.generation or not self.is_connected
        if self.is_connected:
            return frame
        self.late_settlements.append(frame)
        return b""
