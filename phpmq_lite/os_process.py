"""This process as the system knows it: its memory, and whether it is a fork of another.

A forked child must not share identity or sockets with its parent.
"""

import os
import resource
import sys
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

_PROC: Final = Path("/proc")


class Forkable(Protocol):
    """An object with state that must be unique to a process."""

    def forked(self) -> None:
        """Replace locks and identity, and close descriptors without sending or shutting down."""


_objects: Final[WeakSet[Forkable]] = WeakSet()


def reset_after_fork(forkable: Forkable) -> None:
    """Call ``forkable.forked()`` in each child that is forked while ``forkable`` exists."""
    _objects.add(forkable)


def _reset() -> None:
    for forkable in list(_objects):
        forkable.forked()


if hasattr(os, "register_at_fork"):  # systems without it do not fork
    os.register_at_fork(after_in_child=_reset)


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process, or of this one, in bytes; 0 if unreadable."""
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
