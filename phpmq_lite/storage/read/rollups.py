"""Reads stored queue activity from the table ``rollup`` for charts."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from phpmq_lite.storage.read.read_pool import RowReader

MINUTE_S: Final = 60
QUARTER_S: Final = 900
KEPT_S: Final = {MINUTE_S: 25 * 3_600, QUARTER_S: 31 * 86_400}  # how long rows are kept, by span

# These queue ids stand for several queues.
ALL: Final = -1  # all queues; ``ready`` and the age exclude dead-letter queues
DEAD_LETTERS: Final = -2  # all dead-letter queues
OTHERS: Final = 0  # all queues without rows of their own

COUNTS: Final = (
    "published", "dispatched", "redelivered", "acked", "requeued", "expired", "dead", "deleted",
)  # fmt: skip
GAUGES: Final = ("ready", "held", "live_bytes", "oldest_age_ms")


class Point(NamedTuple):
    """Activity of one queue in one span, with fields in the order of the columns in rollups.sql.

    Counts cover the span, and gauges are values at its end; histograms are packed
    (``histogram.py``), or None if nothing was measured.
    """

    at_s: int  # Unix seconds when the span began
    span_s: int
    published: int = 0
    dispatched: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0
    expired: int = 0
    dead: int = 0
    deleted: int = 0
    ready: int = 0
    held: int = 0
    live_bytes: int = 0
    oldest_age_ms: int = 0  # age of the oldest ready message
    wait: bytes | None = None  # time from publish to first dispatch
    hold: bytes | None = None  # time from dispatch to settlement

    @classmethod
    def create(cls, numbers: Iterable[int], wait: bytes | None, hold: bytes | None) -> "Point":
        """Create a point from 14 numbers and the histograms."""
        return cls._make((*numbers, wait, hold))

    @property
    def numbers(self) -> tuple[int, ...]:
        """All values except the histograms, in order."""
        return self[:14]

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts, in the order of ``COUNTS``."""
        return self[2:10]

    @property
    def gauges(self) -> tuple[int, ...]:
        """The gauges, in the order of ``GAUGES``."""
        return self[10:14]


class UptimeSpan(NamedTuple):
    """A time span in which the broker was running; queues without a point were idle and empty.

    With ``has_rest``, such queues may instead be counted in the combined row for other queues.
    """

    at_s: int
    span_s: int
    has_rest: bool


class StoredRollups(RowReader):
    """Reads the stored points."""

    file = "rollups"

    async def of_queue(self, span_s: int, queue_id: int, since_s: int, until_s: int) -> list[Point]:
        """Return a queue's points with ``since_s`` <= at_s < ``until_s``, in order."""
        given = {"span_s": span_s, "queue_id": queue_id, "since": since_s, "until": until_s}
        return await self._all(Point, "of_queue", **given)

    async def uptime(self, span_s: int, since_s: int, until_s: int) -> list[UptimeSpan]:
        """Return the spans in which the broker was running, in order."""
        rows = await self._read("uptime", span_s=span_s, since=since_s, until=until_s)
        return [UptimeSpan(at_s, length, bool(has_rest)) for at_s, length, has_rest in rows]

    async def since(self, span_s: int, since_s: int) -> list[tuple[int, Point]]:
        """Return all points since a time as (queue_id, point) pairs, in time order."""
        rows = await self._read("since", span_s=span_s, since=since_s)
        return [(row[0], Point(*row[1:])) for row in rows]

    async def last(self, span_s: int) -> int | None:
        """Return when the most recent span of a given length began, or None if there is none."""
        [(at_s,)] = await self._read("newest", span_s=span_s)
        return None if at_s is None else int(at_s)
