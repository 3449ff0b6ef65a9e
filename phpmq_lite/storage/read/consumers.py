"""Closed connections, subscriptions, history readers and app_ids, as stored."""

from dataclasses import dataclass
from typing import Final

from phpmq_lite.storage.arrow import HistoryOffsets
from phpmq_lite.storage.read.read_connections import RowReader

CLIENT_ROWS: Final = 200  # most rows per page
_LATEST: Final = (1 << 62, 1 << 62)


@dataclass(slots=True, frozen=True)
class ClientRow:
    """A stored connection, with fields in the order of the columns in consumers.sql."""

    client: int
    kind: str
    address: str
    opened_at: int  # Unix ms
    closed_at: int | None  # Unix ms; None: still open, or the broker ended first
    framing: str | None
    revision: str | None
    reason: str | None


class StoredClients(RowReader):
    """Reads the table ``client``; open connections are in memory as well."""

    file = "consumers"

    async def closed(
        self, since_ms: int, *, before: tuple[int, int] | None = None, limit: int = 50
    ) -> list[ClientRow]:
        """Return connections closed since a time, newest first, below ``(closed_at, client)``."""
        before_at, before_client = before or _LATEST
        return await self._all(
            ClientRow, "closed_clients", since=since_ms, before_at=before_at,
            before_client=before_client, limit=max(1, min(limit, CLIENT_ROWS)),
        )  # fmt: skip

    async def one(self, client: int) -> ClientRow | None:
        """Return a connection by its number; None if its row does not exist or was removed."""
        return await self._one(ClientRow, "client", client=client)


@dataclass(slots=True, frozen=True)
class SubscriptionRow:
    """A subscription and the messages it holds; times are Unix ms."""

    name: str
    queue_id: int
    queue: str | None  # the queue's name; None: the queue was removed and its name is lost
    acked_upto: int  # the last claim that was acknowledged or released
    hi: int  # the last claim made; 0: none
    created_at: int
    count: int  # currently claimed messages
    bytes: int
    oldest_at_ms: int | None  # claim time of the oldest message


@dataclass(slots=True, frozen=True)
class HistoryReaderRow:
    """A reader of the history and how far it has read."""

    name: str
    offset: int  # the last offset that the reader has processed
    at_ms: int  # Unix ms: when the reader reported the offset


@dataclass(slots=True, frozen=True)
class AppIdRow:
    """An app_id, under which each version is published once."""

    app_id: str
    owner: str | None  # None: the next publisher becomes the owner
    version: int  # the highest version published
    at_ms: int  # Unix ms: when that version was published
    rows: int  # number of rows in that version


class StoredPipeline(RowReader):
    """Reads the pipeline's tables and the bounds of the history."""

    file = "consumers"

    async def subscriptions(self) -> list[SubscriptionRow]:
        """Return all subscriptions, by name; reads a row per claim."""
        return await self._all(SubscriptionRow, "subscriptions", name=None)

    async def subscription(self, name: str) -> SubscriptionRow | None:
        """Return one subscription; None if it does not exist."""
        return await self._one(SubscriptionRow, "subscriptions", name=name)

    async def app_ids(self, after: str, limit: int) -> list[AppIdRow]:
        """Return the app_ids that follow ``after``, in alphabetical order."""
        return await self._all(AppIdRow, "app_ids", after=after, limit=limit)

    async def readers(self) -> list[HistoryReaderRow]:
        """Return the readers of the history, by name."""
        return await self._all(HistoryReaderRow, "history_readers")

    async def history_bounds(self) -> HistoryOffsets:
        """Return the range of offsets in the history."""
        return HistoryOffsets(*(await self._readers.read("arrow", "bounds"))[0])

    async def offset_at(self, bounds: HistoryOffsets, at_ms: int) -> int:
        """Return the last offset settled before ``at_ms`` (Unix ms), or else ``bounds.lo``."""
        rows = await self._readers.read(
            "arrow", "offset_at", lo=bounds.lo, hi=bounds.hi, at_ms=at_ms
        )
        return int(rows[0][0])

    async def queue_names(self) -> list[str]:
        """Return the names of all queues that the history may refer to, in order."""
        return [name for _, name in await self._readers.read("arrow", "queues")]
