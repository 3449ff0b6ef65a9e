"""Identifies dead-letter queues and the queues to which they belong.  Pure."""

from collections.abc import Iterable

from phpmq_lite.queue_settings import DEAD_LETTER_SUFFIX, dead_letter_name
from phpmq_lite.server.status import QueueStatus


def dead_letter_queues_named(queues: Iterable[QueueStatus]) -> frozenset[str]:
    """Return the names of dead-letter queues, also of those that another queue's setting names."""
    return frozenset(queue.name for queue in queues if queue.is_dead_letter_queue)


def has_records(name: str, others: frozenset[str]) -> bool:
    """Return whether ``name`` is that of a dead-letter queue; ``others`` are known to be some."""
    return name.endswith(DEAD_LETTER_SUFFIX) or name in others


def is_dead_letter_queue(queues: Iterable[QueueStatus], name: str) -> bool:
    """Return whether a queue contains the dead-letter records of other queues."""
    return has_records(name, dead_letter_queues_named(queues))


def dead_letter_queue_of(queues: Iterable[QueueStatus], name: str) -> str:
    """Return a queue's dead-letter queue, or the queue itself if it is a dead-letter queue."""
    if is_dead_letter_queue(queues, name):
        return name
    names = (queue.dead_letter_queue for queue in queues if queue.name == name)
    return next(names, dead_letter_name(name))
