"""Frozen selections: what matched when somebody looked, as a token that an action takes.

A message that arrives later is not in it; one that has left meanwhile is skipped by the action.
"""

from collections import OrderedDict
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Final

from phpmq_lite.admin.problems import Problem
from phpmq_lite.storage.search import Frozen

LIFE_MS: Final = 600_000
MESSAGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 32 << 20  # of all selections


@dataclass(slots=True, frozen=True)
class Selection:
    """Messages that an action may be done to; ``query`` is what was searched for."""

    token: str
    query: str
    frozen: Frozen
    owner: str
    expires_at: int  # Unix ms

    @property
    def count(self) -> int:
        """How many messages these are."""
        return len(self.frozen.seqs)


class Selections:
    """Selections by token, oldest first; past ``limit_bytes`` the oldest are dropped."""

    def __init__(self, limit_bytes: int = BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, Selection] = OrderedDict()
        self.dropped = 0  # to make room
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """How much is kept."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, query: str, frozen: Frozen, owner: str, now_ms: int) -> Selection:
        """Keep a selection for ten minutes; the newest is kept whatever its size."""
        made = Selection(token_urlsafe(16), query, frozen, owner, now_ms + LIFE_MS)
        self._kept[made.token] = made
        self._bytes += _size(made)
        while len(self._kept) > 1:
            first = next(iter(self._kept.values()))
            if self._bytes <= self._limit_bytes and first.expires_at > now_ms:
                break
            self.dropped += first.expires_at > now_ms
            self._drop(first)
        return made

    def find(self, token: str, owner: str, now_ms: int) -> Selection:
        """Give the selection of a token to who made it.

        Raises:
            Problem: 410 where it is too old, made room for another, or is somebody else's.
        """
        found = self._kept.get(token)
        if found is not None and found.expires_at <= now_ms:
            self._drop(found)
            found = None
        if found is None or found.owner != owner:
            raise Problem(
                410, "selection_expired",
                "This selection is gone: it lives for ten minutes, and only for who made it. "
                "Nothing was changed; select again.",
                field="token",
            )  # fmt: skip
        return found

    def _drop(self, selection: Selection) -> None:
        del self._kept[selection.token]
        self._bytes -= _size(selection)


def _size(selection: Selection) -> int:
    return len(selection.frozen.seqs) * selection.frozen.seqs.itemsize
