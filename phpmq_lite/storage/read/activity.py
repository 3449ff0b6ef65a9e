"""Recent activity for live views, and stored queue activity (the table ``rollup``) for charts."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from phpmq_lite.storage.read.read_pool import RowReader

SLICE: Final = 500  # maximum number of rows per read
COUNT_LIMIT: Final = 2_000  # number of deaths or expiries at which counting stops
HELD_ROWS: Final = 50_000
_EVENTS_SCANNED: Final = 2_000  # number of newest events searched for one queue's events


@dataclass(slots=True, frozen=True)
class MessagePreview:
    """A message's queue and the beginning of its body."""

    seq: int
    token: int
    queue_id: int
    size: int
    preview: bytes | None  # at most 480 bytes; None if the body is missing or empty


@dataclass(slots=True, frozen=True)
class MessageEvent:
    """An exceptional event in the life of a message."""

    event_id: int
    seq: int
    token: int
    at_ms: int
    kind: str
    detail: str | None


class ConsumerLoad(NamedTuple):
    """Messages from one queue that are held by one consumer."""

    queue_id: int
    client: int | None  # None: claims of Spark
    messages: int
    size: int  # total body size in bytes
    since_ms: int  # Unix ms when the first of these messages was dispatched


class PublishedMessage(NamedTuple):
    """A message, live or settled, as a step of its trace."""

    seq: int
    queue: str | None  # None if the queue no longer exists
    urn: str | None
    trace_id: str | None
    published_at: int  # Unix ms
    settled_at: int | None  # Unix ms; None while it is live


class RecentActivity(RowReader):
    """Reads the newest rows.  The cost of each method does not depend on the number of messages."""

    file = "activity"

    async def previews(self, seqs: Iterable[int]) -> dict[int, MessagePreview]:
        """Return previews of live and settled messages, keyed by seq, omitting unknown seqs."""
        rows = await self._all(MessagePreview, "previews", seqs=json.dumps(list(seqs)))
        return {row.seq: row for row in rows}

    async def recent_events(self, queue_id: int, limit: int) -> list[MessageEvent]:
        return await self._all(
            MessageEvent, "recent_events", queue_id=queue_id, among=_EVENTS_SCANNED, limit=limit
        )

    async def ends(self) -> tuple[int, int]:
        """Return the last assigned seq and offset, both read at the same moment."""
        next_number, offset = (await self._read("ends"))[0]
        return next_number - 1, offset or 0

    async def published_after(self, seq: int) -> list[int]:
        """Return the seqs of the next published messages, at most ``SLICE`` of them."""
        return [row[0] for row in await self._read("published_after", after=seq, limit=SLICE)]

    async def newest_published(self, among: int, since_ms: int) -> list[PublishedMessage]:
        """Return the messages published since a time that have the last numbers, in order."""
        return await self._all(PublishedMessage, "newest_published", among=among, since=since_ms)

    async def settled_after(self, offset: int) -> list[tuple[int, int]]:
        """Return (offset, seq) pairs of the next settled messages, at most ``SLICE`` of them."""
        rows = await self._read("settled_after", after=offset, limit=SLICE)
        return [(settled, seq) for settled, seq in rows]

    async def deaths(self, since_ms: int) -> dict[int, dict[str, int]]:
        """Count messages that have died since a given time, by queue_id and reason."""
        deaths: dict[int, dict[str, int]] = {}
        rows = await self._read("recent_deaths", since=since_ms, limit=COUNT_LIMIT)
        for queue_id, reason, count in rows:
            deaths.setdefault(queue_id, {})[reason or "no reason"] = count
        return deaths

    async def unread_expiries(self, since_ms: int) -> dict[int, int]:
        """Count messages that have expired undispatched since a given time, by queue_id."""
        return dict(await self._read("unread_expiries", since=since_ms, limit=COUNT_LIMIT))

    async def held(self) -> list[ConsumerLoad]:
        """Return the number and size of messages held by each consumer, by queue."""
        return await self._all(ConsumerLoad, "held", limit=HELD_ROWS)


MINUTE_S: Final = 60
QUARTER_S: Final = 900
KEPT_S: Final = {MINUTE_S: 25 * 3_600, QUARTER_S: 31 * 86_400}  # how long rows are kept, by span

# These queue ids stand for several queues.
ALL: Final = -1  # all queues; ``ready`` and the age exclude dead-letter queues
DEAD_LETTERS: Final = -2  # all dead-letter queues
OTHERS: Final = 0  # all queues without rows of their own


class Point(NamedTuple):
    """Activity of one queue in one span, with fields in the order of the columns in rollups.sql.

    Counts cover the span, and gauges are values at its end; histograms (``histogram.py``) and
    losses (``losses.py``) are packed, or None if there was nothing to measure or count.
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
    losses: str | None = None  # dead letters and expiries by reason and URN

    @classmethod
    def create(
        cls, numbers: Iterable[int], wait: bytes | None, hold: bytes | None, losses: str | None
    ) -> "Point":
        return cls._make((*numbers, wait, hold, losses))

    @property
    def numbers(self) -> tuple[int, ...]:
        return self[:14]

    @property
    def counts(self) -> tuple[int, ...]:
        return self[2:10]

    @property
    def gauges(self) -> tuple[int, ...]:
        return self[10:14]


COUNTS: Final = Point._fields[2:10]
GAUGES: Final = Point._fields[10:14]


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
        return await self._all(
            Point, "of_queue", span_s=span_s, queue_id=queue_id, since=since_s, until=until_s
        )

    async def totals(
        self, span_s: int, since_s: int, until_s: int
    ) -> list[tuple[int, str | None, tuple[int, ...]]]:
        """Return the id, name and sums (as ``COUNTS``) of each queue with points in a time range.

        The name is None for groups of queues, and if the queue no longer exists.
        """
        rows = await self._read("totals", span_s=span_s, since=since_s, until=until_s)
        return [(row[0], row[1], row[2:]) for row in rows]

    async def uptime(self, span_s: int, since_s: int, until_s: int) -> list[UptimeSpan]:
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
