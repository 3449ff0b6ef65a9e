"""Delays before a failed message is retried."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DEFAULT_DELAYS_S: Final = (1.0, 5.0, 15.0)
_MOST_DOUBLINGS: Final = 1_000  # more would be pointless: floats overflow near 2^1024


@dataclass(slots=True, frozen=True)
class RetryDelays:
    """Delays in seconds before the second run of a message, the third run and so on.

    If ``steps`` is set, its last value repeats. Otherwise the delay is ``base_s * multiplier^(n -
    1)``, at most ``max_s`` (0 means unlimited). With jitter, a random delay
    from 0 to that value is used, so that messages that failed together do not return together.
    """

    steps: tuple[float, ...] = ()
    base_s: float = 0.0
    multiplier: float = 2.0
    max_s: float = 0.0
    is_jittered: bool = True

    def after(
        self, attempt: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> float:
        """Return the delay in seconds after the failure numbered ``attempt``, starting from 1."""
        if self.steps:
            return self.steps[min(attempt, len(self.steps)) - 1]
        try:
            delay_s = self.base_s * self.multiplier ** min(attempt - 1, _MOST_DOUBLINGS)
        except OverflowError:
            delay_s = float("inf")
        if self.max_s:
            delay_s = min(delay_s, self.max_s)
        return uniform(0.0, delay_s) if self.is_jittered else delay_s


def parse_delays(text: str) -> RetryDelays:
    """Parse a comma-separated list of delays in seconds, such as ``1,5,15``.

    Raises:
        ValueError: the text is not a list of non-negative numbers.
    """
    try:
        steps = tuple(float(part) for part in text.split(","))
    except ValueError:
        steps = (-1.0,)
    if not all(0 <= step < float("inf") for step in steps):
        raise ValueError(
            f"{text!r} is not a comma-separated list of delays in seconds, such as 1,5,15"
        )
    return RetryDelays(steps)
