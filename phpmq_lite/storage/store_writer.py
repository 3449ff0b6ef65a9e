"""What the writers of both engines share."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from phpmq_lite.errors import BatchRefusedError
from phpmq_lite.logs import get_logger
from phpmq_lite.model import ClockReading
from phpmq_lite.storage import retention
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.store import Store, note_clock

if TYPE_CHECKING:
    from phpmq_lite.model import BatchStore
else:
    BatchStore = ABC  # mypyc: no class of an interpreted module inherits from a compiled protocol

_log = get_logger(__name__)
T = TypeVar("T")
RETENTION_EVERY_MS: Final = 1_000
# The pause doubles up to this while nothing is found.  The 25 statements take 40 ms beside a busy
# event loop, for whose GIL each of them waits; once a second, that was the p99 of publishing.
_RETENTION_MOST_MS: Final = 10_000
_CLOCK_EVERY_MS: Final = 60_000  # maximum time between two stored clock states


class StoreWriter(BatchStore):
    """Stores batches and does other work on the store, in order of the calls."""

    space: DiskSpace  # room for messages, and why nothing can be stored at the moment
    # Called between batches; returns True if it should be called again soon.
    maintenance: Callable[[Any, ClockReading, bool], bool] = staticmethod(lambda *_: False)

    @abstractmethod
    def start(self, work: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run a function on the store after all earlier work; it may be repeated if it failed."""

    @abstractmethod
    async def close(self) -> None:
        """Close the database after all earlier work; can be called twice."""

    async def run(self, work: Callable[[Any], T]) -> T:
        """Run a function on the store after all earlier work, and return its result."""
        return await self.start(work)

    def store_clock_jump(self, counters: Mapping[str, int]) -> asyncio.Future[None]:
        """Store the clocks after a jump, before any later batches are stored."""
        return self.start(lambda store: note_clock(store, counters, has_jumped=True))

    async def maintain(self, now: ClockReading, *, is_idle: bool) -> bool:
        """Run ``maintenance`` after all earlier work; return True if it should run again soon."""
        try:
            return await self.run(lambda store: self.maintenance(store, now, is_idle))
        except BatchRefusedError as error:  # nothing was stored; it is tried again as scheduled
            _log.error("maintenance_refused", reason=str(error))
            return False


def essential_steps(
    steps: Sequence[T], is_optional: Callable[[T], bool], error: BatchRefusedError
) -> list[T]:
    """Return the steps of a refused batch without its optional rows.

    Raises:
        BatchRefusedError: ``error``, because the batch has no optional rows.
    """
    essential = [step for step in steps if not is_optional(step)]
    if len(essential) == len(steps):
        raise error
    _log.error("optional_rows_dropped", reason=str(error), steps=len(steps) - len(essential))
    return essential


class StoreMaintenance:
    """The writer's work between batches, in short slices; ``bounds`` can be replaced at any time.

    ``counters`` returns the state of the clocks, which is stored once a minute, so that the next
    startup knows the downtime.
    """

    _most_pause_ms = _RETENTION_MOST_MS

    def __init__(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> None:
        self.bounds = bounds
        self._counters = counters
        self._retention_due_ms = 0  # when retention is next due, in steady ms
        self._pause_ms = RETENTION_EVERY_MS // 2  # between the last two steps
        self._clock_due_ms = 0  # when the clocks must next be stored, in steady ms

    def _store_clocks(self, store: Store, now: ClockReading) -> None:
        """Store the clocks if they are due."""
        if now.steady_ms >= self._clock_due_ms:
            note_clock(store, self._counters(now))
            self._clock_due_ms = now.steady_ms + _CLOCK_EVERY_MS

    def _retain(self, store: Store, now: ClockReading) -> bool:
        """Remove what has expired if that is due; return True if more work is due soon."""
        if now.steady_ms < self._retention_due_ms:
            return False
        if retention.remove_dropped_stages(store):
            return True
        removed, has_more = retention.remove_expired(store, self.bounds, now.steady_ms)
        if not has_more:
            longer_ms = min(2 * self._pause_ms, self._most_pause_ms)
            self._pause_ms = RETENTION_EVERY_MS if removed else longer_ms
            self._retention_due_ms = now.steady_ms + self._pause_ms
        return has_more
