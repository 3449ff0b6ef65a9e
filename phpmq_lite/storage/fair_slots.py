"""Slots that several identities share in turns."""

import asyncio
from collections import Counter, deque
from contextvars import ContextVar
from typing import Final

asker: Final[ContextVar[str]] = ContextVar("asker", default="")  # on whose behalf a task works


class FairSlots:
    """``count`` slots.  A free one goes to the owner that holds fewest, then by turns.

    Alone, an owner may hold all of them.  Within one owner the order is that of arrival.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self.held: Counter[str] = Counter()  # by owner
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the one served last at the end

    @property
    def waiting(self) -> Counter[str]:
        """How many wait, by owner."""
        return Counter({owner: len(line) for owner, line in self._waiting.items()})

    async def acquire(self, owner: str) -> None:
        """Acquire a slot; wait for one if none is free."""
        if self.free:
            self.free -= 1
            self.held[owner] += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # the slot was handed over meanwhile
                self.release(owner)
            elif place in (line := self._waiting.get(owner, deque())):
                line.remove(place)
                if not line:
                    del self._waiting[owner]
            raise

    def release(self, owner: str) -> None:
        """Release a slot to the next waiter."""
        self.held[owner] -= 1
        if not self.held[owner]:
            del self.held[owner]
        self.free += 1
        while self.free and self._waiting:
            self._hand_over(min(self._waiting, key=lambda waiting: self.held[waiting]))

    def _hand_over(self, owner: str) -> None:
        line = self._waiting.pop(owner)
        place = line.popleft()
        if line:
            self._waiting[owner] = line  # behind all others
        if not place.done():  # else it was cancelled
            self.free -= 1
            self.held[owner] += 1
            place.set_result(None)
