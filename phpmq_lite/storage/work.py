"""Bulk work as the audit has it, and the room that the history has for what is deleted."""

from dataclasses import dataclass

from phpmq_lite.storage.readers import Readers


@dataclass(slots=True, frozen=True)
class WorkRow:
    """The audit row of bulk work; ``detail`` is JSON, ``at_ms`` Unix ms."""

    at_ms: int
    actor: str
    action: str
    target: str
    count: int
    result: str
    detail: str


@dataclass(slots=True, frozen=True)
class Trash:
    """How much of the history was deleted by somebody."""

    rows: int
    bytes: int  # of bodies


class Work:
    """Reads what bulk work leaves behind."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def row(self, number: int) -> WorkRow | None:
        """Give the audit row of a number, None where retention took it."""
        rows = await self._readers.read("work", "row", audit_id=number)
        return WorkRow(*rows[0]) if rows else None

    async def trash(self) -> Trash:
        """Say how much the trash has."""
        return Trash(*(await self._readers.read("measures", "totals"))[0][2:])

    async def next_number(self) -> int:
        """Give the number that the next message gets: what arrives later has it or a higher one."""
        rows = await self._readers.read("browse", "next_number")
        return int(rows[0][0])
