"""Which queue has the dead-letter records of which.  Pure."""

from collections.abc import Iterable
from typing import Final

from phpmq_lite.server.status import QueueStatus

SUFFIX: Final = ".dlq"
RETRY: Final = ".retry"


def dead_letter_queues_named(queues: Iterable[QueueStatus]) -> frozenset[str]:
    """Return the dead-letter queues named in settings; all others end in ``.dlq``."""
    return frozenset(
        queue.settings.dead_letter_queue for queue in queues if queue.settings.dead_letter_queue
    )


def has_records(name: str, others: frozenset[str]) -> bool:
    """Return whether a queue has the records of others; ``others`` are those named in settings."""
    return name.endswith(SUFFIX) or name in others


def is_dead_letter_queue(queues: Iterable[QueueStatus], name: str) -> bool:
    """Return whether a queue has the records of others."""
    return has_records(name, dead_letter_queues_named(queues))


def dead_letter_queue_of(queues: Iterable[QueueStatus], name: str) -> str:
    """Return the queue with the records of a queue; for a dead-letter queue, itself."""
    if is_dead_letter_queue(queues, name):
        return name
    found = next((queue for queue in queues if queue.name == name), None)
    return found.dead_letter_queue if found is not None else name + SUFFIX
