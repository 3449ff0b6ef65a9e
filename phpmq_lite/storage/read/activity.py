"""What came after a place: for live views and for those who wait."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from phpmq_lite.storage.read.readers import Readers

SLICE: Final = 500  # rows a read
_EVENTS_AMONG: Final = 2_000  # the newest of all queues that are looked through for one


@dataclass(slots=True, frozen=True)
class MessagePlace:
    """Where a message is, and how it begins."""

    seq: int
    token: int
    queue_id: int
    size: int
    preview: bytes | None  # at most 480 bytes; None: there is no body, or it is empty


@dataclass(slots=True, frozen=True)
class MessageEvent:
    """An unusual turn of a message's life."""

    event_id: int
    seq: int
    token: int
    at_ms: int
    kind: str
    detail: str | None


class RecentActivity:
    """All methods may raise ReadTooLongError, and StorageError."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def places(self, seqs: Iterable[int]) -> dict[int, MessagePlace]:
        """Find messages, alive or settled, by seq; what is not there is left out."""
        rows = await self._readers.read("tails", "places", seqs=json.dumps(list(seqs)))
        return {row[0]: MessagePlace(*row) for row in rows}

    async def recent_events(self, queue_id: int, limit: int) -> list[MessageEvent]:
        """Give the last unusual turns of a queue's messages, the newest first."""
        rows = await self._readers.read(
            "tails", "recent_events", queue_id=queue_id, among=_EVENTS_AMONG, limit=limit
        )
        return [MessageEvent(*row) for row in rows]

    async def ends(self) -> tuple[int, int]:
        """Give the last seq that was given out and the last offset, as stored together."""
        next_number, offset = (await self._readers.read("tails", "ends"))[0]
        return next_number - 1, offset or 0

    async def published_after(self, seq: int) -> list[int]:
        """Give the seqs of the next messages that were published, at most ``SLICE``."""
        rows = await self._readers.read("tails", "published_after", after=seq, limit=SLICE)
        return [row[0] for row in rows]

    async def settled_after(self, offset: int) -> list[tuple[int, int]]:
        """Give offset and seq of the next messages that were settled, at most ``SLICE``."""
        rows = await self._readers.read("tails", "settled_after", after=offset, limit=SLICE)
        return [(row[0], row[1]) for row in rows]


LOOKED_AT: Final = 2_000  # of the newest deaths and expiries: counts that reach it are "at least"
HELD_ROWS: Final = 50_000


class ConsumerLoad(NamedTuple):
    """What one consumer holds of one queue."""

    queue_id: int
    client: int | None
    messages: int
    size: int  # bytes
    since_ms: int  # Unix ms; the oldest of them was dispatched then


class RecentSigns:
    """All methods may raise as those of Readers; none costs more where there is more."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def deaths(self, since_ms: int) -> dict[int, dict[str, int]]:
        """Count the messages that died since, by queue_id and reason."""
        rows = await self._readers.read("signs", "deaths", since=since_ms, limit=LOOKED_AT)
        found: dict[int, dict[str, int]] = {}
        for queue_id, reason, count in rows:
            found.setdefault(queue_id, {})[reason or "no reason"] = count
        return found

    async def unread(self, since_ms: int) -> dict[int, int]:
        """Count the messages that expired since and that nobody ever got, by queue_id."""
        return dict(await self._readers.read("signs", "unread", since=since_ms, limit=LOOKED_AT))

    async def held(self) -> list[ConsumerLoad]:
        """Say who holds what, and since when."""
        rows = await self._readers.read("signs", "held", limit=HELD_ROWS)
        return [ConsumerLoad(*row) for row in rows]
