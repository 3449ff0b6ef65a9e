"""Reads pages of the audit log, newest first, with filters and a cursor.

A row is written in the same transaction as its change; see ``broker/operator/queue_operations.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from phpmq_lite.storage.read.read_pool import Readers, RowReader

PAGE_ROWS: Final = 200  # maximum number of rows per page
_SLICE: Final = 100_000  # number of audit_ids scanned per read, because filters use no index
_LIMIT_S: Final = 1.0  # time limit for all slices of a page


@dataclass(slots=True, frozen=True)
class AuditRow:
    """A row of the audit log, with fields in the order of the columns in audit.sql."""

    audit_id: int
    at_ms: int  # Unix ms
    actor: str
    source: str  # where the action came from: ui, http or cli
    address: str
    action: str  # audit name of the route, such as "queue.purge"
    target: str
    count: int
    reason: str
    result: str  # done, running, interrupted, cancelled or a refusal's error code
    detail: str  # empty, or JSON with settings before and after the change
    request_id: str


@dataclass(slots=True, frozen=True)
class AuditFilter:
    """A filter for audit rows; None matches anything."""

    actor: str | None = None
    action: str | None = None  # full action name, or the part before the dot, such as "queue"
    result: str | None = None  # full result, or "refused" to match any refusal
    target: str | None = None
    since: int | None = None  # lower bound for at_ms, inclusive
    upto: int | None = None  # upper bound for at_ms, exclusive

    def parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, frozen=True)
class AuditPage:
    """A page of rows, newest first; ``searched_to`` is set if time ran out before it was full."""

    rows: list[AuditRow]
    has_more: bool  # whether more rows exist in the direction of reading
    searched_to: int | None = None  # audit_id from which to continue the search


class AuditLog(RowReader):
    """Reads the table ``audit``."""

    file = "audit"

    def __init__(self, readers: Readers, *, timer: Callable[[], float] = monotonic) -> None:
        super().__init__(readers)
        self._timer = timer

    async def page(
        self,
        filters: AuditFilter,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> AuditPage:
        """Return a page of rows with audit_ids below ``before`` or above ``after``."""
        limit = min(limit, PAGE_ROWS)
        first, last = (await self._read("ends"))[0]
        if first is None:
            return AuditPage([], has_more=False)
        is_newer = after is not None
        name = "newer" if is_newer else "older"
        top = last + 1 if before is None else min(before, last + 1)
        place = top if after is None else after
        rows: list[AuditRow] = []
        ends_s = self._timer() + _LIMIT_S
        while (place < last if is_newer else place > first) and len(rows) <= limit:
            end = min(last, place + _SLICE) if is_newer else max(first, place - _SLICE)
            bounds = {"start": place, "stop": end, "limit": limit + 1 - len(rows)}
            rows += await self._all(AuditRow, name, **bounds, **filters.parameters())
            place = end
            if self._timer() > ends_s:
                break
        has_more = len(rows) > limit
        page = rows[:limit]
        if is_newer:
            return AuditPage(page[::-1], has_more)
        return AuditPage(page, has_more, place if not has_more and place > first else None)

    async def last_of(self, target: str) -> AuditRow | None:
        """Return the newest row with a given target, such as a queue, a message id or a user."""
        return await self._one(AuditRow, "newest_of_target", target=target)


@dataclass(slots=True, frozen=True)
class Trash:
    """Number and total size of the deleted messages in the history."""

    rows: int
    bytes: int  # total size of the bodies


class BulkJobLog(RowReader):
    """Reads the audit rows of bulk jobs."""

    file = "audit"

    async def row(self, number: int) -> AuditRow | None:
        """Return the row of a job, or None if retention has removed it."""
        return await self._one(AuditRow, "bulk_job", audit_id=number)

    async def trash(self) -> Trash:
        return Trash(*(await self._readers.read("database_size", "totals"))[0][2:])

    async def next_number(self) -> int:
        """Return the next message number; every later message gets this or a higher number."""
        rows = await self._readers.read("messages", "next_number")
        return int(rows[0][0])
