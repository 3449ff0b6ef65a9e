"""Memory usage of a process, read from ``/proc`` on Linux."""

import resource
import sys
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def resident_bytes(pid: int | None = None) -> int:
    """Return a process's resident memory in bytes (VmRSS), or 0 if it cannot be read.

    If ``pid`` is None, this process is meant.
    """
    try:
        statm = (_PROC / str(pid or "self") / "statm").read_bytes()
    except OSError:
        return 0
    return int(statm.split()[1]) * resource.getpagesize()


def peak_resident_bytes(pid: int | None = None) -> int:
    """Return a process's peak resident memory in bytes (VmHWM), or 0 if it cannot be read."""
    try:
        lines = (_PROC / str(pid or "self") / "status").read_text("ascii").splitlines()
    except OSError:
        if pid is not None:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1_024
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0  # a zombie process, for example, has no memory
