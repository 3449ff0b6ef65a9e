"""Connections of the past, read for the admin; those that are open are in memory."""

from dataclasses import dataclass
from typing import Final

from phpmq_lite.storage.readers import Readers

PAGE_ROWS: Final = 200  # at most
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


class Clients:
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
            limit=max(1, min(limit, PAGE_ROWS)),
        )
        return [ClientRow(*row) for row in rows]

    async def one(self, client: int) -> ClientRow | None:
        """Give a connection by its number; None where there was none, or its row is gone."""
        rows = await self._readers.read("clients", "one", client=client)
        return ClientRow(*rows[0]) if rows else None
