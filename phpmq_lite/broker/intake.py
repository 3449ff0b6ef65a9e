"""What was loaded after a commit comes in, at the beginning of the next batch.

A message may have come several times, as several objects: only one of them has a turn.
"""

from phpmq_lite.broker.judging import bury_aside
from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import CLAIMANT, Queue
from phpmq_lite.broker.records import Written
from phpmq_lite.model import Loaded, Message, State


def take(lives: Lives, loaded: Loaded) -> dict[int, Message | None]:
    """Take in what was loaded; return what was loaded by seq for the commands of this batch.

    Windows come first, before anything joins them at their end.  Bodies come last, because a
    message is dying, and passed over, until its body is here.
    """
    lives.gone.clear()
    for queue_id, page, reaches_end in loaded.windows:
        _extend_window(lives, lives.by_id[queue_id], page, reaches_end)
    named = _named(lives, loaded) if loaded.named else {}
    for _, page, _ in loaded.pages:
        _mark_claimed(lives, page)
    if loaded.asked_due:
        lives.next_deadline_ms = loaded.next_deadline_ms
        for row in loaded.due:
            if lives.dying.is_full:  # the others are asked for again
                lives.note_deadline(row.deadline_ms)
                break
            if row.seq not in lives.dying:
                lives.gone.add(row.seq)
                lives.expire(lives.known.get(row.seq, row))
    for give, page, is_last in loaded.pages:
        give(page, is_last)
    for give_rows, found in loaded.asked:
        give_rows(found)
    for seq, body in loaded.bodies.items():
        _take_body(lives, seq, body, loaded.records.get(seq, ()))
    return named


def _named(lives: Lives, loaded: Loaded) -> dict[int, Message | None]:
    """Return what was loaded by seq, but not what is in memory or may have a turn now."""
    others = {row.seq for row in loaded.due}
    for _, page, _ in loaded.pages:
        others.update(row.seq for row in page)
    others.update(lives.dying)
    named = {
        seq: row
        for seq, row in loaded.named.items()
        if seq not in lives.known and seq not in others
    }
    _mark_claimed(lives, [row for row in named.values() if row is not None])
    return named


def _mark_claimed(lives: Lives, rows: list[Message]) -> None:
    """What is dispatched on disk, and held by no connection, is held by a subscription."""
    for row in rows:
        if row.state == State.DISPATCHED and not (row.seq in lives.known or row.seq in lives.dying):
            row.holder = CLAIMANT


def _take_body(lives: Lives, seq: int, body: bytes | None, written: Written) -> None:
    if seq in lives.dying:
        if body is None or not bury_aside(lives, seq, body, written):
            lives.bury(*lives.dying[seq], body, written=written)
    elif (message := lives.known.get(seq)) is not None and message.holder is None:
        queue = lives.by_id[message.queue_id]
        if body is None:  # damaged: never delivered
            lives.bury(message, "crc", None)
        elif queue.window is not None:
            queue.window.keep_body(message, body)
            lives.hungry[queue.queue_id] = queue


def _extend_window(lives: Lives, queue: Queue, page: list[Message], reaches_end: bool) -> None:
    if queue.window is None:
        return
    page = [message for message in page if message.seq not in lives.dying]
    queue.window.extend(page, reaches_end)
    for message in page:
        lives.known[message.seq] = message
    lives.hungry[queue.queue_id] = queue
