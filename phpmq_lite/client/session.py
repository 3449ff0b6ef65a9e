"""What a client knows across its connections, without I/O: both clients are shells round it."""

import secrets
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

from phpmq_lite.client.pending import Answer, Pending
from phpmq_lite.errors import LocalProtocolError, RemoteProtocolError
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch
from phpmq_lite.protocol.wire import CONTENT, TOO_LARGE, WireLimits


class Settling(Protocol):
    """What a delivery needs of its client."""

    session: "Session"

    def settle(self, frame: bytes, generation: int) -> None:
        """Send the end of a delivery that came on connection number ``generation``."""


class Delivery:
    """One message, to be ended once by :meth:`ack`, :meth:`requeue` or :meth:`dead_letter`.

    A second end is ignored.  A delivery of an earlier connection may still be ended: the broker
    has put the message back, and takes the end as long as nobody else holds it; else ignores it.
    """

    __slots__ = ("_client", "_generation", "_id", "body", "is_settled", "queue", "ttl_s")

    def __init__(self, client: Settling, frame: Dispatch, generation: int) -> None:
        self.queue = frame.queue
        self.body = frame.content
        self.ttl_s = frame.ttl_s  # seconds left when it was sent; 0: never expires
        self.is_settled = False
        self._id = frame.message_id
        self._client = client
        self._generation = generation

    @property
    def message_id(self) -> str:
        """The broker's id, 32 hex digits; the same when the message comes again."""
        return self._id.decode("latin-1")

    def ack(self) -> None:
        """Say that the message is done."""
        self._end(self._client.session.side.acknowledge(self.queue, self._id))

    def requeue(self, ttl_s: int = 0) -> None:
        """Put the message at the end of its queue, to live ``ttl_s`` from now (0: for ever)."""
        self._end(self._client.session.side.requeue(self.queue, self._id, ttl_s))

    def dead_letter(self) -> None:
        """Take the message off its queue, to the dead letters."""
        self._end(self._client.session.side.dead_letter(self.queue, self._id))

    def _end(self, frame: bytes) -> None:
        if not self.is_settled:
            self._client.settle(frame, self._generation)
            self.is_settled = True

    def __repr__(self) -> str:
        return f"<Delivery {self.message_id} of {self.queue}, {len(self.body)} bytes>"


class Window:
    """A consumed queue: its credit, and what was dispatched and not yet handed out."""

    __slots__ = ("credit", "dispatches", "queue", "wake")

    def __init__(self, queue: str, credit: int, wake: Callable[[], None]) -> None:
        self.queue = queue
        self.credit = credit
        self.dispatches: deque[Dispatch] = deque()
        self.wake = wake  # called when something came


class Session:
    """Windows and unanswered publishes, and the protocol of the connection of the moment.

    Per connection: :meth:`connected` once, :meth:`receive` per read, :meth:`lost` at the end.
    """

    __slots__ = (
        "_keys",
        "_limits",
        "_prefix",
        "generation",
        "heard",
        "is_connected",
        "late",
        "late_count",
        "pending",
        "side",
        "windows",
    )

    def __init__(self, max_content: int) -> None:
        self._limits = WireLimits(max_content)
        self._prefix = secrets.token_bytes(8).hex().encode()  # of this client's keys
        self._keys = count()
        self.side = ClientSide(self._limits)
        self.is_connected = False
        self.generation = 0  # connections so far
        self.heard = False  # the broker said something on this connection
        self.pending = Pending()
        self.windows: dict[str, Window] = {}
        self.late: list[bytes] = []  # ends of deliveries, for the next connection
        self.late_count = 0  # ends that came after the connection of their delivery

    @property
    def error(self) -> RemoteProtocolError | None:
        """What the broker sent that is not PHPMQ; close for good."""
        return self.side.error

    def trouble(self, peer: object) -> str | None:
        """Say what is wrong with what the broker sent, and what helps; None: nothing is."""
        error = self.error
        if error is None:
            return None
        if error.code == TOO_LARGE and error.detail.startswith(f"packet {CONTENT:02} "):
            return (
                f"{peer} sent a message that is too long for this client: {error.detail}; raise "
                "the max_content of the client, or limits.max_content of the command line (--set), "
                "to the broker's limits.max_content"
            )
        return f"{peer} does not speak PHPMQ: {error}"

    def connected(self) -> bytes:
        """Begin a connection; return what it must be sent first.

        In this order: ends of deliveries that came too late, so that finished work does not
        come again; the windows; the publishes that have no answer, under their keys.
        """
        self.side = ClientSide(self._limits)
        self.is_connected = True
        self.heard = False
        self.generation += 1
        parts, self.late = self.late, []
        parts += [self.side.consume(w.queue, w.credit) for w in self.windows.values()]
        for entry in self.pending.to_repeat():
            entry.sent += 1
            parts.append(self.side.publish(entry.queue, entry.content, entry.ttl_s, entry.key))
        return b"".join(parts)

    def lost(self) -> None:
        """End a connection: what was dispatched and not handed out comes again."""
        self.is_connected = False
        for window in self.windows.values():
            window.dispatches.clear()

    def receive(self, data: bytes) -> None:
        """Take a read: answers publishes, fills windows; look at :attr:`error` afterwards."""
        filled: Window | None = None
        for frame in self.side.receive(data):
            self.heard = True
            if not isinstance(frame, Dispatch):
                self.pending.answered(frame.queue, frame.key, frame.reason)
                continue
            if filled is None or filled.queue != frame.queue:
                if filled is not None:
                    filled.wake()
                filled = self.windows.get(frame.queue)
            if filled is not None:  # else closed meanwhile: the broker has it back
                filled.dispatches.append(frame)
        if filled is not None:
            filled.wake()

    def confirm(
        self, queue: str, content: bytes, ttl_s: int, key: bytes | None, answer: Answer
    ) -> tuple[bytes, bytes]:
        """Begin a confirmed publish; return its key, and its frame (send it if connected)."""
        if key is None:
            key = b"%s%016x" % (self._prefix, next(self._keys))
        frame = self.side.publish(queue, content, ttl_s, key)
        entry = self.pending.add(queue, content, ttl_s, key, answer)
        entry.sent += self.is_connected
        return key, frame

    def open_window(self, queue: str, credit: int, wake: Callable[[], None]) -> Window:
        """Begin to consume; send ``side.consume`` if connected.

        Raises:
            LocalProtocolError: the queue is consumed already, or the credit is not positive.
        """
        if queue in self.windows:
            raise LocalProtocolError(f"this client consumes {queue!r} already")
        if credit < 1:
            raise LocalProtocolError(f"a credit is at least 1, not {credit}")
        self.side.consume(queue, credit)  # refuses what the grammar does not allow
        window = self.windows[queue] = Window(queue, credit, wake)
        return window

    def close_window(self, window: Window) -> bytes:
        """End to consume; return the frame that gives back what was not ended."""
        del self.windows[window.queue]
        return self.side.consume(window.queue, 0)

    def end_of_delivery(self, frame: bytes, generation: int) -> bytes:
        """Return what to send now for the end of a delivery; nothing while not connected."""
        self.late_count += generation != self.generation or not self.is_connected
        if self.is_connected:
            return frame
        self.late.append(frame)
        return b""
