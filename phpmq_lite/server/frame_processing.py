"""What a frame asks of the core: the only place where the wire's words meet the broker's."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from phpmq_lite.broker.broker import Broker, Result
from phpmq_lite.broker.queue import Connection, Queue
from phpmq_lite.broker.state import QueueRun
from phpmq_lite.model import Validated
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Publish,
    Requeue,
)


class PublishQuota:
    """How many messages queues still take in one walk over frames: asked once, then counted."""

    __slots__ = ("_ask", "_available")

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._available: dict[str, int] = {}

    def available(self, name: str) -> int:
        """Tell how many messages a queue takes now, 0: it must wait."""
        left = self._available.get(name)
        if left is None:
            left = self._available[name] = self._ask(name)
        return left

    def use(self, name: str, count: int) -> None:
        """Note that so many were published; only after ``left`` has allowed them."""
        self._available[name] -= count


def apply_frame(
    core: Broker, connection: Connection, frame: ClientFrame, judged: Validated | None = None
) -> Result:
    """Give one frame of a connection to the core; ``judged`` was its content ahead of it."""
    match frame:
        case Publish():
            return core.publish(
                connection, frame.queue, frame.content, frame.ttl_s, frame.key, judged
            )
        case Acknowledge():
            return core.acknowledge(connection, frame.queue, frame.message_id)
        case Consume():
            return core.consume(connection, frame.queue, frame.count)
        case Requeue():
            return core.requeue(connection, frame.queue, frame.message_id, frame.ttl_s)
        case DeadLetter():
            return core.dead_letter(connection, frame.queue, frame.message_id)


def apply_frames(
    core: Broker,
    connection: Connection,
    frames: deque[ClientFrame],
    most: int,
    rooms: PublishQuota,
) -> tuple[int, int]:
    """Give the first frames to the core that are alike and need no look at each; take them out.

    Publishes alike, or acknowledgements, of any queues.  Returns how many, ``most`` at most and no
    more than there are ``rooms`` for, and the bytes of their contents.  Give the first of the
    others to ``apply``.
    """
    first = frames[0]
    count = size = 0
    if type(first) is Acknowledge:
        count = core.acknowledge_run(connection, _ends(frames, most))
    elif type(first) is Publish and len(frames) > 1:  # alone it has nothing to share
        parts, run = _publishes(core, frames, first, most, rooms)
        if run:
            bodies = [frame.content for frame in run]
            keys = None if first.key is None else [frame.key or b"" for frame in run]
            core.publish_run(connection, parts, bodies, [frame.ttl_s for frame in run], keys)
            count, size = len(run), sum(map(len, bodies))
    for _ in range(count):
        frames.popleft()
    return count, size


def _publishes(
    core: Broker,
    frames: deque[ClientFrame],
    first: Publish,
    most: int,
    rooms: PublishQuota,
) -> tuple[list[QueueRun], list[Publish]]:
    """Give the first frames, while they publish to plain queues, all with keys or all without.

    As many as there are ``rooms`` for, and as the batch takes, in bytes of content.
    """
    run: list[Publish] = []
    parts: list[QueueRun] = []
    room = core.limits.batch_bytes - core.state.batch.created_bytes
    queue: Queue | None = None
    name, began, end = "", 0, 0  # of the last part: its places in the run, at most
    has_key = first.key is not None
    for frame in islice(frames, most):
        if type(frame) is not Publish or (run and room <= 0):
            break
        if (frame.key is not None) is not has_key:
            break
        if frame.queue is not name:
            if queue is not None:
                parts.append((queue, len(run) - began))
                rooms.use(name, len(run) - began)
            name, began = frame.queue, len(run)
            queue = core.unchecked_queue(name)
            if queue is None:
                break
            end = began + rooms.available(name)
        if len(run) >= end:
            break
        room -= len(frame.content)
        run.append(frame)
    if queue is not None and len(run) > began:
        parts.append((queue, len(run) - began))
        rooms.use(name, len(run) - began)
    return parts, run


def _ends(frames: deque[ClientFrame], most: int) -> Iterator[tuple[str, bytes]]:
    """Give queues and ids of the first frames, while they are acknowledgements."""
    for frame in islice(frames, most):
        if type(frame) is not Acknowledge:
            return
        yield frame.queue, frame.message_id
