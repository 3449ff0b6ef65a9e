"""Frozen selections: the messages that matched a search, identified by a token."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Final, Protocol, TypeVar

from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.storage.read.search import FrozenSelection

LIFE_MS: Final = 600_000
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 32 << 20  # of all selections


class OwnedItem(Protocol):
    """Something that a user owns, with its size."""

    @property
    def owner(self) -> str:
        """The user who owns it."""

    @property
    def size(self) -> int:
        """Its size in bytes."""


T = TypeVar("T", bound=OwnedItem)


@dataclass(slots=True, frozen=True)
class MessageSelection:
    """Messages selected for an action; ``query`` is the search."""

    token: str
    query: str
    frozen: FrozenSelection
    owner: str
    expires_at: int  # Unix ms

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.frozen.seqs)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.frozen.seqs) * self.frozen.seqs.itemsize


class SelectionStore:
    """Selections by token, oldest first.

    Past ``limit_bytes`` the oldest of the owner that has most is dropped.
    """

    def __init__(self, limit_bytes: int = BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, MessageSelection] = OrderedDict()
        self.dropped = 0  # to make room
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The total size in bytes."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, query: str, frozen: FrozenSelection, owner: str, now_ms: int) -> MessageSelection:
        """Store a selection for ten minutes; the newest is stored whatever its size."""
        made = MessageSelection(token_urlsafe(16), query, frozen, owner, now_ms + LIFE_MS)
        self._kept[made.token] = made
        self._bytes += made.size
        for late in [one for one in self._kept.values() if one.expires_at <= now_ms]:
            self._drop(late)
        while self._bytes > self._limit_bytes and len(self._kept) > 1:
            self.dropped += 1
            self._drop(first_of_largest(self._kept.values(), made))
        return made

    def find(self, token: str, owner: str, now_ms: int) -> MessageSelection:
        """Return the selection of a token, for the user who made it.

        Raises:
            Problem: 410 if it has expired, was dropped, or belongs to another user.
        """
        found = self._kept.get(token)
        if found is not None and found.expires_at <= now_ms:
            self._drop(found)
            found = None
        if found is None or found.owner != owner:
            raise Problem(
                410, "selection_expired",
                "This selection has expired, or another user made it. Selections last ten minutes. "
                "Nothing was changed; select again.",
                field="token",
            )  # fmt: skip
        return found

    def _drop(self, selection: MessageSelection) -> None:
        del self._kept[selection.token]
        self._bytes -= selection.size


def first_of_largest(kept: Iterable[T], newest: T) -> T:
    """Return the oldest item of the user with the most bytes; ``newest`` only as a last resort."""
    others = [one for one in kept if one is not newest]
    sizes = Counter({newest.owner: newest.size})
    for one in others:
        sizes[one.owner] += one.size
    largest = max((one.owner for one in others), key=lambda owner: sizes[owner])
    return next(one for one in others if one.owner == largest)
