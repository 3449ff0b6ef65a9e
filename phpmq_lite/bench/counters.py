"""What the kernel counts: CPU time and memory of a process, CPU time of the whole machine.

Read from ``/proc``; where there is none (macOS) every function returns None.
"""

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def cpu_seconds(pid: int) -> float | None:
    """Return user and system time of all threads of a process so far."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float | None:
    """Return what all processes of the machine have used so far, over all cores."""
    try:
        line = (_PROC / "stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process that is in RAM (VmRSS)."""
    return _memory(pid, "VmRSS:")


def peak_resident_bytes(pid: int) -> int | None:
    """Return the most memory of a process that was in RAM at any time (VmHWM)."""
    return _memory(pid, "VmHWM:")


def _memory(pid: int, name: str) -> int | None:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return None
