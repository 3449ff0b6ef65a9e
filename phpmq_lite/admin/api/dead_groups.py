"""Dead letters over HTTP, by what they died of."""

from typing import Final, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.query import of_group
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import OutputFormat
from phpmq_lite.admin.shelves import named
from phpmq_lite.storage.read.dead_letter_groups import (
    DEEP_LIMIT_S,
    LIMIT_S,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
)


class GroupsQuery(BaseModel):
    """How the groups are given; ``deep`` looks at more records and takes longer."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: OutputFormat = "json"
    deep: bool = False


class GroupOut(BaseModel):
    """Records that died in the same queue, of the same URN, reason and cause."""

    queue: str  # that they are in
    origin: str | None  # null: published by a client
    urn: str | None
    reason: str | None
    cause: str | None  # what a worker wrote, numbers and ids as *
    count: int
    bytes: int
    first_at: int  # Unix ms
    last_at: int
    again: int  # died again after a redrive
    arrivals: list[int] = Field(default_factory=list)  # of the last 7 days in 28 spans
    sample_id: str  # of the newest
    q: str  # the search that finds them

    @classmethod
    def of(cls, group: DeadLetterGroup) -> Self:
        """Take over a group that was read."""
        return cls(
            queue=group.queue,
            origin=group.origin,
            urn=group.urn,
            reason=group.reason,
            cause=group.cause,
            count=group.records,
            bytes=group.size,
            first_at=group.first_at,
            last_at=group.last_at,
            again=group.again,
            arrivals=group.bars,
            sample_id=group.sample_id,
            q=str(of_group(group)),
        )


class GroupsOut(BaseModel):
    """All groups, the newest first; counts are of the records that were looked at."""

    items: list[GroupOut]
    next: None = None
    looked: int
    total: int  # records in all dead-letter queues


async def find_groups(request: web.Request, *, is_deep: bool) -> DeadLetterPage:
    """Group the dead letters that the asking person may see."""
    context = context_of(request)
    return await DeadLetterGroups(context.readers).groups(
        context.now_ms(),
        queues=allowed_queues(request),
        names=named(status_of(request).queues),
        limit_s=DEEP_LIMIT_S if is_deep else LIMIT_S,
    )


async def groups(request: web.Request) -> web.StreamResponse:
    """Group dead-letter records by origin, URN, reason and cause, the newest group first."""
    query = query_of(request, GroupsQuery)
    found = await find_groups(request, is_deep=query.deep)
    items = [GroupOut.of(group) for group in found.groups]
    if query.format in ("jsonl", "csv"):
        return as_data(query.format, GroupOut, items)
    return as_json(GroupsOut(items=items, looked=found.looked, total=found.total))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/dead", Role.VIEWER, "api-dead", groups,
        query=GroupsQuery, gives=GroupsOut, cli="dead ls",
    ),
    Route(
        "GET", "/api/v1/dead/groups", Role.VIEWER, "api-dead-groups", groups,
        query=GroupsQuery, gives=GroupsOut, cli="dead groups",
    ),
)  # fmt: skip
