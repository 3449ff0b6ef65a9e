"""What a frame asks of the core: the only place where the wire's words meet the broker's."""

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
