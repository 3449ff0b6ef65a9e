"""The audit log, read for pages: newest first, filtered, with a cursor.

Its rows are written in the transaction of the change (``broker/operator/queue_operations.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from phpmq_lite.storage.read.read_connections import Readers, Row

PAGE_ROWS: Final = 200  # at most
_SLICE: Final = 100_000  # audit_ids per read; filters have no index
_LIMIT_S: Final = 1.0  # for all slices of one page


@dataclass(slots=True, frozen=True)
class AuditRow:
    """A row of the audit log, in the order of the columns in audit.sql."""

    audit_id: int
    at_ms: int  # Unix ms
    actor: str
    source: str  # ui, http or cli
    address: str
    action: str  # audit name of the route: "queue.purge"
    target: str
    count: int
    reason: str
    result: str  # done, running, interrupted, cancelled, or the code of a refusal
    detail: str  # JSON or empty: before and after of settings
    request_id: str


@dataclass(slots=True, frozen=True)
class AuditFilter:
    """A filter; None matches anything."""

    actor: str | None = None
    action: str | None = None  # complete, or the part before the dot: "queue"
    result: str | None = None  # complete, or "refused" for every refusal
    target: str | None = None
    since: int | None = None  # at_ms, inclusive
    upto: int | None = None  # at_ms, exclusive

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statements."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, frozen=True)
class AuditPage:
    """A page, newest first; ``searched_to`` is set if the time was up before it was full."""

    rows: list[AuditRow]
    has_more: bool  # after its last row, or before its first one if read upwards
    searched_to: int | None = None  # audit_id to continue from


class AuditLog:
    """Reads the table ``audit``."""

    def __init__(self, readers: Readers, *, timer: Callable[[], float] = monotonic) -> None:
        self._readers = readers
        self._timer = timer

    async def page(
        self,
        wanted: AuditFilter,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> AuditPage:
        """Return a page of rows older than ``before``, or newer than ``after`` (``audit_id``)."""
        limit = min(limit, PAGE_ROWS)
        first, last = (await self._readers.read("audit", "ends"))[0]
        if first is None:
            return AuditPage([], has_more=False)
        if after is not None:
            return await self._newer(wanted, after, last, limit)
        start = last + 1 if before is None else min(before, last + 1)
        return await self._older(wanted, start, first, limit)

    async def _older(self, wanted: AuditFilter, start: int, first: int, limit: int) -> AuditPage:
        rows: list[Row] = []
        ends_s = self._timer() + _LIMIT_S
        while start > first and len(rows) <= limit:
            floor = max(first, start - _SLICE)
            rows += await self._readers.read(
                "audit", "older", before=start, floor=floor,
                limit=limit + 1 - len(rows), **wanted.parameters(),
            )  # fmt: skip
            start = floor
            if self._timer() > ends_s:
                break
        has_more = len(rows) > limit
        searched_to = start if not has_more and start > first else None
        return AuditPage([AuditRow(*row) for row in rows[:limit]], has_more, searched_to)

    async def _newer(self, wanted: AuditFilter, after: int, last: int, limit: int) -> AuditPage:
        rows: list[Row] = []
        ends_s = self._timer() + _LIMIT_S
        while after < last and len(rows) <= limit and self._timer() <= ends_s:
            ceiling = min(last, after + _SLICE)
            rows += await self._readers.read(
                "audit", "newer", after=after, ceiling=ceiling,
                limit=limit + 1 - len(rows), **wanted.parameters(),
            )  # fmt: skip
            after = ceiling
        page = [AuditRow(*row) for row in rows[:limit]]
        return AuditPage(page[::-1], has_more=len(rows) > limit)

    async def last_of(self, target: str) -> AuditRow | None:
        """Return the newest row with this target: a queue, a message id, a user."""
        rows = await self._readers.read("audit", "newest_of_target", target=target)
        return AuditRow(*rows[0]) if rows else None


@dataclass(slots=True, frozen=True)
class BulkJobRow:
    """The audit row of a bulk job; ``detail`` is JSON, ``at_ms`` Unix ms."""

    at_ms: int
    actor: str
    action: str
    target: str
    count: int
    result: str
    detail: str


@dataclass(slots=True, frozen=True)
class Trash:
    """The size of the trash: deleted messages in the history."""

    rows: int
    bytes: int  # of bodies


class BulkJobLog:
    """Reads the audit rows of bulk jobs."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def row(self, number: int) -> BulkJobRow | None:
        """Return the row of a job; None if retention removed it."""
        rows = await self._readers.read("audit", "bulk_job", audit_id=number)
        return BulkJobRow(*rows[0]) if rows else None

    async def trash(self) -> Trash:
        """Return the size of the trash."""
        return Trash(*(await self._readers.read("database_size", "totals"))[0][2:])

    async def next_number(self) -> int:
        """Return the next message number: later messages have this one or a higher one."""
        rows = await self._readers.read("messages", "next_number")
        return int(rows[0][0])
