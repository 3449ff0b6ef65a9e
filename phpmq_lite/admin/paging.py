"""Pages of messages, alive or settled, with cursors to their neighbours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phpmq_lite.admin import cursors
from phpmq_lite.admin.context import Context
from phpmq_lite.admin.schemas import MessagesQuery
from phpmq_lite.model import State
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.browse import MessageRow


@dataclass(slots=True, frozen=True)
class Listed:
    """A page of messages and cursors to its neighbours."""

    rows: Sequence[MessageRow]
    next: str | None = None
    previous: str | None = None
    searched: int | None = None  # offsets looked at, where the time ran out first


async def oldest(context: Context, queues: Iterable[QueueStatus]) -> dict[int, int]:
    """Say when the first ready message of each queue was published."""
    return await context.reader.oldest_ready(q.queue_id for q in queues if q.ready > 0)


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


async def history_page(context: Context, query: MessagesQuery, queue_id: int | None) -> Listed:
    """Give a page of settled messages, newest first, with cursors."""
    scope = f"history {queue_id} {query.outcome}"
    cursor = cursors.decode(scope, query.cursor)
    place = cursors.position(cursor)
    outcome = State[query.outcome.upper()] if query.outcome else None
    found = await context.reader.history(
        **place, queue_id=queue_id, outcome=outcome, limit=query.limit
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
