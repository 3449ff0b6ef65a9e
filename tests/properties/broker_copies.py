"""What the naive model keeps of a message, of a rate and of a sweep."""

from dataclasses import dataclass, field

from phpmq_lite.broker.retries import RetryRequest
from phpmq_lite.model import priority_of
from tests.support.core_and_store import Client, Command, OperatorCommand

Team = tuple[str, str]  # a queue with groups, and one of them


@dataclass(eq=False)
class Copy:
    """The model's idea of one message that is alive."""

    seq: int
    token: int
    queue: str
    position: int
    body: bytes
    deadline_ms: int | None
    publisher: int | None
    source: tuple[int, str, str] | None = None  # seq, queue, reason
    holder: Client | None = None
    held_since_ms: int = 0
    held_number: int = 0  # of all dispatches
    deliveries: int = 0
    charged: int = 0
    is_damaged: bool = False  # its body, on disk
    dying: str | None = None  # the reason: it cannot be dispatched, but its row still exists
    is_placed: bool = False  # by an operator or expiry, since its last dispatch: may have another
    ready_at: int | None = None  # Unix ms; None: when it was published
    due_ms: int | None = None  # steady ms when it becomes ready; None: it is not scheduled
    deliver_at: int | None = None  # or the date in Unix ms
    retries: int = 0
    failed_attempt: int = 0
    end_ms: int | None = None  # of its hold, if it was extended
    late: Command | None = None  # of another client, for when the hold ends unsettled
    group: str | None = None
    unique_key: str | None = None
    kept_priority: int = 128  # of a record: that of the message it is about
    is_head: bool = False  # of its group: it was dispatched
    retry: tuple[RetryRequest, bool] | None = None  # pending, and whether it was held
    moved_at: int = 0  # turn in which it took its place in the queue
    is_blocked: bool = False  # on disk, before this turn

    @property
    def priority(self) -> int:
        return priority_of(self.position)

    @property
    def is_scheduled(self) -> bool:
        return self.due_ms is not None

    @property
    def key_place(self) -> tuple[str, str] | None:
        """Queue and key that no other message may have; a record has none."""
        is_kept = self.unique_key is None or self.source is not None
        return None if is_kept else (self.queue, str(self.unique_key))

    @property
    def message_id(self) -> bytes:
        return b"%016x%016x" % (self.seq, self.token)

    @property
    def is_ready(self) -> bool:
        return self.holder is None and self.dying is None and not self.is_scheduled

    def is_due(self, now_ms: int) -> bool:
        return self.is_ready and self.deadline_ms is not None and self.deadline_ms <= now_ms


@dataclass(eq=False)
class Bucket:
    """The dispatches that a rate allows."""

    rate: float
    burst: int
    at_ms: int
    tokens: float = 0.0

    def fill(self, now_ms: int) -> None:
        gained = (now_ms - self.at_ms) * self.rate / 1_000
        self.tokens, self.at_ms = min(self.burst, self.tokens + gained), now_ms


@dataclass(eq=False)
class Sweep:
    question: OperatorCommand
    queue: str
    done: int = 0
    is_untouched: set[Copy] = field(default_factory=set)  # since it began
