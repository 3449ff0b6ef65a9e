"""How far readers of the history are behind, and when retention will reach them.  Pure."""

from dataclasses import dataclass
from typing import Final

BURST_MS: Final = 3_600_000  # what came within less says little about what will come


@dataclass(slots=True, frozen=True)
class Kept:
    """The history as it lies there, and how long it stays; times are ms."""

    lo: int  # the first offset that is there still
    hi: int  # the newest
    rows: int
    bytes: int
    oldest_at: int | None  # when the first row was settled
    age_ms: int  # of the bounds: settled longer ago goes
    rows_max: int
    bytes_max: int
    lo_deleted: int = 0  # the first offset from which those of deleted messages are there too

    def per_ms(self, now_ms: int) -> float:
        """Give how many rows came in a millisecond, over all that is there, an hour at least."""
        if self.oldest_at is None:
            return 0.0
        return self.rows / max(now_ms - self.oldest_at, BURST_MS)


@dataclass(slots=True, frozen=True)
class Lagging:
    """How a reader stands; ``reached_at`` is a forecast, None where there is none."""

    behind: int  # offsets
    is_reached: bool  # rows that it has not read have gone
    reached_at: int | None  # Unix ms
    bound: str | None  # which bound takes them: days, rows or bytes


def lagging(kept: Kept, position: int, next_settled_at: int | None, now_ms: int) -> Lagging:
    """Tell how a reader stands that has read all up to ``position``.

    ``next_settled_at`` is when the first row that it has not read was settled; None: there is none.
    Rows and bytes are forecast by the mean rate and size of what is there.
    """
    behind = max(kept.hi - position, 0)
    if not behind or next_settled_at is None:
        return Lagging(behind, is_reached=bool(behind), reached_at=None, bound=None)
    if position + 1 < max(kept.lo, kept.lo_deleted):
        return Lagging(behind, is_reached=True, reached_at=None, bound=None)
    found = [(next_settled_at + kept.age_ms, "days")]
    per_ms = kept.per_ms(now_ms)
    if per_ms > 0:
        ahead = position + 1 - kept.lo  # rows that go before
        to_come = max(kept.rows_max - kept.rows, 0) + ahead
        found.append((now_ms + round(to_come / per_ms), "rows"))
        size = kept.bytes / kept.rows if kept.rows else 0.0
        if size:
            to_come = max(round((kept.bytes_max - kept.bytes) / size), 0) + ahead
            found.append((now_ms + round(to_come / per_ms), "bytes"))
    at, bound = min(found)
    return Lagging(behind, is_reached=False, reached_at=max(at, now_ms), bound=bound)
