"""Bulk work on the messages of a queue, in slices: one page of rows per batch.

A sweep looks at what was in the queue when it began; later arrivals are not included.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from phpmq_lite.broker import redriving
from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import Queue
from phpmq_lite.model import Message, PageRequest, State

SLICE = 1_000  # rows a batch
Answer = Callable[[Any], None]
Deed = Callable[[Message, bytes | None], bool | None]  # None: have its content read ahead
Noting = Callable[[int, bool], None]  # how many were done in a page; is it the last?


class Sweep:
    """One action over a queue; ``answer`` gets the number of messages it was done to."""

    def __init__(
        self,
        lives: Lives,
        queue: Queue,
        act: Deed,
        answer: Answer,
        note: Noting,
        *,
        limit: int | None = None,
        read_ahead: Callable[[list[Message], Callable[[], None]], None] | None = None,
    ) -> None:
        self._lives = lives
        self._queue = queue
        self._act = act  # True where it did something
        self._answer = answer
        self._note = note
        self._left = limit
        self._read_ahead = read_ahead  # None: no bodies are needed
        self._upto = lives.next_number - 1
        self.done = 0
        self._ask(after=0)

    def _ask(self, after: int) -> None:
        page = PageRequest(
            self.take, self._queue.queue_id, after, self._upto, SLICE,
            bodies=self._read_ahead is not None,
        )  # fmt: skip
        self._lives.batch.pages.append(page)

    def take(self, page: list[Message], is_last: bool) -> None:
        """Act on one page, then ask for the next or answer."""
        lives, before = self._lives, self.done
        for at, row in enumerate(page):
            if self._left == 0:
                break
            if row.seq in lives.dying or row.seq in lives.gone or row.seq > self._upto:
                continue  # the last: restored meanwhile, to an old place
            has_acted = self._act(lives.known.get(row.seq, row), row.body)
            if has_acted is None and self._read_ahead is not None:  # then from here again
                self._note(self.done - before, False)
                self._read_ahead(page[at:], partial(self._ask, after=row.position - 1))
                return
            if has_acted:
                lives.gone.add(row.seq)
                self.done += 1
                if self._left is not None:
                    self._left -= 1
        is_over = is_last or self._left == 0 or not page
        self._note(self.done - before, is_over)
        if is_over:
            self._lives.batch.answers.append((self._answer, self.done))
        else:
            self._ask(after=page[-1].position)


def purge(
    lives: Lives,
    queue: Queue,
    answer: Answer,
    note: Noting,
    *,
    with_dispatched: bool,
    limit: int | None,
) -> None:
    """Settle what is in the queue as deleted."""

    def act(message: Message, _body: bytes | None) -> bool:
        if message.state == State.DISPATCHED and not with_dispatched:
            return False
        lives.delete(message, "purge")
        return True

    Sweep(lives, queue, act, answer, note, limit=limit)


def redrive(
    lives: Lives,
    queue: Queue,
    answer: Answer,
    note: Noting,
    *,
    target: Queue | None,
    ttl_s: int | None,
    limit: int | None,
    source: str,
    queues: frozenset[int] | None = None,
) -> None:
    """Store each ready record again in its origin queue, or ``target``; the record settles.

    Those whose queue takes nothing now stay, and so do those that died in none of ``queues``.
    """
    target_id = None if target is None else target.queue_id
    reads: dict[int, redriving.Read] = {}

    def act(record: Message, body: bytes | None) -> bool | None:
        goal = None if target_id is None else lives.by_id.get(target_id)
        if target_id is not None and goal is None:  # it is gone by now
            return False
        way = redriving.find(lives, record, body, goal, queues, reads=reads)
        if way is None:
            return None
        if isinstance(way, str):
            return False
        redriving.redrive(lives, record, way.content, way.queue, ttl_s, way.looked)
        way.queue.totals.count_source(source)
        return True

    def read_ahead(page: list[Message], go_on: Callable[[], None]) -> None:
        goal = None if target_id is None else lives.by_id.get(target_id)
        redriving.read_ahead(lives, page, goal, reads, go_on)

    Sweep(lives, queue, act, answer, note, limit=limit, read_ahead=read_ahead)
