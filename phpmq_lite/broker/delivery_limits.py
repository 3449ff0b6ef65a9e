"""Limits on the delivery of a queue: its rate, how many messages are in flight, and groups.

Groups are not kept in memory, which would grow with the backlog.  On disk, a message with another
one of its group before it is ``blocked``, so that no search for the next ready message passes it.
In memory are only the heads: messages that were dispatched and have not left the queue.  Whenever a
head leaves, the first message of its group is loaded and becomes ready.
"""

from collections.abc import Sequence
from json import dumps, loads
from typing import Final

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.state_table import StateEvent
from phpmq_lite.frame_options import GROUP_BYTES
from phpmq_lite.model import BEFORE_ALL, DeliveryChanges, Message
from phpmq_lite.writes import UnblockMessages

UNLIMITED: Final = 1 << 30


def free_dispatches(core: Broker, queue: Queue) -> int:
    """Return how many messages of a queue may be dispatched now."""
    count = UNLIMITED
    if limit := queue.settings.max_in_flight:
        count = max(0, limit - queue.dispatched)
    rate = queue.rate
    if rate is None or not count:
        return count
    available: int = rate.available(core.now.steady_ms)
    return min(count, available)


def use_rate(core: Broker, queue: Queue, count: int) -> None:
    """Count dispatches, and note when the next one is allowed if the bucket is empty."""
    if (rate := queue.rate) is not None:
        rate.take(count)
        if rate.available(core.now.steady_ms) <= 0:
            core.rate_limited[queue.queue_id] = rate.next_ms


# -- groups


def group_of(group_by: str, urn: str | None, body: bytes, own: str | None) -> str | None:
    """Return a message's group: what ``group_by`` names, or None without a value of that name."""
    if group_by == "group":
        return own
    if group_by == "urn":
        value: object = urn
    else:
        value = _at_pointer(body, group_by)
    if value is None or isinstance(value, dict | list):
        return None
    text = value if isinstance(value, str) else dumps(value)
    return text.encode(errors="replace")[:GROUP_BYTES].decode(errors="ignore") or None


def _at_pointer(body: bytes, pointer: str) -> object:
    """Return the value at an RFC 6901 pointer, or None if there is none."""
    try:
        value = loads(body)
    except (ValueError, RecursionError):
        return None
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def may_dispatch(core: Broker, queue: Queue, message: Message) -> bool:
    """Return whether no other message of its group is in flight; otherwise block the message.

    After one has left the group in this batch, the first of the others is not known yet.
    """
    place = core.group_place(message, queue)
    if place is None:
        return True
    head = core.heads.get(place)
    if head == message.seq or (head is None and place not in core.vacated):
        return True
    if queue.window is not None:
        queue.window.discard(message)
    core.block(message)
    return False


def note_dispatched(core: Broker, queue: Queue, message: Message) -> None:
    """Note a message that is dispatched now, whose row stores it, as the head of its group."""
    place = core.group_place(message, queue)
    if place is not None and message.options.head_since is None:
        core.heads[place] = message.seq
        message.options = message.options._replace(head_since=core.now.wall_ms)


def take_heads(core: Broker, queue: Queue, messages: Sequence[Message]) -> list[Message]:
    """Return those messages that may be dispatched, now the heads of their groups; block others."""
    heads = []
    for message in messages:
        if may_dispatch(core, queue, message):
            note_dispatched(core, queue, message)
            heads.append(message)
    return heads


def give_up_head(core: Broker, message: Message) -> None:
    """Undo ``note_dispatched`` for a message that was never sent."""
    place = (message.queue_id, message.options.group or "")
    core.heads.pop(place, None)
    core.vacated.add(place)
    message.options = message.options._replace(head_since=None)
    core.store_options(message)


def prepare_groups(core: Broker, delivery: DeliveryChanges) -> None:
    """Decide which first messages of the requested groups are loaded, and how many bodies."""
    for place in [*delivery.groups]:
        queue = core.queues_by_id.get(place[0])
        if queue is None:  # removed in this batch, after its last message
            delivery.groups.discard(place)
        elif queue.window is None:
            delivery.groups_upto[queue.queue_id] = BEFORE_ALL
        else:
            delivery.groups_upto[queue.queue_id] = queue.window.upto
            room = core.free_body_bytes(queue.window)
            delivery.group_bytes = max(delivery.group_bytes, room)


def admit_first(core: Broker, row: Message) -> None:
    """Unblock the first message of a group, unless another one is in flight."""
    queue = core.queues_by_id[row.queue_id]
    if core.group_place(row, queue) in core.heads:
        return
    if queue.window is None or row.size > core.free_body_bytes(queue.window):
        row.body = None
    core.admit(row, queue, StateEvent.BECOME_READY)
    core.batch.change_delivery().admitted[row.seq] = core.batch.changed.pop(row.seq)


def admit_on_disk(core: Broker, seq: int, queue_id: int, position: int, group: str) -> None:
    """Unblock the first message of a group, which is behind the window, without loading it."""
    queue, place = core.queues_by_id[queue_id], (queue_id, group)
    if place in core.heads:
        return
    if queue.window is not None:
        if position <= queue.window.upto:  # a page has been loaded meanwhile
            core.batch.change_delivery().groups.add(place)
            core.vacated.add(place)
            return
        core.request_dispatch(queue)
    queue.claimed_to = min(queue.claimed_to, position - 1)
    core.batch.change_delivery().admitted_on_disk.append(seq)


def end_groups(core: Broker, queue: Queue) -> None:
    """Unblock the messages of a queue that has no groups any more; its window starts again."""
    core.heads = {place: seq for place, seq in core.heads.items() if place[0] != queue.queue_id}
    for message in core.messages.values():
        if message.queue_id == queue.queue_id and message.options.head_since is not None:
            message.options = message.options._replace(head_since=None)
    core.batch.writes.append(UnblockMessages(queue.queue_id))
    core.restart_window(queue)
