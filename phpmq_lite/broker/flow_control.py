"""Flow control: limits on publishing to a queue while its consumers are working.

A publisher sends as fast as it can, while a consumer waits for each batch.  Unlimited publishing
would fill the batches, and messages beyond the window wait on disk; loading them from there costs
50 % more.  So while messages in a queue are being acknowledged, publishers take turns using the
free room in its window: the broker accepts new messages while it would otherwise wait for the disk
and for consumers.  End to end, that is faster for both.

A slow consumer does not delay publishers: its batches are short, and each accepts at least
``MIN_PER_BATCH`` messages: 60,000 a second if a batch takes a millisecond.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.queue import Queue, QueueCounters
from phpmq_lite.broker.ready_window import ReadyWindow

# Each batch accepts at least this many messages; a window with less room counts as full.
MIN_PER_BATCH: Final = 64
MAX_PER_PUBLISHER: Final = 500  # number of messages a publisher may send before others get a turn
UNLIMITED: Final = 1 << 30
_ACTIVE_BATCHES: Final = 8  # a queue is active for this many batches after an acknowledgement

# A publish command and the number of messages that it publishes.
_WaitingPublisher = tuple[Callable[[Broker], None], int]


class QueueShare:
    """Computes how many messages a queue still accepts in the current batch."""

    def __init__(self, counters: QueueCounters) -> None:
        self.counters = counters
        self._batch = 0  # batch number that _published and _minimum refer to
        self._published = 0  # the queue's publish counter when the batch began
        self._minimum = 0  # number of messages accepted in the batch even without room
        self._acked = 0  # the queue's acked counter at the last check
        # Number of batches since _acked grew; it starts at 0, so a new consumer counts as working.
        # Otherwise a publisher could send 25,000 messages before the first acknowledgement (20 ms).
        # These messages would have to be read back from disk.
        self._silent = 0

    def available(self, window: ReadyWindow, batch_number: int) -> int:
        totals = self.counters
        if self._batch != batch_number:
            self._batch = batch_number
            self._silent = self._silent + 1 if totals.acked == self._acked else 0
            self._acked = totals.acked
            taken = totals.published - self._published
            self._published = totals.published
            self._minimum = MIN_PER_BATCH if taken <= MIN_PER_BATCH else 0
        if self._silent >= _ACTIVE_BATCHES:
            return UNLIMITED
        # Reserve a quarter of the window for the minimum that the next batches must accept.
        # Once the window overflows, messages must be loaded from disk.
        room = window.limit - window.limit // 4 - len(window) if window.reaches_end else 0
        if room >= MIN_PER_BATCH:
            return room
        return max(0, self._published + self._minimum - totals.published)


class FlowControl:
    """Per-queue publish limits, and the publishers that wait for room in each queue."""

    def __init__(self, core: Broker) -> None:
        self.waiting_publishers = 0
        self._core = core
        self._waiting_by_queue: dict[int, deque[_WaitingPublisher]] = {}
        self._shares: dict[int, QueueShare] = {}  # of queues with consumers, by queue_id

    def available(self, name: str, *, is_called: bool = False) -> int:
        """Return how many messages one publisher may publish to a queue now; 0 means it must wait.

        Only a publisher that ``is_called``, because it has waited longest, may go ahead of the
        publishers that are still waiting.
        """
        queue = self._core.queues.get(name)
        if queue is None:
            return UNLIMITED
        if queue.queue_id in self._waiting_by_queue and not is_called:
            return 0
        left = self._available(queue)
        return left if left == UNLIMITED else min(left, MAX_PER_PUBLISHER)

    def wait_in_line(
        self, name: str, command: Callable[[Broker], None], count: int, *, at_front: bool = False
    ) -> None:
        """Append a publisher of about ``count`` messages to the line of waiting publishers.

        ``at_front`` puts the publisher first, because it was called but others had taken the room.
        """
        self.waiting_publishers += 1
        line = self._waiting_by_queue.setdefault(self._core.queues[name].queue_id, deque())
        place = (command, min(count, MAX_PER_PUBLISHER))
        if at_front:
            line.appendleft(place)
        else:
            line.append(place)

    def take_ready(self) -> list[Callable[[Broker], None]]:
        """Remove and return the next waiting publishers, as many as there is room for."""
        called: list[Callable[[Broker], None]] = []
        if not self._waiting_by_queue:
            return called
        for queue_id, line in tuple(self._waiting_by_queue.items()):
            queue = self._core.queues_by_id.get(queue_id)
            left = UNLIMITED if queue is None else self._available(queue)
            while line and left > 0:
                command, count = line.popleft()
                called.append(command)
                left -= count
            if not line:
                del self._waiting_by_queue[queue_id]
        self.waiting_publishers -= len(called)
        return called

    def take_all(self) -> list[Callable[[Broker], None]]:
        lines, self._waiting_by_queue = self._waiting_by_queue, {}
        self.waiting_publishers = 0
        return [command for line in lines.values() for command, _ in line]

    def _available(self, queue: Queue) -> int:
        if queue.window is None:  # the queue has no consumers
            self._shares.pop(queue.queue_id, None)
            return UNLIMITED
        share = self._shares.get(queue.queue_id)
        if share is None or share.counters is not queue.counters:  # a recreated queue keeps its id
            queues = self._core.queues_by_id
            if len(self._shares) >= len(queues):  # there are shares of removed queues
                self._shares = {key: old for key, old in self._shares.items() if key in queues}
            share = self._shares[queue.queue_id] = QueueShare(queue.counters)
        return share.available(queue.window, self._core.batch_number)


class PublishQuota:
    """Each queue's remaining publish quota, queried only once while frames are processed."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._left: dict[str, int] = {}

    def available(self, name: str) -> int:
        """Return how many messages a queue accepts now; 0 means the publisher must wait."""
        left = self._left.get(name)
        if left is None:
            left = self._left[name] = self._ask(name)
        return left

    def use(self, name: str, count: int) -> None:
        """Deduct published messages from the quota, after ``available`` has allowed them."""
        self._left[name] -= count
