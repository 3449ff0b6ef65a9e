"""All-or-nothing publishing of messages from the admin pages, the API or the command line."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Final

from phpmq_lite.broker import reasons, transitions, validation
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.publish_keys import last_key
from phpmq_lite.broker.queue import Queue
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import (
    AuditEntry,
    EnvelopeInspection,
    Message,
    Reply,
    RowsRequest,
    ValidatedPublish,
    checksum,
)
from phpmq_lite.queue_settings import KEY_BYTES
from phpmq_lite.writes import LinkMessages

NewMessage = tuple[bytes, int | None]  # body and ttl_s (None: queue's default; 0: no expiry)


class Published(list[str]):
    """Ids of stored messages, in order; ``quarantined`` maps ids of invalid messages to reasons."""

    def __init__(self, ids: Sequence[str], quarantined: Mapping[str, str] | None = None) -> None:
        super().__init__(ids)
        self.quarantined = dict(quarantined or {})  # message id -> reason


PUBLISH_MAX: Final = 1_000


def publish(
    core: Broker,
    reply: Callable[[Published], None],
    entry: AuditEntry,
    name: str,
    messages: Sequence[NewMessage],
    *,
    key: bytes | None = None,
    source: tuple[int, str] | None = None,
    create: bool = True,
    validated: Sequence[ValidatedPublish] = (),
) -> None:
    """Store all messages at the end of a queue, or none of them.  Reply with ``Published``.

    Large messages are validated in a thread first; if the request is refused after that, the reply
    is a RefusedError.  ``validated`` holds the results.
    Repeating a ``key`` within the receipt window stores nothing and sends the same reply again.
    ``source`` is a seq and an event kind: the first message is linked to that seq by such events.
    Raises RefusedError: ``draining``, ``bad_name``, ``unknown_queue``, ``too_many_queues``,
    ``too_many``, ``bad_key``, ``key_conflict``, ``paused``, ``queue_full``, ``disk_full`` or
    ``database_full``.
    """
    core.check_not_draining()
    if (count := len(messages)) > PUBLISH_MAX:
        raise RefusedError("too_many", f"{count} messages given; the limit is {PUBLISH_MAX}")
    if key is not None and not 0 < len(key) <= KEY_BYTES:
        detail = f"the key is {len(key)} bytes long; it must have 1 to {KEY_BYTES} bytes"
        raise RefusedError("bad_key", detail)
    existing = core.destination(name, entry.actor, create=create)
    if key is not None and (first := _first_seq(core, name, key)):
        _reply_again(core, entry, name, (key, first), messages, reply)
        return
    _check_accepts_all(core, existing, messages)
    queue = core.registry.get_or_create(core.batch, name, entry.actor)
    if queue is None:  # unexpected, because destination() has checked the limit
        raise RefusedError("too_many_queues", "the queue limit is reached (limits.max_queues)")
    inspections = _validate_inline(core, queue, messages, validated)
    if inspections is None:
        publish_again = partial(publish, core, reply, entry, name, messages, key=key, source=source)
        _validate_in_background(core, queue, messages, partial(publish_again, create=create), reply)
        return
    bad = _invalid_reasons(core, queue, messages, inspections)
    client = core.client_number_of(entry)
    stored = [
        transitions.publish(core, queue, body, ttl_s, client, inspection)
        for (body, ttl_s), inspection in zip(messages, inspections, strict=True)
    ]
    queue.counters.count_source(entry.source, len(stored))
    if key is not None and stored:
        _store_key(core, queue, key, stored)
    if source is not None and stored:
        source_seq, kind = source  # the writer looks up the token of the source message
        at_ms, message = core.now.wall_ms, stored[0]
        core.batch.events += (source_seq, at_ms, kind, message.message_id.decode())
        core.batch.writes.append(LinkMessages(message.seq, at_ms, kind, source_seq))
    core.record_audit(entry, len(stored))
    ids = [message.message_id.decode() for message in stored]
    core.reply(reply, Published(ids, {ids[at]: bad[at] for at in bad}))


def _validate_inline(
    core: Broker,
    queue: Queue,
    messages: Sequence[NewMessage],
    validated: Sequence[ValidatedPublish],
) -> list[EnvelopeInspection | None] | None:
    """Validate contents if the queue requires it; return None if they exceed this batch's limit."""
    if not queue.validates:
        return [None] * len(messages)
    inspections: list[EnvelopeInspection | None] = []
    for (body, _), result in zip_longest(messages, validated):
        inspection = validation.validate(core, queue, body, result)
        if inspection is None:
            return None
        inspections.append(inspection)
    return inspections


def _invalid_reasons(
    core: Broker,
    queue: Queue,
    messages: Sequence[NewMessage],
    inspections: Sequence[EnvelopeInspection | None],
) -> dict[int, str]:
    """Return the reasons why messages are invalid, keyed by list index.

    Raises RefusedError: their records cannot be stored.
    """
    bad = {at: item.reason for at, item in enumerate(inspections) if item and item.reason}
    if not bad:
        return bad
    size = sum(len(messages[at][0]) for at in bad) if len(bad) > 1 else 1
    full = core.registry.dead_letter_refusal(core.batch, queue, len(bad), size)
    if full is not None:
        detail = f"a message is invalid ({bad[min(bad)]}), and its record cannot be stored:"
        core.refuse(queue, full.refusal, f"{detail} {full.refusal.reason}")
    return bad


def _validate_in_background(
    core: Broker,
    queue: Queue,
    messages: Sequence[NewMessage],
    publish_again: Callable[..., None],
    reply: Reply,
) -> None:
    works = [validation.background_validation(core, queue, body) for body, _ in messages]

    def resume(validated: list[ValidatedPublish]) -> None:
        core.run_late(partial(publish_again, validated=validated), reply)

    core.batch.background.append((lambda: [work() for work in works], resume))


def _check_accepts_all(core: Broker, queue: Queue | None, messages: Sequence[NewMessage]) -> None:
    if (stop := core.registry.publishing_stop) is not None:
        refusal, detail = reasons.SHORTAGE_REFUSALS[stop.kind], stop.detail
    elif queue is None:
        return
    else:
        queue_refusal = queue.refusal(len(messages), sum(len(body) for body, _ in messages))
        if queue_refusal is None:
            return
        refusal, settings, row = queue_refusal, queue.settings, queue.row
        detail = f"the queue has {row.live_bytes} bytes; max_bytes is {settings.max_bytes}"
        if refusal is reasons.PAUSED:
            detail = f"publishing to {queue.name!r} is paused"
        elif refusal is reasons.FULL_OF_MESSAGES:
            limit = settings.max_messages
            detail = f"the queue has {row.live_count} messages; max_messages is {limit}"
    core.refuse(queue, refusal, detail)


# -- repeated keys


def _first_seq(core: Broker, name: str, key: bytes) -> int | None:
    """Return the seq stored under a key, even if the queue has been removed since then."""
    queue = core.queues.get(name)
    row = core.registry.removed.get(name) if queue is None else queue.row
    if row is None:
        return None
    return core.publish_keys.find(row.queue_id, key, core.now.steady_ms)


def _store_key(core: Broker, queue: Queue, key: bytes, messages: list[Message]) -> None:
    """Store the key with the first seq and, for several messages, a second key with the last seq.

    The range includes records of quarantined messages.  The second key is newer, so it is never
    forgotten before the first.
    """
    entries = [(key, messages[0].seq)]
    last = core.next_number - 1
    if last > messages[0].seq:
        entries.append((last_key(key), last))
    now_ms = core.now.steady_ms
    for name, seq in entries:
        core.batch.keys += core.publish_keys.add(queue.queue_id, name, seq, now_ms)


def _reply_again(
    core: Broker,
    entry: AuditEntry,
    name: str,
    stored: tuple[bytes, int],
    messages: Sequence[NewMessage],
    reply: Reply,
) -> None:
    """Send the original reply again, rebuilt from its messages' live or settled rows on disk.

    ``stored`` is the key and its first seq.  The reply is a RefusedError if the bodies differ.
    """
    key, first = stored
    last = max(first, _first_seq(core, name, last_key(key)) or first)
    seqs = tuple(range(first, min(last, first + 2 * PUBLISH_MAX - 1) + 1))
    by_seq: dict[int, Message] = {}

    def add(page: list[Message], _is_last: bool) -> None:
        by_seq.update((row.seq, row) for row in page)

    def add_last(page: list[Message], is_last: bool) -> None:
        add(page, is_last)
        rows = [by_seq[seq] for seq in seqs if seq in by_seq]
        answer: Published | RefusedError = _as_published(rows, first)
        queue = core.queues.get(name)
        originals = [row for row in rows if not _is_record(row, first)]
        unmatched = iter(messages)  # in order; other rows than these may be missing
        is_same = (len(rows) < len(seqs) or len(originals) == len(messages)) and all(
            any(checksum(row.seq, body) == row.crc for body, _ in unmatched) for row in originals
        )
        if not is_same:
            answer = RefusedError(
                "key_conflict",
                f"the key {key.decode('utf-8', 'backslashreplace')!r} belongs to an earlier publish"
                " with other content. Repeat a publish unchanged, or choose a new key.",
            )
            core.refused[reasons.KEY_REUSED] += 1
            entry.result = answer.code
            core.record_audit(entry, 0)
        if queue is not None:
            queue.counters.deduplicated += is_same
            queue.counters.refused += not is_same
        core.reply(reply, answer)

    rows = core.batch.rows
    rows.append(RowsRequest(add, seqs))
    rows.append(RowsRequest(add_last, seqs, settled=True))
    core.record_audit(entry, 0)


def _is_record(row: Message, first: int) -> bool:
    """Return whether a row is the dead-letter record of a message published with it."""
    about, reason = row.source.seq, row.source.reason
    return about is not None and reason is not None and first <= about < row.seq


def _as_published(rows: Sequence[Message], first: int) -> Published:
    """Rebuild a publish reply from message rows, each followed by its dead-letter record, if any.

    If a message has left the history but its record still exists, the record's id is used instead.
    """
    published = Published([])
    message_id = ""
    before: int | None = None  # seq of the message that a record may belong to
    for row in rows:
        is_record = _is_record(row, first)
        if not is_record or row.source.seq != before:
            message_id = row.message_id.decode()
            published.append(message_id)
        if is_record:
            published.quarantined[message_id] = row.source.reason or ""
        before = row.seq
    return published
