"""Unique keys: a queue holds at most one live message under each.

Keys are not kept in memory, which would grow with the backlog: they are looked up in the database,
and ``Broker.unique`` has those that this batch looked up or changed.
"""

from enum import Enum

from phpmq_lite.broker import reasons, transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import Message


class KeyState(Enum):
    """What is known of a unique key in a queue."""

    UNKNOWN = 0  # requested; the next batch knows
    FREE = 1
    TAKEN = 2
    HELD = 3  # by a message that a consumer holds, and that cannot be replaced


def look_up(core: Broker, queue: Queue, unique_key: str) -> KeyState:
    """Return whether a live message of the queue has this unique key."""
    place = (queue.queue_id, unique_key)
    if place not in core.unique:
        core.batch.change_delivery().unique_keys.add(place)
        return KeyState.UNKNOWN
    return KeyState.FREE if core.unique[place] is None else KeyState.TAKEN


def make_free(core: Broker, queue: Queue, unique_key: str) -> KeyState:
    """Delete the live message with a unique key so that another can replace it."""
    current = find(core, queue, unique_key)
    if isinstance(current, KeyState):
        return current
    if is_held(core, current):
        return KeyState.HELD
    replace(core, current)
    return KeyState.FREE


def replace(core: Broker, current: Message) -> None:
    """Delete a message that no consumer holds, so that another can have its unique key."""
    core.loaded.pop(current.seq, None)  # this batch changes the row
    core.note_transition(current.seq)  # an action of this batch may have its row, too
    transitions.delete(core, current, reasons.REPLACED)


def is_held(core: Broker, message: Message) -> bool:
    """Return whether a message cannot be replaced."""
    return message.holder is not None or message.seq in core.pending


def find(core: Broker, queue: Queue, unique_key: str) -> Message | KeyState:
    """Return the live message with a unique key, else FREE, or UNKNOWN if its row is requested."""
    state = look_up(core, queue, unique_key)
    if state is not KeyState.TAKEN:
        return state
    seq = core.unique[queue.queue_id, unique_key] or 0
    message = core.messages.get(seq) or core.batch.find_created(seq) or core.loaded.get(seq)
    if message is None and seq not in core.loaded:
        core.batch.seqs.add(seq)
        core.batch.change_delivery().unique_keys.add((queue.queue_id, unique_key))
    return KeyState.UNKNOWN if message is None else message
