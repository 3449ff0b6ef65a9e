"""The dead letters of all queues, by what they died of."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from phpmq_lite.admin.api.dead_groups import GroupOut, find_groups
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.pauses import gather_slowly
from phpmq_lite.admin.query import of_group
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import OutputFormat
from phpmq_lite.storage.read.dead_letter_groups import SPANS, DeadLetterGroup

GROUPS_SHOWN: Final = 200
SPARK_WIDTH: Final = 112
SPARK_HEIGHT: Final = 24


class DeadPageQuery(BaseModel):
    """Whether more records are looked at, which takes longer."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    deep: bool = False
    format: OutputFormat = "html"


async def dead(request: web.Request) -> web.StreamResponse:
    """The records of all dead-letter queues, by origin, URN, reason and cause."""
    query = query_of(request, DeadPageQuery)
    found = await find_groups(request, is_deep=query.deep)
    if query.format != "html":
        return as_data(query.format, GroupOut, [GroupOut.of(group) for group in found.groups])
    groups = (
        (group, str(of_group(group)), arrivals(group)) for group in found.groups[:GROUPS_SHOWN]
    )
    return await page(
        request,
        "dead.html",
        found=found,
        groups=await gather_slowly(groups, context_of(request).engine.pause),
        more=max(0, len(found.groups) - GROUPS_SHOWN),
        query=query,
    )


def arrivals(group: DeadLetterGroup) -> str:
    """Give the points of the small chart of arrivals; empty where there were none lately."""
    bars = group.bars
    top = max(bars)
    if not top:
        return ""
    step = SPARK_WIDTH / (SPANS - 1)
    return " ".join(
        f"{at * step:.1f},{SPARK_HEIGHT - 1 - count / top * (SPARK_HEIGHT - 2):.1f}"
        for at, count in enumerate(bars)
    )


ROUTES: Final = (Route("GET", "/dead", Role.VIEWER, "dead", dead),)
