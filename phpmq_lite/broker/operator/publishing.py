"""All-or-nothing publishing of messages from the admin pages, the API or the command line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Final, NamedTuple, Self

from phpmq_lite.broker import reasons, retry_queues, transitions, unique_keys, validation
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.publish_keys import last_key
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.unique_keys import KeyState
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import PLAIN, PublishOptions
from phpmq_lite.model import (
    AuditEntry,
    EnvelopeInspection,
    Message,
    Reply,
    RowsRequest,
    ValidatedPublish,
    checksum,
)
from phpmq_lite.queue_settings import KEY_BYTES, home_of
from phpmq_lite.writes import LinkMessages


class NewMessage(NamedTuple):
    """A message to publish; ``ttl_s`` is None for the queue's default and 0 for no expiry."""

    body: bytes
    ttl_s: float | None = None
    options: PublishOptions = PLAIN

    def delayed_by_ttl(self) -> Self:
        """Return the message as it is delivered in NAME when it is published to NAME.retry."""
        return self._replace(ttl_s=None, options=self.options.delayed_by(self.ttl_s))


@dataclass(slots=True)
class Published:
    """Ids of the messages, in order; ``quarantined`` maps ids of invalid messages to reasons.

    ``existing`` are those of live messages that have the unique keys of messages not stored.
    """

    ids: list[str]
    quarantined: dict[str, str] = field(default_factory=dict)
    existing: frozenset[str] = frozenset()

    @property
    def stored(self) -> list[str]:
        """Ids of the messages that were stored."""
        return [message_id for message_id in self.ids if message_id not in self.existing]


PUBLISH_MAX: Final = 1_000


def publish(
    core: Broker,
    reply: Callable[[Published], None],
    entry: AuditEntry,
    name: str,
    messages: Sequence[tuple[bytes, float | None] | NewMessage],
    *,
    key: bytes | None = None,
    source: tuple[int, str] | None = None,
    create: bool = True,
    validated: Sequence[ValidatedPublish] = (),
) -> None:
    """Store all messages at the end of a queue, or none of them.  Reply with ``Published``.

    Messages whose unique key a live message has are not stored; the reply has that one's id.
    Large messages are validated in a thread first; if the request is refused after that, the reply
    is a RefusedError.  ``validated`` holds the results.
    Repeating a ``key`` within the receipt window stores nothing and sends the same reply again.
    ``source`` is a seq and an event kind: the first message is linked to that seq by such events.
    Raises RefusedError: ``draining``, ``bad_name``, ``unknown_queue``, ``too_many_queues``,
    ``too_many``, ``bad_key``, ``key_conflict``, ``paused``, ``queue_full``, ``disk_full`` or
    ``database_full``.
    """
    core.check_not_draining()
    sent, (name, new) = name, _delivered(core, name, messages)
    is_delayed = name != sent
    if (count := len(new)) > PUBLISH_MAX:
        raise RefusedError("too_many", f"{count} messages given; the limit is {PUBLISH_MAX}")
    if key is not None and not 0 < len(key) <= KEY_BYTES:
        detail = f"the key is {len(key)} bytes long; it must have 1 to {KEY_BYTES} bytes"
        raise RefusedError("bad_key", detail)
    existing = core.destination(name, entry.actor, create=create)
    find_key = partial(retry_queues.find_key, core, sent, is_delayed=is_delayed)
    if key is not None and (first := find_key(key)[1]):
        last = find_key(last_key(key))[1] or first
        _reply_again(core, entry, name, (key, first, last), new, reply)
        return
    _check_accepts_all(core, core.queues.get(sent) if is_delayed else existing, new)
    queue = core.registry.get_or_create(core.batch, name, entry.actor)
    if queue is None:  # unexpected, because destination() has checked the limit
        raise RefusedError("too_many_queues", "the queue limit is reached (limits.max_queues)")
    inspections = _validate_inline(core, queue, new, validated)
    publish_again = partial(publish, core, reply, entry, sent, messages, key=key, source=source)
    if inspections is None:
        _validate_in_background(core, queue, new, partial(publish_again, create=create), reply)
        return
    bad = _invalid_reasons(core, queue, new, inspections)
    if (live := _find_keys(core, queue, new)) is None:
        core.run_after_load(partial(publish_again, create=create, validated=validated), reply)
        return
    published, stored = _store(core, queue, entry, new, inspections, live)
    if key is not None and len(stored) == len(published):
        _store_key(core, -queue.queue_id if is_delayed else queue.queue_id, key, stored)
    if source is not None and stored:
        _record_source(core, stored[0], *source)
    core.record_audit(entry, len(stored))
    ids = [message.message_id.decode() for message in published]
    stored_ids = {message.message_id.decode() for message in stored}
    quarantined = {ids[at]: bad[at] for at in bad if ids[at] in stored_ids}
    core.reply(reply, Published(ids, quarantined, frozenset(ids) - stored_ids))


def publish_at_once(
    core: Broker, entry: AuditEntry, name: str, message: NewMessage
) -> Message | None:
    """Store a message without a unique key in a queue that exists, and return it.

    Returns None if this batch has no room to validate it.  Its content must be small enough to be
    validated in a batch.  Raises RefusedError as ``publish``.
    """
    if retry_queues.delayed_name(core, name, message.ttl_s):
        name, message = home_of(name) or name, message.delayed_by_ttl()
    queue = core.find_queue(name)
    _check_accepts_all(core, queue, [message])
    inspections = _validate_inline(core, queue, [message], ())
    if inspections is None:
        return None
    _invalid_reasons(core, queue, [message], inspections)
    _, [stored] = _store(core, queue, entry, [message], inspections, {})
    return stored


def _delivered(
    core: Broker, name: str, messages: Sequence[tuple[bytes, float | None] | NewMessage]
) -> tuple[str, list[NewMessage]]:
    """Return where and as what messages are stored; those for NAME.retry are delayed in NAME."""
    new = [NewMessage(*message) for message in messages]
    if new and all(retry_queues.delayed_name(core, name, message.ttl_s) for message in new):
        return home_of(name) or name, [message.delayed_by_ttl() for message in new]
    return name, new


def _record_source(core: Broker, message: Message, source_seq: int, kind: str) -> None:
    """Link a new message to its source, whose token the writer looks up."""
    at_ms = core.now.wall_ms
    core.batch.events += (source_seq, at_ms, kind, message.message_id.decode())
    core.batch.writes.append(LinkMessages(message.seq, at_ms, kind, source_seq))


def _store(
    core: Broker,
    queue: Queue,
    entry: AuditEntry,
    messages: Sequence[NewMessage],
    inspections: Sequence[EnvelopeInspection | None],
    live: dict[str, Message],
) -> tuple[list[Message], list[Message]]:
    """Store messages; return those that now have their unique keys, and of these the new ones.

    ``live`` has the messages with unique keys as they are now.  What is stored may push them out of
    memory, so they are not looked for again.
    """
    client = core.client_number_of(entry)
    published: list[Message] = []
    stored: list[Message] = []
    for (body, ttl_s, options), inspection in zip(messages, inspections, strict=True):
        key = options.unique_key
        message = None if key is None else live.pop(key, None)
        if message is not None and options.replaces:
            unique_keys.replace(core, message)
            message = None
        if message is None:
            message = transitions.publish(core, queue, body, ttl_s, client, inspection, options)
            stored.append(message)
        if key is not None and core.unique[queue.queue_id, key] == message.seq:
            live[key] = message
        published.append(message)
    queue.counters.count_source(entry.source, len(stored))
    queue.counters.deduplicated += len(published) - len(stored)
    return published, stored


def _find_keys(
    core: Broker, queue: Queue, messages: Sequence[NewMessage]
) -> dict[str, Message] | None:
    """Return the live messages with unique keys; None if their rows are requested, but not here.

    Raises RefusedError: ``unique_key_held``.
    """
    are_replaced: dict[str, bool] = {}
    for _, _, options in messages:
        if (key := options.unique_key) is not None:
            are_replaced[key] = options.replaces or are_replaced.get(key, False)
    current = {key: unique_keys.find(core, queue, key) for key in are_replaced}
    for key, message in current.items():
        if (
            are_replaced[key]
            and isinstance(message, Message)
            and unique_keys.is_held(core, message)
        ):
            core.refused[reasons.UNIQUE_KEY_HELD] += 1
            raise RefusedError(
                reasons.UNIQUE_KEY_HELD,
                f"a consumer holds the message with the unique key {key!r}; it can be"
                " replaced once it has returned or is settled",
            )
    if KeyState.UNKNOWN not in current.values():
        return {key: live for key, live in current.items() if isinstance(live, Message)}
    for key, message in current.items():  # the next batch forgets what this one knows
        core.batch.change_delivery().unique_keys.add((queue.queue_id, key))
        if isinstance(message, Message):
            core.batch.seqs.add(message.seq)
    return None


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
    for (body, *_), result in zip_longest(messages, validated):
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
    works = [validation.background_validation(core, queue, body) for body, *_ in messages]

    def resume(validated: list[ValidatedPublish]) -> None:
        core.run_late(partial(publish_again, validated=validated), reply)

    core.batch.background.append((lambda: [work() for work in works], resume))


def _check_accepts_all(core: Broker, queue: Queue | None, messages: Sequence[NewMessage]) -> None:
    if (stop := core.registry.publishing_stop) is not None:
        refusal, detail = reasons.SHORTAGE_REFUSALS[stop.kind], stop.detail
    elif queue is None:
        return
    else:
        queue_refusal = queue.refusal(len(messages), sum(len(message.body) for message in messages))
        if queue_refusal is None:
            return
        refusal, settings, row = queue_refusal, queue.settings, queue.row
        detail = f"max_bytes is {settings.max_bytes}; the queue has {row.live_bytes}"
        if refusal is reasons.PAUSED:
            detail = f"publishing to {queue.name!r} is paused"
        elif refusal is reasons.FULL_OF_MESSAGES:
            limit = settings.max_messages
            detail = f"max_messages is {limit}; the queue has {row.live_count}"
    core.refuse(queue, refusal, detail)


# -- repeated keys


def _store_key(core: Broker, scope: int, key: bytes, messages: list[Message]) -> None:
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
        core.batch.keys += core.publish_keys.add(scope, name, seq, now_ms)


def _reply_again(
    core: Broker,
    entry: AuditEntry,
    name: str,
    stored: tuple[bytes, int, int],
    messages: Sequence[NewMessage],
    reply: Reply,
) -> None:
    """Send the original reply again, rebuilt from its messages' live or settled rows on disk.

    ``stored`` is the key, its first and its last seq.  The reply is a RefusedError if the bodies
    differ; after a retry, they may.
    """
    key, first, last = stored
    last = max(first, last)
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
            row.options.may_be_rewritten
            or any(checksum(row.seq, body) == row.crc for body, *_ in unmatched)
            for row in originals
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
            published.ids.append(message_id)
        if is_record:
            published.quarantined[message_id] = row.source.reason or ""
        before = row.seq
    return published
