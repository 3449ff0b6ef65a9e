"""The wall clock, and a *steady* time scale that does not change when the wall clock is set.

The steady scale follows a clock that cannot be set, both within this process and across restarts,
unless the machine is rebooted in between.  After a reboot, only the wall clock shows how long the
broker was down, and the clock may have been set during that time:

- if its time is before the last stored time, the clock was set back, and no time is counted;
- if its time is up to a week after the last stored time, the clock is trusted;
- if its time is later, an operator must decide.  Until then, no time is counted, so no message
  expires wrongly.
"""

import os
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.model import ClockReading

JUMP_MS: Final = 2_000  # a larger deviation means that the wall clock was set
GAP_MS: Final = 3_000  # read every second; a longer gap means that the process was suspended
DOUBT_MS: Final = 7 * 86_400_000

_RUNNING: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # continues during suspend


class ClockDisturbance(NamedTuple):
    """The total gap in the readings, and the total jump of the wall clock, since the last check."""

    gap_ms: int  # time for which the clocks were not read; 0 if negligible
    jump_ms: int  # how far the wall clock was set forward; negative if it was set back


class Clock:
    """Reads wall and steady time together, as described in ``docs/operate/reliability.md``.

    ``counters`` are stored every minute, and immediately after a jump; the next start receives them
    as ``stored``.  ``is_disturbed`` means that ``take_disturbance`` has something to report.
    """

    def __init__(
        self,
        stored: Mapping[str, int] | None = None,
        *,
        read: Callable[[], tuple[int, int]] | None = None,
        boot: int | None = None,
    ) -> None:
        """Continue from ``stored`` counters; ``read`` returns wall and running time in ms."""
        self._read = read_clocks if read is None else read
        self._boot = boot_id() if boot is None else boot
        stored = stored or {}
        wall_ms, running_ms = self._read()
        self.doubt_ms = stored.get("clock_doubt_ms", 0)  # either downtime or a clock jump
        self.doubt_number = stored.get("clock_doubt_number", 0)  # first unaffected message
        self.is_doubt_new = False
        steady_ms = self._resume(stored, wall_ms, running_ms)
        jump_ms = wall_ms - stored.get("clock_step_ms", 0) - steady_ms if stored else 0
        self.start_jump_ms = jump_ms if abs(jump_ms) > JUMP_MS else 0  # clock jump during downtime
        self.jumps = int(self.start_jump_ms != 0)
        self.last_jump_ms = self.start_jump_ms
        self.is_disturbed = False
        self._base_ms = steady_ms - running_ms
        self._wall_offset_ms = wall_ms - running_ms  # expected difference between the clocks
        self._seen_ms = running_ms
        self._gap_ms = self._jump_ms = 0

    def _resume(self, stored: Mapping[str, int], wall_ms: int, running_ms: int) -> int:
        guess_ms = wall_ms - stored.get("clock_step_ms", 0)
        seen_ms = stored.get("last_seen_ms")
        if seen_ms is None:
            return guess_ms
        down_ms = running_ms - stored.get("clock_running_ms", running_ms + 1)
        if self._boot and stored.get("clock_boot") == self._boot and down_ms >= 0:
            return seen_ms + down_ms
        if guess_ms - seen_ms > DOUBT_MS:
            self.doubt_ms, self.is_doubt_new = guess_ms - seen_ms, True
            return seen_ms
        return max(guess_ms, seen_ms)

    def now(self) -> ClockReading:
        """Read the clocks; ``steady_ms`` never decreases."""
        wall_ms, running_ms = self._read()
        jump_ms = wall_ms - running_ms - self._wall_offset_ms
        if abs(jump_ms) > JUMP_MS:
            self._wall_offset_ms += jump_ms
            self._jump_ms += jump_ms
            self.last_jump_ms = jump_ms
            self.jumps += 1
            self.is_disturbed = True
        if running_ms - self._seen_ms > GAP_MS:
            self._gap_ms += running_ms - self._seen_ms
            self.is_disturbed = True
        self._seen_ms = running_ms
        return ClockReading(wall_ms, running_ms + self._base_ms)

    def take_disturbance(self) -> ClockDisturbance:
        """Return the total gap in the readings and the total clock jump since the last call."""
        disturbance = ClockDisturbance(self._gap_ms, self._jump_ms)
        self._gap_ms = self._jump_ms = 0
        self.is_disturbed = False
        return disturbance

    def pending_decision_counters(self, next_number: int) -> dict[str, int]:
        """Return counters that record a new gap awaiting a decision, or none if there is no gap."""
        if not self.is_doubt_new:
            return {}
        self.doubt_number = next_number
        return {"clock_doubt_ms": self.doubt_ms, "clock_doubt_number": next_number}

    def counters(self, now: ClockReading) -> dict[str, int]:
        """Return counters that allow the next start to continue from this reading."""
        return {
            "last_seen_ms": now.steady_ms,
            "clock_step_ms": now.wall_ms - now.steady_ms,
            "clock_running_ms": now.steady_ms - self._base_ms,
            "clock_boot": self._boot,
        }


def read_clocks() -> tuple[int, int]:
    """Read the wall clock and a clock that cannot be set; return both times in milliseconds."""
    return time.time_ns() // 1_000_000, time.clock_gettime_ns(_RUNNING) // 1_000_000


def boot_id() -> int:
    """Return a number that identifies the current boot of the machine, or 0 if unknown.

    The number also identifies the time namespace, because the running clock depends on it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = (
            os.readlink("/proc/self/ns/time") if os.path.lexists("/proc/self/ns/time") else ""
        )
    except OSError:
        return 0
    return int.from_bytes(blake2b(f"{boot} {namespace}".encode(), digest_size=7).digest())
