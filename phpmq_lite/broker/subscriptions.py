"""Who holds messages without a connection: the subscriptions of Spark queries.

What they hold is on disk only (table ``claim``), so memory does not grow with it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from phpmq_lite.broker.lives import Lives
from phpmq_lite.errors import RefusedError
from phpmq_lite.pipeline_rows import PipelineRows

MOST: Final = 1_000  # subscriptions


class Subscription:
    """One subscription; its commands take several batches, one after the other.

    Claims are numbered from 1 without gaps; ``acked_upto`` is the last that it gave back whole.
    """

    __slots__ = ("_is_letting_go", "_waiting", "acked_upto", "is_busy", "name", "next_claim",
                 "queue_id", "subscription_id")  # fmt: skip

    def __init__(
        self, subscription_id: int, name: str, queue_id: int, next_claim: int, acked_upto: int
    ) -> None:
        self.subscription_id = subscription_id
        self.name = name
        self.queue_id = queue_id
        self.next_claim = next_claim
        self.acked_upto = acked_upto
        self.is_busy = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_letting_go = False  # what waits is being begun

    @property
    def hi(self) -> int:
        """The last claim that was given; 0: none."""
        return self.next_claim - 1

    def do(self, work: Callable[[], None]) -> None:
        """Begin ``work`` in the open batch, or once what is under way has called ``end``.

        Raises:
            RefusedError: by ``work``, where it begins at once; later work must not raise it.
        """
        if self.is_busy:
            self._waiting.append(work)
            return
        self.is_busy = True
        try:
            work()
        except RefusedError:
            self.end()
            raise

    def end(self) -> None:
        """Let the next piece of work begin."""
        self.is_busy = False
        if self._is_letting_go:  # work that ended at once; no stack holds a call for each
            return
        self._is_letting_go = True
        while self._waiting and not self.is_busy:
            self.is_busy = True
            self._waiting.popleft()()
        self._is_letting_go = False

    def store(self, lives: Lives) -> None:
        """Have the batch store the numbers."""
        lives.batch.rare.append((
            "claims", "update_subscription",
            (self.queue_id, self.next_claim, self.acked_upto, self.subscription_id),
        ))  # fmt: skip


class Subscriptions(dict[str, Subscription]):
    """All subscriptions by name; the truth is the table."""

    def __init__(self, lives: Lives, stored: PipelineRows) -> None:
        super().__init__()
        self._lives = lives
        self._next_id = 1
        for row in stored.subscriptions:
            self[row[1]] = Subscription(*row)
            self._next_id = max(self._next_id, row[0] + 1)
        for queue_id, count, size in stored.held:
            if (queue := lives.by_id.get(queue_id)) is not None:
                queue.held, queue.held_bytes = count, size
                queue.claimed, queue.claimed_bytes = count, size

    def make(self, name: str, queue_id: int) -> Subscription:
        """Make a new one, stored with the open batch.

        Raises:
            RefusedError: ``too_many_subscriptions``.
        """
        if len(self) >= MOST:
            raise RefusedError(
                "too_many_subscriptions", f"there is no room for {name!r}: the limit is {MOST}"
            )
        made = self[name] = Subscription(self._next_id, name, queue_id, 1, 0)
        self._next_id += 1
        self._lives.batch.rare.append((
            "claims", "insert_subscription",
            (made.subscription_id, name, queue_id, self._lives.now.wall_ms),
        ))  # fmt: skip
        return made

    def forget(self, subscription: Subscription) -> None:
        """Take its name away; it holds nothing any more."""
        del self[subscription.name]
        self._lives.batch.rare.append((
            "claims", "forget_subscription", (subscription.subscription_id,)
        ))  # fmt: skip
