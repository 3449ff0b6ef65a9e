"""What people saved under a name: views, templates and labels, each a JSON document."""

import json
from dataclasses import dataclass
from typing import Any, Final

from phpmq_lite.storage.readers import Readers

KINDS: Final = ("view", "template", "label")
SAVED_MAX: Final = 500  # of a kind; what a page lists
NAME_MAX: Final = 80  # characters

Statement = tuple[str, str, tuple[Any, ...]]


@dataclass(slots=True, frozen=True)
class SavedRow:
    """One saved thing; ``saved_at`` is Unix ms."""

    name: str
    content: Any
    saved_at: int
    saved_by: str


class Saved:
    """Reads what was saved; it is written as rare rows of a batch."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def all(self, kind: str) -> list[SavedRow]:
        """Give all of a kind, by name."""
        rows = await self._readers.read("saved", "all", kind=kind, limit=SAVED_MAX)
        return [_row(*row) for row in rows]

    async def one(self, kind: str, name: str) -> SavedRow | None:
        """Give one by its name, None where there is none."""
        rows = await self._readers.read("saved", "one", kind=kind, name=name)
        return _row(*rows[0]) if rows else None


def put(kind: str, name: str, content: Any, at_ms: int, who: str) -> Statement:
    """Give the rare row that saves something under a name, over what was there."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return ("saved", "put", (kind, name, text, at_ms, who))


def remove(kind: str, name: str) -> Statement:
    """Give the rare row that takes a saved thing away."""
    return ("saved", "remove", (kind, name))


def _row(name: str, content: str, saved_at: int, saved_by: str) -> SavedRow:
    return SavedRow(name, json.loads(content), saved_at, saved_by)
