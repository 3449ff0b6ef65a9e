"""The pipeline as pages show it: subscriptions and readers."""

from dataclasses import dataclass

from phpmq_lite.storage.readers import Readers


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


class Pipeline:
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
