"""Acknowledgement timeouts: messages that consumers have held too long."""

from collections.abc import Iterable

from phpmq_lite.broker.queue import Connection, Queue
from phpmq_lite.model import Message


class AckTimeouts:
    """Finds messages held longer than ``ack_timeout_s``; ``next_ms`` is the time of the next check.

    A timeout starts at ``Message.held_since_ms``; a consumer's ``held`` begins with the oldest.
    """

    def __init__(self) -> None:
        self.next_ms: int | None = None  # no timeout can occur before this steady-clock time

    def watch(self, by_id: dict[int, Queue], dispatched: Iterable[Message], now_ms: int) -> None:
        """Schedule a check for the earliest timeout among newly dispatched messages."""
        for queue_id in {message.queue_id for message in dispatched}:
            queue = by_id.get(queue_id)  # None if the queue was emptied and removed in this batch
            if queue is not None and (timeout_s := queue.settings.ack_timeout_s):
                at = now_ms + timeout_s * 1_000
                if self.next_ms is None or at < self.next_ms:
                    self.next_ms = at

    def postpone(self, connections: Iterable[Connection], gap_ms: int) -> None:
        """Extend all timeouts by ``gap_ms``, the time that the process was suspended."""
        for connection in connections:
            for consumer in connection.consumers.values():
                for message in consumer.held.values():
                    message.held_since_ms += gap_ms
        if self.next_ms is not None:
            self.next_ms += gap_ms

    def take_overdue(self, connections: Iterable[Connection], now_ms: int) -> list[Message]:
        """Return messages held longer than the timeout, for the caller to put back in their queues.

        A message that has not been sent yet is not overdue: its timeout starts when it is sent.
        """
        overdue: list[Message] = []
        if self.next_ms is None or self.next_ms > now_ms:
            return overdue
        soonest: int | None = None
        for connection in connections:
            for consumer in connection.consumers.values():
                timeout_ms = consumer.queue.settings.ack_timeout_s * 1_000
                if not timeout_ms:
                    continue
                for message in consumer.held.values():
                    if not message.is_sent:
                        message.held_since_ms = now_ms  # sending was delayed by a slow disk
                    at = message.held_since_ms + timeout_ms
                    if at > now_ms:
                        soonest = at if soonest is None else min(soonest, at)
                        break
                    overdue.append(message)
        self.next_ms = soonest
        return overdue
