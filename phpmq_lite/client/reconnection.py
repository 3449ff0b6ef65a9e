"""When a client connects again after a lost connection, and what it logs meanwhile."""

import logging
import random
from collections.abc import Callable

from phpmq_lite.client.address import BrokerAddress
from phpmq_lite.errors import os_reason

_log = logging.getLogger(__name__)


class Backoff:
    """Delays that double from ``first_s`` to ``longest_s``, each randomly reduced by up to half.

    The random part keeps many clients from reconnecting at the same moment.  ``roll`` returns a
    number from 0 (inclusive) to 1 (exclusive).
    """

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
        """Return the next delay in seconds."""
        doubled = self._first_s * float(1 << min(self._tries, 30))
        self._tries += 1
        return min(doubled, self._longest_s) * (1 - self._roll() / 2)

    def reset(self) -> None:
        """Start again with the first delay after a successful connection."""
        self._tries = 0


class AwayLog:
    """Logs once that a broker is away, and once that it is back."""

    def __init__(self, target: BrokerAddress) -> None:
        self._target = target
        self._is_away = False

    def lost(self, error: OSError | None = None) -> None:
        """Log that a connection which worked was lost, unless it is known."""
        if not self._is_away:
            reason = "" if error is None else f" ({os_reason(error)})"
            _log.warning("the connection to %s is lost%s; trying again", self._target, reason)
        self._is_away = True

    def connected(self) -> None:
        """Log that the broker is back, if it was away."""
        if self._is_away:
            _log.warning("connected to %s again", self._target)
        self._is_away = False
