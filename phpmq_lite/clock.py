"""Time: one reading gives the wall clock and a scale that setting the wall clock does not disturb.

The scale (*steady*) goes on with a clock that nobody can set, in this process and over a restart,
as long as the machine was not booted in between.  After a boot only the wall clock can tell for
how long the broker was away, and it may have been set meanwhile:

- behind what was stored, it was set back: no time has passed that we know of;
- up to a week ahead, it is believed;
- further ahead, somebody has to decide.  Until then the time away is not counted, so nothing
  expires that should not, whatever is decided.
"""

import os
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.model import Now

JUMP_MS: Final = 2_000  # the wall clock was set when it is so far from where it would be
GAP_MS: Final = 3_000  # without a reading, of which there is one a second: it stood still
DOUBT_MS: Final = 7 * 86_400_000

_RUNNING: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while it sleeps


class Disturbance(NamedTuple):
    """What happened to the clocks since the last look."""

    gap_ms: int  # nothing was read for so long; 0: nothing to speak of
    jump_ms: int  # the wall clock was set by this


class Clock:
    """Reads both clocks together (``docs/operate/reliability.md``, The clock).

    ``counters`` are stored, each minute and at once with a jump, and given back at the next start
    as ``stored``.  ``is_disturbed`` tells that ``take_disturbance`` has something.
    """

    def __init__(
        self,
        stored: Mapping[str, int] | None = None,
        *,
        read: Callable[[], tuple[int, int]] | None = None,
        boot: int | None = None,
    ) -> None:
        """Go on from what was stored; ``read`` gives wall and running clock in ms, for tests."""
        self._read = read_clocks if read is None else read
        self._boot = boot_mark() if boot is None else boot
        stored = stored or {}
        wall_ms, running_ms = self._read()
        self.doubt_ms = stored.get("clock_doubt_ms", 0)  # away for so long, or set by so much
        self.doubt_number = stored.get("clock_doubt_number", 0)  # the first given since then
        self.is_doubt_new = False
        steady_ms = self._resume(stored, wall_ms, running_ms)
        jump_ms = wall_ms - stored.get("clock_step_ms", 0) - steady_ms if stored else 0
        self.start_jump_ms = jump_ms if abs(jump_ms) > JUMP_MS else 0  # set while it was away
        self.jumps = int(self.start_jump_ms != 0)
        self.last_jump_ms = self.start_jump_ms
        self.is_disturbed = False
        self._base_ms = steady_ms - running_ms
        self._apart_ms = wall_ms - running_ms  # where the wall clock would be
        self._seen_ms = running_ms
        self._gap_ms = self._jump_ms = 0

    def _resume(self, stored: Mapping[str, int], wall_ms: int, running_ms: int) -> int:
        """Give the steady time of a start."""
        guess_ms = wall_ms - stored.get("clock_step_ms", 0)
        seen_ms = stored.get("last_seen_ms")
        if seen_ms is None:
            return guess_ms
        away_ms = running_ms - stored.get("clock_running_ms", running_ms + 1)
        if self._boot and stored.get("clock_boot") == self._boot and away_ms >= 0:
            return seen_ms + away_ms
        if guess_ms - seen_ms > DOUBT_MS:
            self.doubt_ms, self.is_doubt_new = guess_ms - seen_ms, True
            return seen_ms
        return max(guess_ms, seen_ms)

    def now(self) -> Now:
        """Read the clocks; ``steady_ms`` never goes back."""
        wall_ms, running_ms = self._read()
        jump_ms = wall_ms - running_ms - self._apart_ms
        if abs(jump_ms) > JUMP_MS:
            self._apart_ms += jump_ms
            self._jump_ms += jump_ms
            self.last_jump_ms = jump_ms
            self.jumps += 1
            self.is_disturbed = True
        if running_ms - self._seen_ms > GAP_MS:
            self._gap_ms += running_ms - self._seen_ms
            self.is_disturbed = True
        self._seen_ms = running_ms
        return Now(wall_ms, running_ms + self._base_ms)

    def take_disturbance(self) -> Disturbance:
        """Say what happened since the last call."""
        happened = Disturbance(self._gap_ms, self._jump_ms)
        self._gap_ms = self._jump_ms = 0
        self.is_disturbed = False
        return happened

    def doubt_counters(self, next_number: int) -> dict[str, int]:
        """Give what is stored of a new doubt; nothing where there is none."""
        if not self.is_doubt_new:
            return {}
        self.doubt_number = next_number
        return {"clock_doubt_ms": self.doubt_ms, "clock_doubt_number": next_number}

    def counters(self, now: Now) -> dict[str, int]:
        """Give what the next start needs to go on from this reading."""
        return {
            "last_seen_ms": now.steady_ms,
            "clock_step_ms": now.wall_ms - now.steady_ms,
            "clock_running_ms": now.steady_ms - self._base_ms,
            "clock_boot": self._boot,
        }


def read_clocks() -> tuple[int, int]:
    """Read the wall clock and the one that nobody can set, in milliseconds."""
    return time.time_ns() // 1_000_000, time.clock_gettime_ns(_RUNNING) // 1_000_000


def boot_mark() -> int:
    """Give a number for this boot of the machine; 0 where the system does not tell.

    The clock that runs since the boot may start elsewhere in a time namespace, so it is part of it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/time") if os.path.lexists("/proc/self/ns/time") else ""
    except OSError:
        return 0
    return int.from_bytes(blake2b(f"{boot} {space}".encode(), digest_size=7).digest())
