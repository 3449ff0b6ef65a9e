"""Connections of the past, read for the admin; those that are open are in memory."""

from dataclasses import dataclass
from typing import Final

from phpmq_lite.storage.read.readers import Readers

CLIENT_ROWS: Final = 200  # at most
_LATEST: Final = (1 << 62, 1 << 62)


@dataclass(slots=True, frozen=True)
class ClientRow:
    """A connection as stored; the order is that of the columns in clients.sql."""

    client: int
    kind: str
    address: str
    opened_at: int  # Unix ms
    closed_at: int | None  # Unix ms; None: open, or the broker ended first
    framing: str | None
    revision: str | None
    reason: str | None


class StoredClients:
    """Both may raise ReadTooLongError, and StorageError where the database cannot be read."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def closed(
        self, since_ms: int, *, before: tuple[int, int] | None = None, limit: int = 50
    ) -> list[ClientRow]:
        """Give those that ended since a time, the last first, behind ``(closed_at, client)``."""
        before_at, before_client = before or _LATEST
        rows = await self._readers.read(
            "clients",
            "closed",
            since=since_ms,
            before_at=before_at,
            before_client=before_client,
            limit=max(1, min(limit, CLIENT_ROWS)),
        )
        return [ClientRow(*row) for row in rows]

    async def one(self, client: int) -> ClientRow | None:
        """Give a connection by its number; None where there was none, or its row is gone."""
        rows = await self._readers.read("clients", "one", client=client)
        return ClientRow(*rows[0]) if rows else None


@dataclass(slots=True, frozen=True)
class SubscriptionRow:
    """One subscription and what it holds; times are Unix ms."""

    name: str
    queue_id: int
    queue: str | None  # its name; None: the queue was removed and nobody needs its name any more
    acked_upto: int  # the last claim that was acknowledged or released
    hi: int  # the last claim that was given; 0: none
    created_at: int
    count: int  # messages claimed now
    bytes: int
    oldest_at_ms: int | None  # when the oldest of them was claimed


@dataclass(slots=True, frozen=True)
class ReaderRow:
    """How far a reader of the history is."""

    name: str
    offset: int  # done up to it
    at_ms: int  # Unix ms: when it said so


@dataclass(slots=True, frozen=True)
class AppIdRow:
    """Under which name somebody publishes each version once."""

    app_id: str
    owner: str | None  # None: the next who writes
    version: int  # the highest that was published
    at_ms: int  # Unix ms: when that was
    rows: int  # of that version


class PipelineReaders:
    """Reads the pipeline's tables; all methods raise as ``Readers`` does."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def subscriptions(self) -> list[SubscriptionRow]:
        """Give all subscriptions by name; a row a claim is read."""
        rows = await self._readers.read("claims", "overview", name=None)
        return [SubscriptionRow(*row) for row in rows]

    async def subscription(self, name: str) -> SubscriptionRow | None:
        """Give one subscription, None where there is none."""
        rows = await self._readers.read("claims", "overview", name=name)
        return SubscriptionRow(*rows[0]) if rows else None

    async def app_ids(self, after: str, limit: int) -> list[AppIdRow]:
        """Return app_ids in the order of their names, after one of them."""
        rows = await self._readers.read("staging", "app_ids", after=after, limit=limit)
        return [AppIdRow(*row) for row in rows]

    async def readers(self) -> list[ReaderRow]:
        """Give the readers of the history by name."""
        return [ReaderRow(*row) for row in await self._readers.read("claims", "readers")]
