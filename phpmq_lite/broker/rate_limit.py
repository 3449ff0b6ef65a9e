"""The rate limit of a queue, as a token bucket."""

from math import ceil


class RateLimit:
    """A token bucket: ``rate`` dispatches a second, and at most ``burst`` at once.

    It is empty at first.
    """

    def __init__(self, rate: float, own_burst: int = 0) -> None:
        self.rate = rate
        self.own_burst = own_burst  # 0 if it depends on the rate
        self.burst = own_burst or max(1, int(rate))
        self._tokens = 0.0
        self._at_ms: int | None = None  # steady time of the last refill

    def available(self, now_ms: int) -> int:
        """Return how many messages may be dispatched at a steady time."""
        at_ms = now_ms if self._at_ms is None else self._at_ms
        gained = max(0, now_ms - at_ms) * self.rate / 1_000
        self._tokens = min(self.burst, self._tokens + gained)
        self._at_ms = max(now_ms, at_ms)
        return int(self._tokens)

    def take(self, count: int) -> None:
        self._tokens -= count

    def give_back(self, count: int) -> None:
        """Add the shares of dispatches that were not sent."""
        self._tokens = min(self.burst, self._tokens + count)

    @property
    def next_ms(self) -> int:
        """Return the steady time when the next message may be dispatched."""
        return (self._at_ms or 0) + ceil(max(0.0, 1 - self._tokens) * 1_000 / self.rate)
