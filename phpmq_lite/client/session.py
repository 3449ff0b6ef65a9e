"""Client state that outlives connections, without I/O; used by the asyncio and blocking clients."""

import logging
import os
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ECONNREFUSED
from itertools import count
from socket import gaierror
from typing import TYPE_CHECKING, Final

from phpmq_lite.client.address import BrokerAddress
from phpmq_lite.client.tls_errors import ALERT, tls_needed, tls_reason
from phpmq_lite.errors import (
    KEY_CONFLICT,
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PublishRefusedError,
    RefusedError,
    os_reason,
)
from phpmq_lite.forks import reset_after_fork
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import CONTENT, TOO_LARGE, Dispatch, WireLimits
from phpmq_lite.queue_settings import publish_target

if TYPE_CHECKING:
    from ssl import SSLContext  # ssl is slow to import

_OPENING: Final = 8  # bytes that show which protocol a server speaks
AnswerCallback = Callable[[ClientError | None], None]  # receives None if the message was stored


@contextmanager
def storing_once() -> Iterator[None]:
    """Within the block, let the refusal of a known key pass: its message was stored before.

    For keys that stand for an event, such as a failure, whose message has other bytes (a time, an
    id) when a publish is repeated.
    """
    try:
        yield
    except PublishRefusedError as error:
        if error.reason != KEY_CONFLICT:
            raise


def to_target(queue: str, ttl_s: int, delay_s: float) -> tuple[str, int]:
    """Return the queue and the TTL to publish with; with a delay, these of the ``.retry`` queue.

    Raises:
        LocalProtocolError: the delay is combined with a TTL, or the queue cannot have delays.
    """
    if not delay_s:
        return queue, ttl_s
    try:
        target, ttl = publish_target(queue, ttl_s or None, delay_s)
    except RefusedError as error:
        raise LocalProtocolError(str(error)) from None
    return target, ttl or 0


@dataclass(slots=True)
class UnansweredPublish:
    """An unanswered publish request.

    ``sent`` counts the connections on which it has been sent since the broker last answered one.
    """

    queue: str
    content: bytes
    ttl_s: int
    key: bytes
    answer: AnswerCallback
    sent: int = 0


_LARGE_BYTES: Final = 65_536  # a larger body may be above the broker's limits.max_content
_LARGE_SENDS: Final = 3  # limit of ``max_sends`` for such a body
PROBE_S: Final = 0.2  # a proxy whose broker is away closes new connections within this time


class PendingPublishes:
    """Unanswered publish requests by queue and key, in the order in which they were made.

    The broker stores each key only once, so all requests can be repeated on the next connection.
    The client gives up on a publish after ``max_sends`` connections in a row have ended without an
    answer to any publish, because that publish may be why the broker closes connections: it closes
    one as soon as it reads the size of a body above its limit.  For the largest body, if it has
    more than 64 KiB, three such connections are therefore enough.
    """

    def __init__(self, max_sends: int = 10) -> None:
        self._max_sends = max_sends
        self._waiting: dict[tuple[str, bytes], UnansweredPublish] = {}
        self._has_answers = False  # whether the broker has answered on the current connection

    def __len__(self) -> int:
        return len(self._waiting)

    def largest(self) -> int:
        """Return the number of bytes of the largest unanswered message."""
        return max((len(entry.content) for entry in self._waiting.values()), default=0)

    def add(
        self, queue: str, content: bytes, ttl_s: int, key: bytes, answer: AnswerCallback
    ) -> UnansweredPublish:
        """Remember a publish until it is answered.

        Raises:
            LocalProtocolError: a publish with this key is unanswered.
        """
        if (queue, key) in self._waiting:
            raise LocalProtocolError(
                f"a publish with key {key!r} is already waiting for its receipt"
            )
        entry = self._waiting[queue, key] = UnansweredPublish(queue, content, ttl_s, key, answer)
        return entry

    def answered(self, queue: str, key: bytes, reason: str | None) -> bool:
        """Report a publish as stored or refused (``reason``); return False if it is unknown."""
        entry = self._waiting.pop((queue, key), None)
        if entry is None:
            return False
        self._has_answers = True
        entry.answer(None if reason is None else PublishRefusedError(reason))
        return True

    def forget(self, queue: str, key: bytes) -> None:
        """Forget a publish whose sender has stopped waiting; the message may still be stored."""
        self._waiting.pop((queue, key), None)

    def forget_all(self, answer: AnswerCallback) -> None:
        """Forget all unanswered publish requests whose callback is ``answer``."""
        for place in [at for at, entry in self._waiting.items() if entry.answer == answer]:
            del self._waiting[place]

    def to_repeat(self) -> list[UnansweredPublish]:
        """Return the publish requests to repeat, oldest first; fail any sent too often."""
        if self._has_answers:
            self._has_answers = False
            for entry in self._waiting.values():
                entry.sent = 0
        suspect = self.suspect()
        for entry in list(self._waiting.values()):
            if entry.sent < (_LARGE_SENDS if entry is suspect else self._max_sends):
                continue
            del self._waiting[entry.queue, entry.key]
            detail = f"{entry.sent} connections ended before the broker answered a publish"
            if entry is suspect:
                detail += (
                    f" of {len(entry.content)} bytes; if that is above the broker's "
                    "limits.max_content, raise the limit, or make the body smaller"
                )
            entry.answer(ConnectionLostError(detail))
        return list(self._waiting.values())

    def suspect(self) -> UnansweredPublish | None:
        """Return the largest publish if it was sent and may be above the broker's limit.

        The next connection must stay open for ``PROBE_S`` before it is sent again, so that only
        ends that it may have caused are counted.
        """
        largest = max(self._waiting.values(), key=lambda entry: len(entry.content), default=None)
        if largest is None or not largest.sent or len(largest.content) <= _LARGE_BYTES:
            return None
        return largest

    def fail(self, detail: str) -> None:
        """Fail all unanswered publish requests, because the client will not connect again."""
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.answer(ConnectionLostError(detail))


class PublishBatch:
    """Counts the answers to a batch of publishes; ``answered`` is the callback of each publish.

    ``notify`` is called after each answer.
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self.stored = 0
        self.unanswered = 0
        self.error: ClientError | None = None  # the first error among the answers

    def answered(self, error: ClientError | None) -> None:
        """Count one answer to a publish."""
        self.unanswered -= 1
        if error is None:
            self.stored += 1
        elif self.error is None:
            self.error = error
        self._notify()


class Delivery:
    """A received message, to be settled with :meth:`ack`, :meth:`requeue` or :meth:`dead_letter`.

    Further settlements are ignored.  A delivery from an earlier connection can still be settled:
    the broker has returned the message to its queue, and accepts the settlement if no other client
    holds the message.
    """

    __slots__ = ("_client", "_id", "body", "generation", "is_settled", "queue", "ttl_s")

    def __init__(self, client: "ClientBase", frame: Dispatch, generation: int) -> None:
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


class ConsumedQueue:
    """A consumed queue, its credit, and received messages that the caller has not seen yet."""

    def __init__(self, queue: str, credit: int, wake: Callable[[], None]) -> None:
        self.queue = queue
        self.credit = credit
        self.dispatches: deque[Dispatch] = deque()
        self.wake = wake  # called whenever messages arrive


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
        """Start consuming a queue; the caller sends ``side.consume`` if connected.

        Raises:
            LocalProtocolError: the queue is already consumed, or the name or credit is invalid.
        """
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


class Backoff:
    """Delays that double from ``first_s`` to ``longest_s``, each randomly reduced by up to half.

    The random part keeps many clients from reconnecting at the same moment.  ``roll`` returns a
    number from 0 (inclusive) to 1 (exclusive).
    """

    def __init__(
        self,
        first_s: float = 0.1,
        longest_s: float = 10.0,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._roll = roll
        self._tries = 0

    def next_s(self) -> float:
        """Return the next delay in seconds."""
        doubled = self._first_s * float(1 << min(self._tries, 30))
        self._tries += 1
        return min(doubled, self._longest_s) * (1 - self._roll() / 2)

    def reset(self) -> None:
        """Start again with the first delay after a successful connection."""
        self._tries = 0


_STABLE_S: Final = 10.0  # connections that last longer reset the reconnection delay
_QUICK_S: Final = 0.5  # a server that refuses all connections ends them within this time
_SILENT_ENDS: Final = 3  # quick ends without an answer, which a warning then explains

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ConnectionOptions:
    """Connection options of a client; see ``connect``."""

    address: BrokerAddress
    ssl: "SSLContext | None"
    server_hostname: str | None
    max_content: int
    reconnect: bool
    backoff: Backoff | None


class AwayLog:
    """Logs once that a broker is away, and once that it is back."""

    def __init__(self, target: "BrokerAddress") -> None:
        self._target = target
        self._is_away = False

    def lost(self, error: OSError | None = None) -> None:
        """Log that a connection which worked was lost, unless it is known."""
        if not self._is_away:
            reason = "" if error is None else f" ({os_reason(error)})"
            _log.warning("the connection to %s is lost%s; trying again", self._target, reason)
        self._is_away = True

    def connected(self) -> None:
        """Log that the broker is back, if it was away."""
        if self._is_away:
            _log.warning("connected to %s again", self._target)
        self._is_away = False


class ClientBase:
    """Base class of the asyncio and blocking clients, with their common state; performs no I/O."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.target = options.address
        self.session = ClientSession(options.max_content)
        self._ssl = options.ssl
        self._server_hostname = options.server_hostname
        self._reconnects = options.reconnect
        self._backoff = options.backoff or Backoff()
        self._ended: str | None = "the client is not open"  # why calls fail; None if open
        self.is_closing = False
        self._was_answered = False  # since then, lost connections are taken as temporary
        self._silent_ends = 0
        self._away = AwayLog(options.address)
        reset_after_fork(self)

    def forked(self) -> None:
        """Leave the connection to the parent process: the child can only open a new one."""
        self.session.begin_anew()
        if self._ended is None:
            self._ended = (
                f"the client was opened before process {os.getpid()} was forked, so its connection "
                "belongs to the parent process; open a client in each process, after the fork"
            )

    def settle(self, frame: bytes, generation: int) -> None:
        """Send the settlement of a delivery from connection number ``generation``."""
        raise NotImplementedError

    def raise_if_ended(self) -> None:
        """Raise ConnectionLostError if the client has ended."""
        if self._ended is not None:
            raise ConnectionLostError(self._ended)

    def _end(self, detail: str) -> None:
        """End the client; all unanswered publishes and all later calls fail."""
        if self._ended is None:
            self._ended = detail
        self.session.pending.fail(self._ended)

    def _connect_error(self, error: OSError) -> ConnectionLostError:
        plain = None if self._ssl is None else f"phpmq://{self.target} (in Python, no ssl)"
        reason = tls_reason(error, plain, "tcp.allow") or os_reason(error)
        if isinstance(error, gaierror):
            reason = f"the name {self.target.host} is unknown ({reason}); check the address"
        elif reason == os.strerror(ECONNREFUSED):
            reason += "; no broker listens there: start it, or correct the port"
        return ConnectionLostError(f"cannot connect to {self.target}: {reason}")

    def _connection_ended(self, connected_s: float, error: OSError | None = None) -> None:
        """Reset the delay if the connection was successful; log a warning if none ever was."""
        if self.session.has_received or connected_s > _STABLE_S:
            self._backoff.reset()
        if self.session.has_received or connected_s > _QUICK_S:
            self._was_answered = True
            if self._reconnects and not self.is_closing:
                self._away.lost(error)
        if self._was_answered:
            return
        self._silent_ends += 1
        if self._silent_ends == _SILENT_ENDS:
            _log.warning("%s", self._not_accepted())

    def _not_accepted(self) -> ConnectionLostError:
        """Return the error of a call that has waited for a connection until its time limit."""
        if self._was_answered or self._silent_ends < _SILENT_ENDS:
            return ConnectionLostError(f"{self.target} did not accept a new connection in time")
        return ConnectionLostError(
            f"{self.target} ended {self._silent_ends} connections without an answer; it may not "
            "allow this address (tcp.allow), need a client certificate (tcp.tls_client_ca), or have"
            f" a limits.max_content below the {self.session.pending.largest()} bytes of a message"
        )
