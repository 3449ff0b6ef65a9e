"""Client state that outlives connections, without I/O."""

import os
import secrets
import socket
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from phpmq_lite.client.publishes import (
    AnswerCallback,
    KeyedMessage,
    Options,
    PendingPublishes,
    UnansweredPublish,
    delayed_copy,
)
from phpmq_lite.errors import ClientError, LocalProtocolError, PhpmqError
from phpmq_lite.frame_options import OptionError, read_object, write_options
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import (
    CONSUME_WITH_OPTIONS,
    CONTENT,
    PUBLISH_WITH_OPTIONS,
    SETTLE,
    TOO_LARGE,
    Dispatch,
    DispatchWithInfo,
    ReceiptFrame,
    Welcome,
    WireLimits,
    message_header,
)
from phpmq_lite.sockets import ALERT, tls_needed

_OPENING: Final = 8  # bytes that show which protocol a server speaks
_KEPT_BYTES: Final = 65_536  # longer settlements, with content, are sent once
_VERSION: Final = sys.modules["phpmq_lite"].__version__  # an import would be a cycle
_SETTLE: Final = message_header(SETTLE, 0)[:-2]  # begins an 011


OldForm = Callable[[], bytes]  # the frame for a broker that knows no 011; empty: it comes later


@dataclass(slots=True, frozen=True)
class BrokerFacts:
    """What a broker's welcome says; a broker of an earlier release sends none."""

    version: str = ""
    frames: frozenset[int] = frozenset()
    max_hold_s: float = 0


OLD_BROKER: Final = BrokerFacts()


class LateSettlement(NamedTuple):
    """A settlement for the next connection."""

    frame: bytes
    old_form: OldForm | None = None  # for a broker that does not know the frame


@dataclass(slots=True, eq=False)
class ConsumedQueue:
    """A consumed queue, its credit, and received messages that the caller has not seen yet."""

    queue: str
    credit: int
    wake: Callable[[], None]  # called whenever messages arrive
    has_info: bool = False
    dispatches: deque[Dispatch | DispatchWithInfo] = field(default_factory=deque)
    # The last settlements, which may be lost with the connection: never more than the credit.
    settled: deque[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.settled = deque(maxlen=self.credit)


class ClientSession:
    """Consumed queues, unanswered publishes, and the current connection's protocol state.

    For each connection, call :meth:`greet` first, :meth:`connected` after the welcome (at once if
    there is no hello), :meth:`receive` per read, :meth:`lost` last.
    """

    def __init__(self, max_content: int) -> None:
        self._limits = WireLimits(max_content)
        self._keys = count()
        self.side = ClientSide(self._limits)
        self.broker = OLD_BROKER  # of the current or the last connection
        self.is_welcome = False  # whether the broker has answered the hello of this connection
        self.is_connected = False
        self.generation = 0  # number of connections opened so far
        self.has_received = False  # whether the broker has sent a frame on this connection
        self.opening = b""  # what the broker has sent before its first frame
        self.windows: dict[str, ConsumedQueue] = {}
        self.late_settlements: list[LateSettlement] = []  # to send on the next connection
        self._unproven: list[LateSettlement] = []  # were sent first on this connection
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
        self.late_settlements.clear()

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

    def knows(self, message_type: int) -> bool:
        """Return whether the broker knows a frame of ours."""
        return message_type in self.broker.frames

    def greet(self, *, sends_hello: bool) -> bytes:
        """Start using a new connection; return the hello, or nothing for a broker without it."""
        self.side = ClientSide(self._limits)
        self.has_received = self.is_welcome = False
        self.opening = b""
        if not sends_hello:
            self.broker = OLD_BROKER
            return b""
        facts = {"name": "phpmq-lite (Python)", "version": _VERSION, "pid": os.getpid()}
        return self.side.hello(self._prefix, write_options({**facts, "host": socket.gethostname()}))

    def connected(self) -> bytes:
        """Return the frames to send first, once it is known what the broker understands.

        The frames are, in this order: late settlements, so that finished messages are not delivered
        again; the credits of consumed queues; and unanswered publishes with their keys.
        """
        self.generation += 1
        late, self.late_settlements = self.late_settlements, []
        parts: list[bytes] = []
        for frame, old_form in late:
            if frame.startswith(_SETTLE) and not self.knows(SETTLE):
                frame = b"" if old_form is None else old_form()
            if frame:
                parts.append(frame)
                self._unproven.append(LateSettlement(frame))
        self.is_connected = True
        parts += [self.consume_frame(window) for window in self.windows.values()]
        for entry in self.pending.to_repeat():
            try:
                parts.append(self._frame_of(entry))
                entry.sent += 1
            except PhpmqError as error:
                self.pending.forget(entry.queue, entry.key)
                entry.answer(error)
        return b"".join(parts)

    def lost(self) -> None:
        """Stop using a connection; drop unseen messages, which the broker will deliver again."""
        self.is_connected = False
        self._unproven, unproven = [], self._unproven
        for window in self.windows.values():
            window.dispatches.clear()
            unproven += map(LateSettlement, window.settled)
            window.settled.clear()
        self.late_settlements[:0] = unproven

    def receive(self, data: bytes) -> None:
        """Process received bytes; check :meth:`protocol_problem` afterwards."""
        filled: ConsumedQueue | None = None
        if not self.has_received:
            self.opening = (self.opening + data)[:_OPENING]
        frames = self.side.receive(data)
        if frames and not isinstance(frames[-1], Welcome):
            self.has_received = True
            self._unproven.clear()  # the broker executes frames in order
        for frame in frames:
            if isinstance(frame, ReceiptFrame):
                self.pending.answered(frame.queue, frame.key, frame.reason)
                continue
            if isinstance(frame, Welcome):
                self._welcome(frame)
                continue
            if filled is None or filled.queue != frame.queue:
                if filled is not None:
                    filled.wake()
                filled = self.windows.get(frame.queue)
            if filled is not None:  # otherwise, the broker returns the message to its queue
                filled.dispatches.append(frame)
        if filled is not None:
            filled.wake()

    def _welcome(self, frame: Welcome) -> None:
        try:
            facts = read_object(frame.options)
        except OptionError:
            facts = {}
        version, frames = str(facts.get("version")), frozenset(facts.get("frames", ()))
        self.broker = BrokerFacts(version, frames, facts.get("max_hold_s", 0))
        self.is_welcome = True
        if (limit := facts.get("max_content", 0)) and limit < self._limits.max_content:
            self.side.limit_content(limit)  # the broker would close the connection

    def confirm(
        self,
        queue: str,
        content: bytes,
        ttl_s: int,
        key: bytes | None,
        answer: AnswerCallback,
        options: Options | None = None,
    ) -> tuple[bytes, bytes]:
        """Begin a confirmed publish; return its key and a frame that must be sent if connected.

        Raises:
            LocalProtocolError: an argument is invalid, or a publish with this key is unanswered.
            ClientError: the broker does not know the options.
        """
        if key is None:
            key = b"%s%016x" % (self._prefix, next(self._keys))
        entry = self.pending.add(queue, content, ttl_s, key, answer, options)
        try:
            frame = self._frame_of(entry)
        except PhpmqError:
            self.pending.forget(queue, key)
            raise
        entry.sent += self.is_connected
        return key, frame

    def confirm_message(self, message: KeyedMessage, answer: AnswerCallback) -> bytes:
        """Begin a confirmed publish with a key, as :meth:`confirm`."""
        place = (message.queue, message.content, message.ttl_s, message.key)
        return self.confirm(*place, answer, message.options)[1]

    def publish(self, queue: str, content: bytes, options: Options) -> bytes:
        """Return the frame of a publish with options and no receipt; raise as :meth:`confirm`."""
        return self._with_options(queue, content, options, None)[0]

    def _frame_of(self, entry: UnansweredPublish) -> bytes:
        if entry.options is None:
            return self.side.publish(entry.queue, entry.content, entry.ttl_s, entry.key)
        message = (entry.queue, entry.content, entry.options, entry.key)
        frame, entry.is_copy = self._with_options(*message, is_copy=entry.is_copy)
        return frame

    def _with_options(
        self,
        queue: str,
        content: bytes,
        options: Options,
        key: bytes | None,
        *,
        is_copy: bool = False,
    ) -> tuple[bytes, bool]:
        """Return the frame of a publish, and whether it is a copy that waits in ``.retry``."""
        if self.is_connected and (is_copy or not self.knows(PUBLISH_WITH_OPTIONS)):
            target, ttl_s = delayed_copy(queue, options)
            return self.side.publish(target, content, ttl_s, key), True
        written = write_options(options)
        return self.side.publish_with_options(queue, content, written, key), is_copy

    def start_consuming(
        self, queue: str, credit: int, wake: Callable[[], None], *, has_info: bool = False
    ) -> ConsumedQueue:
        """Start consuming, or raise LocalProtocolError; the caller sends :meth:`consume_frame`."""
        if queue in self.windows:
            raise LocalProtocolError(f"this client already consumes {queue!r}")
        if credit < 1:
            raise LocalProtocolError(f"credit must be at least 1, not {credit}")
        self.side.consume(queue, credit)  # raises if the name or credit is invalid
        if has_info and self.is_connected and not self.knows(CONSUME_WITH_OPTIONS):
            raise ClientError(f"the broker is older than this client: no info of {queue!r}")
        window = self.windows[queue] = ConsumedQueue(queue, credit, wake, has_info)
        return window

    def consume_frame(self, window: ConsumedQueue, *, keeps_held: bool = False) -> bytes:
        """Return the frame that sets the credit of a queue."""
        if not self.knows(CONSUME_WITH_OPTIONS) or not (window.has_info or keeps_held):
            return self.side.consume(window.queue, window.credit)
        options = write_options({"info": window.has_info, "keep": keeps_held})
        return self.side.consume_with_options(window.queue, window.credit, options)

    def set_credit(self, window: ConsumedQueue, credit: int) -> bytes:
        """Change the credit, keeping what is held; return the frame to send if connected."""
        if not self.knows(CONSUME_WITH_OPTIONS):
            raise ClientError("the broker is older than this client: it cannot change a credit")
        self.side.consume(window.queue, credit)  # raises if the credit is invalid
        window.credit = credit
        window.settled = deque(window.settled, max(credit, window.settled.maxlen or 0))
        return self.consume_frame(window, keeps_held=True)

    def stop_consuming(self, window: ConsumedQueue) -> bytes:
        """Stop consuming a queue; return the frame that returns unsettled messages, if any."""
        if self.windows.get(window.queue) is not window:  # it was consumed before a fork
            return b""
        del self.windows[window.queue]
        return self.side.consume(window.queue, 0)

    def settlement_to_send(
        self,
        queue: str,
        generation: int,
        frame: bytes,
        old_form: OldForm | None = None,
        *,
        is_kept: bool = True,
    ) -> bytes:
        """Return what is to be sent now; without a connection, keep it for the next one.

        ``generation`` is that of the delivery.  ``old_form`` is for a broker that does not know the
        frame.  If ``is_kept``, the frame is sent again on the next connection, unless the broker
        has certainly executed it.
        """
        self.late_settlement_count += generation != self.generation or not self.is_connected
        if not self.is_connected:
            self.late_settlements.append(LateSettlement(frame, old_form))
            return b""
        if old_form is not None and not self.knows(SETTLE):
            frame = old_form()
        window = self.windows.get(queue)
        if is_kept and window is not None and 0 < len(frame) <= _KEPT_BYTES:
            window.settled.append(frame)
        return frame
