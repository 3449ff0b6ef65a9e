"""The search page and API, search completions and saved views."""

import asyncio
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.fields import ListQuery, OutputFormat, QueryModel, read_form, read_query
from phpmq_lite.admin.http.permissions import allowed_queues, find_queue
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import ListPage
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.messages import listing as messages
from phpmq_lite.admin.messages import saved_items
from phpmq_lite.admin.messages.listing import MessageView
from phpmq_lite.admin.messages.search_query import (
    QUALIFIERS,
    QUERY_CHARACTERS,
    STATES,
    parse_search,
)
from phpmq_lite.admin.resource import api_route, view_response
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.model import State
from phpmq_lite.operator_actions import suiting_actions
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.read.messages import MessageRow, is_message_id
from phpmq_lite.storage.read.search_plan import SearchQuery


class SearchFieldQuery(QueryModel):
    """The text entered in the search field."""

    q: str = Field("", max_length=1_000)


class SearchPageInput(ListQuery):
    """Which page of search results to return, and in which format."""

    format: OutputFormat = "json"


class SearchInput(SearchPageInput):
    """A search; an empty search matches all messages."""

    q: str = Field(
        "", max_length=QUERY_CHARACTERS,
        description="search, or empty for all messages; case-sensitive",
    )  # fmt: skip


class FoundMessagesView(ListPage[MessageView]):
    """A page of search results, newest first.

    A search stops at a time limit. Continue with ``next``, even if no items were found yet.
    """

    searched: int = Field(description="approximate number of messages searched so far")
    total: int = Field(description="approximate number of messages to search")
    complete: bool = Field(description="whether all messages have been searched")


async def search_messages(request: web.Request, asked: SearchInput) -> FoundMessagesView:
    """Search live and settled messages, newest first; bodies are not returned."""
    return found_messages(
        await messages.read_search_page(
            Call.of(request), parse_search(asked.q), asked.cursor, asked.limit
        )
    )


def found_messages(found: messages.SearchPage) -> FoundMessagesView:
    """Return the API view of a page of search results."""
    return FoundMessagesView(
        items=[MessageView.of_row(row) for row in found.rows],
        next=found.next,
        searched=found.searched,
        total=found.total,
        complete=found.is_done,
    )


VIEWS_SHOWN: Final = 50


class SearchPageQuery(ListQuery):
    """A search; an empty search shows the newest messages."""

    q: str = Field("", max_length=4 * QUERY_CHARACTERS)


@dataclass(slots=True, frozen=True)
class SearchChip:
    """A search term, and the search that remains when the term is removed."""

    text: str
    without: str


async def show_search(request: web.Request) -> web.StreamResponse:
    """Show the live and settled messages that match a search, newest first."""
    asked = read_query(request, SearchPageQuery)
    text = asked.q.strip()
    if asked.format != "html":
        found = await messages.read_search_page(
            Call.of(request), parse_search(text), asked.cursor, asked.limit
        )
        return view_response(found_messages(found), asked.format)
    if is_message_id(text.lower()):
        raise web.HTTPSeeOther(context_of(request).urls.to("message", id=text.lower()))
    try:
        query = parse_search(text)
        found = await messages.read_search_page(Call.of(request), query, asked.cursor, asked.limit)
    except Problem as problem:
        if problem.field != "q":
            raise
        return await _page(request, asked, SearchQuery(), None, problem)
    return await _page(request, asked, query, found, None)


async def _page(
    request: web.Request,
    asked: SearchPageQuery,
    query: SearchQuery,
    found: messages.SearchPage | None,
    problem: Problem | None,
) -> web.Response:
    typed = asked.q.strip() if problem is not None else str(query)
    views = [
        (row.name, str(row.content.get("q", "")))
        for row in await saved_items.visible_items(request, "view")
        if isinstance(row.content, dict)
    ]
    return await render_page(
        request,
        "messages.html",
        status=200 if problem is None else problem.status,
        asked=asked,
        typed=typed,
        chips=[SearchChip(str(term), str(query.without(term))) for term in query.terms],
        found=found,
        failed=await messages.read_failed_attempts(
            Call.of(request), found.rows if found is not None else ()
        ),
        says=messages.describe_searched(found) if found is not None else "",
        problem=problem,
        qualifiers=QUALIFIERS,
        actions=actions_for_rows(
            found.rows if found is not None else (),
            dead_letter_queues_named(status_of(request).queues),
        ),
        command=f"phpmq-lite message search {shlex.quote(typed)}",
        views=views[:VIEWS_SHOWN],
    )


def actions_for_rows(rows: Sequence[MessageRow], others: frozenset[str] = frozenset()) -> list[str]:
    """Return the actions that apply to at least one of the messages, least destructive first.

    ``others`` contains the dead-letter queues named in queue settings.
    """
    states = {State(row.state).name.lower() for row in rows}
    is_record = any(
        row.is_alive and (row.source_seq is not None or has_records(row.queue or "", others))
        for row in rows
    )
    return [str(action) for action in suiting_actions(states, may_redrive=is_record)]


async def submit_view(request: web.Request) -> web.StreamResponse:
    """Save a search under a name, or remove a saved search."""
    context, form = context_of(request), await read_form(request)
    name, query = form.text("name", NAME_MAX), parse_search(form.text("q", QUERY_CHARACTERS))
    if not name:
        raise Problem(422, "invalid", "Enter a name for the view.", field="name",
                      bound=f"1 to {NAME_MAX} characters")  # fmt: skip
    entry = audit_entry(request, target=name)
    if form.flag("remove"):
        await saved_items.check_item_change(request, "view", name)
        await saved_items.forget_item(context, entry, "view", name)
        Call.of(request).tell(FlashMessage(f"The view {name} was removed."))
    else:
        await saved_items.check_item_change(request, "view", name, {"q": str(query)})
        await saved_items.save_item(context, entry, "view", name, {"q": str(query)})
        Call.of(request).tell(FlashMessage(f"Saved as view {name}."))
    raise web.HTTPSeeOther(context.urls.to("messages", q=str(query)))


async def submit_search(request: web.Request) -> web.StreamResponse:
    """Redirect to the message, queue or search results that match the text in the search field."""
    context, query = context_of(request), read_query(request, SearchFieldQuery)
    text = query.q.strip()
    if is_message_id(text.lower()):
        raise web.HTTPSeeOther(context.urls.to("message", id=text.lower()))
    if find_queue(request, text) is not None:
        raise web.HTTPSeeOther(context.urls.to("queue", q=text))
    raise web.HTTPSeeOther(context.urls.to("messages", q=text))


COMPLETIONS: Final = 20
_PATHS: Final = 500  # maximum number of JSON paths to choose completions from


class CompletionsInput(QueryModel):
    """Text in the search field, up to the caret."""

    q: str = Field("", max_length=2_000, description="text in the search field, up to the caret")


class CompletionsView(BaseModel):
    """Completions for the last word, most likely first."""

    items: list[str] = Field(description="completions for the last word, most likely first")


async def list_completions(request: web.Request, asked: CompletionsInput) -> CompletionsView:
    """Complete the last word of a search: qualifiers, queues, states, URNs and paths in bodies."""
    word = asked.q.rpartition(" ")[2]
    start = "-" if word.startswith("-") else ""
    name, colon, value = word.removeprefix("-").partition(":")
    if not colon:
        names = (f"{known.name}:" for known in QUALIFIERS if known.name != "data.")
        paths = await _paths(request) if name.startswith("data") else []
        found = [text for text in [*names, *paths] if text.startswith(name)]
    else:
        value = value.strip('"')
        found = [f"{name}:{text}" for text in await _values(request, name) if value in text]
    return CompletionsView(items=[start + text for text in found[:COMPLETIONS]])


async def _values(request: web.Request, name: str) -> list[str]:
    """Return a qualifier's values, quoted where necessary."""
    if name == "state":
        return list(STATES)
    if name == "verdict":
        return list(REASONS)
    if name in ("queue", "origin"):
        return [_quoted(queue.name) for queue in status_of(request).queues]
    if name == "urn" and allowed_queues(request) is None:
        rows = await context_of(request).search.newest_contents()
        return list(dict.fromkeys(_quoted(urn) for urn, _ in rows if urn))
    return []


async def _paths(request: web.Request) -> list[str]:
    """Return JSON paths in the newest bodies, or none if the caller is limited to some queues."""
    if allowed_queues(request) is not None:
        return []
    rows = await context_of(request).search.newest_contents()
    bodies = [content for _, content in rows if content]
    return await asyncio.to_thread(lambda: list(dict.fromkeys(_paths_of_bodies(bodies)))[:_PATHS])


def _paths_of_bodies(bodies: Iterable[bytes]) -> Iterator[str]:
    for content in bodies:
        try:
            read = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(read, dict) and isinstance(read.get("data"), dict):
            yield from _member_paths(read["data"], "data", 3)


def _member_paths(value: dict[str, Any], path: str, left: int) -> Iterator[str]:
    for key, member in value.items():
        if not key.replace("_", "").isalnum() or not key.isascii() or key[0].isdigit():
            continue
        if isinstance(member, dict) and left:
            yield from _member_paths(member, f"{path}.{key}", left - 1)
        else:
            yield f"{path}.{key}:"


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


ROUTES: Final = (
    api_route(
        "GET", "/api/v1/messages", Role.VIEWER, "api-search", search_messages,
        cli="message search",
    ),
    Route("GET", "/messages", Role.VIEWER, "messages", show_search),
    Route("POST", "/views", Role.OPERATOR, "view-save", submit_view, "view.save"),
    Route("GET", "/search", Role.VIEWER, "search", submit_search),
)  # fmt: skip
