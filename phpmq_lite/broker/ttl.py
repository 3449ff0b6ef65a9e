"""Message time to live: the deadline at publishing and the time left at dispatch."""

from phpmq_lite.queue_settings import LONGEST_TTL_S


def deadline_of(ttl_s: int, now_ms: int) -> tuple[int | None, int | None]:
    """Return a pair: capped TTL and steady-clock deadline in ms; both are None if the TTL is 0."""
    if ttl_s <= 0:
        return None, None
    ttl_s = min(ttl_s, LONGEST_TTL_S)
    return ttl_s, now_ms + ttl_s * 1_000


def remaining_ttl_s(deadline_ms: int, now_ms: int) -> int | None:
    """Return the seconds left, rounded up, or None if the deadline has passed."""
    return (deadline_ms - now_ms + 999) // 1_000 if deadline_ms > now_ms else None
