"""How fast exports go on while messages pass: they go first.

Whoever reads an export on the broker's machine takes all processors that are left, and a broker
that waits for one is late with each message.  It cannot raise its own priority; but nothing of the
reader runs without the next piece, so pieces are handed out more slowly where the loop is woken
late.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

LATE_S: Final = 0.001  # woken later than that, the loop had to wait for a processor
LEAST_S: Final = 0.001  # a pause has to be one, else it tells nothing
MOST_S: Final = 0.05  # so a piece of 1 MiB each 50 ms is the slowest
_FASTER: Final = 0.98  # slowly: a reader that is woken works for long


class Pace:
    """The pauses of all exports together, which share the processors too.

    Args:
        passed: gives a number that grows while messages pass.
        now: seconds, monotonic.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        passed: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._passed = passed
        self._now = now
        self._sleep = sleep
        self._seen = passed()
        self._pause_s = LEAST_S
        self._turn = asyncio.Lock()

    async def pause(self) -> float:
        """Wait before the next piece, one export at a time; not where no message passed.

        Returns:
            How long it was, in seconds.
        """
        began_s = self._now()
        async with self._turn:
            seen, self._seen = self._seen, self._passed()
            if seen != self._seen:
                await self._rest()
        return self._now() - began_s

    async def _rest(self) -> None:
        began_s = self._now()
        await self._sleep(self._pause_s)
        late_s = self._now() - began_s - self._pause_s
        if late_s > LATE_S:
            self._pause_s = min(2 * self._pause_s, MOST_S)
        else:
            self._pause_s = max(_FASTER * self._pause_s, LEAST_S)
