"""Recent activity for live views: arrivals, settlements, events and possible problems."""

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


class RecentActivity(RowReader):
    """Reads the newest rows.  The cost of each method does not depend on the number of messages."""

    file = "activity"

    async def previews(self, seqs: Iterable[int]) -> dict[int, MessagePreview]:
        """Return previews of live and settled messages, keyed by seq, omitting unknown seqs."""
        rows = await self._all(MessagePreview, "previews", seqs=json.dumps(list(seqs)))
        return {row.seq: row for row in rows}

    async def recent_events(self, queue_id: int, limit: int) -> list[MessageEvent]:
        """Return the most recent events of a queue's messages, newest first."""
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

    async def settled_after(self, offset: int) -> list[tuple[int, int]]:
        """Return (offset, seq) pairs of the next settled messages, at most ``SLICE`` of them."""
        rows = await self._read("settled_after", after=offset, limit=SLICE)
        return [(settled, seq) for settled, seq in rows]

    async def deaths(self, since_ms: int) -> dict[int, dict[str, int]]:
        """Count messages that have died since a given time, by queue_id and reason."""
        found: dict[int, dict[str, int]] = {}
        for queue_id, reason, count in await self._read(
            "recent_deaths", since=since_ms, limit=COUNT_LIMIT
        ):
            found.setdefault(queue_id, {})[reason or "no reason"] = count
        return found

    async def unread_expiries(self, since_ms: int) -> dict[int, int]:
        """Count messages that have expired undispatched since a given time, by queue_id."""
        return dict(await self._read("unread_expiries", since=since_ms, limit=COUNT_LIMIT))

    async def held(self) -> list[ConsumerLoad]:
        """Return the number and size of messages held by each consumer, by queue."""
        return await self._all(ConsumerLoad, "held", limit=HELD_ROWS)
