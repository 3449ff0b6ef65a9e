"""Dispatches ready messages to consumers with free credit, in turn."""

from phpmq_lite.broker import transitions
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Consumer, Queue
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.model import WindowRequest, has_room

_PREFETCHED_BODIES = 200  # number of bodies loaded together if a returned message's body is missing


def dispatch_ready(core: Broker) -> None:
    """Dispatch from every queue that may have both ready messages and consumers with credit.

    Repeats as long as the number of queues waiting for room in ``limits.held`` shrinks, because the
    remaining ones may use the room that the others left.
    """
    waiting: dict[int, Queue] = {}
    served: dict[int, Queue] = {}  # queues that still wait; the next round serves them last
    while True:
        refused: dict[int, Queue] = {}
        _serve_queues(core, waiting, served, refused)
        is_settled = refused.keys() == core.starved.keys() or core.held >= core.limits.held
        core.starved = refused
        if is_settled or not refused:
            break
        core.needs_dispatch = dict(refused)
    core.needs_dispatch = waiting | served


def _serve_queues(
    core: Broker,
    waiting: dict[int, Queue],
    served: dict[int, Queue],
    refused: dict[int, Queue],
) -> None:
    """Serve all waiting queues, including those that start to wait when a message expires."""
    while core.needs_dispatch:
        queues, core.needs_dispatch = core.needs_dispatch, {}
        for queue in queues.values():
            window = queue.window
            if window is None or window.is_exhausted or queue.settings.delivery_paused:
                continue
            if len(queue.waiting_consumers) == 1 and _serve_single_consumer(core, queue, window):
                continue
            dispatched_before = queue.counters.dispatched
            if _serve_queue(core, queue, window, refused):
                is_served = queue.counters.dispatched > dispatched_before
                (served if is_served else waiting)[queue.queue_id] = queue
            if window.needs_page:
                window.is_loading = True
                count, size = window.limit - len(window), core.free_body_bytes(window)
                request = WindowRequest(queue.queue_id, window.covered_to, count, size)
                core.batch.windows.append(request)


def _serve_single_consumer(core: Broker, queue: Queue, window: ReadyWindow) -> bool:
    """Dispatch to a lone consumer if no limit is near; return False if ``_serve_queue`` must run.

    Dispatching one message on each of many queues takes 2.4 instead of 4.9 µs.
    """
    consumer, count = queue.waiting_consumers[0], len(window)
    if (
        not window.reaches_end
        or consumer.credit - len(consumer.held) < count
        or core.limits.held - core.held < count
        or core.starved
        or _is_near_limit(core, consumer, window.body_bytes)
    ):
        return False
    taken = window.take_run(count, core.now.steady_ms)
    core.dispatch_in_turn(taken, (consumer,))
    return len(taken) == count


def _serve_queue(
    core: Broker,
    queue: Queue,
    window: ReadyWindow,
    refused: dict[int, Queue],
) -> bool:
    """Dispatch until messages, credit or loaded bodies run out; return whether to try again."""
    turns, now_ms = queue.waiting_consumers, core.now.steady_ms
    _serve_in_rounds(core, queue, window)
    passed_over = 0  # number of consumers skipped because the first message is too large for them
    while passed_over < len(turns):
        message = window.first()
        if message is None:
            return False
        if message.deadline_ms is not None and message.deadline_ms <= now_ms:
            transitions.expire(core, message)
            passed_over = 0
            continue
        if message.body is None:
            return _request_bodies(core, window)
        if not _may_hold(core, queue, message.size):
            core.dispatch_pauses += 1
            refused[queue.queue_id] = queue
            return True
        consumer = turns.popleft()
        if _has_room(core, consumer, message.size):
            core.dispatch_in_turn((window.take(),), (consumer,))
            turns.append(consumer)
            passed_over = 0
        elif _is_short_of_bytes(core, consumer, message.size):
            turns.append(consumer)  # a smaller message may fit later
            passed_over += 1
        else:
            consumer.is_waiting = False  # re-added by an acknowledgement or once its socket drains
    return False


def _serve_in_rounds(core: Broker, queue: Queue, window: ReadyWindow) -> None:
    """Dispatch messages that need no individual checks; leave the rest to the caller.

    Dispatches as many complete rounds at once as all consumers have credit for, so limits are
    checked once for all messages instead of once for each (0.44 instead of 0.87 µs a message).
    """
    limits, turns = core.limits, queue.waiting_consumers
    while turns and not core.starved:
        rounds = min([consumer.credit - len(consumer.held) for consumer in turns])
        if rounds <= 0:
            for consumer in [c for c in turns if len(c.held) >= c.credit]:
                consumer.is_waiting = False  # re-added after an acknowledgement
                turns.remove(consumer)
            continue
        for consumer in turns:
            if _is_near_limit(core, consumer, window.body_bytes):
                return
        count = min(rounds * len(turns), limits.held - core.held)
        taken = window.take_run(count, core.now.steady_ms) if count > 0 else []
        core.dispatch_in_turn(taken, tuple(turns))
        turns.rotate(-len(taken))
        if len(taken) < rounds * len(turns):
            return


def _may_hold(core: Broker, queue: Queue, size: int) -> bool:
    """Return whether the queue's consumers may hold one more message of ``size`` bytes.

    A queue may use all of ``limits.held`` and ``held_bytes`` as long as no other queue waits for
    room.  Otherwise, a queue that has its fair share gets nothing more.  Held messages are not
    taken back, so a queue that holds few messages may exceed the limits by up to a quarter.  Each
    such queue must leave at least as much of that quarter to the next queue as it already holds.
    """
    limits, short = core.limits, core.starved
    if not short and core.held < limits.held and core.held_bytes + size <= limits.held_bytes:
        return True
    held, held_bytes = queue.held - queue.claimed, queue.held_bytes - queue.claimed_bytes
    sharing = len(short) + (queue.queue_id not in short)
    if not _has_share(held, core.held, 1, limits.held, sharing):
        return False
    is_first = not held and core.held_bytes <= limits.held_bytes  # one message may have any size
    return is_first or _has_share(held_bytes, core.held_bytes, size, limits.held_bytes, sharing)


def _has_share(own: int, total: int, more: int, limit: int, sharing: int) -> bool:
    """Return whether a queue that holds ``own`` of ``total`` may hold ``more`` in addition."""
    return own * sharing < limit and has_room(own, total, more, limit)


def _is_near_limit(core: Broker, consumer: Consumer, size: int) -> bool:
    """Return whether ``size`` bytes could exceed a limit, or the connection is blocked."""
    limits, connection = core.limits, consumer.connection
    if connection.batch_number != core.batch_number:
        connection.batch_number, connection.batch_bytes = core.batch_number, 0
    return (
        connection.is_blocked
        or consumer.held_bytes + size > limits.credit_bytes
        or connection.batch_bytes + size > limits.write_bytes
        or core.held_bytes + size > limits.held_bytes
    )


def _has_room(core: Broker, consumer: Consumer, size: int) -> bool:
    """Return whether credit and socket allow another message; the first may have any size."""
    limits, connection = core.limits, consumer.connection
    if len(consumer.held) >= consumer.credit or connection.is_blocked:
        return False
    if consumer.held and consumer.held_bytes + size > limits.credit_bytes:
        return False  # _is_short_of_bytes handles this case
    if connection.batch_number != core.batch_number:
        connection.batch_number, connection.batch_bytes = core.batch_number, 0
    if connection.batch_bytes >= limits.write_bytes:
        core.batch_limited.add(connection)  # the next batch will send more
        return False
    return True


def _is_short_of_bytes(core: Broker, consumer: Consumer, size: int) -> bool:
    """Return whether size alone prevents a message from being dispatched to a consumer."""
    return (
        len(consumer.held) < consumer.credit
        and not consumer.connection.is_blocked
        and consumer.held_bytes + size > core.limits.credit_bytes
    )


def _request_bodies(core: Broker, window: ReadyWindow) -> bool:
    """Request the body of at least one of the next messages, to be loaded after this batch."""
    if window.body_bytes > core.limits.window_bytes // 2:
        window.drop_bodies()  # free this memory for the messages that are loaded next
    room = core.free_body_bytes(window)
    for message in window.upcoming(_PREFETCHED_BODIES):
        if message.body is None:
            core.batch.body_seqs.add(message.seq)
            room -= message.size
            if room <= 0:
                break
    return True
