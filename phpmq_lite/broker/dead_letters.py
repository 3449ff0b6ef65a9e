"""Dead-lettering of messages, and the content of dead-letter records."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phpmq_lite.broker import reasons
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.state_table import DEAD, FAILURE_EVENT, StateEvent
from phpmq_lite.frame_options import DEFAULT_PRIORITY
from phpmq_lite.model import (
    NO_OPTIONS,
    DeadLetterCause,
    EnvelopeInspector,
    Message,
    MessageSource,
    priority_of,
)

ClientRecords = Sequence[tuple[bytes, bytes]]  # (record id, content) pairs, oldest first


def dead_letter(core: Broker, message: Message, reason: str) -> None:
    """Dead-letter a message: store its history row and its record in one batch.

    If the body is not in memory, it is loaded first.  Until then the message is pending: no
    consumer can receive it, and its row on disk is unchanged.
    """
    queue = core.queues_by_id[message.queue_id]
    if message.holder is not None:
        core.record_hold_time(message, queue)
    core.detach(message)
    core.messages.pop(message.seq, None)
    body = message.body
    if not queue.is_dead_letter_queue:
        may_have_record = core.inspector is not None and message.deliveries > 0
        if may_have_record:  # the consumer may have published a dead-letter record itself
            places = core.registry.record_queue_ids(queue)
            core.batch.record_seqs[message.seq] = (*places, message.consumer or 0)
        is_cheap = core.inspector is None or not queue.inspects
        if body is None or may_have_record or not (is_cheap or core.can_inspect_inline(len(body))):
            core.pending.add(message, reason)
            core.batch.body_seqs.add(message.seq)
            return
    settle_dead(core, message, reason, body)


def settle_dead(
    core: Broker,
    message: Message,
    reason: str,
    body: bytes | None,
    *,
    detail: str = "",
    client_records: ClientRecords = (),
    content: bytes | None = None,
) -> None:
    """Settle a message as dead and store its record, unless the message is damaged (has no body).

    ``client_records`` holds records that clients published before their 006; one may belong to the
    message.  ``content`` is the content of the record, if it has already been created.
    """
    queue = core.queues_by_id[message.queue_id]
    failure = core.pending.failures.pop(message.seq, {})
    if (connection := core.pending.remove(message)) is not None:
        core.batch.to_resume.add(connection)
    client_record = find_client_record(core.inspector, message, client_records)
    if client_record is not None:
        record_id, reason = client_record
    elif not queue.is_dead_letter_queue:
        if body is None:
            reason = reasons.DAMAGED
        elif content is None:
            reason = _exact_reason(core.inspector, message, queue, body, reason)
    queue.counters.dead += 1
    queue.count_dead_letter(reason, message.indexed[0])
    core.settle(message, DEAD, reason)
    if client_record is not None:
        core.record_event(message, StateEvent.DEAD_LETTER, record_id.decode())
    elif body is not None and not queue.is_dead_letter_queue:
        if content is None and core.inspector is not None and queue.inspects:
            at_ms = core.now.wall_ms
            cause = _cause(queue, message, reason, failure, detail, at_ms)
            content = core.inspector.make_record(body, queue.settings, cause)
        _store_record(core, message, queue, body if content is None else content, reason)


def dead_letter_failed(core: Broker, message: Message, options: Mapping[str, Any]) -> None:
    """Dead-letter a message for the reason and the error that its worker reported."""
    failure = {name: text for name, text in options.items() if name != "reason"}
    if failure:
        core.pending.failures[message.seq] = failure
        detail = json.dumps(failure, ensure_ascii=False)
        core.record_event(message, FAILURE_EVENT, detail)
    dead_letter(core, message, options.get("reason") or reasons.BY_CLIENT)


def _cause(
    queue: Queue, message: Message, reason: str, failure: Mapping[str, Any], detail: str, at_ms: int
) -> DeadLetterCause:
    error, exception = failure.get("error", detail), failure.get("exception")
    return DeadLetterCause(queue.name, message.message_id, reason, error, at_ms, exception)


def _store_record(
    core: Broker, message: Message, queue: Queue, content: bytes, reason: str
) -> None:
    target = core.registry.dead_letter_queue(core.batch, queue)
    created = core.create_messages(((target, 1),), (content,), (0,), message.publisher)
    record = created[0]
    if target.inspects:
        record.indexed = message.indexed
    if message.options is not NO_OPTIONS or priority_of(message.position) != DEFAULT_PRIORITY:
        options = message.options
        record.options = NO_OPTIONS._replace(
            priority=priority_of(message.position),
            group=options.group,
            unique_key=options.unique_key,
        )
    core.add_to_window(target, created, (content,))
    core.set_source(record, MessageSource(message.seq, queue.queue_id, reason))
    core.record_event(message, StateEvent.DEAD_LETTER, record.message_id.decode())


def settle_dead_in_background(
    core: Broker, seq: int, body: bytes, client_records: ClientRecords
) -> bool:
    """If a pending message is large, create its record in the background thread.

    Returns False if the body is small; the caller must then settle the message immediately.
    """
    message, reason = core.pending[seq]
    queue, inspector = core.queues_by_id[message.queue_id], core.inspector
    if (
        inspector is None
        or not queue.inspects
        or queue.is_dead_letter_queue
        or find_client_record(inspector, message, client_records) is not None
        or core.can_inspect_inline(len(body))
    ):
        return False
    settings, at_ms = queue.settings, core.now.wall_ms
    failure = core.pending.failures.get(seq, {})

    def make() -> tuple[str, bytes]:
        exact = _exact_reason(inspector, message, queue, body, reason)
        cause = _cause(queue, message, exact, failure, "", at_ms)
        return exact, inspector.make_record(body, settings, cause)

    def settle(record: tuple[str, bytes]) -> None:
        settle_dead(core, message, record[0], body, content=record[1])

    core.batch.background.append((make, settle))
    return True


# -- records published by clients


def link_record(core: Broker, record: Message, content: bytes) -> None:
    """Link a client-published record to the message that it names, if any.

    If the message is only on disk, ``find_client_record`` compares the full id when the message is
    dead-lettered.
    """
    inspector = core.inspector
    if inspector is None or b'"dead_letter"' not in content:
        return
    source = inspector.record_source(content)
    if source is None:
        return
    seq = seq_of(source.message_id)
    about = None if seq is None else core.messages.get(seq)
    queue_id = None
    if about is not None and about.message_id == source.message_id:
        queue_id = about.queue_id
    elif (origin := core.queues.get(inspector.origin_queue(content) or "")) is not None:
        queue_id = origin.queue_id
    if seq is not None and not 0 < seq < record.seq:
        seq = None
    core.set_source(record, MessageSource(seq, queue_id, source.reason))


def link_record_of_consumer(core: Broker, record: Message, content: bytes) -> None:
    """Link a record in an ordinary queue to the message that the record's publisher received.

    Records from other clients are not linked, because any client could pass off a message as one.
    """
    inspector = core.inspector
    # rfind takes a third as long as ``in`` because the block is at the end of the content.
    if inspector is None or content.rfind(b'"dead_letter"') < 0:
        return
    source = inspector.record_source(content)
    if source is None:
        return
    about = core.messages.get(seq_of(source.message_id) or 0)
    if (
        about is not None
        and about.message_id == source.message_id
        and about.consumer is not None
        and about.consumer == record.publisher
    ):
        core.set_source(record, MessageSource(about.seq, about.queue_id, source.reason))


def seq_of(message_id: bytes) -> int | None:
    """Return the seq encoded in a message id, or None if this broker cannot have issued the id."""
    try:
        return int(message_id[:16], 16) if len(message_id) == 32 else None
    except ValueError:
        return None


def find_client_record(
    inspector: EnvelopeInspector | None, message: Message, client_records: ClientRecords
) -> tuple[bytes, str] | None:
    """Return the id and reason of the client-published record for a message, or None."""
    for record_id, content in client_records:
        source = None if inspector is None else inspector.record_source(content)
        if source is not None and source.message_id == message.message_id:
            return record_id, source.reason
    return None


def _exact_reason(
    inspector: EnvelopeInspector | None, message: Message, queue: Queue, body: bytes, reason: str
) -> str:
    """Return a more precise reason if a worker sent a 006 because it could not add a block."""
    if (
        reason != reasons.BY_CLIENT
        or inspector is None
        or not queue.inspects
        or message.indexed[0] is None
    ):
        return reason
    return inspector.read_only_reason(body) or reason
