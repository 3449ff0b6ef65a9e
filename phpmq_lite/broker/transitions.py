"""Message transitions: what happens to a message for each event of the table in ``state_table.py``.

Each function changes the message, the counters and the windows, and records what the transaction
has to store.  The caller has checked that the transition is allowed.  Dispatching is in
``batches.py`` and ``Broker.dispatch_in_turn``, acknowledging many messages at once in
``commands.acknowledge_held``, and the transitions to a dead letter are in ``dead_letters.py``.
"""

from collections.abc import Iterable, Sequence

from phpmq_lite.broker import reasons
from phpmq_lite.broker.broker import Broker, QueueRun
from phpmq_lite.broker.dead_letters import dead_letter, settle_dead
from phpmq_lite.broker.queue import Consumer, Queue
from phpmq_lite.broker.state_table import ACKED, EXPIRED, StateEvent, next_state
from phpmq_lite.broker.validation import index_content
from phpmq_lite.model import EnvelopeInspection, Message, MovedMessage, State, checksum
from phpmq_lite.operator_actions import Action

# -- publish


def publish(
    core: Broker,
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
    created = core.create_messages(((queue, 1),), (body,), (ttl_s,), publisher)
    message = created[0]
    if queue.inspects:
        inspection = index_content(core, message, queue, body, inspection)
    if inspection is not None and inspection.reason is not None and queue.validates:
        record = inspection.record
        content = None if record is None else record.for_message(message.message_id)
        settle_dead(
            core, message, inspection.reason, body, detail=inspection.detail, content=content
        )
    else:
        core.add_to_window(queue, created, (body,))
    return message


def publish_run(
    core: Broker,
    runs: Sequence[QueueRun],
    bodies: Sequence[bytes],
    ttls: Sequence[int | None],
    publisher: int,
) -> None:
    """Store new messages like ``publish``, but only in queues that do not validate content."""
    created = core.create_messages(runs, bodies, ttls, publisher)
    at = 0
    for queue, count in runs:
        end = at + count
        messages, contents = created[at:end], bodies[at:end]
        if queue.inspects:
            for message, body in zip(messages, contents, strict=True):
                if queue.is_dead_letter_queue or body.startswith(b"{"):
                    index_content(core, message, queue, body, None)
        core.add_to_window(queue, messages, contents)
        at = end


def restore(
    core: Broker,
    old: Message,
    body: bytes,
    queue: Queue,
    ttl_s: int | None,
    deadline_ms: int | None,
) -> Message:
    """Store a deleted message as a new message at its old position in ``queue``."""
    seq = core.take_number()
    message = Message(
        seq, core.take_token(), queue.queue_id, old.position, int(State.READY), ttl_s, deadline_ms,
        old.published_at, None, None, 0, 0, len(body), checksum(seq, body), old.publisher, None,
        old.indexed,
    )  # fmt: skip
    batch = core.batch
    batch.created.append(message)
    batch.bodies.append(body)
    batch.created_bytes += len(body)
    queue.counters.restored += 1
    core.note_deadline(deadline_ms)
    core.record_event(old, Action.RESTORE, message.message_id.decode())
    core.record_event(message, Action.RESTORE, old.message_id.decode())
    core.add_counts(queue, 1, message.size)
    core.set_source(message, old.source)
    queue.claimed_to = min(queue.claimed_to, message.position - 1)
    window = queue.window
    if window is not None:
        if len(body) <= core.free_body_bytes(window):
            message.body = body
        if window.insert(message):
            core.messages[seq] = message
        core.request_dispatch(queue)
    return message


# -- return to the queue


def return_message(core: Broker, message: Message, cause: str | None, *, is_charged: bool) -> None:
    """Return a held message to its old position, or dead-letter it after ``max_deliveries``.

    Without a ``cause``, no event is recorded.
    """
    queue = core.detach(message)
    queue.counters.returned += 1
    if cause is not None:
        core.record_event(message, StateEvent.RETURN, cause)
    if is_charged:
        _charge(core, message)
    _give_back(core, message, queue, StateEvent.RETURN)


def _charge(core: Broker, message: Message) -> None:
    """Count a failed delivery."""
    message.charged += 1
    core.batch.changed[message.seq] = message  # in case it is settled in this batch


def _give_back(core: Broker, message: Message, queue: Queue, event: StateEvent) -> None:
    """Return a message to its position, or dead-letter it after ``max_deliveries``."""
    if queue.is_used_up(message):
        dead_letter(core, message, reasons.MAX_DELIVERIES)
    else:
        core.make_ready(message, queue, event)


def dead_letter_exhausted(core: Broker, messages: Iterable[Message], queue: Queue) -> None:
    """Dead-letter those ready messages that have reached ``max_deliveries``, which was lowered."""
    limit = queue.settings.max_deliveries
    for message in list(messages):
        if 0 < limit <= message.charged:
            dead_letter(core, message, reasons.MAX_DELIVERIES)


def undo_dispatch(core: Broker, message: Message) -> None:
    """Undo a dispatch that was not sent because the message expired or its consumer left."""
    queue = core.detach(message)
    message.deliveries -= 1
    if message.deliveries == 0:
        message.first_dispatched_at = message.last_dispatched_at = message.consumer = None
    _give_back(core, message, queue, StateEvent.RETURN)


def release(core: Broker, message: Message, detail: str) -> None:
    """Return a held message to its position for an operator, without counting a failed delivery.

    Its former holder may still acknowledge it while no other consumer holds it.
    """
    queue = core.detach(message)
    queue.counters.returned += 1
    core.record_event(message, StateEvent.RELEASE, detail)
    _give_back(core, message, queue, StateEvent.RELEASE)


def requeue(core: Broker, message: Message, ttl_s: int) -> None:
    """Move a message to the end of its queue, or dead-letter it after ``max_deliveries``."""
    was_held = message.holder is not None
    queue = core.detach(message)
    queue.counters.requeued += 1
    core.record_event(message, StateEvent.REQUEUE)
    if was_held:
        _charge(core, message)
    if queue.is_used_up(message):
        dead_letter(core, message, reasons.MAX_DELIVERIES)
        return
    core.set_ttl(message, ttl_s)
    core.make_ready_at_end(message, queue, StateEvent.REQUEUE)


def requeue_uncharged(core: Broker, message: Message, ttl_s: int | None, detail: str) -> None:
    """Move a message to the end of its queue for an operator; keep the deadline if TTL is None."""
    queue = core.detach(message)
    queue.counters.requeued += 1
    queue.counters.requeued_operator += 1
    core.record_event(message, StateEvent.REQUEUE, detail)
    if ttl_s is not None:
        core.set_ttl(message, ttl_s)
    core.make_ready_at_end(message, queue, StateEvent.REQUEUE)


def remove_consumer(
    core: Broker,
    consumer: Consumer,
    cause: str | None,
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
        core.close_window(queue)
    for message in list(consumer.held.values()):
        if message.is_sent:
            return_message(core, message, cause, is_charged=message is charged)
        else:
            undo_dispatch(core, message)
    if consumer.is_waiting:
        queue.waiting_consumers.remove(consumer)
    core.trim_window(queue)


# -- to another queue


def forward(core: Broker, message: Message, target: Queue) -> None:
    """Move a ready message to the end of another queue, with that queue's default TTL."""
    _change_queue(core, message, target, StateEvent.FORWARD).counters.forwarded += 1
    core.set_ttl(message, target.settings.default_ttl_s)
    core.make_ready_at_end(message, target, StateEvent.FORWARD)


def move(core: Broker, message: Message, target: Queue) -> None:
    """Move a ready message to the end of another queue, keeping its id and deadline."""
    _change_queue(core, message, target, StateEvent.MOVE).counters.moved += 1
    core.make_ready_at_end(message, target, StateEvent.MOVE)


def move_back(core: Broker, message: Message, target: Queue, position: int) -> None:
    """Move a ready message back to its earlier position, which no other message can have taken."""
    _change_queue(core, message, target, StateEvent.PLACE)
    message.queue_id, message.position = target.queue_id, position
    core.make_ready(message, target, StateEvent.PLACE)


def _change_queue(core: Broker, message: Message, target: Queue, event: StateEvent) -> Queue:
    """Move a ready message's counts from its queue to ``target``; return the old queue."""
    queue = core.detach(message)
    core.subtract_counts(queue, 1, message.size)
    core.add_counts(target, 1, message.size)
    if (source_id := message.source.queue_id) is not None:
        queue.count_record(source_id, -1)
        target.count_record(source_id, 1)
    core.record_event(message, event, f"{queue.name} to {target.name}")
    core.batch.moved.append(MovedMessage(message.seq, queue.queue_id, target.queue_id))
    return queue


# -- settle


def acknowledge(core: Broker, message: Message) -> None:
    """Settle a message as acked; ``commands.acknowledge_held`` settles many at once."""
    queue = core.queues_by_id[message.queue_id]
    core.record_hold_time(message, queue)
    core.settle(message, ACKED, None)
    queue.counters.acked += 1


def delete(core: Broker, message: Message, reason: str) -> None:
    """Settle a message as deleted; the history keeps what is needed to restore it."""
    core.queues_by_id[message.queue_id].counters.deleted += 1
    core.settle(message, next_state(message.state, StateEvent.DELETE), reason)


def expire(core: Broker, message: Message) -> None:
    """Apply ``on_expire`` to a ready message whose deadline has passed.

    What is forwarded or dead-lettered counts only as that.
    """
    queue = core.queues_by_id[message.queue_id]
    on_expire = queue.settings.on_expire
    if on_expire == "dead_letter":
        dead_letter(core, message, reasons.EXPIRED)
        return
    if on_expire.startswith("forward:"):
        name = on_expire.removeprefix("forward:")
        target = core.registry.get_or_create(core.batch, name, queue.row.created_by)
        if target is None:
            core.registry.note_limited("dead_lettered_not_forwarded", name)
            dead_letter(core, message, reasons.NOT_FORWARDED)
            return
        if target is not queue:
            forward(core, message, target)
            return
    queue.counters.expired += 1
    queue.counters.expired_never += not message.deliveries
    core.settle(message, EXPIRED, None)
