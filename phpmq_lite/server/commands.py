"""What a frame asks of the core: the only place where the wire's words meet the broker's."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from phpmq_lite.broker.core import Broker, Result
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Judged
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Publish,
    Requeue,
)


def apply(
    core: Broker, connection: Connection, frame: ClientFrame, judged: Judged | None = None
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


def apply_run(
    core: Broker, connection: Connection, frames: deque[ClientFrame], most: int
) -> tuple[int, int]:
    """Give the first frames to the core that are alike and need no look at each; take them out.

    Returns how many, ``most`` at most, and the bytes of their contents.  Give the first of the
    others to ``apply``.
    """
    if len(frames) < 2 or frames[1].queue is not frames[0].queue:
        return 0, 0  # alone it has nothing to share
    first = frames[0]
    count = size = 0
    if type(first) is Acknowledge:
        count = core.acknowledge_run(connection, first.queue, _ids(frames, first.queue, most))
    elif type(first) is Publish and (queue := core.plain_queue(first.queue)) is not None:
        room = core.limits.batch_bytes - core.lives.batch.born_bytes
        run = _publishes(frames, first, most, room)
        bodies = [frame.content for frame in run]
        keys = None if first.key is None else [frame.key or b"" for frame in run]
        core.publish_run(connection, queue, bodies, [frame.ttl_s for frame in run], keys)
        count, size = len(run), sum(map(len, bodies))
    for _ in range(count):
        frames.popleft()
    return count, size


def _publishes(frames: deque[ClientFrame], first: Publish, most: int, room: int) -> list[Publish]:
    """Give the first frames, while they publish to the same queue, all with keys or all without.

    At least one; then as many as there is ``room`` for, in bytes of content.
    """
    run: list[Publish] = []
    queue, has_key = first.queue, first.key is not None
    for frame in islice(frames, most):
        if type(frame) is not Publish or frame.queue is not queue or (run and room <= 0):
            break
        if (frame.key is not None) is not has_key:
            break
        room -= len(frame.content)
        run.append(frame)
    return run


def _ids(frames: deque[ClientFrame], queue: str, most: int) -> Iterator[bytes]:
    """Give the ids of the first frames, while they acknowledge messages of this queue."""
    for frame in islice(frames, most):
        if type(frame) is not Acknowledge or frame.queue is not queue:
            return
        yield frame.message_id
