"""Pages of messages, alive or settled, with cursors to their neighbours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from phpmq_lite.admin import cursors, formats, traced
from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import of_traces
from phpmq_lite.admin.schemas import LIMIT_MAX, MessagesQuery
from phpmq_lite.admin.shelves import named
from phpmq_lite.model import State
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.messages import MessageRow
from phpmq_lite.storage.read.search_plan import SearchQuery

AGES_READ_MAX: Final = 200  # queues


@dataclass(slots=True, frozen=True)
class Listed:
    """A page of messages and cursors to its neighbours."""

    rows: Sequence[MessageRow]
    next: str | None = None
    previous: str | None = None
    searched: int | None = None  # offsets looked at, where the time ran out first


async def oldest(context: Context, queues: Iterable[QueueStatus]) -> dict[int, int]:
    """Say when the first ready message of each queue was published.

    Of a few queues it is read; of many it is as of the last sample, at most 10 s old.
    """
    ready = [queue.queue_id for queue in queues if queue.ready > 0]
    if len(ready) <= AGES_READ_MAX:
        return await context.reader.oldest_ready(ready)
    ages = context.rollups.ages
    return {queue_id: ages[queue_id] for queue_id in ready if queue_id in ages}


async def messages_page(context: Context, query: MessagesQuery, queue_id: int) -> Listed:
    """Give a page of a queue in order, with cursors."""
    scope = f"messages {queue_id} {query.state}"
    cursor = cursors.decode(scope, query.cursor)
    place = cursors.position(cursor)
    state = State[query.state.upper()] if query.state else None
    rows = await context.reader.messages(queue_id, **place, state=state, limit=query.limit)
    is_full, is_back = len(rows) == query.limit, cursor is not None and cursor.direction == "before"
    has_next, has_previous = is_full or is_back, (is_full if is_back else cursor is not None)
    return Listed(
        rows,
        cursors.encode(scope, "after", rows[-1].position) if rows and has_next else None,
        cursors.encode(scope, "before", rows[0].position) if rows and has_previous else None,
    )


async def history_page(
    context: Context,
    query: MessagesQuery,
    queue_id: int | None,
    *,
    since: int | None = None,
    until: int | None = None,
) -> Listed:
    """Give a page of settled messages, newest first, with cursors.

    ``since`` and ``until`` (exclusive) bound when they were settled, Unix ms.
    """
    scope = f"history {queue_id} {query.outcome} {since} {until}"
    cursor = cursors.decode(scope, query.cursor)
    place = cursors.position(cursor)
    outcome = State[query.outcome.upper()] if query.outcome else None
    found = await context.reader.history(
        **place, queue_id=queue_id, outcome=outcome, since=since, until=until, limit=query.limit
    )
    first, last = _ends(found.rows)
    is_back = "after" in place
    if found.searched_to is not None and not is_back:
        last, has_older = found.searched_to, True
    else:
        has_older = is_back or found.has_more
    has_newer = found.has_more if is_back else cursor is not None
    start = place.get("before", found.highest or 0)
    searched = None if found.searched_to is None else abs(start - found.searched_to)
    return Listed(
        found.rows,
        cursors.encode(scope, "before", last) if has_older and last is not None else None,
        cursors.encode(scope, "after", first) if has_newer and first is not None else None,
        searched,
    )


def _ends(rows: Sequence[MessageRow]) -> tuple[int | None, int | None]:
    return (rows[0].offset, rows[-1].offset) if rows else (None, None)


@dataclass(slots=True, frozen=True)
class FoundPage:
    """A page of a search; ``searched`` of about ``total`` were looked at, all where ``is_done``."""

    query: SearchQuery
    rows: Sequence[MessageRow]
    next: str | None
    searched: int
    total: int
    is_done: bool
    is_full: bool = False

    @property
    def is_cut(self) -> bool:
        """Tell whether the time was over before the page was full or everything looked at."""
        return not self.is_done and self.next is not None and not self.is_full


async def search_page(
    request: web.Request, query: SearchQuery, cursor: str | None, limit: int
) -> FoundPage:
    """Give a page of what matches, newest first, of the queues that the asking person may see."""
    context, allowed = context_of(request), allowed_queues(request)
    scope = f"search {query} {sorted(allowed) if allowed is not None else ''}"
    found = await context.search.page(
        query, queues=allowed, place=_place(cursors.decode(scope, cursor)), limit=limit
    )
    goes_on = None if found.next is None else cursors.encode(scope, "after", list(found.next))
    return FoundPage(
        query, found.rows, goes_on, found.searched, found.total, found.is_done,
        is_full=len(found.rows) >= limit,
    )  # fmt: skip


async def failed_attempts(request: web.Request, rows: Iterable[MessageRow]) -> frozenset[int]:
    """Return the seqs of acked rows whose attempt failed, as far as their traces show it."""
    traces = {
        row.trace_id
        for row in rows
        if row.state == State.ACKED and row.trace_id is not None and row.meta_id is not None
    }
    if not traces:
        return frozenset()
    found = await search_page(request, of_traces(*sorted(traces)), None, LIMIT_MAX)
    return traced.failed_attempts(found.rows, named(status_of(request).queues))


def _place(cursor: cursors.Cursor | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    match cursor.place:
        case [int() as upto, int() as place] if 0 <= place <= 1 << 62 and 0 <= upto <= 1 << 62:
            return upto, place
    raise Problem(422, "bad_cursor", "The cursor is malformed. Start again.", field="cursor")


def say_searched(found: FoundPage) -> str:
    """Say how far was looked: ``Searched 412,000 of about 2.1 million, newest first.``."""
    return f"Searched {formats.number(found.searched)} of about {about(found.total)}, newest first."


def about(count: int) -> str:
    """Write a large count roughly: ``2.1 million``, ``412,000``."""
    if count >= 999_500:
        return f"{count / 1e6:.1f}".removesuffix(".0") + " million"
    digits = max(0, len(str(count)) - 3)
    return formats.number(round(count, -digits))
