"""Message transitions: one function for each row of the table in ``state_table.py``.

Each function changes the message, the counters and the windows, and records what the transaction
has to store.  The caller has checked that the transition is allowed.  The transitions to a dead
letter are in ``dead_letters.py``.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from phpmq_lite.broker.dead_letters import dead_letter, settle_dead
from phpmq_lite.broker.queue import Consumer, Queue
from phpmq_lite.broker.state import BrokerState, QueueRun
from phpmq_lite.broker.state_table import DELETED, EXPIRED, StateEvent
from phpmq_lite.broker.validation import index_content
from phpmq_lite.model import EnvelopeInspection, Message, State, checksum
from phpmq_lite.writes import EraseBody

MAX_DELIVERIES: Final = "max_deliveries"
CREDIT_REPLACED: Final = "credit replaced"
NOT_FORWARDED: Final = "not_forwarded"  # limits.max_queues prevented creation of the target queue

# -- publish


def publish(
    state: BrokerState,
    queue: Queue,
    body: bytes,
    ttl_s: int | None,
    publisher: int | None,
    inspection: EnvelopeInspection | None = None,
) -> Message:
    """Store a new message at the end of ``queue``; if ``ttl_s`` is None, use the queue's default.

    ``inspection`` is the result of an earlier inspection of the content.  An invalid message is
    dead-lettered at once; the caller has checked with ``dead_letter_refusal`` that its record can
    be stored.
    """
    created = state.create_messages(((queue, 1),), (body,), (ttl_s,), publisher)
    message = created[0]
    if queue.inspects:
        inspection = index_content(state, message, queue, body, inspection)
    if inspection is not None and inspection.reason is not None and queue.validates:
        made = inspection.record
        content = None if made is None else made[1].replace(made[0], message.message_id, 1)
        settle_dead(
            state, message, inspection.reason, body, detail=inspection.detail, content=content
        )
    else:
        state.add_to_window(queue, created, (body,))
    return message


def publish_run(
    state: BrokerState,
    runs: Sequence[QueueRun],
    bodies: Sequence[bytes],
    ttls: Sequence[int | None],
    publisher: int,
) -> None:
    """Store new messages like ``publish``, but only in queues that do not validate content."""
    created = state.create_messages(runs, bodies, ttls, publisher)
    at = 0
    for queue, count in runs:
        end = at + count
        some, contents = created[at:end], bodies[at:end]
        if queue.inspects:
            for message, body in zip(some, contents, strict=True):
                if queue.is_dead_letter_queue or body.startswith(b"{"):
                    index_content(state, message, queue, body, None)
        state.add_to_window(queue, some, contents)
        at = end


def restore(
    state: BrokerState,
    old: Message,
    body: bytes,
    queue: Queue,
    ttl_s: int | None,
    deadline_ms: int | None,
) -> Message:
    """Store a deleted message as a new message at its old position in ``queue``."""
    seq = state.take_number()
    message = Message(
        seq, state.take_token(), queue.queue_id, old.position, int(State.READY), ttl_s, deadline_ms,
        old.published_at, None, None, 0, 0, len(body), checksum(seq, body), old.publisher, None,
        old.indexed, old.source,
    )  # fmt: skip
    batch = state.batch
    batch.created.append(message)
    batch.bodies.append(body)
    batch.created_bytes += len(body)
    queue.counters.restored += 1
    state.note_deadline(deadline_ms)
    state.record_event(old, "restore", message.message_id.decode())
    state.record_event(message, "restore", old.message_id.decode())
    _add_counts(state, message, queue)
    queue.claimed_to = min(queue.claimed_to, message.position - 1)
    window = queue.window
    if window is not None:
        if len(body) <= state.free_body_bytes(window):
            message.body = body
        if window.insert(message):
            state.messages[seq] = message
        state.needs_dispatch[queue.queue_id] = queue
    return message


# -- return to the queue


def return_message(state: BrokerState, message: Message, detail: str, *, is_charged: bool) -> None:
    """Return a held message to its old position, or dead-letter it after ``max_deliveries``."""
    queue = state.by_id[message.queue_id]
    state.detach(message, queue)
    queue.counters.returned += 1
    if detail != CREDIT_REPLACED:  # its consumer is there, and did not fail
        state.record_event(message, StateEvent.RETURN, detail)
    if is_charged:
        message.charged += 1
        state.batch.changed[message.seq] = message  # in case it is settled in this batch
    _give_back(state, message, queue)


def _give_back(state: BrokerState, message: Message, queue: Queue) -> None:
    """Return a message to its position, or dead-letter it after ``max_deliveries``."""
    if queue.is_used_up(message):
        dead_letter(state, message, MAX_DELIVERIES)
    else:
        state.make_ready(message, queue)


def dead_letter_exhausted(state: BrokerState, messages: Iterable[Message], queue: Queue) -> None:
    """Dead-letter those ready messages that have reached ``max_deliveries``, which was lowered."""
    limit = queue.settings.max_deliveries
    for message in [one for one in messages if 0 < limit <= one.charged]:
        dead_letter(state, message, MAX_DELIVERIES)


def undo_dispatch(state: BrokerState, message: Message) -> None:
    """Undo a dispatch that was not sent because the message expired or its consumer left."""
    queue = state.by_id[message.queue_id]
    state.detach(message, queue)
    message.deliveries -= 1
    if message.deliveries == 0:
        message.first_dispatched_at = message.last_dispatched_at = message.consumer = None
    _give_back(state, message, queue)


def release(state: BrokerState, message: Message, detail: str) -> None:
    """Return a held message to its position for an operator, without counting a failed delivery.

    Its former holder may still acknowledge it while no other consumer holds it.
    """
    queue = state.by_id[message.queue_id]
    state.detach(message, queue)
    queue.counters.returned += 1
    state.record_event(message, StateEvent.RELEASE, detail)
    _give_back(state, message, queue)


def requeue(state: BrokerState, message: Message, ttl_s: int) -> None:
    """Move a message to the end of its queue, or dead-letter it after ``max_deliveries``."""
    queue = state.by_id[message.queue_id]
    was_held = message.holder is not None
    state.detach(message, queue)
    queue.counters.requeued += 1
    state.record_event(message, StateEvent.REQUEUE)
    if was_held:
        message.charged += 1
        state.batch.changed[message.seq] = message  # in case it is settled in this batch
    if queue.is_used_up(message):
        dead_letter(state, message, MAX_DELIVERIES)
        return
    state.set_ttl(message, ttl_s)
    state.make_ready_at_end(message, queue)


def requeue_uncharged(state: BrokerState, message: Message, ttl_s: int | None, detail: str) -> None:
    """Move a message to the end of its queue for an operator; keep the deadline if TTL is None."""
    queue = state.by_id[message.queue_id]
    state.detach(message, queue)
    queue.counters.requeued += 1
    queue.counters.requeued_operator += 1
    state.record_event(message, StateEvent.REQUEUE, detail)
    if ttl_s is not None:
        state.set_ttl(message, ttl_s)
    state.make_ready_at_end(message, queue)


def remove_consumer(
    state: BrokerState,
    consumer: Consumer,
    detail: str,
    *,
    charged: Message | None = None,
    is_leaving: bool = True,
) -> None:
    """Remove a consumer, return its messages, and charge a failed delivery to ``charged``.

    Dispatches that were not sent are undone, because they do not count as deliveries.
    """
    queue, connection = consumer.queue, consumer.connection
    del connection.consumers[queue.queue_id]
    del queue.consumers[connection]
    consumer.credit = 0
    if is_leaving and not queue.consumers:
        state.close_window(queue)
    for message in list(consumer.held.values()):
        if message.is_sent:
            return_message(state, message, detail, is_charged=message is charged)
        else:
            undo_dispatch(state, message)
    if consumer.is_waiting:
        queue.waiting_consumers.remove(consumer)
    state.trim_window(queue)


# -- to another queue


def forward(state: BrokerState, message: Message, target: Queue) -> None:
    """Move a ready message to the end of another queue, with that queue's default TTL."""
    _change_queue(state, message, target, StateEvent.FORWARD).counters.forwarded += 1
    state.set_ttl(message, target.settings.default_ttl_s)
    state.make_ready_at_end(message, target)


def move(state: BrokerState, message: Message, target: Queue) -> None:
    """Move a ready message to the end of another queue, keeping its id and deadline."""
    _change_queue(state, message, target, StateEvent.MOVE).counters.moved += 1
    state.make_ready_at_end(message, target)


def move_back(state: BrokerState, message: Message, target: Queue, position: int) -> None:
    """Move a ready message back to its earlier position, which no other message can have taken."""
    _change_queue(state, message, target, StateEvent.PLACE)
    message.queue_id, message.position = target.queue_id, position
    state.make_ready(message, target)


def _change_queue(state: BrokerState, message: Message, target: Queue, event: StateEvent) -> Queue:
    """Move a ready message's counts from its queue to ``target``; return the old queue."""
    queue = state.by_id[message.queue_id]
    state.detach(message, queue)
    state.subtract_counts(message, queue)
    state.record_event(message, event, f"{queue.name} to {target.name}")
    _add_counts(state, message, target)
    return queue


def _add_counts(state: BrokerState, message: Message, queue: Queue) -> None:
    queue.row.live_count += 1
    queue.row.live_bytes += message.size
    if (source_id := message.source.queue_id) is not None:
        queue.count_record(source_id, 1)
    state.batch.queue_rows[queue.queue_id] = queue.row


# -- settle


def acknowledge(state: BrokerState, message: Message, queue: Queue) -> None:
    """Settle a message as acked; ``acknowledge_held`` settles many at once."""
    state.detach(message, queue)
    state.messages.pop(message.seq, None)
    state.record_hold_time(message, queue)
    state.settle_acked([message.seq])
    if (source_id := message.source.queue_id) is not None:
        queue.count_record(source_id, -1)
    state.count_acked(queue, 1, message.size)


def delete(state: BrokerState, message: Message, reason: str) -> None:
    """Settle a message as deleted; the history keeps what is needed to restore it."""
    state.by_id[message.queue_id].counters.deleted += 1
    state.settle(message, DELETED, reason)


def erase(state: BrokerState, message: Message, detail: str) -> None:
    """Permanently remove the body of a settled message, but keep its history row."""
    state.batch.writes.append(EraseBody(message.seq))
    state.record_event(message, "erase", detail)


def expire(state: BrokerState, message: Message) -> None:
    """Apply ``on_expire`` to a ready message whose deadline has passed.

    What is forwarded or dead-lettered counts only as that.
    """
    queue = state.by_id[message.queue_id]
    on_expire = queue.settings.on_expire
    if on_expire == "dead_letter":
        dead_letter(state, message, "expired")
        return
    if on_expire.startswith("forward:"):
        name = on_expire.removeprefix("forward:")
        target = state.registry.get_or_create(name, queue.row.created_by)
        if target is None:
            state.registry.note_limited("dead_lettered_not_forwarded", name)
            dead_letter(state, message, NOT_FORWARDED)
            return
        if target is not queue:
            forward(state, message, target)
            return
    queue.counters.expired += 1
    queue.counters.expired_never += not message.deliveries
    state.settle(message, EXPIRED, None)
