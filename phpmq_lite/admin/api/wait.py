"""Waiting for a message over HTTP, so that tests and scripts neither sleep nor count."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import query as queries
from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.context import Context, context_of, forget_status
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import MessageOut
from phpmq_lite.admin.waiting import Mark, Until, Wait, apart_s, listening
from phpmq_lite.storage.read.activity import RecentActivity

LONGEST_S: Final = 60.0
CURSOR: Final = "X-Cursor"


class WaitQuery(BaseModel):
    """What to wait for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    q: str = Field("", max_length=2_000)  # as in a search; empty: any message
    after: str | None = Field(None, max_length=200)  # a cursor; none: from now on
    until: Until = "published"
    timeout: float = Field(0.0, ge=0, le=LONGEST_S)  # seconds; 0: only look, and give a cursor


async def wait(request: web.Request) -> web.StreamResponse:
    """Give the first message after a cursor that matches, as soon as it is stored, or 204.

    Either answer has the cursor to go on from in the header ``X-Cursor``.
    """
    context, asked = context_of(request), query_of(request, WaitQuery)
    query, after = queries.parse(asked.q), Mark.read(asked.after)
    async with listening(context.live, context.engine.tap) as woken:
        mark = after or await Mark.now(context.readers)
        waiting = Wait(
            query,
            asked.until,
            mark,
            lambda: _queues(request),
            context.search,
            RecentActivity(context.readers),
            lambda: _is_over(request, context),
            lambda: apart_s(context.live),
        )
        found = await waiting.first(woken, asked.timeout)
    headers = {CURSOR: waiting.mark.text}
    if found is None:
        return web.Response(status=204, headers=headers)
    answer = as_json(MessageOut.of(found))
    answer.headers.update(headers)
    return answer


def _queues(request: web.Request) -> frozenset[int] | None:
    forget_status(request)  # a queue may have been made since
    return allowed_queues(request)


def _is_over(request: web.Request, context: Context) -> bool:
    return context.live.is_closed or request.transport is None


ROUTES: Final = (
    Route(
        "GET", "/api/v1/wait", Role.VIEWER, "api-wait", wait, query=WaitQuery, gives=MessageOut,
        cli="expect",
    ),
)  # fmt: skip
