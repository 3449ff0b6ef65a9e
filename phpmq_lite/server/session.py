"""A client session on a socket: reads bytes, passes on frames, writes dispatches and receipts.

A ``Session`` is an asyncio protocol around ``protocol.connection.ServerSide``.  Its frames go to a
``FrameProcessor``, which passes them to the core in the engine's batches, strictly in order.
"""

import asyncio
import os
import select
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from phpmq_lite.broker import commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Connection
from phpmq_lite.errors import RemoteProtocolError
from phpmq_lite.frame_options import facts_of
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import Message, OrderedSet, Outbox, Receipt
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import ClientFrame, Hello
from phpmq_lite.server import option_frames
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.backpressure import SILENT, ReadBackpressure, WriteProgress
from phpmq_lite.server.counters import ConnectionCounters, SmoothedRate
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.frame_processing import FrameProcessor, SessionLimits
from phpmq_lite.server.frame_recorder import Side
from phpmq_lite.server.tls import certificate_subject

GUARD_SILENCE_S: Final = 0.02  # after this silence, bytes that could be HTTP are treated as PHPMQ
HALF_CLOSED_BATCHES: Final = 4  # two batches suffice to load a page of messages and their bodies
# Up to this size, data is written at once.  The transport of uvloop writes only at the end of the
# loop's current run, up to 3 ms later, while the client could already work: 4 % of the flow.
_DIRECT_BYTES: Final = 256 << 10
_PEER_CLOSED: Final = getattr(select, "POLLRDHUP", 0)  # poll() reports resets anyway
_HINT_S: Final = 1.0  # maximum time from first dispatch to disconnect for a hint to be logged
_log = get_logger(__name__)


@dataclass(slots=True)
class SessionContext:
    """State shared by all sessions of a broker."""

    engine: Engine
    admission: Admission
    backpressure: ReadBackpressure
    counters: ConnectionCounters
    limits: SessionLimits
    sessions: "OrderedSet[Session]" = field(default_factory=OrderedSet)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def remove(self, session: "Session") -> None:
        """Remove a session whose socket is closed."""
        self.sessions.discard(session)
        if not self.sessions:
            self._emptied.set()

    async def wait_empty(self) -> None:
        while self.sessions:
            self._emptied.clear()
            await self._emptied.wait()


class Session(asyncio.Protocol):
    """A connection; it is a ``model.Peer`` for the engine and a protocol for the event loop."""

    def __init__(self, shared: SessionContext, side: ServerSide, kind: str) -> None:
        self.side: Side = side  # replaced with a RecordedSide while the connection is watched
        self.kind = kind  # tcp, tls or unix
        self.address = ""
        self.relay = ""  # name of the broker that relays the connection; empty if none does
        self.certificate = ""  # subject of the client's certificate
        self.client_facts: dict[str, Any] = {}  # name, version, pid and host, from its 014
        self.connection: Connection | None = None  # set in the first batch
        self.bytes_in = 0
        self.bytes_out = 0
        self.acks = SmoothedRate()
        self.frame_began_at: float | None = None  # event-loop time; None between frames
        self.frame_bytes = 0  # number of bytes received of the incomplete frame
        self.last_read_at = 0.0
        self.blocked_at: float | None = None  # time of the last progress while the buffer is full
        self.closing_at: float | None = None  # last progress while closing with unsent data
        self.first_dispatch_at: float | None = None
        self.paused: set[str] = set()  # reasons why reading is paused
        self.has_eof = False  # True if the peer will send no more data
        self.frames = FrameProcessor(self, shared.engine, shared.limits)
        self._progress = WriteProgress()
        self._is_charged = True  # False if the peer closed before its first dispatch
        self._batches_left = HALF_CLOSED_BATCHES
        self._end_detector: EndDetector | None = None
        self._shared = shared
        self._engine = shared.engine
        self._limits = shared.limits
        self._backpressure = shared.backpressure
        self._counters = shared.counters
        self._host: str | None = None  # address counted by the admission
        self._descriptor: int | None = None  # for writing data directly
        self._loop = asyncio.get_running_loop()
        self._end_reason: str | None = None
        self._end_detail = ""  # displayed with the reason, but not counted
        self._is_ended = False
        self._guard_timer: asyncio.TimerHandle | None = None

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self._host = name[0] if isinstance(name, tuple) else None
        self._descriptor = descriptor_of(self.transport)
        socket = transport.get_extra_info("socket")
        self._end_detector = None if socket is None else EndDetector(socket.fileno())
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else self.kind
        relayed = transport.get_extra_info("relay")
        self.relay = "" if relayed is None else relayed.relay
        self.certificate = certificate_subject(transport)
        refusal = self._shared.admission.admit(self._host, self)
        if refusal is not None:
            self._is_ended = True
            self._end_reason = refusal
            self._counters.closed[refusal] += 1
            if not is_quiet("connection_refused"):
                _log.warning("connection_refused", address=self.address, reason=refusal)
            self.transport.abort()
            self._break_cycles()
            return
        self._shared.sessions.add(self)
        self.transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self.last_read_at = self._loop.time()
        self._counters.clients_opened += 1
        self._engine.submit(self._connect)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self.bytes_in += size
        self._counters.bytes_in += size
        self.last_read_at = self._loop.time()
        side = self.side
        frames = side.receive(data)
        if side.is_waiting or self._guard_timer is not None:
            self._set_guard_timer()
        self._add_frames(frames)
        if side.error is not None:
            self._end_on_error(side.error, data)

    def eof_received(self) -> bool:
        """Stop dispatching, store what the peer has sent, write the receipts, then close."""
        self._release_guard()
        self.has_eof = True
        if self.first_dispatch_at is not None:
            self._stop_dispatching()
        if not self.frames:
            self._engine.submit(self._end_half_closed)
        return self.kind != "tls"  # TLS cannot close only one direction

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect from the core after the complete frames are processed."""
        if self not in self._shared.sessions:
            return  # the session was never admitted
        self._shared.remove(self)
        self._shared.admission.leave(self._host, self)
        self.finish("closed by the peer" if exc is None else "connection reset")
        if self._is_ended:
            self._break_cycles()

    def pause_writing(self) -> None:
        """Stop dispatching to a peer that does not read."""
        self.blocked_at = self._loop.time()
        self._engine.submit(lambda core: self._set_blocked(core, is_blocked=True))

    def resume_writing(self) -> None:
        """Resume dispatching, because the peer has read enough data."""
        self.blocked_at = None
        self.resume_reading("receipts")
        self._engine.submit(lambda core: self._set_blocked(core, is_blocked=False))

    # -- called by the engine

    def send(self, outbox: Outbox, now_ms: int) -> list[Message]:
        """See ``model.Peer``; write all data from a batch in one call."""
        if self.transport.is_closing():
            return []  # the queued disconnect returns unsent messages
        dispatches, receipts = outbox.dispatches, outbox.receipts
        if dispatches and self._has_ended:
            if self._end_reason is not None or self.first_dispatch_at is not None:
                dispatches = []
            else:
                self._is_charged = False
        parts, expired = encode_batch(
            self.side, self.connection, dispatches, receipts, now_ms, self._info
        )
        if parts:
            data = b"".join(parts)
            self.bytes_out += len(data)
            self._counters.bytes_out += len(data)
            if dispatches and self.first_dispatch_at is None:
                self.first_dispatch_at = self._loop.time()
            write_data(self.transport, self._descriptor, data)
            if receipts and self.blocked_at is not None:
                self.pause_reading("receipts")  # the peer is not reading its receipts
            if self.has_eof and dispatches:
                self.finish("closed by the peer")
        self._counters.late += len(expired)
        return expired

    def _info(self, message: Message) -> bytes:
        return option_frames.info_of(self._engine.core, message)

    def welcome(self, hello: Hello) -> None:
        """Answer a 014 with a 015, and keep what the client says of itself."""
        if self.transport.is_closing():
            return
        self.client_facts = facts_of(hello.options)
        parts: list[bytes] = []
        self.side.append_welcome(parts, hello.key, self._limits.welcome)
        data = b"".join(parts)
        self.bytes_out += len(data)
        self._counters.bytes_out += len(data)
        write_data(self.transport, self._descriptor, data)
        if self.blocked_at is not None:
            self.pause_reading("receipts")

    @property
    def _has_ended(self) -> bool:
        """Ask the operating system whether either side has ended the connection."""
        if self.has_eof or self._end_reason is not None:
            return True
        detector = self._end_detector
        return detector is not None and detector.has_ended()

    def _stop_dispatching(self) -> None:
        if self.connection is not None:
            self.connection.is_blocked = True  # set now, because the next batch may be full

    def resume(self) -> None:
        """Continue because a queue accepts messages again; see ``model.Peer``."""
        self.frames.resume()

    def end(self, reason: str) -> None:
        """Close the connection after its complete frames; the reason is logged and displayed."""
        self.finish(reason)

    # -- called once a second

    def note_writing(self, now_s: float) -> None:
        """Record whether a slow peer has read anything since the last call."""
        is_slow = self.blocked_at is not None or self.closing_at is not None
        if is_slow and self._progress.has_progress(self.transport):
            self.blocked_at = None if self.blocked_at is None else now_s
            self.closing_at = None if self.closing_at is None else now_s

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the peer has not accepted yet."""
        return self.transport.get_write_buffer_size()

    @property
    def is_parked(self) -> bool:
        """Whether a publish, with all frames after it, is waiting for its queue to accept it."""
        return self.frames.is_parked

    @property
    def is_idle(self) -> bool:
        """Return whether the peer has neither consumers nor frames that are being processed."""
        is_served = bool(self.frames) or self.frame_began_at is not None
        is_consuming = self.connection is None or bool(self.connection.consumers)
        return not is_consuming and (self.is_parked or not is_served)

    def give_up(self, *, is_full: bool) -> bool:
        """Close the connection if it has never sent anything; see ``admission.Place``."""
        if not self.bytes_in:
            self.abort(SILENT)
        return not self.bytes_in

    def abort(self, reason: str) -> None:
        """Close immediately, losing any incomplete frame and data that the peer has not read."""
        self.finish(reason)
        self.transport.abort()

    # -- reading

    @property
    def is_ending(self) -> bool:
        """Whether the connection will close once its frames are processed."""
        return self._end_reason is not None

    def pause_reading(self, reason: str) -> None:
        """Stop reading until ``resume_reading`` has been called for every reason."""
        if not self.paused and not self.transport.is_closing():
            self.transport.pause_reading()
        if reason not in self.paused:
            self.paused.add(reason)
            self._counters.paused[reason] += 1

    def resume_reading(self, reason: str) -> None:
        """Remove a pause reason; reading resumes once no reasons remain."""
        if reason in self.paused:
            self.paused.discard(reason)
            if not self.paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _add_frames(self, frames: list[ClientFrame]) -> None:
        self.frames.add(frames)
        partial = self.side.parser.partial_bytes
        if not partial:
            self.frame_began_at = None
        elif frames or self.frame_began_at is None:
            self.frame_began_at = self.last_read_at
        self.frame_bytes = partial
        if partial or self.frames.content_bytes:
            self._report_memory()

    def _report_memory(self) -> None:
        held_bytes = (
            0 if self._is_ended else self.frames.content_bytes + self.side.parser.partial_bytes
        )
        self._backpressure.report(self, held_bytes)

    def _set_guard_timer(self) -> None:
        if self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None
        if self.side.is_waiting:
            self._guard_timer = self._loop.call_later(GUARD_SILENCE_S, self._release_guard)

    def _release_guard(self) -> None:
        frames = self.side.release()
        self._set_guard_timer()  # cancels the timer, because no frames are held back
        self._add_frames(frames)
        if self.side.error is not None:
            self._end_on_error(self.side.error)

    def _end_on_error(self, error: RemoteProtocolError, data: bytes = b"") -> None:
        if self._end_reason is not None:
            return
        self._counters.protocol_errors[error.code] += 1
        client = None if self.connection is None else self.connection.number
        read_at = self.bytes_in - len(data)
        self._counters.inspector.record_error(error, client, self.address, data, read_at)
        if not is_quiet("protocol_error"):
            facts = {"code": error.code, "detail": error.detail, "at_byte": error.offset}
            _log.warning("protocol_error", address=self.address, **facts)
        self.finish(f"protocol error: {error.code}")

    # -- in a batch

    def _connect(self, core: Broker) -> None:
        self.connection = core.connect(self, self.kind, self.address)

    def _set_blocked(self, core: Broker, *, is_blocked: bool) -> None:
        if self.connection is not None and self.connection.is_open:
            core.set_blocked(self.connection, is_blocked=is_blocked or self.is_ending)

    def on_processed(self, core: Broker) -> None:
        """Finish closing a connection once all of its frames have been processed."""
        self._report_memory()
        if self.frames:
            return
        if self._end_reason is not None:
            self._engine.submit(self._close)
        elif self.has_eof:
            self._end_half_closed(core)

    # -- the end

    def finish(self, reason: str, detail: str = "") -> None:
        """Close the connection once its complete frames are stored and answered."""
        if self._end_reason is not None:
            return
        self._end_reason, self._end_detail = reason, detail
        self._stop_dispatching()
        self._release_guard()
        if not self.transport.is_closing():
            self.pause_reading("ending")
        if self.is_parked:
            self.frames.submit()
        if not self.frames:
            self._engine.submit(self._close)

    def _end_half_closed(self, core: Broker) -> None:
        """Close, but first send ready messages to a consumer that only listens (``nc -N``).

        Messages that arrive later are not dispatched to it, and no attempt is charged, because its
        process may have ended.
        """
        consumers = () if self.connection is None else self.connection.consumers.values()
        windows = [consumer.queue.window for consumer in consumers]
        if (
            self.first_dispatch_at is None
            and self._batches_left
            and any(window is not None and not window.is_exhausted for window in windows)
        ):
            self._batches_left -= 1
            self._engine.submit_first(self._end_half_closed)  # after pending rows are loaded
        else:
            self.finish("closed by the peer")

    def _close(self, core: Broker) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        reason = self._end_reason or "closed"
        self._counters.closed[reason] += 1
        self._report_memory()
        connection = self.connection
        if connection is not None:
            hint_at_revision(connection, self.side, self.address, self.first_dispatch_at)
            framing, revision = self.side.parser.framing, self.side.parser.revision_seen
            if self._end_detail:
                reason += f": {self._end_detail}"
            commands.disconnect(
                core, connection, framing, revision, reason, is_charged=self._is_charged
            )
        core.reply(self._close_transport, None)

    def _close_transport(self, _: Any) -> None:
        if self.transport.is_closing():
            self._break_cycles()
            return
        self.closing_at = self._loop.time()
        self.transport.close()

    def _break_cycles(self) -> None:
        """Free an ended connection without waiting for the garbage collector."""
        self.connection = None
        self.frames.close()


# -- writing


def encode_batch(
    side: Side,
    connection: Connection | None,
    dispatches: list[Message],
    receipts: list[Receipt],
    now_ms: int,
    info: Callable[[Message], bytes],
) -> tuple[list[bytes], list[Message]]:
    """Return a pair: the pieces to write, dispatches first, and the messages that expired unsent.

    Messages that the connection no longer holds, or has already received, are omitted.
    ``now_ms`` is on the steady clock.  ``info`` returns packet 06 for consumers that asked for it.
    """
    parts: list[bytes] = []
    expired: list[Message] = []
    append = None  # the first dispatch decides the framing
    for message in dispatches:
        body, holder = message.body, message.holder
        if body is None or holder is None or holder.connection is not connection:
            continue  # already sent, or detached by a later batch
        deadline_ms = message.deadline_ms
        # rounded up
        ttl_s = 0 if deadline_ms is None else (deadline_ms - now_ms + 999) // 1_000
        if deadline_ms is not None and ttl_s <= 0:
            expired.append(message)
            continue
        if append is None:
            append = side.dispatcher
        name, message_id = holder.queue.name, message.message_id
        if holder.has_info:
            side.append_dispatch_with_info(parts, name, body, message_id, ttl_s, info(message))
        else:
            append(parts, name, body, message_id, ttl_s)
        message.body = None  # a redelivery loads the body from disk
        message.is_sent = True
    for receipt in receipts:
        side.append_receipts(parts, receipt.queue, receipt.keys, receipt.reason)
    return parts, expired


def descriptor_of(transport: asyncio.Transport) -> int | None:
    """Return the file descriptor for ``write_data``, or None for TLS, which encrypts the data."""
    socket = transport.get_extra_info("socket")
    is_secured = transport.get_extra_info("ssl_object") is not None
    return None if socket is None or is_secured else socket.fileno()


def write_data(transport: asyncio.Transport, descriptor: int | None, data: bytes) -> None:
    """Write to an open transport, after all earlier writes."""
    is_direct = len(data) <= _DIRECT_BYTES
    if is_direct and descriptor is not None and not transport.get_write_buffer_size():
        try:
            sent = os.write(descriptor, data)
        except OSError:
            sent = 0  # the transport will get and handle the same error
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)


class EndDetector:
    """Asks the operating system whether a socket's peer has closed its side.

    The event loop notices the end of a connection only after it has handled earlier events.  A
    system call before each write, which takes 0.7 µs, notices it immediately.
    """

    __slots__ = ("_poll",)

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, _PEER_CLOSED)

    def has_ended(self) -> bool:
        """Return whether the peer has closed or reset the connection; our side must be open."""
        return bool(self._poll.poll(0))


def hint_at_revision(
    connection: Connection, side: Side, address: str, first_dispatch_at: float | None
) -> None:
    """Log a hint if a consumer left after its first dispatch and may use the other revision.

    ``first_dispatch_at`` is on the event loop's clock.
    """
    if (
        first_dispatch_at is None
        or connection.acked
        or side.parser.revision_seen is not None  # the client has shown which revision it uses
        or asyncio.get_running_loop().time() - first_dispatch_at > _HINT_S
        or is_quiet("revision_hint")
    ):
        return
    _log.warning(
        "consumer_left_after_first_dispatch",
        address=address,
        client=connection.number,
        hint="connect clients of the older revision to a tcp.legacy_listen listener and clients of "
        "the newer revision to a tcp.listen listener",
    )
