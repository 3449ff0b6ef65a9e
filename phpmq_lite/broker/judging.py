"""The verdict on what is published to an ``envelope`` queue: at once, or ahead where it is much.

A verdict costs 0.1 s a MiB, so a large content is judged in a thread before its batch, and so is
what comes when a batch has judged its fill (``Queues.takes_at_once``).
"""

from collections.abc import Callable
from typing import Final

from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.records import Written, cause_of, own_record
from phpmq_lite.model import (
    DeadLetterCause,
    EnvelopeInspector,
    Inspection,
    QueueSettings,
    Validated,
)

_NOTHING: Final = Inspection((None, None, None, None))


def verdict(
    lives: Lives, queue: Queue, body: bytes, judged: Validated | None = None
) -> Inspection | None:
    """Give what is to be known of a content before it is stored; None: judge it ahead.

    ``judged`` counts only while the queue has the settings that it was judged by.
    """
    if judged is not None and judged.settings is queue.settings:
        return judged.looked
    if not lives.takes_at_once(len(body)):
        return None
    looked = _NOTHING if lives.envelopes is None else lives.envelopes.judge(body, queue.settings)
    if looked.reason is not None:
        lives.batch.looked_bytes += len(body)  # once more, for its record
    return looked


def work(lives: Lives, queue: Queue, body: bytes) -> Callable[[], Validated]:
    """Give what judges a content, to be called in a thread; it makes the record too."""
    name, settings, at_ms, stand_in = queue.name, queue.settings, lives.now.wall_ms, token(lives)
    return lambda: judge(lives.envelopes, name, settings, body, at_ms, stand_in)


def token(lives: Lives) -> bytes:
    """Give what stands in a record for an id that its message has not yet."""
    return b"%016x%016x" % (lives.token(), lives.token())


def judge(
    envelopes: EnvelopeInspector | None,
    name: str,
    settings: QueueSettings,
    body: bytes,
    at_ms: int,
    stand_in: bytes,
) -> Validated:
    """Judge a content by the settings of a queue, and make its record where it is bad."""
    if envelopes is None:
        return Validated(settings, _NOTHING)
    looked = envelopes.judge(body, settings)
    if looked.reason is not None:
        death = DeadLetterCause(name, stand_in, looked.reason, looked.detail, at_ms)
        looked = looked._replace(record=(stand_in, envelopes.record(body, settings, death)))
    return Validated(settings, looked)


def bury_aside(lives: Lives, seq: int, body: bytes, written: Written) -> bool:
    """Have the record of a dying message made in a thread where this batch may not.

    Returns False where it need not be: bury it at once.
    """
    message, reason = lives.dying[seq]
    queue, envelopes = lives.by_id[message.queue_id], lives.envelopes
    if (
        envelopes is None
        or not queue.looks
        or queue.is_dead_letter_queue
        or own_record(envelopes, message, written) is not None
        or lives.takes_at_once(len(body))
    ):
        return False
    name, settings = queue.name, queue.settings
    at_ms = lives.now.wall_ms

    def make() -> tuple[str, bytes]:
        cause = cause_of(envelopes, message, queue, body, reason)
        death = DeadLetterCause(name, message.message_id, cause, "", at_ms)
        return cause, envelopes.record(body, settings, death)

    def bury(made: tuple[str, bytes]) -> None:
        lives.bury(message, made[0], body, content=made[1])

    lives.batch.aside.append((make, bury))
    return True
