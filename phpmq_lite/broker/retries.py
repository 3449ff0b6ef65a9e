"""Retries: a message whose attempt failed waits in its queue for its next attempt.

The worker's own limit of attempts counts, so a retry charges nothing to ``max_deliveries``.  In an
envelope, the broker adds 1 to ``attempts``; if the body is not in memory, the message is pending
until it is loaded, and its row on disk is unchanged until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.state_table import StateEvent
from phpmq_lite.broker.validation import INSPECTED_BYTES_MAX
from phpmq_lite.frame_options import write_options
from phpmq_lite.model import NOT_INDEXED, Message

RETRY = "retry"  # the reason for which the message is pending


@dataclass(slots=True, frozen=True)
class RetryRequest:
    """What a worker says about an attempt, and when the next one should be."""

    delay_s: float
    attempt: int | None  # that failed; None if the worker does not count
    is_failed: bool  # if False, the message only returns after the delay
    texts: Mapping[str, Any]  # limit, exception, error and traceback, for the event
    content: bytes | None  # replaces the message's content
    is_late: bool = False  # no consumer holds the message any more

    @classmethod
    def of(cls, options: Mapping[str, Any], content: bytes | None) -> Self:
        """Return the request of a 011 with these valid options."""
        named = dict(options)
        delay_s, attempt = named.pop("delay_s", 0), named.pop("attempt", None)
        return cls(delay_s, attempt, named.pop("failed", True), named, content)


def attempt_of(message: Message) -> int:
    """Return the number of the attempt that the next or the current delivery is."""
    return 1 + message.charged + message.options.retries


def is_repeated(message: Message, request: RetryRequest) -> bool:
    """Return whether a retry of the same or a later attempt is stored with the message."""
    return (
        request.is_failed
        and request.attempt is not None
        and request.attempt <= message.options.failed_attempt
    )


def retry(core: Broker, message: Message, request: RetryRequest) -> None:
    """Detach a message from its consumer, or its queue if the retry is late, until its time."""
    queue = core.queues_by_id[message.queue_id]
    request = replace(request, is_late=message.holder is None)
    core.detach(message)
    core.messages.pop(message.seq, None)
    may_be_envelope = message.indexed[0] is not None or message.size > INSPECTED_BYTES_MAX
    if request.content is None and request.is_failed and queue.inspects and may_be_envelope:
        core.pending.add(message, RETRY)
        core.pending.retries[message.seq] = request
        core.batch.body_seqs.add(message.seq)
    else:
        _store(core, message, queue, request, request.content)


def count_attempt(
    core: Broker, message: Message, request: RetryRequest, body: bytes | None
) -> None:
    """Add the attempt to the envelope of a pending message, whose body is loaded or damaged."""
    queue, inspector = core.queues_by_id[message.queue_id], core.inspector
    store = partial(_store, core, message, queue, request)
    if inspector is None or body is None:
        store(None)
    elif core.can_inspect_inline(len(body)):
        store(inspector.with_attempt_added(body))
    else:
        core.batch.background.append((partial(inspector.with_attempt_added, body), store))


def _count(message: Message, request: RetryRequest) -> None:
    """Count a failed attempt with the message."""
    attempt = request.attempt or attempt_of(message)
    if request.is_late and message.charged > 0 and attempt < attempt_of(message):
        message.charged -= 1  # for the connection that ended before it could send this
    options = message.options
    attempt = max(attempt, options.failed_attempt)
    message.options = options._replace(retries=options.retries + 1, failed_attempt=attempt)


def _store(
    core: Broker, message: Message, queue: Queue, request: RetryRequest, content: bytes | None
) -> None:
    if (connection := core.pending.remove(message)) is not None:
        core.batch.to_resume.add(connection)
    if request.is_failed:
        _count(message, request)
    due_ms = core.due_of(request.delay_s, None)
    detail = {
        "attempt": message.options.failed_attempt if request.is_failed else None,
        "failed": None if request.is_failed else False,
        **request.texts,
        "next_at": core.now.wall_ms + due_ms - core.now.steady_ms,
    }
    core.record_event(message, StateEvent.RETRY, write_options(detail).decode())
    queue.counters.retried += request.is_failed
    queue.counters.returned += not request.is_failed
    if content is not None:
        core.replace_content(message, content)
        if queue.inspects and core.inspector is not None and len(content) <= INSPECTED_BYTES_MAX:
            message.indexed = core.inspector.index(content) or NOT_INDEXED
    is_expired = message.deadline_ms is not None and message.deadline_ms <= core.now.steady_ms
    if due_ms > core.now.steady_ms and not is_expired:
        core.make_scheduled(message, queue, due_ms, None)
        if message.options.group is not None:
            core.release_group(message, leaves=False)  # again, if it was pending meanwhile
    else:
        message.options = message.options._replace(ready_at=core.now.wall_ms)
        core.store_options(message)
        core.make_ready_at_end(message, queue, StateEvent.REQUEUE)
