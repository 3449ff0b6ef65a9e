"""How much memory the process has and may have; past that its publishers wait."""

import asyncio
import resource
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Protocol

from phpmq_lite.broker.queue import Connection
from phpmq_lite.server.pressure import Reader

REASON: Final = "resident"  # why a publisher is not read
SHARE_OF_CGROUP: Final = 0.6
_GLANCE_S: Final = 0.01  # for which a publisher that waits is read, once a second
_STATM: Final = Path("/proc/self/statm")
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def resident_bytes() -> int:
    """Return how much memory the process has now; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def memory_bound(setting: int, files: Iterable[Path] = _CGROUP_LIMITS) -> int:
    """Return how much it may have: the setting, and of a container's limit no more than a share.

    The rest is for what SQLite and the system keep of the files.
    """
    for file in files:
        try:
            return min(setting, int(int(file.read_text(encoding="ascii")) * SHARE_OF_CGROUP))
        except (OSError, ValueError):  # there is no such limit: no file, or the word max
            continue
    return setting


class Publisher(Reader, Protocol):
    """A session that the memory brake can pause."""

    connection: Connection | None


class MemoryBrake:
    """Has publishers wait while the process has more memory than ``bound_bytes``.

    Whoever consumes is read on, for its acknowledgements make room.  Those who wait are read for a
    moment each second: memory that Python has freed does not always go back to the system, and
    they must not wait for ever.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.resident_bytes = 0  # at the last look
        self.times = 0  # it was reached
        self._is_on = False
        self._held: set[Publisher] = set()

    def look(self, sessions: Collection[Publisher], resident: int) -> None:
        """Judge by this much memory; call about once a second."""
        self.resident_bytes = resident
        was_on, self._is_on = self._is_on, resident > self.bound_bytes
        self.times += self._is_on and not was_on
        for session in self._held:
            session.go_on(REASON)
        self._held.clear()
        if not self._is_on:
            return
        loop = asyncio.get_running_loop()
        for session in sessions:
            connection = session.connection
            if connection is not None and connection.published and not connection.consumers:
                self._held.add(session)
                loop.call_later(_GLANCE_S if was_on else 0, self._hold, session)

    def _hold(self, session: Publisher) -> None:
        if session in self._held:
            session.hold(REASON)
