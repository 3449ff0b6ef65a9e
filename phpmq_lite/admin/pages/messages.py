"""The search: what matches, newest first, and what can be done with it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import paging, saved_items
from phpmq_lite.admin.access.identity import entry_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.acting.flash import leave
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.api.message_list import found_as
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import QUALIFIERS, QUERY_CHARACTERS, parse
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import Cursor, Limit, OutputFormat
from phpmq_lite.admin.shelves import has_records, named
from phpmq_lite.model import State
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.read.messages import MessageRow, is_message_id
from phpmq_lite.storage.read.search_plan import SearchQuery

VIEWS_SHOWN: Final = 50


class MessagesPageQuery(BaseModel):
    """What to look for; empty: the newest messages."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    q: str = Field("", max_length=4 * QUERY_CHARACTERS)
    cursor: Cursor = None
    limit: Limit = 50
    format: OutputFormat = "html"


@dataclass(slots=True, frozen=True)
class Chip:
    """A term of the search, and the search without it."""

    text: str
    without: str


async def messages(request: web.Request) -> web.StreamResponse:
    """Messages that match a search, alive and settled, newest first."""
    asked = query_of(request, MessagesPageQuery)
    text = asked.q.strip()
    if asked.format != "html":
        found = await paging.search_page(request, parse(text), asked.cursor, asked.limit)
        return found_as(asked.format, found)
    if is_message_id(text.lower()):
        raise web.HTTPSeeOther(context_of(request).urls.to("message", id=text.lower()))
    try:
        query = parse(text)
        found = await paging.search_page(request, query, asked.cursor, asked.limit)
    except Problem as problem:
        if problem.field != "q":
            raise
        return await _page(request, asked, SearchQuery(), None, problem)
    return await _page(request, asked, query, found, None)


async def _page(
    request: web.Request,
    asked: MessagesPageQuery,
    query: SearchQuery,
    found: paging.FoundPage | None,
    problem: Problem | None,
) -> web.Response:
    typed = asked.q.strip() if problem is not None else str(query)
    views = [
        (row.name, str(row.content.get("q", "")))
        for row in await saved_items.visible(request, "view")
        if isinstance(row.content, dict)
    ]
    return await page(
        request,
        "messages.html",
        status=200 if problem is None else problem.status,
        asked=asked,
        typed=typed,
        chips=[Chip(str(term), str(query.without(term))) for term in query.terms],
        found=found,
        failed=await paging.failed_attempts(request, found.rows if found is not None else ()),
        says=paging.say_searched(found) if found is not None else "",
        problem=problem,
        qualifiers=QUALIFIERS,
        actions=actions_for(
            found.rows if found is not None else (), named(status_of(request).queues)
        ),
        command=f"phpmq-lite search {shlex.quote(typed)}",
        views=views[:VIEWS_SHOWN],
    )


def actions_for(rows: Sequence[MessageRow], others: frozenset[str] = frozenset()) -> list[str]:
    """Name what can be done to at least one of these messages, harmless first.

    ``others`` are queues of dead-letter records that settings name.
    """
    states = {State(row.state) for row in rows}
    found = []
    if states & {State.READY, State.DISPATCHED}:
        found.append("requeue")
    if State.DISPATCHED in states:
        found.append("release")
    if State.READY in states:
        found.append("move")
    if any(row.is_alive and _is_record(row, others) for row in rows):
        found.append("redrive")
    if State.DELETED in states:
        found.append("restore")
    if states & {State.READY, State.DISPATCHED}:
        found.append("delete")
    return found


def _is_record(row: MessageRow, others: frozenset[str]) -> bool:
    return row.source_seq is not None or has_records(row.queue or "", others)


async def save_view(request: web.Request) -> web.StreamResponse:
    """Save a search under a name; an empty search takes the name away."""
    context, form = context_of(request), await form_of(request)
    name, query = form.text("name", NAME_MAX), parse(form.text("q", QUERY_CHARACTERS))
    if not name:
        raise Problem(422, "invalid", "The view has no name.", field="name",
                      bound=f"1 to {NAME_MAX} characters")  # fmt: skip
    entry = entry_of(request, target=name)
    if form.flag("remove"):
        await saved_items.check_change(request, "view", name)
        await commands.forget(context, entry, "view", name)
        leave(request, Note(f"The view {name} is gone."))
    else:
        await saved_items.check_change(request, "view", name, {"q": str(query)})
        await commands.save(context, entry, "view", name, {"q": str(query)})
        leave(request, Note(f"Saved as the view {name}."))
    raise web.HTTPSeeOther(context.urls.to("messages", q=str(query)))


ROUTES: Final = (
    Route("GET", "/messages", Role.VIEWER, "messages", messages),
    Route("POST", "/views", Role.OPERATOR, "view-save", save_view, "view.save"),
)
