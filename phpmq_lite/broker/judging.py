"""The verdict on what is published to an ``envelope`` queue: at once, or ahead where it is large.

A verdict costs 0.1 s a MiB, so a large content is judged in a thread before its batch.
"""

from collections.abc import Callable
from typing import Final

from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import Queue
from phpmq_lite.broker.records import Written, cause_of, own_record
from phpmq_lite.model import Death, Judged, Looked

ASIDE_BYTES: Final = 64 << 10  # longer content is judged ahead
_NOTHING: Final = Looked(None, None, None, None)


def verdict(lives: Lives, queue: Queue, body: bytes, judged: Judged | None = None) -> Looked | None:
    """Give what is to be known of a content before it is stored; None: judge it ahead.

    ``judged`` counts only while the queue has the settings that it was judged by.
    """
    if judged is not None and judged.settings is queue.settings:
        return judged.looked
    if len(body) > ASIDE_BYTES:
        return None
    return lives.look(queue, body) or _NOTHING


def work(lives: Lives, queue: Queue, body: bytes) -> Callable[[], Judged]:
    """Give what judges a content, to be called in a thread; it makes the record too."""
    envelopes, settings, at_ms = lives.envelopes, queue.settings, lives.now.wall_ms
    name, stand_in = queue.name, b"%016x%016x" % (lives.token(), lives.token())

    def judge() -> Judged:
        looked = None if envelopes is None else envelopes.look(body, settings)
        if envelopes is not None and looked is not None and looked.reason is not None:
            death = Death(name, stand_in, looked.reason, looked.detail, at_ms)
            record = envelopes.record(body, settings, death)
            looked = looked._replace(record=(stand_in, record))
        return Judged(settings, looked or _NOTHING)

    return judge


def bury_large(lives: Lives, seq: int, body: bytes, written: Written) -> bool:
    """Have the record of a dying message made in a thread where that takes long.

    Returns False where it need not be: bury it at once.
    """
    message, reason = lives.dying[seq]
    queue, envelopes = lives.by_id[message.queue_id], lives.envelopes
    if (
        len(body) <= ASIDE_BYTES
        or envelopes is None
        or not queue.looks
        or queue.is_dead_letter_queue
        or own_record(envelopes, message, written) is not None
    ):
        return False
    name, settings = queue.name, queue.settings
    at_ms = lives.now.wall_ms

    def make() -> tuple[str, bytes]:
        cause = cause_of(envelopes, message, queue, body, reason)
        death = Death(name, message.message_id, cause, "", at_ms)
        return cause, envelopes.record(body, settings, death)

    def bury(made: tuple[str, bytes]) -> None:
        lives.bury(message, made[0], body, content=made[1])

    lives.batch.aside.append((make, bury))
    return True
