"""Stored data about closed connections, subscriptions, history readers and app_ids."""

from dataclasses import dataclass
from typing import Final

from phpmq_lite.storage import arrow
from phpmq_lite.storage.arrow import HistoryOffsets
from phpmq_lite.storage.read.read_pool import RowReader

CLIENT_ROWS: Final = 200  # maximum number of rows per page
_LATEST: Final = (1 << 62, 1 << 62)


@dataclass(slots=True, frozen=True)
class ClientRow:
    """A stored connection, with fields in the order of the columns in consumers.sql."""

    client: int
    kind: str
    address: str
    opened_at: int  # Unix ms
    closed_at: int | None  # Unix ms; None if still open or if the broker ended first
    framing: str | None
    revision: str | None
    reason: str | None


class StoredClients(RowReader):
    """Reads the table ``client``; open connections are also held in memory."""

    file = "consumers"

    async def closed(
        self, since_ms: int, *, before: tuple[int, int] | None = None, limit: int = 50
    ) -> list[ClientRow]:
        """Return connections closed since a time, before ``(closed_at, client)``, newest first."""
        limit = max(1, min(limit, CLIENT_ROWS))
        place = dict(zip(("before_at", "before_client"), before or _LATEST, strict=True))
        return await self._all(ClientRow, "closed_clients", since=since_ms, limit=limit, **place)

    async def one(self, client: int) -> ClientRow | None:
        """Return a connection by number, or None if its row does not exist or has been removed."""
        return await self._one(ClientRow, "client", client=client)


@dataclass(slots=True, frozen=True)
class SubscriptionRow:
    """A subscription and the messages it holds; times are in Unix ms."""

    name: str
    queue_id: int
    queue: str | None  # None if the queue was removed and its name is unknown
    acked_upto: int  # number of the last acknowledged or released claim
    hi: int  # number of the last claim; 0 if there is none
    created_at: int
    count: int  # number of currently claimed messages
    bytes: int
    oldest_at_ms: int | None  # time when the oldest held message was claimed


@dataclass(slots=True, frozen=True)
class HistoryReaderRow:
    """A history reader and its progress."""

    name: str
    offset: int  # last offset processed by the reader
    at_ms: int  # Unix ms when the reader reported the offset
    owner: str | None = None  # None if the next user who reports becomes the owner


@dataclass(slots=True, frozen=True)
class UnreadRows:
    """The first rows after an offset."""

    rows: int
    bytes: int
    settled_at: int | None  # Unix ms when the first was settled; None if there are no rows
    is_cut: bool  # whether there may be more


@dataclass(slots=True, frozen=True)
class AppIdRow:
    """An app_id, under which each version can be published only once."""

    app_id: str
    owner: str | None  # None if the next publisher becomes the owner
    version: int  # highest version published
    at_ms: int  # Unix ms when the highest version was published
    rows: int  # number of rows in the highest version


class StoredPipeline(RowReader):
    """Reads the pipeline's tables and the range of history offsets."""

    file = "consumers"

    async def subscriptions(self) -> list[SubscriptionRow]:
        """Return all subscriptions, sorted by name.  This reads one row per claim."""
        return await self._all(SubscriptionRow, "subscriptions", name=None)

    async def subscription(self, name: str) -> SubscriptionRow | None:
        return await self._one(SubscriptionRow, "subscriptions", name=name)

    async def app_ids(self, after: str, limit: int) -> list[AppIdRow]:
        return await self._all(AppIdRow, "app_ids", after=after, limit=limit)

    async def readers(self) -> list[HistoryReaderRow]:
        return await self._all(HistoryReaderRow, "history_readers")

    async def unread(self, after: int, limit: int) -> UnreadRows:
        """Sum up the first ``limit`` rows of the history after an offset."""
        sums = await self._readers.read(self.file, "unread", after=after, limit=limit)
        rows, size, settled_at = sums[0]
        return UnreadRows(rows, size, settled_at, is_cut=rows == limit)

    async def history_bounds(self) -> HistoryOffsets:
        return HistoryOffsets(*(await self._readers.read("arrow", "bounds"))[0])

    async def offset_at(self, bounds: HistoryOffsets, at_ms: int) -> int:
        """Return the last offset settled before ``at_ms`` (Unix ms); if none, ``bounds.lo``."""
        rows = await self._readers.read(
            "arrow", "offset_at", lo=bounds.lo, hi=bounds.hi, at_ms=at_ms
        )
        return int(rows[0][0])

    async def settled_range(
        self, bounds: HistoryOffsets, settled_from: int | None, settled_until: int | None
    ) -> tuple[int, int]:
        """Return a range of offsets with all messages settled in a time, as ``HistoryRanges``."""
        lows = []
        for at_ms in arrow.boundary_times(settled_from, settled_until):
            rows = await self._readers.read(
                "arrow", "boundaries", lo=bounds.lo, hi=bounds.hi, at_ms=at_ms
            )
            lows.append([low for low, _ in rows])
        return arrow.hull(arrow.settled_spans(*lows), bounds)

    async def queue_names(self) -> list[str]:
        return [name for _, name in await self._readers.read("arrow", "queues")]
