"""The turns of a life that only an operator asks for; ``lives.py`` has the others.

Each changes the message, the counters and the windows, and writes down what is to be stored.
Whether it is allowed is decided in ``actions.py``.
"""

from phpmq_lite.broker.lifecycle import Event
from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import Message, State, checksum


def requeue(lives: Lives, message: Message, ttl_s: int | None, detail: str) -> None:
    """Put a message at the end of its queue, uncharged; ``ttl_s`` None: it keeps its deadline."""
    queue = lives.by_id[message.queue_id]
    lives.let_go(message, queue)
    queue.totals.requeued += 1
    queue.totals.requeued_operator += 1
    lives.event(message, Event.REQUEUE, detail)
    if ttl_s is not None:
        lives.set_ttl(message, ttl_s)
    lives.put_at_end(message, queue)


def release(lives: Lives, message: Message, detail: str) -> None:
    """Take a message from its holder, back to its old place.  Nobody is charged.

    The former holder may still acknowledge it, while nobody else holds it.
    """
    queue = lives.by_id[message.queue_id]
    lives.let_go(message, queue)
    queue.totals.returned += 1
    lives.event(message, Event.RELEASE, detail)
    lives.put_in_place(message, queue)


def move(lives: Lives, message: Message, target: Queue) -> None:
    """Put a ready message at the end of another queue; its id and its deadline stay."""
    queue = lives.by_id[message.queue_id]
    lives.let_go(message, queue)
    lives.count_out(message, queue)
    queue.totals.moved += 1
    lives.event(message, Event.MOVE, f"{queue.name} to {target.name}")
    _count_in(lives, message, target)
    lives.put_at_end(message, target)


def place(lives: Lives, message: Message, target: Queue, position: int) -> None:
    """Put a ready message where it was before; that place was its own and nobody has it."""
    queue = lives.by_id[message.queue_id]
    lives.let_go(message, queue)
    lives.count_out(message, queue)
    lives.event(message, Event.PLACE, f"{queue.name} to {target.name}")
    _count_in(lives, message, target)
    message.queue_id, message.position = target.queue_id, position
    lives.put_in_place(message, target)


def restore(
    lives: Lives,
    old: Message,
    body: bytes,
    queue: Queue,
    ttl_s: int | None,
    deadline_ms: int | None,
) -> Message:
    """Store what was deleted as a new message, in the old one's place in ``queue``."""
    seq = lives.number()
    message = Message(
        seq, lives.token(), queue.queue_id, old.position, State.READY, ttl_s, deadline_ms,
        old.published_at, None, None, 0, 0, len(body), checksum(seq, body), old.publisher, None,
        old.urn, old.trace_id, old.meta_id, old.attempts,
        old.source_seq, old.source_queue_id, old.source_reason,
    )  # fmt: skip
    batch = lives.batch
    batch.born.append(message)
    batch.bodies += (seq, body)
    batch.born_bytes += len(body)
    queue.totals.restored += 1
    lives.note_deadline(deadline_ms)
    lives.event(old, "restore", message.message_id.decode())
    lives.event(message, "restore", old.message_id.decode())
    _count_in(lives, message, queue)
    queue.claimed_to = min(queue.claimed_to, message.position - 1)
    window = queue.window
    if window is not None:
        if len(body) <= lives.body_room(window):
            message.body = body
        if window.put_back(message):
            lives.known[seq] = message
        lives.hungry[queue.queue_id] = queue
    return message


def erase(lives: Lives, message: Message, detail: str) -> None:
    """Take the body of a settled message away for good; its row in the history stays."""
    rare = lives.batch.rare
    rare.append(("rare", "blank_body", (message.seq,)))
    rare.append(("rare", "erase_body", (message.seq,)))
    lives.event(message, "erase", detail)


def _count_in(lives: Lives, message: Message, queue: Queue) -> None:
    queue.row.live_count += 1
    queue.row.live_bytes += message.size
    lives.batch.queue_rows[queue.queue_id] = queue.row
