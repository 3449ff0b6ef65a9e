"""Frozen selections over HTTP: what matches a search now, for POST /bulk."""

from typing import Final, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.acting import bulk
from phpmq_lite.admin.acting.selections import Selection
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.query import parse
from phpmq_lite.admin.requests import json_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import MessageOut


class SelectionIn(BaseModel):
    """What to select, in the language of the search; without ``state:`` what is alive."""

    model_config = ConfigDict(extra="forbid", strict=True)

    q: str = Field(max_length=1_000)


class SelectionOut(BaseModel):
    """What was selected.  ``confirm`` of POST /bulk has to be one of ``to_confirm``, if any."""

    token: str
    q: str
    count: int
    is_complete: bool  # false: more match than one selection takes
    oldest: int | None  # published, Unix ms
    newest: int | None
    bytes: int
    held: int  # dispatched now
    expired: int  # settled ones whose deadline has passed
    leaves_history: int  # deleted messages that would make room, were these deleted
    by_queue: dict[str, int]
    by_state: dict[str, int]
    by_urn: dict[str, int]
    samples: list[MessageOut]
    to_confirm: list[str]
    expires_at: int  # Unix ms

    @classmethod
    def of(cls, selection: Selection, to_confirm: tuple[str, ...], leaves_history: int) -> Self:
        """Take over a selection."""
        frozen = selection.frozen
        return cls(
            token=selection.token,
            q=selection.query,
            count=selection.count,
            is_complete=frozen.is_complete,
            oldest=frozen.oldest_at,
            newest=frozen.newest_at,
            bytes=frozen.size,
            held=frozen.held,
            expired=frozen.expired,
            leaves_history=leaves_history,
            by_queue=frozen.by_queue,
            by_state=frozen.by_state,
            by_urn=frozen.by_urn,
            samples=[MessageOut.of(row) for row in frozen.samples],
            to_confirm=list(to_confirm),
            expires_at=selection.expires_at,
        )


async def make(request: web.Request) -> web.StreamResponse:
    """Freeze all that match a search; the token is good for ten minutes."""
    asked = await json_of(request, SelectionIn)
    return as_json(await _shown(request, await bulk.select(request, parse(asked.q))), 201)


async def one(request: web.Request) -> web.StreamResponse:
    """Give a selection again, as it was frozen, to who made it."""
    return as_json(await _shown(request, bulk.selection_of(request, request.match_info["token"])))


async def _shown(request: web.Request, selection: Selection) -> SelectionOut:
    going = await bulk.leaves(context_of(request), selection.count, selection.frozen.size)
    return SelectionOut.of(selection, bulk.typed_for(request, selection), going)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/selections", Role.OPERATOR, "api-selection-make", make, "selection.make",
        takes=SelectionIn, gives=SelectionOut, status=201,
    ),
    Route(
        "GET", "/api/v1/selections/{token}", Role.OPERATOR, "api-selection", one,
        gives=SelectionOut,
    ),
)  # fmt: skip
