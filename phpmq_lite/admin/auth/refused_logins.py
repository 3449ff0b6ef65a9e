"""Refused logins in the audit: one counting row per address and minute."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from phpmq_lite.model import AuditEntry

MINUTE_MS: Final = 60_000
ADDRESSES: Final = 1_000  # per minute; further addresses share a row
_OTHERS: Final = "many"

WriteEntry = Callable[
    [AuditEntry, int], Awaitable[None]
]  # writes a row, or adds to the written one


@dataclass(slots=True)
class _Row:
    entry: AuditEntry
    more: int = 0  # refused since its row was written last


class RefusedLogins:
    """Combines the refused logins of a minute.  Times are Unix milliseconds.

    The first of an address is written immediately, the others are added after the minute.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}  # by address and action
        self._minute = 0
        self.total = 0  # since the start

    async def add(self, entry: AuditEntry, now_ms: int, note: WriteEntry) -> None:
        """Count a refusal; ``note(entry, n)`` stores n more."""
        self.total += 1
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            await self.flush(note)
            self._minute = minute
        if len(self._rows) >= ADDRESSES:
            entry.address = _OTHERS
        row = self._rows.get((entry.address, entry.action))
        if row is not None:
            row.more += 1
            return
        self._rows[entry.address, entry.action] = _Row(entry)
        await note(entry, 1)

    async def flush(self, note: WriteEntry) -> None:
        """Store the counts; call it once a minute, and before the broker stops."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            if row.more:
                await note(row.entry, row.more)
