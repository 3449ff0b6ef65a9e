"""How the queues went: the rows of the table ``rollup``, written in spans, read for the charts."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from phpmq_lite.storage.read.readers import Readers

MINUTE_S: Final = 60
QUARTER_S: Final = 900
KEPT_S: Final = {MINUTE_S: 25 * 3_600, QUARTER_S: 31 * 86_400}  # how long rows of a span stay

# Numbers that stand for more than one queue.
ALL: Final = -1  # every queue; ``ready`` and the age are those of all but the dead-letter queues
RECORDS: Final = -2  # the dead-letter queues
REST: Final = 0  # the queues that have no rows of their own

COUNTS: Final = (
    "published", "dispatched", "redelivered", "acked", "requeued", "expired", "dead", "deleted",
)  # fmt: skip
GAUGES: Final = ("ready", "held", "live_bytes", "oldest_age_ms")


class Point(NamedTuple):
    """One queue in one span; the order is that of the columns in rollups.sql.

    Counts are what happened within, gauges are how it stood at the end; the histograms are packed
    (``histogram.py``), None where nothing was measured.
    """

    at_s: int  # Unix seconds, the beginning
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
    oldest_age_ms: int = 0  # of the oldest ready message
    wait: bytes | None = None  # publish to first dispatch
    hold: bytes | None = None  # dispatch to settlement

    @classmethod
    def of(cls, numbers: Iterable[int], wait: bytes | None, hold: bytes | None) -> "Point":
        """Make a point of its 14 numbers and its histograms."""
        return cls._make((*numbers, wait, hold))

    @property
    def numbers(self) -> tuple[int, ...]:
        """All but the histograms."""
        return self[:14]

    @property
    def counts(self) -> tuple[int, ...]:
        """What happened, in the order of ``COUNTS``."""
        return self[2:10]

    @property
    def gauges(self) -> tuple[int, ...]:
        """How it stood at the end, in the order of ``GAUGES``."""
        return self[10:14]


class UptimeSpan(NamedTuple):
    """A span in which the broker ran: what has no point in it was idle and empty.

    Unless there was a rest: then it may have been among it.
    """

    at_s: int
    span_s: int
    has_rest: bool


class StoredRollups:
    """What was stored.  All methods may raise as those of Readers."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def of_queue(self, span_s: int, queue_id: int, since_s: int, until_s: int) -> list[Point]:
        """Give the points of a queue with ``since_s`` <= at_s < ``until_s``, in order."""
        rows = await self._readers.read(
            "rollups", "of_queue", span_s=span_s, queue_id=queue_id, since=since_s, until=until_s
        )
        return [Point(*row) for row in rows]

    async def beats(self, span_s: int, since_s: int, until_s: int) -> list[UptimeSpan]:
        """Give the spans in which the broker ran, in order."""
        rows = await self._readers.read(
            "rollups", "uptime", span_s=span_s, since=since_s, until=until_s
        )
        return [UptimeSpan(at_s, length, bool(has_rest)) for at_s, length, has_rest in rows]

    async def since(self, span_s: int, since_s: int) -> list[tuple[int, Point]]:
        """Give all points from a time on, each behind its queue_id, in order of time."""
        rows = await self._readers.read("rollups", "since", span_s=span_s, since=since_s)
        return [(row[0], Point(*row[1:])) for row in rows]

    async def last(self, span_s: int) -> int | None:
        """Say when the newest span of a length began."""
        [(at_s,)] = await self._readers.read("rollups", "newest", span_s=span_s)
        return None if at_s is None else int(at_s)
