"""Keys of confirmed publishes: which were stored, and for how long they are remembered."""

from collections import deque
from typing import Final

_TIME_BITS: Final = 44  # of Unix milliseconds: enough for 500 years


class Receipts:
    """Keys seen, oldest first: at most ``limit``; after ``window_ms`` a key counts as new.

    Times are steady milliseconds.  Each call costs O(1) on average.
    The truth is the table ``receipt``; this is its copy, loaded at start.

    There may be 100,000, so a key is one bytes object and one number: 170 bytes of memory, where
    an ordered dictionary of tuples took 340.
    """

    __slots__ = ("_limit", "_order", "_repeated", "_seen", "_window_ms")

    def __init__(self, limit: int, window_ms: int) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self._seen: dict[bytes, int] = {}  # queue_id and key -> seq and the time it was added
        self._order: deque[bytes] = deque()  # of _seen, as they were added
        self._repeated: dict[bytes, int] = {}  # how often one stands in _order once too often

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, queue_id: int, key: bytes, now_ms: int) -> int | None:
        """Return the seq stored under ``key`` less than ``window_ms`` ago on this queue."""
        entry = self._seen.get(b"%d:%b" % (queue_id, key))
        if entry is None or now_ms - (entry & (1 << _TIME_BITS) - 1) >= self._window_ms:
            return None
        return entry >> _TIME_BITS

    def add(self, queue_id: int, key: bytes, seq: int, now_ms: int) -> None:
        """Remember ``key``; forgets what is too old, and the oldest above ``limit``."""
        name = b"%d:%b" % (queue_id, key)
        if name in self._seen:
            self._repeated[name] = self._repeated.get(name, 0) + 1
        self._seen[name] = seq << _TIME_BITS | now_ms
        self._order.append(name)
        while self._order and self._forget_first(now_ms):
            pass

    def _forget_first(self, now_ms: int) -> bool:
        """Take the first of the order away, if it is to go."""
        name = self._order[0]
        if times := self._repeated.get(name, 0):
            self._repeated[name] = times - 1
            if times == 1:
                del self._repeated[name]
        elif (
            len(self._seen) > self._limit
            or now_ms - (self._seen[name] & (1 << _TIME_BITS) - 1) >= self._window_ms
        ):
            del self._seen[name]
        else:
            return False
        self._order.popleft()
        return True
