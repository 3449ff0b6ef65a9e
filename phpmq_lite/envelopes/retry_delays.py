"""How long a failed message waits for its next try."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DEFAULT_DELAYS_S: Final = (1.0, 5.0, 15.0)  # seconds
_MOST_DOUBLINGS: Final = 1_000  # a float ends near 2^1024


@dataclass(slots=True, frozen=True)
class RetryDelays:
    """Seconds before the second run, the third and so on.

    With ``steps`` the list counts, its last value for all that follow.  Else ``base_s *
    multiplier^(n - 1)``, at most ``longest_s`` (0: no bound), and of that a random part from
    nothing to the whole, so that what failed together does not come back together.
    """

    steps: tuple[float, ...] = ()
    base_s: float = 0.0
    multiplier: float = 2.0
    longest_s: float = 0.0
    is_jittered: bool = True

    def after(
        self, attempt: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> float:
        """Give the seconds to wait after failure number ``attempt``, counted from 1."""
        if self.steps:
            return self.steps[min(attempt, len(self.steps)) - 1]
        try:
            whole_s = self.base_s * self.multiplier ** min(attempt - 1, _MOST_DOUBLINGS)
        except OverflowError:
            whole_s = float("inf")
        if self.longest_s:
            whole_s = min(whole_s, self.longest_s)
        return uniform(0.0, whole_s) if self.is_jittered else whole_s


def parse_delays(text: str) -> RetryDelays:
    """Read ``1,5,15``: seconds, separated by commas.

    Raises:
        ValueError: it is no list of numbers from 0 up.
    """
    try:
        steps = tuple(float(part) for part in text.split(","))
    except ValueError:
        steps = (-1.0,)
    if not all(0 <= step < float("inf") for step in steps):
        raise ValueError(f"{text!r} is no list of seconds, as in 1,5,15")
    return RetryDelays(steps)
