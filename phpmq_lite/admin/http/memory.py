"""The memory budget for large HTTP requests and responses."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.storage.read.read_pool import FairReadSlots

T = TypeVar("T")

FREE_BYTES: Final = 64 << 10  # bodies and responses of at most this size are not counted
TURN_S: Final = 0.05  # how long a large body may be parsed while others wait for their turn
WAIT_S: Final = 10.0  # a request that has waited this long for memory is refused
GRACE_S: Final = 0.5  # a transfer that began more recently is never considered slow
SLOWER: Final = 4  # a transfer may be ended in favor of one that is this many times faster
_LOOK_S: Final = 0.1
_RETRY: Final = {"Retry-After": "2"}


class HttpMemory:
    """A budget of ``total`` bytes, shared by the requests of all identities.

    An identity can hold as much as remains free after its request, so that others always have some
    left, but the only request of an identity can use all free memory.  If no other request holds
    memory, a request receives what it asks for, within the limits of its route.
    """

    def __init__(self, total: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.used = 0
        self.reached = 0  # number of times that a request had to wait
        self.refused = 0
        self.ended = 0  # number of transfers ended in favor of a faster or older request
        self.parsing = FairReadSlots(1)  # one body at a time, because parsing multiplies its size
        self.now_s = now_s
        self._holds: set[MemoryReservation] = set()
        self._of: Counter[str] = Counter()  # number of bytes that each identity holds
        self._freed = asyncio.Event()

    def hold(self, identity: str) -> "MemoryReservation":
        """Return an empty reservation; call its ``release`` when the request ends."""
        return MemoryReservation(self, identity)

    async def parse(self, identity: str, results: Iterator[T]) -> list[T]:
        """Return all results, computed in a thread, in turns with the other identities.

        A turn ends after the first result that takes it beyond ``TURN_S``, so no sender decides how
        long others wait.
        """
        parsed: list[T] = []

        def advance() -> bool:
            ends_s = time.monotonic() + TURN_S
            for result in results:
                parsed.append(result)
                if time.monotonic() > ends_s:
                    return False
            return True

        is_over = False
        while not is_over:
            await self.parsing.acquire(identity)
            try:
                is_over = await asyncio.to_thread(advance)
            finally:
                self.parsing.release(identity)
        return parsed

    def _is_over_share(self, hold: "MemoryReservation", more: int) -> bool:
        own = self._of[hold.identity]
        return own > hold.bytes and own + more > self.total - self.used - more

    def _fits(self, hold: "MemoryReservation", more: int) -> bool:
        if self.used == hold.bytes:
            return True
        return self.used + more <= self.total and not self._is_over_share(hold, more)

    async def take(self, hold: "MemoryReservation", more: int) -> None:
        """Add memory, ending slower or younger transfers if need be; raise 429 or 503 if full."""
        if not self._fits(hold, more):
            self.reached += 1
            until_s = self.now_s() + WAIT_S
            while not self._fits(hold, more):
                if self.now_s() > until_s:
                    raise self._refusal(hold, more)
                victim = self._slowest_transfer(hold, more)
                if victim is not None:
                    self.ended += 1
                    victim.end()
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._freed.wait()
                if hold.is_ended:
                    raise self._refusal(hold, more)
        self.used += more
        self._of[hold.identity] += more
        hold.bytes += more
        self._holds.add(hold)

    def _refusal(self, hold: "MemoryReservation", more: int) -> Problem:
        self.refused += 1
        if not hold.is_ended and self._is_over_share(hold, more):
            status, code = 429, "memory_share"
            detail = "Your other requests use all the memory available to one user. Nothing was "
            detail += "stored. Repeat the request later, or send fewer requests at a time."
        else:
            status, code = 503, "memory"
            detail = "The memory for large requests is used up. Nothing was stored. Repeat the "
            detail += "request later."
        field, bound = "limits.http_memory", f"{self.total} bytes in total"
        return Problem(status, code, detail, field=field, bound=bound, headers=_RETRY)

    def _slowest_transfer(self, hold: "MemoryReservation", more: int) -> "MemoryReservation | None":
        """Return a transfer to end, of the same identity or of an identity with more memory."""
        own = self._of[hold.identity]
        is_share = self._is_over_share(hold, more)
        candidates = [
            other
            for other in self._holds
            if other is not hold
            and other.is_transfer
            and (
                other.identity == hold.identity
                or (not is_share and self._of[other.identity] > max(own, more))
            )
        ]
        slow = [
            other
            for other in candidates
            if other.active_s > GRACE_S and other.rate * SLOWER < hold.rate
        ]
        if slow:
            return min(slow, key=lambda other: other.rate)
        younger = [other for other in candidates if other.began_s > hold.began_s]
        return max(younger, key=lambda other: other.began_s, default=None)

    def give_back(self, hold: "MemoryReservation", less: int) -> None:
        """Return part of a reservation to the budget and wake requests that wait for memory."""
        self.used -= less
        hold.bytes -= less
        self._of[hold.identity] -= less
        if not self._of[hold.identity]:
            del self._of[hold.identity]
        if not hold.bytes:
            self._holds.discard(hold)
        self._freed.set()


class MemoryReservation:
    """The memory reserved for a request, and the speed at which its peer sends or reads data."""

    __slots__ = (
        *("_began_active_s", "_end", "_memory", "_moved", "_waited_s", "_waits_since_s"),
        *("began_s", "bytes", "identity", "is_ended"),
    )

    def __init__(self, memory: HttpMemory, identity: str) -> None:
        self.identity = identity
        self.bytes = 0
        self.began_s = memory.now_s()
        self.is_ended = False  # True if the transfer was ended to free memory for another request
        self._memory = memory
        self._end: Callable[[], None] | None = None  # aborts the transfer that is running, if any
        self._began_active_s = self.began_s
        self._waited_s = 0.0  # time spent waiting for memory since the transfer began
        self._waits_since_s: float | None = None
        self._moved = 0  # bytes transferred since the transfer began

    async def grow(self, more: int) -> None:
        """Reserve ``more`` bytes; raise a 429 or 503 ``Problem`` if they are not available."""
        self._waits_since_s = self._memory.now_s()
        try:
            await self._memory.take(self, more)
        finally:
            self._waited_s += self._memory.now_s() - self._waits_since_s
            self._waits_since_s = None

    async def resize(self, size: int) -> None:
        """Grow or shrink to ``size`` bytes; raise a 429 or 503 ``Problem`` if memory runs out."""
        if size < self.bytes:
            self._memory.give_back(self, self.bytes - size)
        elif size > self.bytes:
            await self.grow(size - self.bytes)

    def release(self) -> None:
        self.finish()
        if self.bytes:
            self._memory.give_back(self, self.bytes)

    # -- transfers

    def begin(self, end: Callable[[], None]) -> None:
        """Begin a transfer; if another request needs the memory, ``end`` is called to abort it."""
        self._end = end
        self._began_active_s, self._waited_s, self._moved = self._memory.now_s(), 0.0, 0

    def move(self, count: int) -> None:
        """Add ``count`` to the number of bytes that the peer has sent or read."""
        self._moved += count

    def finish(self) -> None:
        """Mark the transfer as complete, because the request no longer waits for its peer."""
        self._end = None

    def end(self) -> None:
        """End the transfer in favor of another request."""
        self.is_ended = True
        end, self._end = self._end, None
        if end is not None:
            end()

    @property
    def is_transfer(self) -> bool:
        """Return whether a transfer is running, so that ``end`` can abort it."""
        return self._end is not None

    @property
    def active_s(self) -> float:
        """Return how long the transfer has run, excluding the time spent waiting for memory."""
        until_s = self._memory.now_s() if self._waits_since_s is None else self._waits_since_s
        return until_s - self._began_active_s - self._waited_s

    @property
    def rate(self) -> float:
        """Return the transfer speed in bytes per second, or infinity if no transfer is running."""
        if self._end is None:
            return float("inf")
        return self._moved / max(self.active_s, 0.01)
