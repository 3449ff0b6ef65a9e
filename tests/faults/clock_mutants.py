"""Brokers that take the wall clock for the time: ``clock_mutants NAME serve …``."""

import sys
from collections.abc import Mapping
from typing import Final

from phpmq_lite import service
from phpmq_lite.cli.main import main
from phpmq_lite.clock import Clock
from phpmq_lite.model import ClockReading


class LiveWallClock(Clock):
    """Expires by the wall clock as it is."""

    def now(self) -> ClockReading:
        """Read it."""
        wall_ms = super().now().wall_ms
        return ClockReading(wall_ms, wall_ms)


class BelievesAtTheStart(Clock):
    """Takes the wall clock at a start for the truth."""

    def _resume(self, stored: Mapping[str, int], wall_ms: int, running_ms: int) -> int:
        return wall_ms - stored.get("clock_step_ms", 0)


MUTANTS: Final[dict[str, type[Clock]]] = {
    mutant.__name__: mutant for mutant in (LiveWallClock, BelievesAtTheStart)
}

if __name__ == "__main__":
    setattr(service, "Clock", MUTANTS[sys.argv.pop(1)])  # noqa: B010 - it stands for the class
    main()
