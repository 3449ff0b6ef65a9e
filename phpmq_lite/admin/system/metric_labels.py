"""The labels of queues in the metrics, and the sums of the queues that share one."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from phpmq_lite import histogram
from phpmq_lite.server.status import QueueStatus

OTHER: Final = "~other"  # label of all queues without their own; label_name() avoids conflicts
GAUGES: Final = (
    "ready",
    "scheduled",
    "dispatched",
    "dead",
    "bytes",
    "consumers",
    "credit",
    "delivery_paused",
    "publishing_paused",
    "is_dead_letter_queue",
)


def label_name(name: str) -> str:
    """Return a queue's label: its name, with an extra ``~`` in front if it begins with ``~``."""
    return f"~{name}" if name.startswith("~") else name


class DeathCount(NamedTuple):
    """The key of a count of messages that died for one reason."""

    reason: str


_Counts = Counter[str | DeathCount]


class QueueSeries:
    """The series for one label, summed over all queues that have the label at this scrape."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.begin()
        self._last: _Counts = Counter()  # sums at the previous scrape
        self._base: _Counts = Counter()  # compensates for removed or reset queues
        self._wait, self._hold = _Span(), _Span()  # the same for the histograms
        self._is_rest = label == OTHER

    def begin(self) -> None:
        self.counts: _Counts = Counter()  # since startup
        self.wait: Sequence[int] = ()  # histogram of all wait times since startup
        self.hold: Sequence[int] = ()
        self.gauges: Counter[str] = Counter()
        self.oldest_ready_at: int | None = None  # in Unix ms
        self.is_alive = False  # whether a queue has this label at this scrape

    def add(self, queue: QueueStatus) -> None:
        self.is_alive = True
        counts, gauges = self.counts, self.gauges
        for key, count in queue.totals.items():
            if count:
                counts[key] += count
        for reason, count in queue.deaths.items():
            counts[DeathCount(reason)] += count
        if queue.wait:
            self.wait = histogram.add(self.wait, queue.wait) if self.wait else list(queue.wait)
        if queue.hold:
            self.hold = histogram.add(self.hold, queue.hold) if self.hold else list(queue.hold)
        for key in GAUGES:
            if value := getattr(queue, key):
                gauges[key] += value

    def end(self) -> None:
        """Compensate for counts that fell because a queue was removed or reset.

        If the queue shared a label, the sum falls by that queue's counts; if it had its own label,
        the counts started at 0 again.
        """
        now, last = self.counts, self._last
        fell = {key: before - now[key] for key, before in last.items() if now[key] < before}
        if fell:
            self._base.update(fell if self._is_rest else last)
        self._last = now.copy()
        now.update(self._base)
        self.wait = self._wait.take(self.wait, is_rest=self._is_rest)
        self.hold = self._hold.take(self.hold, is_rest=self._is_rest)

    def set_oldest(self, at_ms: int) -> None:
        """Record when a queue's first ready message was published; keep the earliest time."""
        if self.oldest_ready_at is None or at_ms < self.oldest_ready_at:
            self.oldest_ready_at = at_ms


class _Span:
    """Prevents the counts of a histogram from falling, as ``QueueSeries.end`` does for counters."""

    __slots__ = ("base", "last")

    def __init__(self) -> None:
        self.base: Sequence[int] = ()
        self.last: Sequence[int] = ()

    def take(self, now: Sequence[int], *, is_rest: bool) -> Sequence[int]:
        now, last = now or [0] * len(self.last), self.last
        if sum(now) < sum(last):
            lost = [max(was - is_, 0) for was, is_ in zip(last, now, strict=True)]
            more = lost if is_rest else last
            self.base = histogram.add(self.base, more) if self.base else more
        self.last = now
        return histogram.add(self.base, now) if self.base else now


class MetricLabels:
    """All queue labels.  A scrape calls ``begin``, ``add`` for each list of queues, and ``end``."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # held during a scrape
        self._named: dict[str, QueueSeries] = {}  # keyed by label, in order of assignment
        self._ids: dict[int, QueueSeries] = {}  # series of labelled queues, keyed by queue_id
        self._removed: dict[str, None] = {}  # labels of removed queues, oldest removal first
        self._other = QueueSeries(OTHER)
        self._has_other = False
        # Highest queue_id in earlier scrapes.  Up to this id, queues without a label never get one.
        self._scraped = 0
        self._highest = 0

    def begin(self) -> None:
        self._scraped = self._highest
        for group in (*self._named.values(), self._other):
            group.begin()

    def add(self, queues: Iterable[QueueStatus], limit: int) -> None:
        """Add queues, ordered by age, and assign labels until there are ``limit`` of them."""
        for queue in queues:
            group = self._ids.get(queue.queue_id) or self._group(queue, limit)
            group.add(queue)
            if queue.queue_id > self._highest:
                self._highest = queue.queue_id

    def _group(self, queue: QueueStatus, limit: int) -> QueueSeries:
        """Assign a label to a queue, if possible, and return the series for the queue."""
        name = label_name(queue.name)
        existing = self._named.get(name)
        if existing is None and (queue.queue_id <= self._scraped or not self._has_place(limit)):
            self._has_other = True
            return self._other
        group = self._named[name] = self._ids[queue.queue_id] = existing or QueueSeries(name)
        self._removed.pop(name, None)
        return group

    def _has_place(self, limit: int) -> bool:
        if len(self._named) >= limit and self._removed:
            longest = next(iter(self._removed))
            del self._removed[longest], self._named[longest]
        return len(self._named) < limit

    def end(self) -> None:
        """Finish a scrape; queues that were not added count as removed."""
        self._ids = {key: group for key, group in self._ids.items() if group.is_alive}
        for name, group in self._named.items():
            if not group.is_alive:
                self._removed.setdefault(name)
        for group in self.groups():
            group.end()

    def set_oldest(self, oldest_ready_at: Mapping[int, int]) -> None:
        """Record when each queue's first ready message was published; keys are queue ids."""
        for queue_id, at_ms in oldest_ready_at.items():
            self._ids.get(queue_id, self._other).set_oldest(at_ms)

    def groups(self) -> list[QueueSeries]:
        """Return the series in the order in which labels were assigned, followed by ``~other``."""
        return [*self._named.values(), *([self._other] if self._has_other else [])]
