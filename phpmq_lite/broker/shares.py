"""Consumers first: how much is published to a queue in a batch while its consumers are at work.

A publisher sends as fast as it can, a consumer waits for each of its answers.  So publishes would
fill the batches, and all that they bring beyond the window waits on disk, from where a message
costs the half more.  While messages of a queue are acknowledged, a batch therefore takes as many
new ones as its window has room for; from end to end that is the shorter way for both.

Who consumes slowly holds up nobody: its batches are short, and at least ``LEAST`` are taken each
time, 60,000 a second.
"""

from typing import Final

from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.queue import Queue

LEAST: Final = 64  # messages a batch, of all publishers together
UNLIMITED: Final = 1 << 30
_AT_WORK: Final = 8  # batches: after an acknowledgement its queue counts as consumed


class Share:
    """What one queue takes in one batch, in equal parts for those who publish to it."""

    __slots__ = ("_acked", "_asked", "_batch", "_left", "_part", "_silent")

    def __init__(self) -> None:
        self._batch = 0  # number of the batch that the next three are about
        self._left = 0
        self._part = 0
        self._asked = 0  # how often a part was taken
        self._acked = 0  # of the queue, when it was looked at last
        # Batches since that grew.  Who has just come counts as at work: until the first
        # acknowledgement, for 20 ms, a publisher can send 25,000 messages, to come back from disk.
        self._silent = 0

    def take(self, queue: Queue, batch_number: int) -> int:
        """Take a part: the messages that one publisher may publish now, 0: none in this batch."""
        if self._batch != batch_number:
            self._begin(queue, batch_number)
        self._asked += 1
        part = min(self._part, self._left)
        if part < UNLIMITED:
            self._left -= part
        return part

    def _begin(self, queue: Queue, batch_number: int) -> None:
        self._batch = batch_number
        acked = queue.totals.acked
        self._silent = self._silent + 1 if acked == self._acked else 0
        self._acked = acked
        window = queue.window
        if window is None or self._silent >= _AT_WORK:
            self._left = self._part = UNLIMITED
        else:
            self._left = max(LEAST, window.limit - len(window) if window.reaches_end else 0)
            self._part = max(1, self._left // max(1, self._asked))
        self._asked = 0


class Parts:
    """What one publisher may still publish in one batch, by queue: it comes to each by turns."""

    __slots__ = ("_core", "_left")

    def __init__(self, core: Broker) -> None:
        self._core = core
        self._left: dict[str, int] = {}

    def left(self, name: str) -> int:
        """Give how many messages it may publish to a queue now, 0: none in this batch."""
        left = self._left.get(name)
        if left is None:
            left = self._left[name] = take_share(self._core, name)
        return left

    def use(self, name: str, count: int) -> None:
        """Note that so many were published; only after ``left`` has allowed them."""
        self._left[name] -= count


def take_share(core: Broker, name: str) -> int:
    """Give the messages that one publisher may publish to a queue now, 0: none in this batch."""
    queue = core.lives.queues.get(name)
    if queue is None:
        return UNLIMITED
    if queue.window is None:  # it has no consumers
        queue.share = None
        return UNLIMITED
    share: Share | None = queue.share
    if share is None:
        share = queue.share = Share()
    return share.take(queue, core.batch_number)
