"""The writer's work between batches: totals of the history, and retention, in short slices."""

from collections.abc import Callable, Mapping
from typing import Final

from phpmq_lite.model import ClockReading
from phpmq_lite.storage import retention
from phpmq_lite.storage.postgres.store import PostgresStore
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.store import note_clock

_EVERY_MS: Final = 1_000
_CLOCK_EVERY_MS: Final = 60_000
_OFFSETS_AT_ONCE: Final = 10_000


class PostgresMaintenance:
    """Maintenance that the engine runs in the writer's thread; see ``sqlite/maintenance.py``."""

    def __init__(
        self, bounds: RetentionBounds, counters: Callable[[ClockReading], Mapping[str, int]]
    ) -> None:
        self.bounds = bounds
        self._counters = counters
        self._due_ms = 0  # in steady ms, as below
        self._clock_due_ms = 0

    def __call__(self, store: PostgresStore, now: ClockReading, _is_idle: bool) -> bool:
        """Do the work that is due; return True if more work is due soon."""
        if now.steady_ms >= self._clock_due_ms:
            note_clock(store, self._counters(now))
            self._clock_due_ms = now.steady_ms + _CLOCK_EVERY_MS
        if now.steady_ms < self._due_ms:
            return False
        if _count_settled(store):
            return True
        if retention.remove_dropped_stages(store):
            return True
        if retention.remove_expired(store, self.bounds, now.steady_ms).has_more:
            return True
        self._due_ms = now.steady_ms + _EVERY_MS
        return False


def _count_settled(store: PostgresStore) -> bool:
    """Add settled messages to the totals; return whether many are left."""
    sql = store.sql("history_index")
    with store.loading():
        [(waiting,)] = store.execute(sql["waiting"]).fetchall()
    if waiting > 0:
        with store.transaction():
            store.execute(sql["count_indexed"], {"count": _OFFSETS_AT_ONCE})
    return bool(waiting > _OFFSETS_AT_ONCE)
