"""The time to live of messages: the deadline of a publish, and what remains for a dispatch."""

from phpmq_lite.queue_settings import LONGEST_TTL_S


def deadline_of(ttl_s: int, now_ms: int) -> tuple[int | None, int | None]:
    """Return the bounded TTL and the deadline (steady ms, as ``now_ms``); TTL 0: None and None."""
    if ttl_s <= 0:
        return None, None
    ttl_s = min(ttl_s, LONGEST_TTL_S)
    return ttl_s, now_ms + ttl_s * 1_000


def remaining_ttl_s(deadline_ms: int | None, now_ms: int) -> int | None:
    """Return the TTL of a dispatch, rounded up to seconds; 0: never expires, None: has expired."""
    if deadline_ms is None:
        return 0
    return (deadline_ms - now_ms + 999) // 1_000 if deadline_ms > now_ms else None
