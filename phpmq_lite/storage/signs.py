"""What may need somebody's attention: deaths, what expired unread, what is held for long."""

from typing import Final, NamedTuple

from phpmq_lite.storage.readers import Readers

LOOKED_AT: Final = 2_000  # of the newest deaths and expiries: counts that reach it are "at least"
HELD_ROWS: Final = 50_000


class Holding(NamedTuple):
    """What one consumer holds of one queue."""

    queue_id: int
    client: int | None
    messages: int
    size: int  # bytes
    since_ms: int  # Unix ms; the oldest of them was dispatched then


class Signs:
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

    async def held(self) -> list[Holding]:
        """Say who holds what, and since when."""
        rows = await self._readers.read("signs", "held", limit=HELD_ROWS)
        return [Holding(*row) for row in rows]
