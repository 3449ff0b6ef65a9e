"""How long to wait before the next try to connect."""

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from ``first_s`` to ``longest_s``, each shortened by up to half.

    The jitter keeps many clients from coming back in the same moment.  ``roll`` gives numbers
    from 0 up to 1.
    """

    __slots__ = ("_first_s", "_longest_s", "_roll", "_tries")

    def __init__(
        self,
        first_s: float = 0.1,
        longest_s: float = 10.0,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._roll = roll
        self._tries = 0

    def next_s(self) -> float:
        """Return the seconds to wait now."""
        doubled = self._first_s * float(1 << min(self._tries, 30))
        self._tries += 1
        return min(doubled, self._longest_s) * (1 - self._roll() / 2)

    def reset(self) -> None:
        """Begin again: the last connection was of use."""
        self._tries = 0
