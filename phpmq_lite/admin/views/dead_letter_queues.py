"""Which queue holds the dead-letter records of which.  Pure."""

from collections.abc import Iterable
from typing import Final

from phpmq_lite.server.status import QueueStatus

SUFFIX: Final = ".dlq"
RETRY: Final = ".retry"


def dead_letter_queues_named(queues: Iterable[QueueStatus]) -> frozenset[str]:
    """Give the queues of records that settings name; all others are called ``….dlq``."""
    return frozenset(
        queue.settings.dead_letter_queue for queue in queues if queue.settings.dead_letter_queue
    )


def has_records(name: str, others: frozenset[str]) -> bool:
    """Tell whether a queue has the records of others; ``others`` are those that settings name."""
    return name.endswith(SUFFIX) or name in others


def is_dead_letter_queue(queues: Iterable[QueueStatus], name: str) -> bool:
    """Tell whether a queue has the records of others."""
    return has_records(name, dead_letter_queues_named(queues))


def dead_letter_queue_of(queues: Iterable[QueueStatus], name: str) -> str:
    """Name the queue that has the records of a queue; one that has those of others stays."""
    if is_dead_letter_queue(queues, name):
        return name
    found = next((queue for queue in queues if queue.name == name), None)
    return found.dead_letter_queue if found is not None else name + SUFFIX
