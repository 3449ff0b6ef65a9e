"""The way back of a dead-letter record: what is published again, where, and what it would meet."""

from dataclasses import dataclass

from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import Looked, Message, State


@dataclass(slots=True, frozen=True)
class Way:
    """Where a record goes, and as what."""

    queue: Queue
    content: bytes
    looked: Looked | None  # None: it is looked at when it is stored

    @property
    def poison(self) -> str | None:
        """Give the reason for which it would be quarantined again."""
        is_judged = self.queue.judges and self.looked is not None
        return self.looked.reason if is_judged and self.looked is not None else None


def is_record(lives: Lives, message: Message) -> bool:
    """Tell whether a message is a record: the broker's, or what a program may have published."""
    if message.source_queue_id is not None:
        return True
    return lives.envelopes is not None and lives.by_id[message.queue_id].is_dead_letter_queue


def find(
    lives: Lives,
    record: Message,
    body: bytes | None,
    target: Queue | None,
    queues: frozenset[int] | None = None,
    *,
    is_dry_run: bool = False,
) -> Way | str:
    """Find the way of a record, or say why it stays.

    Without a target it goes where it died, else where it says that it came from.  ``queues`` are
    those that it may go back to without a target, by queue_id; None: all.  A dry run makes no
    dead-letter queue where it would be needed.
    """
    if target is None and not is_record(lives, record):
        return "not a record"
    if record.state == State.DISPATCHED:
        return "dispatched"
    if body is None:
        return "damaged"
    origin = _origin(lives, record, body) if target is None else target
    if origin is None:
        return "queue gone" if record.source_queue_id is not None else "not a record"
    if origin.queue_id == record.queue_id:
        return "there already"
    if target is None and queues is not None and origin.queue_id not in queues:
        return "foreign queue"
    if (reason := origin.refusal()) is not None:
        return _short(reason)
    content = _revived(lives, record, body)
    if not origin.judges:
        return Way(origin, content, None)
    looked = lives.look(origin, content)
    if looked is not None and looked.reason is not None and not is_dry_run:
        full = lives.refuses_dead(origin)
        if full is not None:
            return _short(full[1])
    return Way(origin, content, looked)


def _origin(lives: Lives, record: Message, body: bytes) -> Queue | None:
    if record.source_queue_id is not None:
        return lives.by_id.get(record.source_queue_id)
    name = None if lives.envelopes is None else lives.envelopes.origin(body)
    return None if name is None else lives.queues.get(name)


def _revived(lives: Lives, record: Message, body: bytes) -> bytes:
    """Give the content as it is sent again; a record of an opaque queue has the original bytes."""
    died_in = lives.by_id.get(record.source_queue_id or 0)
    if lives.envelopes is None or (died_in is not None and not died_in.looks):
        return body
    return lives.envelopes.revive(body)


def _short(refusal: str) -> str:
    """Give the reason of a refusal without its bound: ``queue full``."""
    return refusal.removesuffix(": messages").removesuffix(": bytes")
