"""Confirmed publishes that the broker has not answered yet: to be answered, or repeated."""

from collections.abc import Callable
from dataclasses import dataclass

from phpmq_lite.errors import (
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PublishRefusedError,
)

Answer = Callable[[ClientError | None], None]  # None: stored


@dataclass(slots=True)
class Unanswered:
    """One publish with its key; ``sent`` counts the connections it was written to."""

    queue: str
    content: bytes
    ttl_s: int
    key: bytes
    answer: Answer
    sent: int = 0


class Pending:
    """Unanswered publishes by queue and key, in the order in which they were made.

    The broker stores a key once, so all of them may be repeated on the next connection.
    One that ``max_sends`` connections ended without answering is given up: it may be what the
    broker closes them for.
    """

    __slots__ = ("_max_sends", "_waiting")

    def __init__(self, max_sends: int = 10) -> None:
        self._max_sends = max_sends
        self._waiting: dict[tuple[str, bytes], Unanswered] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, queue: str, content: bytes, ttl_s: int, key: bytes, answer: Answer) -> Unanswered:
        """Remember a publish until it is answered.

        Raises:
            LocalProtocolError: this key is waiting already.
        """
        if (queue, key) in self._waiting:
            raise LocalProtocolError(f"the key {key!r} waits for its receipt already")
        entry = self._waiting[queue, key] = Unanswered(queue, content, ttl_s, key, answer)
        return entry

    def answered(self, queue: str, key: bytes, reason: str | None) -> bool:
        """Answer a publish: stored, or refused for a ``reason``; False where nobody waits."""
        entry = self._waiting.pop((queue, key), None)
        if entry is None:
            return False
        entry.answer(None if reason is None else PublishRefusedError(reason))
        return True

    def drop(self, queue: str, key: bytes) -> None:
        """Forget a publish whose sender waits no longer; it may or may not be stored."""
        self._waiting.pop((queue, key), None)

    def drop_all(self, answer: Answer) -> None:
        """Forget every publish with this ``answer``."""
        for place in [at for at, entry in self._waiting.items() if entry.answer == answer]:
            del self._waiting[place]

    def to_repeat(self) -> list[Unanswered]:
        """Return what a new connection must be sent, oldest first; gives up on some."""
        hopeless = [entry for entry in self._waiting.values() if entry.sent >= self._max_sends]
        for entry in hopeless:
            del self._waiting[entry.queue, entry.key]
            detail = f"{entry.sent} connections ended before this publish was answered"
            entry.answer(ConnectionLostError(detail))
        return list(self._waiting.values())

    def fail(self, detail: str) -> None:
        """Answer all that wait: the connection is gone and does not come back."""
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.answer(ConnectionLostError(detail))


class Batch:
    """Counts the answers of many publishes: ``answered`` is the answer of each of them.

    ``notify`` is called after every answer.
    """

    __slots__ = ("_notify", "error", "stored", "unanswered")

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self.stored = 0
        self.unanswered = 0
        self.error: ClientError | None = None  # the first one

    def answered(self, error: ClientError | None) -> None:
        """Count one answer."""
        self.unanswered -= 1
        if error is None:
            self.stored += 1
        elif self.error is None:
            self.error = error
        self._notify()
