"""Message transitions: what happens to a message for each event of the table in ``state_table.py``.

Each function changes the message, the counters and the windows, and records what the transaction
has to store.  The caller has checked that the transition is allowed.  Dispatching is in
``batches.py`` and ``Broker.dispatch_in_turn``, acknowledging many messages at once in
``commands.acknowledge_held``, and the transitions to a dead letter are in ``dead_letters.py``.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from phpmq_lite.broker import delivery_limits, reasons
from phpmq_lite.broker.broker import Broker, QueueRun, deadline_of
from phpmq_lite.broker.dead_letters import dead_letter, settle_dead
from phpmq_lite.broker.delivery_limits import group_of
from phpmq_lite.broker.queue import Consumer, Queue
from phpmq_lite.broker.state_table import ACKED, BLOCKED, EXPIRED, SCHEDULED, StateEvent, next_state
from phpmq_lite.broker.validation import index_content
from phpmq_lite.frame_options import DEFAULT_PRIORITY, NOW, PLAIN, DeliveryTime, PublishOptions
from phpmq_lite.losses import EXPIRED_DISPATCHED, EXPIRED_NEVER, count_loss
from phpmq_lite.model import (
    NO_OPTIONS,
    DeliveryOptions,
    EnvelopeInspection,
    Message,
    MovedMessage,
    State,
    checksum,
    position_of,
    priority_of,
)
from phpmq_lite.operator_actions import Action


class MessagePlace(NamedTuple):
    """Where a message was, and when it would have become ready, so that an action is undone."""

    queue_id: int
    position: int
    due_ms: int | None = None
    deliver_at: int | None = None


# -- publish


def publish(
    core: Broker,
    queue: Queue,
    body: bytes,
    ttl_s: float | None,
    publisher: int | None,
    inspection: EnvelopeInspection | None = None,
    options: PublishOptions = PLAIN,
) -> Message:
    """Store a new message at the end of ``queue``; if ``ttl_s`` is None, use the queue's default.

    ``inspection`` is the result of an earlier inspection of the content.  An invalid message is
    dead-lettered at once; the caller has checked with ``dead_letter_refusal`` that its record can
    be stored.
    """
    whole_s = None if ttl_s is None else ceil(ttl_s)
    created = core.create_messages(((queue, 1),), (body,), (whole_s,), publisher)
    message = created[0]
    if options is not PLAIN:
        _set_options(core, queue, message, options)
    if queue.inspects:
        inspection = index_content(core, message, queue, body, inspection)
    if queue.has_groups:
        set_group(core, queue, message, body, options.group)
    if inspection is not None and inspection.reason is not None and queue.validates:
        record = inspection.record
        content = None if record is None else record.for_message(message.message_id)
        settle_dead(
            core, message, inspection.reason, body, detail=inspection.detail, content=content
        )
    elif message.state == State.READY:
        core.add_to_window(queue, created, (body,))
    return message


def set_group(core: Broker, queue: Queue, message: Message, body: bytes, own: str | None) -> None:
    """Set the group of a new message, and block it until it is known to be the first of it."""
    group = group_of(queue.settings.group_by, message.indexed[0], body, own)
    if group is None and message.options.group is None:
        return
    message.options = message.options._replace(group=group)
    place = core.group_place(message, queue)
    if place is not None and message.state == State.READY:
        message.state = BLOCKED
        core.batch.change_delivery().groups.add(place)


def _set_options(core: Broker, queue: Queue, message: Message, options: PublishOptions) -> None:
    """Set what the publisher asked for on a message that was just created."""
    now = core.now
    if isinstance(options.ttl_s, float) and options.ttl_s:  # was rounded up to whole seconds
        message.deadline_ms = now.steady_ms + round(options.ttl_s * 1_000)
        core.note_deadline(message.deadline_ms)
    if options.priority != DEFAULT_PRIORITY:
        message.position = position_of(message.seq, options.priority)
        queue.claimed_to = min(queue.claimed_to, message.position - 1)
    if options.group is not None or options.unique_key is not None:
        message.options = NO_OPTIONS._replace(group=options.group, unique_key=options.unique_key)
        if options.unique_key is not None:
            core.unique[queue.queue_id, options.unique_key] = message.seq
    due_ms = core.due_of(options.delay_s, options.deliver_at)
    if core.is_future(due_ms, options.deliver_at):
        core.set_due(message, queue, due_ms, options.deliver_at)


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
        old.indexed, old.source, _restored_options(core, old.options),
    )  # fmt: skip
    if message.options.due_ms is not None:
        message.state = SCHEDULED
        core.note_scheduled(message)
    core.enter_queue(message, queue)
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
    if queue.has_groups and not message.is_record:
        set_group(core, queue, message, body, message.options.group)
    window = queue.window
    if window is not None and message.state == State.READY:
        if len(body) <= core.free_body_bytes(window):
            message.body = body
        if window.insert(message):
            core.messages[seq] = message
        core.request_dispatch(queue)
    return message


def _restored_options(core: Broker, old: DeliveryOptions) -> DeliveryOptions:
    """Return the options of a restored message, which is scheduled if its time has not passed."""
    if old is NO_OPTIONS:
        return old
    due_ms, deliver_at, ready_at = old.due_ms, old.deliver_at, old.ready_at
    if due_ms is not None and due_again(core, old) is None:
        due_ms, deliver_at, ready_at = None, None, core.now.wall_ms
    lasting = (old.priority, old.group, old.unique_key)
    return DeliveryOptions(ready_at, due_ms, deliver_at, 0, 0, None, *lasting)


def due_again(core: Broker, old: DeliveryOptions | MessagePlace) -> int | None:
    """Return when a message that was scheduled becomes ready, or None if its time has come."""
    due_ms = old.due_ms
    if due_ms is not None and old.deliver_at is not None:
        due_ms = core.due_of(0, old.deliver_at)
    return due_ms if due_ms is not None and core.is_future(due_ms, old.deliver_at) else None


# -- return to the queue


def return_message(core: Broker, message: Message, cause: str | None, *, is_charged: bool) -> None:
    """Return a held message to its old position, or dead-letter it after ``max_deliveries``.

    Without a ``cause``, no event is recorded.
    """
    if _settle_late(core, message):
        return
    queue = core.detach(message)
    queue.counters.returned += 1
    if cause is not None:
        core.record_event(message, StateEvent.RETURN, cause)
    if is_charged:
        _charge(core, message)
    _give_back(core, message, queue, StateEvent.RETURN)


def _settle_late(core: Broker, message: Message) -> bool:
    """Settle a message whose hold ends as another connection has asked; return whether it had."""
    settle = core.late.take(message.seq)
    if settle is None:
        return False
    settle(message)
    return True


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
            core.note_transition(message.seq)
            dead_letter(core, message, reasons.MAX_DELIVERIES)


def undo_dispatch(core: Broker, message: Message) -> None:
    """Undo a dispatch that was not sent because the message expired or its consumer left."""
    if _settle_late(core, message):
        return
    queue = core.detach(message)
    message.deliveries -= 1
    if queue.rate is not None:
        queue.rate.give_back(1)
    if message.deliveries == 0:
        message.first_dispatched_at = message.last_dispatched_at = message.consumer = None
        if message.options.head_since is not None:
            delivery_limits.give_up_head(core, message)
    _give_back(core, message, queue, StateEvent.RETURN)


def release(core: Broker, message: Message, detail: str, time: DeliveryTime = NOW) -> None:
    """Return a held message to its position for an operator, without counting a failed delivery.

    Its former holder may still acknowledge it while no other consumer holds it.
    """
    queue = core.detach(message)
    queue.counters.returned += 1
    core.record_event(message, StateEvent.RELEASE, detail)
    if time == NOW:
        _give_back(core, message, queue, StateEvent.RELEASE)
    else:
        _make_ready_or_scheduled(core, message, queue, time)


def requeue(core: Broker, message: Message, ttl_s: int | None, detail: str | None = None) -> None:
    """Move a message to the end of its queue, or dead-letter it after ``max_deliveries``.

    If ``ttl_s`` is None, it keeps its deadline.
    """
    was_held = message.holder is not None
    queue = core.detach(message)
    queue.counters.requeued += 1
    core.record_event(message, StateEvent.REQUEUE, detail)
    if was_held:
        _charge(core, message)
    if queue.is_used_up(message):
        dead_letter(core, message, reasons.MAX_DELIVERIES)
        return
    if ttl_s is not None:
        core.set_ttl(message, ttl_s)
    core.make_ready_at_end(message, queue, StateEvent.REQUEUE)


def requeue_uncharged(
    core: Broker, message: Message, ttl_s: int | None, detail: str, time: DeliveryTime = NOW
) -> None:
    """Move a message to the end of its queue for an operator; keep the deadline if TTL is None."""
    queue = core.detach(message)
    queue.counters.requeued += 1
    queue.counters.requeued_operator += 1
    core.record_event(message, StateEvent.REQUEUE, detail)
    if ttl_s is not None:
        start_ms = message.options.due_ms or core.now.steady_ms
        message.ttl_s, message.deadline_ms = deadline_of(ttl_s, start_ms)
    _make_ready_or_scheduled(core, message, queue, time)


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


# -- scheduled


def reschedule(core: Broker, message: Message, detail: str, time: DeliveryTime) -> None:
    """Set when a message that no consumer holds becomes ready; ``NOW`` delivers it."""
    queue = core.detach(message)
    core.record_event(message, StateEvent.SCHEDULE, detail)
    _make_ready_or_scheduled(core, message, queue, time)


def _make_ready_or_scheduled(
    core: Broker, message: Message, queue: Queue, time: DeliveryTime
) -> None:
    due_ms = core.due_of(*time)
    if core.is_future(due_ms, time.deliver_at):
        core.make_scheduled(message, queue, due_ms, time.deliver_at)
        return
    if message.state == SCHEDULED:
        core.end_schedule(message, queue)
    core.make_ready_at_end(message, queue, StateEvent.REQUEUE)


def become_ready(core: Broker, message: Message) -> None:
    """Move a scheduled message to the end of its queue, because its time has come."""
    queue = core.queues_by_id[message.queue_id]
    core.end_schedule(message, queue)
    core.make_ready_at_end(message, queue, StateEvent.BECOME_READY)
    batch, seq = core.batch, message.seq
    delivery = batch.change_delivery()
    delivery.came_due[seq] = batch.changed.pop(seq)
    del delivery.rescheduled[seq]


# -- to another queue


def forward(core: Broker, message: Message, target: Queue, body: bytes | None) -> None:
    """Move a ready message to the end of another queue, with that queue's default TTL."""
    _change_queue(core, message, target, StateEvent.FORWARD, body).counters.forwarded += 1
    core.set_ttl(message, target.settings.default_ttl_s)
    core.make_ready_at_end(message, target, StateEvent.FORWARD)


def move(core: Broker, message: Message, target: Queue, body: bytes | None) -> None:
    """Move a ready message to the end of another queue, keeping its id and deadline."""
    _change_queue(core, message, target, StateEvent.MOVE, body).counters.moved += 1
    if message.state == SCHEDULED:
        message.queue_id = target.queue_id
        message.position = position_of(core.take_number(), priority_of(message.position))
        core.batch.changed[message.seq] = message
    else:
        core.make_ready_at_end(message, target, StateEvent.MOVE)


def move_back(
    core: Broker, message: Message, target: Queue, place: MessagePlace, body: bytes | None
) -> None:
    """Move a message back to its earlier position, which no other message can have taken.

    If it was scheduled and its time has not passed, it is again.
    """
    _change_queue(core, message, target, StateEvent.PLACE, body)
    message.queue_id, message.position = target.queue_id, place.position
    due_ms = due_again(core, place)
    if due_ms is not None:
        core.make_scheduled(message, target, due_ms, place.deliver_at)
        message.position = place.position
        return
    event = StateEvent.PLACE
    if message.state == SCHEDULED:
        core.end_schedule(message, target)
        event = StateEvent.BECOME_READY
    core.make_ready(message, target, event)


def _change_queue(
    core: Broker, message: Message, target: Queue, event: StateEvent, body: bytes | None
) -> Queue:
    """Move a ready message's counts from its queue to ``target``; return the old queue.

    Its group is computed again; ``body`` is only needed for that, see ``Queue.needs_body``.
    """
    queue = core.detach(message)
    if target is not queue:
        if message.options is not NO_OPTIONS:
            core.leave_queue(message)
        if message.state == SCHEDULED:
            core.count_scheduled(queue, -1)
        if target.has_groups and not message.is_record:
            group_by, urn = target.settings.group_by, message.indexed[0]
            group = group_of(group_by, urn, body or b"", message.options.group)
            if group != message.options.group:
                message.options = message.options._replace(group=group)
                core.store_options(message)
        core.enter_queue(message, target)
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


def expire(core: Broker, message: Message, body: bytes | None = None) -> bool:
    """Apply ``on_expire`` to a ready message whose deadline has passed.

    What is forwarded or dead-lettered counts only as that.  If something must be loaded first, it
    is requested, the message stays due, and this returns False.
    """
    reason = None
    queue = core.queues_by_id[message.queue_id]
    on_expire = queue.settings.on_expire
    if on_expire == "dead_letter":
        dead_letter(core, message, reasons.EXPIRED)
        return True
    if on_expire.startswith("forward:"):
        name = on_expire.removeprefix("forward:")
        target = core.registry.get_or_create(core.batch, name, queue.row.created_by)
        if target is None:
            core.registry.note_limited("dead_lettered_not_forwarded", name)
            dead_letter(core, message, reasons.NOT_FORWARDED)
            return True
        if target is not queue:
            body = message.body if body is None else body
            place = core.unique_place(message, target)
            lacks_body = body is None and target.needs_body
            if lacks_body or (place is not None and place not in core.unique):
                if place is not None:  # also if it is known: the next batch forgets it
                    core.batch.change_delivery().unique_keys.add(place)
                if lacks_body:
                    core.batch.body_seqs.add(message.seq)
                core.note_deadline(message.deadline_ms)
                return False
            if place is None or core.unique[place] is None:
                forward(core, message, target, body)
                return True
            reason = reasons.UNIQUE_KEY_TAKEN
    queue.counters.expired += 1
    queue.counters.expired_never += not message.deliveries
    count_loss(queue.losses, EXPIRED_DISPATCHED if message.deliveries else EXPIRED_NEVER)
    core.settle(message, EXPIRED, reason)
    return True
