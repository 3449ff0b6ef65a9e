"""How fast a count rises, from samples; what is long past fades."""

from typing import Final

OVER_S: Final = 10.0  # the last of them count most
_SILENCE: Final = 0.01  # below it nothing happens any more


class Pace:
    """A smoothed rate.  A sample costs nothing while nothing happens."""

    __slots__ = ("_count", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0  # at the last sample

    def sample(self, count: int, elapsed_s: float) -> None:
        """Say what the count is now, and how long ago the last sample was."""
        if not self.per_s and count == self._count:
            return
        now = (count - self._count) / elapsed_s
        self.per_s += min(1.0, elapsed_s / OVER_S) * (now - self.per_s)
        self._count = count
        if self.per_s < _SILENCE:
            self.per_s = 0.0
