"""The trash: deleted messages that can be restored."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import cursors
from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.api.history import queue_id_of
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import Cursor, Limit, MessageOut, OutputFormat
from phpmq_lite.queue_settings import LONGEST_NAME


class TrashQuery(BaseModel):
    """A page of the trash, of one queue if asked."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    queue: str = Field("", max_length=LONGEST_NAME)
    cursor: Cursor = None
    limit: Limit = 50
    format: OutputFormat = "html"


async def trash(request: web.Request) -> web.StreamResponse:
    """Deleted messages that can be restored, newest first."""
    query = query_of(request, TrashQuery)
    queues = allowed_queues(request)
    if query.queue:
        queue_id = queue_id_of(request, query.queue)
        queues = frozenset(() if queue_id is None else (queue_id,))
    scope = f"trash {query.queue} {sorted(queues or ())}"
    place = cursors.position(cursors.decode(scope, query.cursor))
    found = await context_of(request).reader.trash(
        before=place.get("before"), queues=queues, limit=query.limit
    )
    goes_on = None if found.next is None else cursors.encode(scope, "before", found.next)
    if query.format != "html":
        return as_data(query.format, MessageOut, [MessageOut.of(m) for m in found.rows], goes_on)
    return await page(
        request,
        "trash.html",
        rows=found.rows,
        is_cut=found.is_cut,
        next=goes_on,
        query=query,
    )


ROUTES: Final = (Route("GET", "/trash", Role.VIEWER, "trash", trash),)
