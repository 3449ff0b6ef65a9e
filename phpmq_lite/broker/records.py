"""Dead-letter records that clients write themselves, and what the broker's own ones contain."""

from collections.abc import Sequence

from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import DeadLetterCause, EnvelopeInspector, Message

Written = Sequence[tuple[bytes, bytes]]  # id and content of records, oldest first


def note_source(
    envelopes: EnvelopeInspector,
    record: Message,
    content: bytes,
    queues: dict[str, Queue],
    known: dict[int, Message],
) -> None:
    """Tie a record that a client published to the message it is about, as far as it says.

    The message may be on disk, where its whole id is compared when it dies (``own_record``).
    """
    if b'"dead_letter"' not in content:
        return
    source = envelopes.source(content)
    if source is None:
        return
    record.source_reason = source.reason
    seq = seq_of(source.message_id)
    about = None if seq is None else known.get(seq)
    if about is not None and about.message_id == source.message_id:
        record.source_queue_id = about.queue_id
    elif (origin := queues.get(envelopes.origin(content) or "")) is not None:
        record.source_queue_id = origin.queue_id
    if seq is not None and 0 < seq < record.seq:
        record.source_seq = seq


def note_held_source(
    envelopes: EnvelopeInspector, record: Message, content: bytes, known: dict[int, Message]
) -> None:
    """Tie a record in a queue of another kind to the message that its writer got.

    No other program's: else anybody could have any message pass for a record.
    """
    if content.rfind(b'"dead_letter"') < 0:  # from the end, where it is: a third of the time
        return
    source = envelopes.source(content)
    if source is None:
        return
    about = known.get(seq_of(source.message_id) or 0)
    if (
        about is not None
        and about.message_id == source.message_id
        and about.consumer is not None
        and about.consumer == record.publisher
    ):
        record.source_seq = about.seq
        record.source_queue_id = about.queue_id
        record.source_reason = source.reason


def seq_of(message_id: bytes) -> int | None:
    """Read the arrival number in an id of the wire; None where it is none of ours."""
    try:
        return int(message_id[:16], 16) if len(message_id) == 32 else None
    except ValueError:
        return None


def own_record(
    envelopes: EnvelopeInspector | None, message: Message, written: Written
) -> tuple[bytes, str] | None:
    """Find the record that a client wrote about a message: its id, and the cause it gives."""
    for record_id, content in written:
        source = None if envelopes is None else envelopes.source(content)
        if source is not None and source.message_id == message.message_id:
            return record_id, source.reason
    return None


def cause_of(
    envelopes: EnvelopeInspector | None, message: Message, queue: Queue, body: bytes, reason: str
) -> str:
    """Give the exact cause of a bare 006: a worker cannot write a block into all envelopes."""
    if reason != "client" or envelopes is None or not queue.looks or message.urn is None:
        return reason
    return envelopes.unread(body) or reason


def content_of(
    envelopes: EnvelopeInspector | None,
    message: Message,
    queue: Queue,
    body: bytes,
    reason: str,
    detail: str,
    at_ms: int,
) -> bytes:
    """Make the content of a record, at a Unix time; on an opaque queue that of the message."""
    if envelopes is None or not queue.looks:
        return body
    death = DeadLetterCause(queue.name, message.message_id, reason, detail, at_ms)
    return envelopes.record(body, queue.settings, death)
