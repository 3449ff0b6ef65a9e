"""Frozen selections of messages that matched a search; each selection has a token."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.storage.search.reader import FrozenSelection

LIFE_MS: Final = 600_000
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 32 << 20  # maximum total size of all selections, and also of all undo records


class OwnedItem(Protocol):
    """An item that belongs to a user for a limited time; ``expires_at`` is in Unix ms."""

    @property
    def owner(self) -> str:
        """The user who owns the item."""

    @property
    def size(self) -> int:
        """The item's size in bytes."""

    @property
    def expires_at(self) -> int:
        """The time at which the item expires, in Unix ms."""


T = TypeVar("T", bound=OwnedItem)


class OwnedStore(Generic[T]):
    """Stores items by token, oldest first; an item normally remains until it expires.

    Above ``limit_bytes``, the oldest item of the user with the most bytes is dropped; the newest
    item is stored regardless of its size.
    """

    _expired: ClassVar[tuple[str, str]]  # code and detail of the 410 response

    def __init__(self, limit_bytes: int = BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, T] = OrderedDict()
        self.bytes = 0  # total size of the items
        self.dropped = 0  # number of items dropped to make room

    def __len__(self) -> int:
        return len(self._kept)

    def _store(self, token: str, item: T, now_ms: int) -> None:
        self._kept[token] = item
        self.bytes += item.size
        for late in [key for key, record in self._kept.items() if record.expires_at <= now_ms]:
            self._drop(late)
        while self.bytes > self._limit_bytes and len(self._kept) > 1:
            self.dropped += 1
            self._drop(self._oldest_of_largest(token))

    def find(self, token: str, owner: str, now_ms: int) -> T:
        """Return the item with this token if it belongs to ``owner``.

        Raises:
            Problem: 410 if the item was used or dropped, has expired, or belongs to another user.
        """
        record = self._kept.get(token)
        if record is None or record.owner != owner or record.expires_at <= now_ms:
            code, detail = self._expired
            raise Problem(410, code, detail, field="token")
        return record

    def _oldest_of_largest(self, newest: str) -> str:
        """Return the oldest token, except ``newest``, of the user whose items are largest."""
        sizes: Counter[str] = Counter()
        for record in self._kept.values():
            sizes[record.owner] += record.size
        others = [key for key in self._kept if key != newest]
        largest = max((self._kept[key].owner for key in others), key=lambda owner: sizes[owner])
        return next(key for key in others if self._kept[key].owner == largest)

    def _drop(self, token: str) -> None:
        self.bytes -= self._kept.pop(token).size


@dataclass(slots=True, frozen=True)
class MessageSelection:
    """The messages that the search ``query`` selected for an action."""

    token: str
    query: str
    frozen: FrozenSelection
    owner: str
    expires_at: int  # Unix ms

    @property
    def count(self) -> int:
        """The number of selected messages."""
        return len(self.frozen.seqs)

    @property
    def size(self) -> int:
        """The selection's size in bytes."""
        return len(self.frozen.seqs) * self.frozen.seqs.itemsize


class SelectionStore(OwnedStore[MessageSelection]):
    """Stores selections by token for ten minutes."""

    _expired = (
        "selection_expired",
        "This selection has expired or belongs to another user. Selections expire after ten "
        "minutes. Nothing was changed. Select the messages again.",
    )

    def add(self, query: str, frozen: FrozenSelection, owner: str, now_ms: int) -> MessageSelection:
        """Store a selection for ten minutes."""
        selection = MessageSelection(token_urlsafe(16), query, frozen, owner, now_ms + LIFE_MS)
        self._store(selection.token, selection, now_ms)
        return selection
