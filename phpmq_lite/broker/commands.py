"""Commands from clients: one function each, which records its changes in the open batch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from hmac import compare_digest
from typing import Any, Final

from phpmq_lite.broker import (
    dead_letters,
    reasons,
    retries,
    retry_queues,
    transitions,
    unique_keys,
    validation,
)
from phpmq_lite.broker.broker import Broker, QueueRun
from phpmq_lite.broker.pending import Settlement
from phpmq_lite.broker.queue import SUBSCRIPTION, Connection, Consumer, Queue
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.broker.reasons import Refusal
from phpmq_lite.broker.retries import RetryRequest
from phpmq_lite.broker.unique_keys import KeyState
from phpmq_lite.frame_options import PLAIN, PublishOptions
from phpmq_lite.histogram import BUCKETS, NEAR, NEAR_MS, bucket
from phpmq_lite.model import (
    ACKED_KEY,
    NO_OPTIONS,
    Message,
    Receipt,
    State,
    ValidatedPublish,
    checksum,
)
from phpmq_lite.queue_settings import RETRY_SUFFIX, home_of

NO_FAILURE: Final[Mapping[str, Any]] = {}


class CommandResult(IntEnum):
    """Result of a command received on a connection."""

    DONE = 0
    LOAD = 1  # not executed; start the next batch with this command, once the message is loaded
    PARK = 2  # not executed; repeat the command when the peer is resumed, once the queue has room
    CLOSE = 3  # cannot be executed; close the connection
    WAIT = 4  # executed, but stored in the next batch; hold back later commands until then
    VALIDATE = 5  # not executed; call ``validate_in_background``, then repeat the command
    DELAY = 6  # not executed; repeat the command after ``CREDIT_CHANGE_MS``


def disconnect(
    core: Broker,
    connection: Connection,
    framing: str | None,
    revision: str | None,
    reason: str,
    *,
    is_charged: bool = True,
) -> None:
    """Close a connection and return its messages, charging a delivery to the oldest one sent.

    Nothing is charged if ``is_charged`` is false or the broker is stopping: no message is to blame
    for an orderly shutdown, or for workers that stop along with the broker.
    """
    if not connection.is_open:
        return
    connection.is_open = False
    del core.connections[connection.number]
    consumers = list(connection.consumers.values())
    oldest: Message | None = None
    if is_charged and not core.is_draining:
        first = (next(iter(consumer.held.values())) for consumer in consumers if consumer.held)
        oldest = min(
            (message for message in first if message.is_sent),
            key=lambda message: message.held_since_ms,
            default=None,
        )
    for consumer in consumers:
        transitions.remove_consumer(core, consumer, reasons.CONNECTION_ENDED, charged=oldest)
    if connection.parked is not None:
        connection.parked.parked.discard(connection)
    core.batch_limited.discard(connection)
    core.batch.closed_clients.append(
        (core.now.wall_ms, framing, revision, reason, connection.number)
    )


def undo_dispatches(core: Broker, connection: Connection, messages: list[Message]) -> None:
    """Undo dispatches of messages that were not sent because they expired during the commit."""
    for message in messages if connection.is_open else ():
        if message.holder is not None and message.holder.connection is connection:
            transitions.undo_dispatch(core, message)


# -- publish


def publish(
    core: Broker,
    connection: Connection,
    name: str,
    body: bytes,
    ttl_s: float | None,
    key: bytes | None,
    validated: ValidatedPublish | None = None,
    options: PublishOptions = PLAIN,
    *,
    is_forced: bool = False,
) -> CommandResult:
    """Store a message; if it has a key, store it only once and send a receipt after the commit.

    ``validated`` is the result of ``validate_in_background`` for this content.  What ``is_forced``,
    because acknowledgements wait behind it, a full queue stores, but not a full disk: they need it.
    """
    if is_forced and (stop := core.registry.publishing_stop) is not None and stop.kind.refuses_all:
        return CommandResult.PARK
    home = None  # where it waits, if it was published to its .retry queue
    if ttl_s and name.endswith(RETRY_SUFFIX):
        home = retry_queues.delayed_name(core, name, ttl_s)
    queue = core.queues.get(home or name) or core.registry.get_or_create(
        core.batch, home or name, connection.creator
    )
    if queue is None:
        return _refuse_queue(core, connection, name, key)
    scope, seq = queue.queue_id, None
    if key is not None:
        if home is None and not queue.is_retry_queue:
            seq = core.publish_keys.find(scope, key, core.now.steady_ms)
        else:
            scope, seq = retry_queues.find_key(core, name, key, is_delayed=home is not None)
        if seq is not None:
            return _publish_again(core, connection, queue, key, seq, body, name)
    refused = inspection = None
    if (queue.is_bounded or home is not None) and not is_forced:
        refused = retry_queues.refusal(core, name, home)
    if queue.validates and refused is None:
        inspection = validation.validate(core, queue, body, validated)
        if inspection is None:
            return CommandResult.VALIDATE
        if inspection.reason is not None and home is None and not is_forced:
            refused = core.registry.dead_letter_refusal(core.batch, queue)
    if refused is not None:
        return _refuse_or_park(core, connection, name, key, *refused)
    if options.unique_key is not None:
        result = _claim_unique_key(core, connection, queue, name, options, key)
        if result is not None:
            return result
    if is_forced and connection.parked is not None:  # for this queue or its dead-letter queue
        connection.parked.parked.discard(connection)
    if home is not None:
        options, ttl_s = retry_queues.delayed(core, connection, queue, key, ttl_s, options), None
    message = transitions.publish(core, queue, body, ttl_s, connection.number, inspection, options)
    connection.published += 1
    if key is not None:
        core.batch.keys += core.publish_keys.add(scope, key, message.seq, core.now.steady_ms)
        core.batch.sends[connection].receipts.append(Receipt(name, (key,)))
    return CommandResult.DONE


def _claim_unique_key(
    core: Broker,
    connection: Connection,
    queue: Queue,
    name: str,
    options: PublishOptions,
    key: bytes | None,
) -> CommandResult | None:
    """Return None if a message can be stored under its unique key, or the publish's result."""
    claim = unique_keys.make_free if options.replaces else unique_keys.look_up
    match claim(core, queue, options.unique_key or ""):
        case KeyState.UNKNOWN:
            return CommandResult.LOAD
        case KeyState.HELD:
            return refuse_publish(core, connection, name, key, reasons.UNIQUE_KEY_HELD)
        case KeyState.TAKEN:
            queue.counters.deduplicated += 1
            if key is not None:
                core.batch.sends[connection].receipts.append(Receipt(name, (key,)))
            return CommandResult.DONE
    return None


def _publish_again(
    core: Broker, connection: Connection, queue: Queue, key: bytes, seq: int, body: bytes, name: str
) -> CommandResult:
    """Send the receipt for a known key again, or refuse the key if the body differs.

    After a retry, the stored body may differ from the published one.
    """
    stored = core.checksums.get(seq, 0)
    if seq not in core.checksums:
        message = core.messages.get(seq) or core.batch.find_created(seq)
        if message is None:
            core.batch.key_seqs.add(seq)
            return CommandResult.LOAD
        stored = None if message.options.may_be_rewritten else message.crc
    if stored is not None and stored != checksum(seq, body):
        return _refuse(core, connection, name, key, reasons.KEY_REUSED, queue)
    queue.counters.deduplicated += 1
    core.batch.sends[connection].receipts.append(Receipt(name, (key,)))
    return CommandResult.DONE


def unchecked_queue(core: Broker, name: str) -> Queue | None:
    """Return the queue if it exists and accepts messages without checks, or None."""
    queue = core.queues.get(name)
    if queue is None or queue.validates or queue.is_bounded or queue.has_groups:
        return None
    return None if queue.is_retry_queue else queue


def publish_run(
    core: Broker,
    connection: Connection,
    runs: Sequence[QueueRun],
    bodies: Sequence[bytes],
    ttls: Sequence[int | None],
    keys: Sequence[bytes] | None,
) -> int:
    """Store messages in order, at most one per key; queues come from ``unchecked_queue``.

    Stops at the first message that ``publish`` must load rows for, and returns the number of
    messages before it.
    """
    if keys is None or _store_keys(core, connection, runs, keys):
        transitions.publish_run(core, runs, bodies, ttls, connection.number)
        connection.published += len(bodies)
        return len(bodies)
    names = [queue.name for queue, count in runs for _ in range(count)]
    for at, (name, body, ttl_s, key) in enumerate(zip(names, bodies, ttls, keys, strict=True)):
        if publish(core, connection, name, body, ttl_s, key) is not CommandResult.DONE:
            return at
    return len(bodies)


def _store_keys(
    core: Broker, connection: Connection, runs: Sequence[QueueRun], keys: Sequence[bytes]
) -> bool:
    """Store the keys of new messages; return False and store none if a key is already known."""
    keys_by_queue: list[tuple[int, Sequence[bytes]]] = []
    receipts: list[Receipt] = []
    at = 0
    for queue, count in runs:
        run_keys = keys[at : at + count]
        keys_by_queue.append((queue.queue_id, run_keys))
        receipts.append(Receipt(queue.name, run_keys))
        at += count
    rows = core.publish_keys.add_new(keys_by_queue, core.next_number, core.now.steady_ms)
    if rows:
        core.batch.keys += rows
        core.batch.sends[connection].receipts.extend(receipts)
    return bool(rows)


def _refuse_or_park(
    core: Broker,
    connection: Connection,
    name: str,
    key: bytes | None,
    queue: Queue,
    refusal: Refusal,
) -> CommandResult:
    """Refuse a publish; without a key, which gets no receipt, hold it back until there is room."""
    if key is not None:
        return _refuse(core, connection, name, key, refusal.reason, queue)
    connection.parked = queue
    queue.parked.add(connection)
    return CommandResult.PARK


def _refuse(
    core: Broker, connection: Connection, name: str, key: bytes, reason: str, queue: Queue
) -> CommandResult:
    core.refused[reason] += 1  # as Broker.refuse, but the reason goes into a receipt
    queue.counters.refused += 1
    core.batch.sends[connection].receipts.append(Receipt(name, (key,), reason))
    return CommandResult.DONE


def refuse_publish(
    core: Broker,
    connection: Connection,
    name: str,
    key: bytes | None,
    reason: str,
    detail: str = "",
) -> CommandResult:
    """Refuse a publish for what it asks; without a key, only the counters show it."""
    core.refused[reason] += 1
    if (queue := core.queues.get(name)) is not None:
        queue.counters.refused += 1
    if key is not None:
        text = f"{reason}: {detail}" if detail else reason
        core.batch.sends[connection].receipts.append(Receipt(name, (key,), text))
    return CommandResult.DONE


def _refuse_queue(
    core: Broker, connection: Connection, name: str, key: bytes | None
) -> CommandResult:
    core.registry.note_limited("publishes_refused", name)
    core.refused[reasons.TOO_MANY_QUEUES] += 1
    if key is None:
        return CommandResult.CLOSE
    core.batch.sends[connection].receipts.append(Receipt(name, (key,), reasons.TOO_MANY_QUEUES))
    return CommandResult.DONE


def validate_in_background(
    core: Broker, name: str, body: bytes, on_validated: Callable[[ValidatedPublish], None]
) -> None:
    """Validate content in the background after ``VALIDATE``; pass the result to a later batch."""
    queue = core.queues.get(name) or core.queues[home_of(name) or ""]  # of a delayed publish
    work = validation.background_validation(core, queue, body)
    core.batch.background.append((work, on_validated))


# -- consume


def consume(
    core: Broker,
    connection: Connection,
    name: str,
    count: int,
    *,
    has_info: bool = False,
    keeps_held: bool = False,
) -> CommandResult:
    """Set the credit on a queue (0 pauses) and put back messages held under the old credit.

    That happens at a limited rate, unless the connection acknowledges messages in between.  With
    ``keeps_held``, nothing is put back.
    """
    queue = core.registry.get_or_create(core.batch, name, connection.creator)
    if queue is None:
        core.registry.note_limited("consumers_refused", name)
        return CommandResult.CLOSE
    former = connection.consumers.get(queue.queue_id)
    if former is not None and keeps_held:
        former.credit, former.has_info = min(count, core.limits.credit), has_info
        core.wake_consumer(former)
        return CommandResult.DONE
    if former is not None:
        if former.held and not connection.may_replace_credit(core.now.steady_ms):
            return CommandResult.DELAY
        # Without an event for its messages: the consumer is there, and did not fail.
        transitions.remove_consumer(core, former, None, is_leaving=count == 0)
    if count == 0:
        return CommandResult.DONE
    consumer = Consumer(connection, queue, min(count, core.limits.credit))
    consumer.has_info = has_info
    connection.consumers[queue.queue_id] = queue.consumers[connection] = consumer
    core.wake_consumer(consumer)
    if queue.window is None:
        queue.window = ReadyWindow(core.limits.window, core.bodies)
    return CommandResult.DONE


# -- acknowledge: by the holder, or late


def acknowledge_held(
    core: Broker, connection: Connection, acks: Iterable[tuple[str, bytes]]
) -> int:
    """Acknowledge, in order, messages held by this connection, each identified by queue and id.

    Stops at the first message that the connection does not hold, and returns the number of messages
    acknowledged.  Pass the message at which it stopped to ``acknowledge_late``.
    """
    messages, queues, wall_ms = core.messages, core.queues, core.batch.wall_ms
    seqs: list[int] = []
    consumer: Consumer | None = None
    last: str | None = None
    first = size = 0  # the current queue's first index in seqs, and its total size
    for name, message_id in acks:
        if name is not last:
            if consumer is not None:
                _count_released(core, consumer, len(seqs) - first, size)
            queue = queues.get(name)
            consumer = None if queue is None else queue.consumers.get(connection)
            if queue is None or consumer is None:
                break
            last, first, size, held = name, len(seqs), 0, consumer.held
            hold = queue.hold_histogram = queue.hold_histogram or [0] * BUCKETS
            records = queue.records
        message = held.pop(message_id, None)
        if message is None:
            break
        message.holder = None
        if message.options is not NO_OPTIONS:
            core.settle_options(message)
        seq = message.seq
        messages.pop(seq, None)
        seqs.append(seq)
        size += message.size
        # As Queue.count_record and Broker.record_hold_time, without a call for each message.
        if records and (source_id := message.source.queue_id) is not None:
            records[source_id] = records.get(source_id, 0) - 1
        ms = wall_ms - (message.last_dispatched_at or wall_ms)
        hold[NEAR[ms] if 0 <= ms < NEAR_MS else bucket(ms)] += 1
    if consumer is not None:
        _count_released(core, consumer, len(seqs) - first, size)
    if seqs:
        core.batch.settled.setdefault(ACKED_KEY, []).extend(seqs)
        connection.acked += len(seqs)
    return len(seqs)


def _count_released(core: Broker, consumer: Consumer, count: int, size: int) -> None:
    """Update counts after a consumer has acknowledged messages of ``size`` bytes in total."""
    if not count:
        return
    queue = consumer.queue
    core.count_held(consumer, -count, -size)
    if not consumer.is_waiting:  # as in Broker.wake_consumer, without a call
        consumer.is_waiting = True
        queue.waiting_consumers.append(consumer)
    core.needs_dispatch[queue.queue_id] = queue
    queue.counters.acked += count
    core.subtract_counts(queue, count, size)


def acknowledge_late(
    core: Broker, connection: Connection, name: str, message_id: bytes
) -> CommandResult:
    """Acknowledge a message by its id, usually after a reconnect.

    If another connection holds it, this is done when that hold ends without a settlement.
    """
    message = _find(core, name, message_id)
    if isinstance(message, CommandResult):
        return message
    if _is_foreign(message, connection):
        return _keep(core, message, partial(transitions.acknowledge, core))
    connection.acked += 1
    transitions.acknowledge(core, message)
    return CommandResult.DONE


# -- other ends of a delivery


def requeue(
    core: Broker, connection: Connection, name: str, message_id: bytes, ttl_s: int
) -> CommandResult:
    """Move a message to the end of its queue unless another connection holds it."""
    message = _find_own(core, connection, name, message_id)
    if isinstance(message, CommandResult):
        return message
    if message.state == State.SCHEDULED:  # late: the message waits already
        return ignore(core, "scheduled")
    transitions.requeue(core, message, ttl_s)
    return _done_or_wait(core, connection, message)


def dead_letter(
    core: Broker,
    connection: Connection,
    name: str,
    message_id: bytes,
    failure: Mapping[str, Any] = NO_FAILURE,
) -> CommandResult:
    """Dead-letter a message; ``failure`` says why.  Another's hold: as ``acknowledge_late``."""
    message = _find(core, name, message_id)
    if isinstance(message, CommandResult):
        return message
    settle = partial(dead_letters.dead_letter_failed, core, options=failure)
    if _is_foreign(message, connection):
        return _keep(core, message, settle, failure)
    settle(message)
    return _done_or_wait(core, connection, message)


def retry(
    core: Broker, connection: Connection, name: str, message_id: bytes, request: RetryRequest
) -> CommandResult:
    """Schedule the next attempt of a message.  Another's hold: as ``acknowledge_late``.

    A retry that is repeated, or late for a message that waits already, is ignored.
    """
    message = _find(core, name, message_id)
    if isinstance(message, CommandResult):
        return message
    if message.state == State.SCHEDULED:
        return ignore(core, "scheduled")
    if retries.is_repeated(message, request):
        return ignore(core, "repeated")
    settle = partial(retries.retry, core, request=request)
    if _is_foreign(message, connection):
        return _keep(core, message, settle, request.texts, request.content or b"")
    settle(message)
    return _done_or_wait(core, connection, message)


def extend(
    core: Broker, connection: Connection, name: str, message_id: bytes, hold_s: float
) -> CommandResult:
    """End the hold of a message ``hold_s`` from now, at most ``limits.max_hold_s`` in all."""
    message = _find_own(core, connection, name, message_id)
    if isinstance(message, CommandResult):
        return message
    if message.holder is None:
        return ignore(core, "not_held")
    longest_ms = message.held_since_ms + core.limits.max_hold_ms
    end_ms = min(core.now.steady_ms + round(hold_s * 1_000), longest_ms)
    core.ack_timeouts.extend(message, end_ms)
    return CommandResult.DONE


def return_invalid(
    core: Broker, connection: Connection, name: str, message_id: bytes, problem: str
) -> CommandResult:
    """Return a message whose holder sent an invalid retry or dead letter, as a 005 would.

    Otherwise it would stay with a worker that believes it settled.
    """
    message = _find_own(core, connection, name, message_id)
    if isinstance(message, CommandResult):
        return message
    if message.holder is None:
        return ignore(core, reasons.INVALID)
    transitions.requeue(core, message, None, problem)
    return _done_or_wait(core, connection, message)


def _done_or_wait(core: Broker, connection: Connection, message: Message) -> CommandResult:
    is_pending = core.pending.delays(connection, message.seq)
    return CommandResult.WAIT if is_pending else CommandResult.DONE


def _keep(
    core: Broker,
    message: Message,
    settle: Settlement,
    texts: Mapping[str, Any] = NO_FAILURE,
    content: bytes = b"",
) -> CommandResult:
    """Keep a settlement until another connection's hold ends, which may be dead unnoticed."""
    if message.holder is not SUBSCRIPTION:
        core.late.keep(message.seq, settle, len(repr(texts)) + len(content))
    return ignore(core, "foreign")


def _is_foreign(message: Message, connection: Connection) -> bool:
    """Return whether another connection or a subscription holds a message."""
    return message.holder is not None and message.holder.connection is not connection


def _find_own(
    core: Broker, connection: Connection, name: str, message_id: bytes
) -> Message | CommandResult:
    """Return the message that a command names unless another connection holds it."""
    message = _find(core, name, message_id)
    if isinstance(message, Message) and _is_foreign(message, connection):
        return ignore(core, "foreign")
    return message


def _find(core: Broker, name: str, message_id: bytes) -> Message | CommandResult:
    """Return the message that a command names, or the command's result if it cannot run."""
    seq = dead_letters.seq_of(message_id)
    if seq is None or not 0 < seq < core.next_number:
        return ignore(core, "unknown")
    if seq in core.pending:
        return ignore(core, "settled")
    message = core.messages.get(seq)
    if message is None:
        if seq not in core.loaded:
            core.batch.seqs.add(seq)
            return CommandResult.LOAD
        message = core.loaded[seq]
    if message is None:
        return ignore(core, "settled")
    if not compare_digest(message.message_id, message_id):
        return ignore(core, "unknown")
    if core.queues_by_id[message.queue_id].name != name:
        return ignore(core, "wrong_queue")
    core.loaded.pop(seq, None)  # this batch changes the row, so reload it before its next use
    return message


def ignore(core: Broker, reason: str) -> CommandResult:
    """Count a command that changes nothing."""
    core.ignored[reason] += 1
    return CommandResult.DONE


def preload(core: Broker, message_ids: list[bytes], keys: Sequence[tuple[str, bytes]] = ()) -> None:
    """Request the rows for upcoming commands, so that one batch loads all of them.

    ``keys`` are the queues and keys of publish commands; the others name a message.
    """
    for name, key in keys:
        if (queue := core.queues.get(name)) is not None:
            seq = core.publish_keys.find(queue.queue_id, key, core.now.steady_ms)
            if seq is not None and seq not in core.checksums:
                core.batch.key_seqs.add(seq)
    for message_id in message_ids:
        seq = dead_letters.seq_of(message_id)
        if seq is not None and 0 < seq < core.next_number and seq not in core.messages:
            core.batch.seqs.add(seq)
