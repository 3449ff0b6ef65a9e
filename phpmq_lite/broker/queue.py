"""Queues in memory, with their settings, counters and consumers, and client connections."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from phpmq_lite.broker import reasons
from phpmq_lite.broker.rate_limit import RateLimit
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.broker.reasons import Refusal
from phpmq_lite.losses import DEAD_LETTER, Losses, count_loss
from phpmq_lite.model import BEFORE_ALL, Message, OrderedSet, Peer, QueueRow
from phpmq_lite.queue_settings import (
    DEAD_LETTER_SUFFIX,
    FORWARD,
    HOME_SETTINGS,
    RETRY_SUFFIX,
    QueueSettings,
    home_of,
    to_dict,
)

_REASONS_MAX: Final = 30
# Without acknowledgements, a new credit may put messages back 20 times at once, and 10 times a
# second after that.
CREDIT_CHANGES: Final = 20
CREDIT_CHANGE_MS: Final = 100


class Connection:
    """A client connection, as the core sees it."""

    def __init__(self, number: int, peer: Peer, kind: str, address: str, opened_at: int) -> None:
        self.number = number  # client number
        self.peer = peer
        self.kind = kind
        self.address = address
        self.opened_at = opened_at  # Unix ms
        self.consumers: dict[int, Consumer] = {}  # keyed by queue_id
        self.is_open = True
        self.is_blocked = False  # True while the write buffer is full
        self.batch_number = 0  # number of the batch that batch_bytes refers to
        self.batch_bytes = 0  # bytes dispatched to this connection in that batch
        self.parked: Queue | None = None  # queue that the connection's publish waits for
        self.pending: set[int] = set()  # seqs of dead letters that later commands must wait for
        self.published = 0
        self.acked = 0
        self._acked_before = 0  # ``acked`` when the connection last put messages back
        self._credit_ms = 0  # steady time up to which such changes are used up

    def may_replace_credit(self, now_ms: int) -> bool:
        """Return whether a new credit may put back messages now, and count it if so.

        Otherwise a consumer that repeats its 002 keeps the broker busy with the same messages.
        """
        if self.acked != self._acked_before:
            self._acked_before, self._credit_ms = self.acked, 0
        at = max(self._credit_ms, now_ms) + CREDIT_CHANGE_MS
        if at > now_ms + CREDIT_CHANGES * CREDIT_CHANGE_MS:
            return False
        self._credit_ms = at
        return True

    @property
    def creator(self) -> str:
        """Return the connection's kind and host, the recorded creator of any queue it creates."""
        host = self.address.rpartition(":")[0]
        return f"{self.kind} {host}" if host else self.kind


class SubscriptionHolder:
    """Stand-in holder for messages that subscriptions hold; such messages are on disk only."""

    __slots__ = ()
    connection = None  # compares unequal to every connection


SUBSCRIPTION: Final = SubscriptionHolder()


@dataclass(slots=True, eq=False)
class Consumer:
    """A connection's credit on one queue, and the messages that it holds, oldest first."""

    connection: Connection
    queue: "Queue"
    credit: int  # maximum number of unacknowledged messages
    held: dict[bytes, Message] = field(default_factory=dict)  # keyed by message id
    held_bytes: int = 0
    is_waiting: bool = False  # True while in queue.waiting_consumers
    has_info: bool = False  # whether dispatches go out as 013


# Those of QueueCounters of which each event changes one.
_counted_events: Final = attrgetter(
    *("published", "deduplicated", "dispatched", "acked", "requeued", "retried", "returned"),
    *("forwarded", "moved", "expired", "dead", "deleted", "restored", "refused"),
)


@dataclass(slots=True)
class QueueCounters:
    """Event counts for one queue since the broker started.

    Every field is a count: ``server/status.py`` reports all of them, and metrics sum them over the
    queues.  What is not a count belongs to ``Queue``.
    """

    published: int = 0  # from all sources: TCP, and the three counted separately below
    published_http: int = 0
    published_ui: int = 0
    published_cli: int = 0
    deduplicated: int = 0  # publish commands whose key was already stored
    dispatched: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0  # by consumers and operators
    requeued_operator: int = 0
    retried: int = 0  # failed attempts that workers reported
    returned: int = 0
    forwarded: int = 0
    moved: int = 0
    expired: int = 0
    expired_never: int = 0  # expired messages that were never dispatched
    dead: int = 0
    deleted: int = 0
    restored: int = 0
    refused: int = 0

    @property
    def activity(self) -> int:
        """Return a number that increases with every event on the queue."""
        return sum(_counted_events(self))

    def count_source(self, source: str, number: int = 1) -> None:
        """Count messages published through the web UI (``ui``), API (``http``) or CLI (``cli``)."""
        if source == "http":
            self.published_http += number
        elif source == "ui":
            self.published_ui += number
        elif source == "cli":
            self.published_cli += number


class Queue:
    """A queue.  Without consumers, it has no ``window`` and all its messages are on disk only."""

    def __init__(self, row: QueueRow, defaults: QueueSettings) -> None:
        self.row = row
        self.queue_id = row.queue_id
        self.name = row.name
        self.is_dead_letter_queue = row.name.endswith(DEAD_LETTER_SUFFIX)
        self.is_retry_queue = row.name.endswith(RETRY_SUFFIX)
        self.settings = effective_settings(row, defaults)
        self.inspects = False  # whether contents are inspected; set by QueueRegistry.configure
        self.validates = False  # whether invalid envelopes are dead-lettered immediately
        self.is_bounded = False  # whether the queue may refuse a message
        self.stop: Refusal | None = None  # why the entire broker refuses messages
        self.consumers: dict[Connection, Consumer] = {}
        self.waiting_consumers: deque[Consumer] = deque()  # consumers with free credit, in order
        self.window: ReadyWindow | None = None
        self.claimed_to = BEFORE_ALL  # all ready messages have higher positions
        self.held = 0  # messages held by consumers; Broker.count_held changes these
        self.held_bytes = 0
        self.claimed = 0  # messages held by subscriptions
        self.rate: RateLimit | None = None  # set if max_rate is
        self.has_groups = False
        self.needs_body = False  # whether groups depend on contents
        self.is_limited = False  # whether a limit on deliveries or groups apply
        # publishers waiting for the queue to accept messages
        self.parked = OrderedSet[Connection]()
        self.counters = QueueCounters()
        self.dead_by_reason: dict[str, int] = {}  # counters.dead, broken down by reason
        self.losses: Losses = {}  # dead letters and expiries since the roll-ups took them
        self.records: dict[int, int] | None = None  # live dead letters by queue_id of their source
        # Histograms (see histogram.py) are None until needed, because each list takes 2 KB.
        # If there are many queues, most of them are idle.
        self.wait_histogram: list[int] | None = None  # times from publish to first dispatch
        self.hold_histogram: list[int] | None = None  # times from dispatch to settlement

    def apply_limits(self) -> None:
        """Limit deliveries as the settings say; what is left of an unchanged rate stays."""
        settings, rate = self.settings, self.rate
        limits = (settings.max_rate, settings.max_burst)
        if not settings.max_rate:
            self.rate = None
        elif rate is None or (rate.rate, rate.own_burst) != limits:
            self.rate = RateLimit(*limits)
        self.has_groups = bool(settings.group_by)
        self.needs_body = settings.group_by.startswith("/")
        self.is_limited = bool(settings.max_rate or settings.max_in_flight or settings.group_by)

    def start_rate(self, now_ms: int) -> None:
        """Begin to fill the bucket of the rate at a steady time, unless that has begun."""
        if self.rate is not None:
            self.rate.available(now_ms)

    @property
    def dispatched(self) -> int:
        """Return the number of messages held by consumers or subscriptions."""
        return self.held + self.claimed

    def is_used_up(self, message: Message) -> bool:
        """Return whether a message has used up the queue's ``max_deliveries``."""
        return 0 < self.settings.max_deliveries <= message.charged

    def count_dead_letter(self, reason: str, urn: str | None) -> None:
        """Count a dead letter by reason; if there are too many reasons, count it as ``other``."""
        count_loss(self.losses, DEAD_LETTER, reason, urn)
        if reason not in self.dead_by_reason and len(self.dead_by_reason) >= _REASONS_MAX:
            reason = "other"
        self.dead_by_reason[reason] = self.dead_by_reason.get(reason, 0) + 1

    def count_record(self, source_id: int, change: int) -> None:
        """Count a dead letter of another queue that is added here (1) or leaves (-1).

        After a restart, only dead-letter queues know the records that they had before.
        """
        self.records = self.records or {}
        self.records[source_id] = self.records.get(source_id, 0) + change

    def refusal(self, number: int = 1, size: int = 1) -> Refusal | None:
        """Return why the queue currently refuses ``number`` messages of ``size`` bytes, or None.

        A single message may exceed the remaining bytes.
        """
        settings, row = self.settings, self.row
        if self.stop is not None:
            return self.stop
        if settings.publishing_paused:
            return reasons.PAUSED
        if settings.max_messages and row.live_count + number > settings.max_messages:
            return reasons.FULL_OF_MESSAGES
        if settings.max_bytes and row.live_bytes + size > settings.max_bytes:
            return reasons.FULL_OF_BYTES
        return None


def effective_settings(
    row: QueueRow,
    defaults: QueueSettings,
    *,
    has_records: bool = False,
    home: QueueSettings | None = None,
) -> QueueSettings:
    """Return a queue's settings; defaults depend on the queue's name or come from the broker.

    ``has_records`` marks a dead-letter queue whose name does not show it.  ``home`` holds the
    settings of the queue that a ``.retry`` queue forwards to, which also apply to validation.
    """
    values = to_dict(defaults)
    if (name := home_of(row.name)) is not None:
        values["on_expire"] = FORWARD + name
        if home is not None:
            values |= {key: getattr(home, key) for key in HOME_SETTINGS}
    is_dead_letter_queue = has_records or row.name.endswith(DEAD_LETTER_SUFFIX)
    if is_dead_letter_queue:
        values["max_deliveries"] = 0  # dead letters of this queue would have nowhere to go
    values |= row.own
    if is_dead_letter_queue and values["payload_policy"] == "envelope":
        values["payload_policy"] = "observe"  # records of invalid content are not envelopes
    return QueueSettings(**values)


class AckTimeouts:
    """Finds messages held longer than ``ack_timeout_s``; ``next_ms`` is the time of the next check.

    A timeout starts at ``Message.held_since_ms``; a consumer's ``held`` begins with the oldest.
    """

    def __init__(self) -> None:
        self.next_ms: int | None = None  # no timeout can occur before this steady-clock time
        # Held message -> end of its hold, if its holder asked for another one.
        self._extended: dict[Message, int] = {}

    def watch(self, by_id: dict[int, Queue], dispatched: Iterable[Message], now_ms: int) -> None:
        """Schedule a check for the earliest timeout among newly dispatched messages."""
        for queue_id in {message.queue_id for message in dispatched}:
            queue = by_id.get(queue_id)  # None if the queue was emptied and removed in this batch
            if queue is not None and (timeout_s := queue.settings.ack_timeout_s):
                at = now_ms + timeout_s * 1_000
                if self.next_ms is None or at < self.next_ms:
                    self.next_ms = at

    def extend(self, message: Message, end_ms: int) -> None:
        """Set the steady time when the hold of a message ends, sooner or later than before."""
        self._extended[message] = end_ms
        self.next_ms = end_ms if self.next_ms is None else min(self.next_ms, end_ms)

    def forget(self, message: Message) -> None:
        """Forget another end of a hold, because the message returns or settles."""
        if self._extended:
            self._extended.pop(message, None)

    def end_of(self, message: Message) -> int | None:
        """Return the steady time when the hold of a message ends, or None if it does not."""
        if (end_ms := self._extended.get(message)) is not None:
            return end_ms
        timeout_s: int = message.holder.queue.settings.ack_timeout_s
        return message.held_since_ms + timeout_s * 1_000 if timeout_s else None

    def extending(self) -> set[tuple[int, int | None]]:
        """Return the queue_ids and client numbers of clients that changed the end of a hold."""
        return {(message.queue_id, message.consumer) for message in self._extended}

    def recheck(self, now_ms: int) -> None:
        """Check all held messages in this batch, because a timeout has changed."""
        self.next_ms = now_ms

    def postpone(self, connections: Iterable[Connection], gap_ms: int) -> None:
        """Extend all timeouts by ``gap_ms``, the time that the process was suspended."""
        for connection in connections:
            for consumer in connection.consumers.values():
                for message in consumer.held.values():
                    if message in self._extended:
                        self._extended[message] += gap_ms
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
                    if message in self._extended:
                        continue
                    if not message.is_sent:
                        message.held_since_ms = now_ms  # sending was delayed by a slow disk
                    at = message.held_since_ms + timeout_ms
                    if at > now_ms:
                        soonest = at if soonest is None else min(soonest, at)
                        break
                    overdue.append(message)
        ends = (soonest, self._take_extended(overdue, now_ms))
        self.next_ms = min((at for at in ends if at is not None), default=None)
        return overdue

    def _take_extended(self, overdue: list[Message], now_ms: int) -> int | None:
        """Add messages whose extended hold has ended; return when the next one does."""
        soonest: int | None = None
        for message, end_ms in list(self._extended.items()):
            if message.holder is None:  # acknowledged
                del self._extended[message]
            elif end_ms > now_ms:
                soonest = end_ms if soonest is None else min(soonest, end_ms)
            else:
                overdue.append(message)
        return soonest
