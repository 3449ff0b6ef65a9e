"""One client on a socket: bytes in, frames to the core, dispatches and receipts out.

A ``Session`` is an asyncio protocol round ``protocol.connection.ServerSide``.  It gathers the
frames of its reads and has them walked in the engine's batches, strictly in order.
"""

import asyncio
import os
import select
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from phpmq_lite.broker.broker import Broker, Result
from phpmq_lite.broker.queue import Connection
from phpmq_lite.errors import RemoteProtocolError
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import Message, Receipt, Validated
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import Acknowledge, ClientFrame, DeadLetter, Publish, Requeue
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.backpressure import ReadBackpressure, WriteProgress
from phpmq_lite.server.counters import ConnectionCounters, SmoothedRate
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.frame_processing import PublishQuota, apply_frame, apply_frames
from phpmq_lite.server.inspector import Side


def encode_batch(
    side: Side,
    connection: Connection | None,
    dispatches: list[Message],
    receipts: list[Receipt],
    now_ms: int,
) -> tuple[list[bytes], list[Message]]:
    """Give the pieces to write, dispatches first, and the messages whose deadline has passed.

    What the connection does not hold any more, or has got already, is left out.  ``now_ms`` is on
    the steady scale.
    """
    parts: list[bytes] = []
    late: list[Message] = []
    append = None  # the first dispatch fixes how the connection is written to
    for message in dispatches:
        body, holder = message.body, message.holder
        if body is None or holder is None or holder.connection is not connection:
            continue  # sent already, or a later batch took it away again
        deadline_ms = message.deadline_ms
        if deadline_ms is None:
            ttl_s = 0
        elif deadline_ms > now_ms:
            ttl_s = (deadline_ms - now_ms + 999) // 1_000
        else:
            late.append(message)
            continue
        if append is None:
            append = side.dispatcher
        append(parts, holder.queue.name, body, message.message_id, ttl_s)
        message.body = None  # on disk; a redelivery loads it
        message.is_sent = True
    for receipt in receipts:
        side.append_receipts(parts, receipt.queue, receipt.keys, receipt.reason)
    return parts, late


_SMALL_BYTES: Final = 4_096
_ENDED: Final = getattr(select, "POLLRDHUP", 0)  # a reset is always reported


def descriptor_of(transport: asyncio.Transport, kind: str) -> int | None:
    """Give what ``write`` needs; None where the bytes on the socket are not those written."""
    socket = transport.get_extra_info("socket")
    return None if socket is None or kind == "tls" else socket.fileno()


class EndDetector:
    """Asks the system whether the peer of a socket has ended its side.

    The loop reads the end of a connection only after it has handled what is before it; a system
    call of 0.7 µs a write tells at once.
    """

    __slots__ = ("_poll",)

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, _ENDED)

    @classmethod
    def of(cls, transport: asyncio.Transport) -> "EndDetector | None":
        """Return the detector of a transport; None if it has no socket."""
        socket = transport.get_extra_info("socket")
        return None if socket is None else cls(socket.fileno())

    def has_ended(self) -> bool:
        """Return whether the peer has closed or reset; the socket must still be open here."""
        return bool(self._poll.poll(0))


def write_data(transport: asyncio.Transport, descriptor: int | None, data: bytes) -> None:
    """Write to a transport that is not closing; in order with what was written before."""
    is_small = len(data) <= _SMALL_BYTES
    if is_small and descriptor is not None and not transport.get_write_buffer_size():
        try:
            sent = os.write(descriptor, data)
        except OSError:
            sent = 0  # the transport meets it too, and knows what to do
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)


_AT_ONCE_S: Final = 1.0
_log = get_logger(__name__)


def hint_at_revision(
    connection: Connection, side: Side, address: str, first_dispatch_at: float | None
) -> None:
    """Say how to help a consumer of the other revision, which dies of its first dispatch.

    ``first_dispatch_at`` is the loop's time.
    """
    if (
        first_dispatch_at is None
        or connection.acked
        or side.revision is not None  # it showed what it speaks
        or asyncio.get_running_loop().time() - first_dispatch_at > _AT_ONCE_S
        or is_quiet("revision_hint")
    ):
        return
    _log.warning(
        "consumer_left_after_first_dispatch",
        address=address,
        client=connection.number,
        hint="if it speaks the older revision, point it at a listener of tcp.legacy_listen; "
        "if the newer one, at tcp.listen",
    )


GUARD_SILENCE_S: Final = 0.02  # after it, what may have been a browser is taken for a client
PARKED_RATE_S: Final = 0.1  # a parked publisher that also consumes gets through one a tenth
HALF_CLOSED_BATCHES: Final = 4  # a page and its bodies are loaded within two
_LOOK_AHEAD: Final = 500


@dataclass(slots=True, frozen=True)
class SessionLimits:
    """Bounds of one session; ``settings.py`` has the list, with the defaults."""

    unstored_frames: int = 2_000  # read and not yet stored
    unstored_bytes: int = 2 << 20  # of them, and a message
    write_buffer_bytes: int = 1 << 20


@dataclass(slots=True)
class SessionContext:
    """What all sessions of a broker share."""

    engine: Engine
    gate: Admission
    pressure: ReadBackpressure
    figures: ConnectionCounters
    limits: SessionLimits
    sessions: set["Session"] = field(default_factory=set)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def remove(self, session: "Session") -> None:
        """Forget a session whose socket is gone."""
        self.sessions.discard(session)
        if not self.sessions:
            self._emptied.set()

    async def wait_empty(self) -> None:
        """Return once there is no session."""
        while self.sessions:
            self._emptied.clear()
            await self._emptied.wait()


class Session(asyncio.Protocol):
    """One connection.  The engine calls it as a ``model.Peer``, the loop as a protocol."""

    def __init__(self, shared: SessionContext, side: ServerSide, kind: str) -> None:
        self.side: Side = side  # one that records, while somebody watches
        self.kind = kind  # tcp, tls or unix
        self.address = ""
        self.connection: Connection | None = None  # known to the core from the first batch on
        self.bytes_in = 0
        self.bytes_out = 0
        self.acks = SmoothedRate()
        self.frame_began_at: float | None = None  # loop time; None between frames
        self.frame_bytes = 0  # of the frame that has begun
        self.last_read_at = 0.0
        self.blocked_at: float | None = None  # loop time of the last progress while choked
        self.closing_at: float | None = None  # the same while what was written may still leave
        self._progress = WriteProgress()
        self.first_dispatch_at: float | None = None
        self.paused: set[str] = set()  # reasons not to read
        self.is_parked = False  # a publish waits for its queue, and all behind it too
        self.has_eof = False  # the peer sends no more
        self._is_charged = True  # False: it had closed its side before its first dispatch
        self._batches_left = HALF_CLOSED_BATCHES
        self._end_detector: EndDetector | None = None
        self._shared = shared
        self._engine = shared.engine
        self._limits = shared.limits
        self._pressure = shared.pressure
        self._figures = shared.figures
        self._host: str | None = None  # as the gate counted it
        self._descriptor: int | None = None  # for small writes
        self._loop = asyncio.get_running_loop()
        self._frames: deque[ClientFrame] = deque()
        self._frame_bytes = 0  # of the contents in _frames
        self._is_queued = False  # the walk is in the inbox, or in a line
        self._waits_for: str | None = None  # the queue of that line
        self._end_reason: str | None = None
        self._is_ended = False
        self._guard_timer: asyncio.TimerHandle | None = None
        self._is_forced = False  # the next parked publish is stored all the same
        self._judged: Validated | None = None  # the first of the frames

    # -- the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Announce the connection to the core, if the gate lets it in."""
        self.transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self._host = name[0] if isinstance(name, tuple) else None
        self._descriptor = descriptor_of(self.transport, self.kind)
        self._end_detector = EndDetector.of(self.transport)
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else self.kind
        refusal = self._shared.gate.admit(self._host)
        if refusal is not None:
            self._turn_away(refusal)
            return
        self._shared.sessions.add(self)
        self.transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self.last_read_at = self._loop.time()
        self._figures.clients_opened += 1
        self._engine.submit(self._open)

    def _turn_away(self, reason: str) -> None:
        self._is_ended = True
        self._end_reason = reason
        self._figures.closed[reason] += 1
        if not is_quiet("turned_away"):
            _log.warning("turned_away", address=self.address, reason=reason)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take the frames that this read completes."""
        size = len(data)
        self.bytes_in += size
        self._figures.bytes_in += size
        self.last_read_at = self._loop.time()
        side = self.side
        frames = side.receive(data)
        if side.is_waiting or self._guard_timer is not None:
            self._set_guard_timer()
        self._take(frames)
        if side.error is not None:
            self._refuse_bytes(side.error, data)

    def eof_received(self) -> bool:
        """Stop dispatching; store what the peer has sent, write its receipts, then close."""
        self._release()
        self.has_eof = True
        if self.first_dispatch_at is not None:
            self._stop_dispatching()
        if not self._frames:
            self._engine.submit(self._end_half_closed)
        return self.kind != "tls"  # where only both directions can be closed

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone: after the frames that were whole, the core is told."""
        if self not in self._shared.sessions:
            return  # it was never let in
        self._shared.remove(self)
        self._shared.gate.leave(self._host)
        self._finish("closed by the peer" if exc is None else "connection reset")
        if self._is_ended:
            self.connection = None  # which knows this: a pair waits for the garbage collector

    def pause_writing(self) -> None:
        """The peer does not read: nothing more is dispatched to it until it does."""
        self.blocked_at = self._loop.time()
        self._engine.submit(lambda core: self._choke(core, is_choked=True))

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.blocked_at = None
        self.resume_reading("receipts")
        self._engine.submit(lambda core: self._choke(core, is_choked=False))

    # -- the engine calls

    def send(
        self, dispatches: list[Message], receipts: list[Receipt], now_ms: int
    ) -> list[Message]:
        """See ``model.Peer``: everything of a batch leaves in one write."""
        if self.transport.is_closing():
            return []  # its end is in the inbox already, and returns what was not sent
        if dispatches and self._has_ended:
            if self._end_reason is not None or self.first_dispatch_at is not None:
                dispatches = []
            else:
                self._is_charged = False
        parts, late = encode_batch(self.side, self.connection, dispatches, receipts, now_ms)
        if parts:
            data = b"".join(parts)
            self.bytes_out += len(data)
            self._figures.bytes_out += len(data)
            if dispatches and self.first_dispatch_at is None:
                self.first_dispatch_at = self._loop.time()
            write_data(self.transport, self._descriptor, data)
            if receipts and self.blocked_at is not None:
                self.pause_reading("receipts")  # it does not read the answers to what it sends
            if self.has_eof and dispatches:
                self._finish("closed by the peer")
        self._figures.late += len(late)
        return late

    @property
    def _has_ended(self) -> bool:
        """Return whether the peer, or this side, has ended the connection; asks the system."""
        if self.has_eof or self._end_reason is not None:
            return True
        detector = self._end_detector
        return detector is not None and detector.has_ended()

    def _stop_dispatching(self) -> None:
        if self.connection is not None:
            self.connection.is_blocked = True  # at once: the next batch may be bounded

    def resume(self) -> None:
        """See ``model.Peer``: the queue takes messages again."""
        self.is_parked = False
        self._submit()

    def end(self, reason: str) -> None:
        """Close the connection after what was read whole; the reason is logged and shown."""
        self._finish(reason)

    def note_writing(self, now_s: float) -> None:
        """See whether a peer that was slow to read has read anything since the last look."""
        is_slow = self.blocked_at is not None or self.closing_at is not None
        if is_slow and self._progress.is_made(self.transport):
            self.blocked_at = None if self.blocked_at is None else now_s
            self.closing_at = None if self.closing_at is None else now_s

    @property
    def unsent_bytes(self) -> int:
        """What its peer has not taken yet."""
        return self.transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        """Tell whether it neither consumes nor has a frame begun or waiting, but a parked one."""
        is_served = bool(self._frames) or self.frame_began_at is not None
        is_consuming = self.connection is None or bool(self.connection.consumers)
        return not is_consuming and (self.is_parked or not is_served)

    def abort(self, reason: str) -> None:
        """Close at once; a frame that is not whole is dropped, what is not read is lost."""
        self._finish(reason)
        self.transport.abort()

    # -- reading and waiting

    def pause_reading(self, reason: str) -> None:
        """Read nothing until ``go_on`` was called for every reason."""
        if not self.paused and not self.transport.is_closing():
            self.transport.pause_reading()
        if reason not in self.paused:
            self.paused.add(reason)
            self._figures.paused[reason] += 1

    def resume_reading(self, reason: str) -> None:
        """This reason not to read has gone."""
        if reason in self.paused:
            self.paused.discard(reason)
            if not self.paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _take(self, frames: list[ClientFrame]) -> None:
        if frames:
            self._frames += frames
            for frame in frames:
                if type(frame) is Publish:
                    self._frame_bytes += len(frame.content)
            self._submit()
        partial = self.side.partial_bytes
        if not partial:
            self.frame_began_at = None
        elif frames or self.frame_began_at is None:
            self.frame_began_at = self.last_read_at
        self.frame_bytes = partial
        limits = self._limits
        if len(self._frames) > limits.unstored_frames or self._frame_bytes > limits.unstored_bytes:
            self.pause_reading("unstored")
        if partial or self._frame_bytes:
            self._report()

    def _report(self) -> None:
        held_bytes = 0 if self._is_ended else self._frame_bytes + self.side.partial_bytes
        self._pressure.report(self, held_bytes)

    def _submit(self) -> None:
        if not self._is_queued and self._frames:
            self._is_queued = True
            self._engine.submit(self._walk)

    def _set_guard_timer(self) -> None:
        if self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None
        if self.side.is_waiting:
            self._guard_timer = self._loop.call_later(GUARD_SILENCE_S, self._release)

    def _release(self) -> None:
        frames = self.side.release()
        self._set_guard_timer()  # none: nothing waits any more
        self._take(frames)
        if self.side.error is not None:
            self._refuse_bytes(self.side.error)

    def _refuse_bytes(self, error: RemoteProtocolError, data: bytes = b"") -> None:
        if self._end_reason is not None:
            return
        self._figures.protocol_errors[error.code] += 1
        client = None if self.connection is None else self.connection.number
        read_at = self.bytes_in - len(data)
        self._figures.inspector.note_error(error, client, self.address, data, read_at)
        if not is_quiet("protocol_error"):
            _log.warning("protocol_error", address=self.address, code=error.code,
                         detail=error.detail, at_byte=error.offset)  # fmt: skip
        self._finish(f"protocol error: {error.code}")

    # -- in a batch

    def _open(self, core: Broker) -> None:
        self.connection = core.connect(self, self.kind, self.address)

    def _choke(self, core: Broker, *, is_choked: bool) -> None:
        if self.connection is not None and self.connection.is_open:
            core.set_blocked(self.connection, is_choked=is_choked or self._end_reason is not None)

    def _walk(self, core: Broker) -> None:
        """Give the core the frames in order, until one must wait or the batch is full."""
        self._is_queued = False
        frames, batch, connection = self._frames, core.state.batch, self.connection
        if connection is None or not connection.is_open:
            self._drop_frames()
            return
        if connection.pending:  # what follows on a dead letter waits until it is stored
            self.is_parked = True
            return
        room = core.limits.batch_commands - batch.commands
        limit_bytes = core.limits.batch_bytes
        shares = self._engine.flow_control
        called_for, self._waits_for = self._waits_for, None
        rooms = PublishQuota(lambda name: shares.available(name, is_called=name == called_for))
        done = 0
        while frames:
            if done >= room or batch.created_bytes >= limit_bytes:
                self._submit()
                break
            frame = frames[0]
            count, size = 0, 0
            if self._judged is None:
                count, size = apply_frames(core, connection, frames, room - done, rooms)
            if not count:
                if type(frame) is Publish and not rooms.available(frame.queue):
                    self._is_queued, self._waits_for = True, frame.queue
                    is_again = frame.queue == called_for and not done
                    shares.line_up(frame.queue, self._walk, len(frames), at_front=is_again)
                    break
                result = apply_frame(core, connection, frame, self._judged)
                if result is not Result.DONE:
                    if self._must_stop(core, connection, frame, result):
                        break
                    continue
                count = 1
                if type(frame) is Publish:
                    rooms.use(frame.queue, 1)
                    size = len(frame.content)
                frames.popleft()
                self._judged = None
            done += count
            self._frame_bytes -= size
        batch.commands += done
        self._is_forced = self._is_forced and self._is_queued
        self._note_progress(core)

    def _walk_next(self) -> None:
        """Go on in the next batch, whatever else comes in this one."""
        self._is_queued = True
        self._engine.submit_first(self._walk)

    def _must_stop(
        self, core: Broker, connection: Connection, frame: ClientFrame, result: Result
    ) -> bool:
        """Decide what follows on a frame that was not done; False: the walk may go on."""
        if result is Result.LOAD:
            ahead = islice(self._frames, _LOOK_AHEAD)
            ends = (f for f in ahead if isinstance(f, Acknowledge | Requeue | DeadLetter))
            core.preload([end.message_id for end in ends])
            self._walk_next()
            return True
        if result is Result.WAIT:  # other dead letters may wait together with it
            self._frames.popleft()
            while self._frames and isinstance(other := self._frames[0], DeadLetter):
                if apply_frame(core, connection, other) is Result.LOAD:
                    break
                self._frames.popleft()
            self._walk_next()
            return True
        if result is Result.JUDGE and isinstance(frame, Publish):
            self._is_queued = True  # what follows waits for the verdict
            core.validate_in_background(frame.queue, frame.content, self._take_verdict)
            return True
        if result is Result.CLOSE:
            self._drop_frames()
            self._finish("refused: too many queues")
            return True
        return not isinstance(frame, Publish) or self._park(core, connection, frame)

    def _park(self, core: Broker, connection: Connection, frame: Publish) -> bool:
        """Wait until the queue takes messages; who also consumes gets through slowly."""
        if self._end_reason is not None:  # nobody is there to wait
            core.refused["connection ended"] += 1
        elif self._is_forced:
            piece = (frame.queue, frame.content, frame.ttl_s, self._judged)
            result = core.force_publish(connection, *piece)
            if result is Result.JUDGE:
                return self._must_stop(core, connection, frame, result)
            self._is_forced = False
            if result is Result.PARK:
                return self._park(core, connection, frame)
        else:
            if connection.consumers and not self.is_parked:
                self._loop.call_later(PARKED_RATE_S, self._force)
            self.is_parked = True
            return True
        self._frames.popleft()
        self._judged = None
        self._frame_bytes -= len(frame.content)
        return False

    def _take_verdict(self, judged: Validated) -> None:
        """A large content was judged meanwhile: go on with it."""
        self._judged = judged
        self._walk(self._engine.core)

    def _force(self) -> None:
        if self.is_parked and not self._is_ended:
            self._is_forced = True
            self.resume()

    def _note_progress(self, core: Broker) -> None:
        limits = self._limits
        if (
            "unstored" in self.paused
            and len(self._frames) <= limits.unstored_frames // 2
            and self._frame_bytes <= limits.unstored_bytes // 2
        ):
            self.resume_reading("unstored")
        self._report()
        if self._frames:
            return
        if self._end_reason is not None:
            self._engine.submit(self._close)
        elif self.has_eof:
            self._end_half_closed(core)

    # -- the end

    def _finish(self, reason: str) -> None:
        """Close after the frames that were read whole are stored and answered."""
        if self._end_reason is not None:
            return
        self._end_reason = reason
        self._stop_dispatching()
        self._release()  # the http guard: the end lets it go
        if not self.transport.is_closing():
            self.pause_reading("ending")
        if self.is_parked:
            self._submit()
        if not self._frames:
            self._engine.submit(self._close)

    def _end_half_closed(self, core: Broker) -> None:
        """Close, after a consumer that only listens got what is ready (``nc -N``).

        It gets nothing that arrives later, and is not charged: it may be gone altogether.
        """
        consumers = () if self.connection is None else self.connection.consumers.values()
        windows = [consumer.queue.window for consumer in consumers]
        if (
            self.first_dispatch_at is None
            and self._batches_left
            and any(window is not None and not window.is_exhausted for window in windows)
        ):
            self._batches_left -= 1
            self._engine.submit_first(self._end_half_closed)  # after what is being loaded
        else:
            self._finish("closed by the peer")

    def _drop_frames(self) -> None:
        self._frames.clear()
        self._frame_bytes, self._judged = 0, None

    def _close(self, core: Broker) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        reason = self._end_reason or "closed"
        self._figures.closed[reason] += 1
        self._report()
        connection = self.connection
        if connection is not None:
            hint_at_revision(connection, self.side, self.address, self.first_dispatch_at)
            core.disconnect(
                connection, self.side.framing, self.side.revision, reason,
                is_charged=self._is_charged,
            )  # fmt: skip
        core.state.batch.replies.append((self._close_transport, None))

    def _close_transport(self, _: Any) -> None:
        """After the batch: its receipts have been written, so closing loses none of them."""
        if self.transport.is_closing():
            self.connection = None
            return
        self.closing_at = self._loop.time()
        self.transport.close()
