"""Deduplication keys of confirmed publish commands."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from phpmq_lite.model import KeyRun

_TIME_BITS: Final = 44  # enough for 500 years in milliseconds
_TIME: Final = (1 << _TIME_BITS) - 1


KEY_BYTES: Final = 64
_LAST: Final = b":last"  # appended to a key padded to 64 bytes, so it cannot equal a client's key


def last_key(key: bytes) -> bytes:
    """Return the key of the last of several messages that were published under one key."""
    return key.ljust(KEY_BYTES, b"\0") + _LAST


def expand_run(run: KeyRun) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield queue_id, key, seq and time (steady ms) for each key of a row."""
    _, queue_id, seq, at_ms, size, keys = run
    for at in range(0, len(keys), size):
        yield queue_id, keys[at : at + size], seq, at_ms
        seq += 1


class PublishKeys:
    """The most recent publish keys, limited by count and age.

    Times are in ms on the steady clock.  Each call is O(1) on average.  The table ``receipt`` is
    the source of truth; this is its in-memory copy, loaded at startup.

    There may be 100,000 keys, so each is stored as one bytes object and one number, which takes 170
    bytes instead of 340 in an ordered dictionary of tuples.  A dictionary does not reuse the slots
    of removed keys, and triples in size when it is full.  So it is copied every ``limit // 2``
    keys, in 2 ms: 100,000 keys take 22 MB instead of up to 42.
    """

    def __init__(self, limit: int, window_ms: int) -> None:
        self._limit = limit
        self._window_ms = window_ms
        self._number = 0  # number of the newest key; keys are numbered without gaps
        self._seen: dict[bytes, int] = {}  # packed (queue_id, key) -> packed (seq, time)
        self._order: deque[bytes] = deque()  # keys of _seen, in insertion order
        self._until_copy = limit // 2  # number of keys that can be added before _seen is copied
        self._repeated: dict[bytes, int] = {}  # key -> number of outdated entries in _order

    def __len__(self) -> int:
        return len(self._seen)

    def load(self, rows: Iterable[KeyRun], newest: int) -> None:
        """Load the newest rows, oldest first, dropping keys beyond the limit.

        ``newest`` is the number of the newest key in the table, which may have expired.
        """
        self._number = newest
        at_ms = 0
        for row in rows:
            for queue_id, key, seq, at_ms in expand_run(row):
                self._insert(b"%d:%b" % (queue_id, key), seq, at_ms)
        self._forget(at_ms)

    def find(self, queue_id: int, key: bytes, now_ms: int) -> int | None:
        """Return the seq stored under ``key`` for this queue in the last ``window_ms``, or None."""
        entry = self._seen.get(b"%d:%b" % (queue_id, key))
        if entry is None or now_ms - (entry & _TIME) >= self._window_ms:
            return None
        return entry >> _TIME_BITS

    def add(self, queue_id: int, key: bytes, seq: int, now_ms: int) -> KeyRun:
        """Add ``key`` and return its row; evict keys that are expired or exceed the limit."""
        self._insert(b"%d:%b" % (queue_id, key), seq, now_ms)
        self._number += 1
        self._forget(now_ms)
        return self._number, queue_id, seq, now_ms, len(key), key

    def _insert(self, name: bytes, seq: int, at_ms: int) -> None:
        if name in self._seen:
            self._repeated[name] = self._repeated.get(name, 0) + 1
        self._seen[name] = seq << _TIME_BITS | at_ms
        self._order.append(name)
        self._until_copy -= 1

    def add_new(
        self, given: Iterable[tuple[int, Sequence[bytes]]], seq: int, now_ms: int
    ) -> list[Any]:
        """Add keys for consecutive seqs starting at ``seq``, taking 0.4 instead of 0.9 µs a key.

        Returns their rows as one flat list of KeyRun.  If a key is known or repeated, adds no key
        and returns an empty list: call ``find`` for each key.
        """
        seen, first = self._seen, seq << _TIME_BITS | now_ms
        names: list[bytes] = []
        rows: list[Any] = []
        number = self._number
        for queue_id, keys in given:
            if len(keys) == 1:  # the usual case if there are many queues
                key = keys[0]
                names.append(b"%d:%b" % (queue_id, key))
                number += 1
                rows += (number, queue_id, seq, now_ms, len(key), key)
                seq += 1
                continue
            prefix = b"%d:" % queue_id
            names += [prefix + key for key in keys]
            for size, some in groupby(keys, len):
                joined = b"".join(some)
                count = len(joined) // size
                number += count
                rows += (number, queue_id, seq, now_ms, size, joined)
                seq += count
        if not seen.keys().isdisjoint(names) or len({*names}) < len(names):
            return []
        step = 1 << _TIME_BITS
        seen.update(zip(names, range(first, first + len(names) * step, step), strict=True))
        self._number = number
        self._order.extend(names)
        self._until_copy -= len(names)
        self._forget(now_ms)
        return rows

    def _forget(self, now_ms: int) -> None:
        if self._until_copy <= 0:
            self._until_copy = self._limit // 2
            self._seen = dict(self._seen)
        seen, order, oldest_ms = self._seen, self._order, now_ms - self._window_ms
        if not self._repeated:
            for _ in range(len(seen) - self._limit):
                del seen[order.popleft()]
        while order:
            name = order[0]
            if name in self._repeated:
                if self._repeated[name] == 1:
                    del self._repeated[name]
                else:
                    self._repeated[name] -= 1
            elif len(seen) > self._limit or seen[name] & _TIME <= oldest_ms:
                del seen[name]
            else:
                return
            order.popleft()
