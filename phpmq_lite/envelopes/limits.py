"""When a worker ends by itself: looked at between two jobs, never inside one."""

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


@dataclass(slots=True, frozen=True)
class Limits:
    """Bounds of one run; 0: none."""

    max_jobs: int = 0
    max_runtime_s: float = 0.0
    memory_bytes: int = 0  # resident
    stop_when_empty: bool = False
    parent: int = 0  # process id: end when it is gone

    def reached(self, jobs: int, runtime_s: float, resident_bytes: Callable[[], int]) -> str | None:
        """Name the bound that is reached: jobs, runtime, memory or orphaned; None: go on."""
        if self.max_jobs and jobs >= self.max_jobs:
            return "jobs"
        if self.max_runtime_s and runtime_s >= self.max_runtime_s:
            return "runtime"
        if self.memory_bytes and resident_bytes() >= self.memory_bytes:
            return "memory"
        if self.parent and os.getppid() != self.parent:
            return "orphaned"
        return None


def resident_bytes() -> int:
    """Tell how much memory this process has; where Linux is not, the most that it ever had."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1_024
