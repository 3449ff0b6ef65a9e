"""Keys of confirmed publishes: which were stored, and for how long they are remembered."""

from collections import OrderedDict


class Receipts:
    """Keys seen, oldest first: at most ``limit``; after ``window_ms`` a key counts as new.

    Times are steady milliseconds.  Each call costs O(1) on average.
    The truth is the table ``receipt``; this is its copy, loaded at start.
    """

    __slots__ = ("_limit", "_seen", "_window_ms")

    def __init__(self, limit: int, window_ms: int) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self._seen: OrderedDict[tuple[int, bytes], tuple[int, int]] = OrderedDict()
        # (queue_id, key) -> (seq, added)

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, queue_id: int, key: bytes, now_ms: int) -> int | None:
        """Return the seq stored under ``key`` less than ``window_ms`` ago on this queue."""
        entry = self._seen.get((queue_id, key))
        return entry[0] if entry is not None and now_ms - entry[1] < self._window_ms else None

    def add(self, queue_id: int, key: bytes, seq: int, now_ms: int) -> None:
        """Remember ``key``; forgets the oldest when there are more than ``limit``."""
        self._seen[queue_id, key] = (seq, now_ms)
        self._seen.move_to_end((queue_id, key))
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
