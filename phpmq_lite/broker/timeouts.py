"""Messages that their consumers hold for too long go back to their place."""

from collections.abc import Iterable

from phpmq_lite.broker.lives import Lives
from phpmq_lite.broker.queue import Connection
from phpmq_lite.model import Message


class Timeouts:
    """Knows when to look next; the times stand in the messages, oldest first by consumer."""

    __slots__ = ("next_ms",)

    def __init__(self) -> None:
        self.next_ms: int | None = None  # no held message times out before it (steady)

    def note(self, lives: Lives, dispatched: Iterable[Message]) -> None:
        """See that these are looked at in time."""
        by_id = lives.by_id
        for queue_id in {message.queue_id for message in dispatched}:
            queue = by_id.get(queue_id)  # None: emptied and removed in the same batch
            if queue is not None and (timeout_s := queue.settings.ack_timeout_s):
                at = lives.now.steady_ms + timeout_s * 1_000
                if self.next_ms is None or at < self.next_ms:
                    self.next_ms = at

    def excuse(self, connections: Iterable[Connection], gap_ms: int) -> None:
        """Let a time not count in which nobody could have been heard: the process stood still."""
        for connection in connections:
            for consumer in connection.consumers.values():
                for message in consumer.held.values():
                    message.held_since_ms += gap_ms
        if self.next_ms is not None:
            self.next_ms += gap_ms

    def give_back(self, lives: Lives, connections: Iterable[Connection]) -> None:
        """Return what is due to its place, charged."""
        now_ms = lives.now.steady_ms
        if self.next_ms is None or self.next_ms > now_ms:
            return
        soonest: int | None = None
        for connection in connections:
            for consumer in connection.consumers.values():
                timeout_ms = consumer.queue.settings.ack_timeout_s * 1_000
                if not timeout_ms:
                    continue
                for message in list(consumer.held.values()):
                    if not message.is_sent:
                        message.held_since_ms = now_ms  # the disk is slow: its time begins later
                    at = message.held_since_ms + timeout_ms
                    if at > now_ms:
                        soonest = at if soonest is None else min(soonest, at)
                        break
                    lives.give_back(message, "acknowledgement timeout", is_charged=True)
        self.next_ms = soonest
