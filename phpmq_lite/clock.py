"""Time: one reading gives the wall clock and a clock that jumps do not disturb."""

import time

from phpmq_lite.model import Now

JUMP_MS = 2_000  # a larger gap between the two clocks is a jump, a smaller one is drift

_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # a sleeping laptop is no jump


class Clock:
    """Reads both clocks together and keeps the sum of the jumps (``storage.md`` 7).

    ``step_ms`` is stored by the writer and given back at the next start, so that deadlines,
    which are on the steady scale, need no change when the wall clock is set.
    """

    def __init__(self, step_ms: int = 0) -> None:
        self.step_ms = step_ms
        self.jumps = 0
        self._wall_ms = time.time_ns() // 1_000_000
        self._running_ms = time.clock_gettime_ns(_RUNNING) // 1_000_000
        self._steady_ms = self._wall_ms - step_ms

    def now(self) -> Now:
        """Read the clocks; ``steady_ms`` never goes back."""
        wall_ms = time.time_ns() // 1_000_000
        running_ms = time.clock_gettime_ns(_RUNNING) // 1_000_000
        gap_ms = (wall_ms - self._wall_ms) - (running_ms - self._running_ms)
        if abs(gap_ms) > JUMP_MS:
            self.step_ms += gap_ms
            self.jumps += 1
        self._wall_ms, self._running_ms = wall_ms, running_ms
        self._steady_ms = max(self._steady_ms, wall_ms - self.step_ms)
        return Now(wall_ms, self._steady_ms)
