"""Passes a connection's frames to the core in order, and handles frames that must wait."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from phpmq_lite.broker import commands, reasons
from phpmq_lite.broker.broker import Broker, QueueRun
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.flow_control import PublishQuota
from phpmq_lite.broker.queue import CREDIT_CHANGE_MS, Connection, Queue
from phpmq_lite.frame_options import consume_problem
from phpmq_lite.model import ValidatedPublish
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    ConsumeWithOptions,
    DeadLetter,
    Hello,
    Publish,
    PublishWithOptions,
    Requeue,
    Settle,
)
from phpmq_lite.server import option_frames
from phpmq_lite.server.backpressure import PausableConnection
from phpmq_lite.server.engine import Engine

FORCED_PUBLISH_S: Final = 0.1  # publish interval of a paused publisher that also consumes messages
UNSTORED: Final = "unstored"  # reason for pausing reads from a session
# -- why a connection is closed
INVALID_CONSUME: Final = "invalid options of a 012"  # it would wait for nothing
TOO_MANY_QUEUES: Final = "refused: too many queues"
_PRELOADED: Final = 500  # number of frames whose messages are loaded together


@dataclass(slots=True, frozen=True)
class SessionLimits:
    """Limits for one session; ``settings/model.py`` defines the defaults."""

    unstored_frames: int = 2_000  # maximum number of frames read but not yet stored
    unstored_bytes: int = 2 << 20  # maximum size of unstored content; one message may exceed it
    write_buffer_bytes: int = 1 << 20
    welcome: bytes = b"{}"  # packet 06 of a 015


class FrameSession(PausableConnection, Protocol):
    """What frame processing requires of a session."""

    @property
    def connection(self) -> Connection | None:
        """The core's connection, or None before the first batch and after the last one."""

    @property
    def is_ending(self) -> bool:
        """Whether the connection will close once its frames are processed."""

    def finish(self, reason: str, detail: str = "") -> None:
        """Close the connection once its frames are processed."""

    def on_processed(self, core: Broker) -> None:
        """Continue after frames have been processed."""

    def welcome(self, hello: Hello) -> None:
        """Answer a 014."""


class _EndedSession:
    """Replaces an ended session, which is then freed without garbage collection."""

    connection: Connection | None = None
    is_ending = True
    is_parked = False

    def pause_reading(self, reason: str) -> None:
        pass

    def resume_reading(self, reason: str) -> None:
        pass

    def finish(self, reason: str, detail: str = "") -> None:
        pass

    def on_processed(self, core: Broker) -> None:
        pass

    def welcome(self, hello: Hello) -> None:
        pass


class FrameProcessor:
    """The frames that a session has read but the broker has not yet processed."""

    def __init__(self, session: FrameSession, engine: Engine, limits: SessionLimits) -> None:
        self.is_parked = False  # True while a publish, with all later frames, waits for its queue
        self.content_bytes = 0  # total size of the contents and options in the frames
        self._session: FrameSession = session
        self._engine = engine
        self._limits = limits
        self._frames: deque[ClientFrame] = deque()
        self._is_queued = False  # True while ``process`` is in the inbox or waits for a queue
        self._waits_for: str | None = None  # the queue that ``process`` is waiting for
        self._is_forced = False  # store the next parked publish even if its queue is full
        self._validated: ValidatedPublish | None = None  # result of validating the first frame

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, frames: list[ClientFrame]) -> None:
        """Add frames, in order, for the next batch; answer a 014, which stores nothing, at once."""
        if frames:
            self._frames += frames
            for frame in frames:
                if type(frame) is Publish:
                    self.content_bytes += len(frame.content)
                elif type(frame) is not Acknowledge:
                    self.content_bytes += _content_bytes(frame)
                    if type(frame) is Hello:
                        self._session.welcome(frame)
            self.submit()
        limits = self._limits
        if len(self._frames) > limits.unstored_frames or self.content_bytes > limits.unstored_bytes:
            self._session.pause_reading(UNSTORED)

    def submit(self) -> None:
        """Process the frames in the next batch, unless that is already scheduled."""
        if not self._is_queued and self._frames:
            self._is_queued = True
            self._engine.submit(self.process)

    def resume(self) -> None:
        """Continue after waiting, because the queue accepts messages again."""
        self.is_parked = False
        self.submit()

    def clear(self) -> None:
        self._frames.clear()
        self.content_bytes, self._validated = 0, None

    def close(self) -> None:
        self.clear()
        self._session = _EndedSession()

    # -- in a batch

    def process(self, core: Broker) -> None:
        """Pass frames to the core in order, until one must wait or the batch is full."""
        self._is_queued = False
        frames, batch, connection = self._frames, core.batch, self._session.connection
        if connection is None or not connection.is_open:
            self.clear()
            self._session.on_processed(core)
            return
        if connection.pending:  # commands that follow a dead letter wait until it is stored
            self.is_parked = True
            return
        room = core.limits.batch_commands - batch.commands if batch.accepts_commands else 0
        limit_bytes = core.limits.batch_bytes
        flow_control = self._engine.flow_control
        called_for, self._waits_for = self._waits_for, None
        quota = PublishQuota(
            lambda name: flow_control.available(name, is_called=name == called_for)
        )
        processed = 0
        while frames:
            if processed >= room or batch.created_bytes >= limit_bytes:
                self.submit()
                break
            frame = frames[0]
            count, size = 0, 0
            if self._validated is None:
                count, size = apply_frames(core, connection, frames, room - processed, quota)
            if not count:
                if (
                    type(frame) is Publish or type(frame) is PublishWithOptions
                ) and not quota.available(frame.queue):
                    self._is_queued, self._waits_for = True, frame.queue
                    is_again = frame.queue == called_for and not processed
                    flow_control.wait_in_line(
                        frame.queue, self.process, len(frames), at_front=is_again
                    )
                    break
                result = apply_frame(core, connection, frame, self._validated)
                if result is not CommandResult.DONE:
                    if self._must_stop(core, connection, frame, result):
                        break
                    continue
                count = 1
                if type(frame) is Publish or type(frame) is PublishWithOptions:
                    quota.use(frame.queue, 1)
                size = len(frame.content) if type(frame) is Publish else _content_bytes(frame)
                frames.popleft()
                self._validated = None
            processed += count
            self.content_bytes -= size
        batch.commands += processed
        self._is_forced = self._is_forced and self._is_queued
        limits = self._limits
        if (
            len(frames) <= limits.unstored_frames // 2
            and self.content_bytes <= limits.unstored_bytes // 2
        ):
            self._session.resume_reading(UNSTORED)
        self._session.on_processed(core)

    def _process_in_next_batch(self) -> None:
        self._is_queued = True
        self._engine.submit_first(self.process)

    def _must_stop(
        self, core: Broker, connection: Connection, frame: ClientFrame, result: CommandResult
    ) -> bool:
        """Handle a result other than DONE; return False if the next frame may be processed."""
        if result is CommandResult.LOAD:
            ahead = [*islice(self._frames, _PRELOADED)]
            ends = (f for f in ahead if isinstance(f, Acknowledge | Requeue | DeadLetter | Settle))
            publishes = (f for f in ahead if isinstance(f, Publish | PublishWithOptions))
            keys = [(f.queue, f.key) for f in publishes if f.key is not None]
            commands.preload(core, [end.message_id for end in ends], keys)
            self._process_in_next_batch()
            return True
        if result is CommandResult.WAIT:  # later dead letters may wait together with this one
            self._drop_first()
            while self._frames and isinstance(other := self._frames[0], DeadLetter):
                if apply_frame(core, connection, other) is CommandResult.LOAD:
                    break
                self._frames.popleft()
            self._process_in_next_batch()
            return True
        if result is CommandResult.VALIDATE and isinstance(frame, Publish | PublishWithOptions):
            self._is_queued = True  # later frames wait for the validation
            commands.validate_in_background(core, frame.queue, frame.content, self._on_validated)
            return True
        if result is CommandResult.DELAY:
            self._is_queued = True  # later frames wait, too
            asyncio.get_running_loop().call_later(CREDIT_CHANGE_MS / 1_000, self._repeat)
            return True
        if result is CommandResult.CLOSE:
            self.clear()
            problem = ""
            if isinstance(frame, ConsumeWithOptions):
                problem = consume_problem(frame.options)
            self._session.finish(INVALID_CONSUME if problem else TOO_MANY_QUEUES, problem)
            return True
        if isinstance(frame, Publish | PublishWithOptions):
            return self._park(core, connection, frame)
        return True

    def _park(
        self, core: Broker, connection: Connection, frame: Publish | PublishWithOptions
    ) -> bool:
        """Park a publish until its queue accepts it; clients that also consume continue slowly."""
        if self._session.is_ending:  # the client is no longer waiting
            core.refused[reasons.CONNECTION_ENDED] += 1
        elif self._is_forced:
            result = option_frames.publish(core, connection, frame, self._validated, is_forced=True)
            if result in (CommandResult.VALIDATE, CommandResult.CLOSE, CommandResult.LOAD):
                return self._must_stop(core, connection, frame, result)
            self._is_forced = False
            if result is CommandResult.PARK:
                return self._park(core, connection, frame)
        else:
            if connection.consumers and not self.is_parked:
                asyncio.get_running_loop().call_later(FORCED_PUBLISH_S, self._force)
            self.is_parked = True
            return True
        self._drop_first()
        return False

    def _drop_first(self) -> None:
        self.content_bytes -= _content_bytes(self._frames.popleft())
        self._validated = None

    def _on_validated(self, validated: ValidatedPublish) -> None:
        self._validated = validated
        self.process(self._engine.core)

    def _repeat(self) -> None:
        self._is_queued = False
        self.submit()

    def _force(self) -> None:
        connection = self._session.connection
        if self.is_parked and connection is not None and connection.is_open:
            self._is_forced = True
            self.resume()


def _content_bytes(frame: ClientFrame) -> int:
    content: bytes | None = getattr(frame, "content", None)
    options: bytes = getattr(frame, "options", b"")
    return len(content or b"") + len(options)


def apply_frame(
    core: Broker,
    connection: Connection,
    frame: ClientFrame,
    validated: ValidatedPublish | None = None,
) -> CommandResult:
    """Pass one frame to the core, with the result of validating its content, if available."""
    match frame:
        case Publish():
            return commands.publish(
                core, connection, frame.queue, frame.content, frame.ttl_s, frame.key, validated
            )
        case PublishWithOptions():
            return option_frames.publish(core, connection, frame, validated)
        case Settle():
            return option_frames.settle(core, connection, frame)
        case ConsumeWithOptions():
            return option_frames.consume(core, connection, frame)
        case Acknowledge():
            return commands.acknowledge_late(core, connection, frame.queue, frame.message_id)
        case Consume():
            return commands.consume(core, connection, frame.queue, frame.count)
        case Requeue():
            return commands.requeue(core, connection, frame.queue, frame.message_id, frame.ttl_s)
        case DeadLetter():
            return commands.dead_letter(core, connection, frame.queue, frame.message_id)
        case Hello():  # answered when it arrived
            return CommandResult.DONE


def apply_frames(
    core: Broker,
    connection: Connection,
    frames: deque[ClientFrame],
    limit: int,
    quota: PublishQuota,
) -> tuple[int, int]:
    """Remove the first frames that need no individual checks and pass them to the core as one run.

    A run consists of publish or acknowledgement frames, for any queues.  Return the number of
    frames passed, which ``limit`` and ``quota`` limit, and the total size of their contents.  Pass
    the next frame to ``apply_frame``.
    """
    first = frames[0]
    count = size = 0
    if type(first) is Acknowledge:
        count = commands.acknowledge_held(core, connection, _acknowledgements(frames, limit))
    elif type(first) is Publish and len(frames) > 1:  # a run of one publish gains nothing
        runs, publishes = _publishes(core, frames, first, limit, quota)
        if publishes:
            bodies = [frame.content for frame in publishes]
            keys = None if first.key is None else [frame.key or b"" for frame in publishes]
            ttls = [frame.ttl_s for frame in publishes]
            count = commands.publish_run(core, connection, runs, bodies, ttls, keys)
            if count < len(publishes):
                for frame in publishes[count:]:
                    quota.use(frame.queue, -1)
                del bodies[count:]
            size = sum(map(len, bodies))
    if count == len(frames):
        frames.clear()
    else:
        for _ in range(count):
            frames.popleft()
    return count, size


def _publishes(
    core: Broker, frames: deque[ClientFrame], first: Publish, limit: int, quota: PublishQuota
) -> tuple[list[QueueRun], list[Publish]]:
    """Return the first publish frames for unchecked queues, all with keys or all without.

    Their number is limited by ``quota`` and by the bytes of content that the batch accepts.
    """
    publishes: list[Publish] = []
    runs: list[QueueRun] = []
    room = core.limits.batch_bytes - core.batch.created_bytes
    queue: Queue | None = None
    name, start, end = "", 0, 0  # the last run's queue, start and maximum end in ``publishes``
    has_key = first.key is not None
    for frame in islice(frames, limit):
        if type(frame) is not Publish or (publishes and room <= 0):
            break
        if (frame.key is not None) is not has_key:
            break
        if frame.queue is not name:
            if queue is not None:
                runs.append((queue, len(publishes) - start))
                quota.use(name, len(publishes) - start)
            name, start = frame.queue, len(publishes)
            queue = commands.unchecked_queue(core, name)
            if queue is None:
                break
            end = start + quota.available(name)
        if len(publishes) >= end:
            break
        room -= len(frame.content)
        publishes.append(frame)
    if queue is not None and len(publishes) > start:
        runs.append((queue, len(publishes) - start))
        quota.use(name, len(publishes) - start)
    return runs, publishes


def _acknowledgements(frames: deque[ClientFrame], limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield the queue and id of each acknowledgement, until a frame of another type."""
    for frame in islice(frames, limit):
        if type(frame) is not Acknowledge:
            return
        yield frame.queue, frame.message_id
