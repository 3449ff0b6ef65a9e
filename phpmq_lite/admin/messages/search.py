"""The search page and API, search completions and saved views."""

import asyncio
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named, has_records
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import OutputFormat, QueryModel, StrictInput
from phpmq_lite.admin.http.problems import invalid, problem_of
from phpmq_lite.admin.messages import saved_items
from phpmq_lite.admin.messages.listing import (
    FoundMessagesView,
    SearchPageInput,
    describe_searched,
    read_search_page,
)
from phpmq_lite.admin.messages.traces import read_failed_attempts, read_retries
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.errors import SearchError
from phpmq_lite.model import STATE_NAMES
from phpmq_lite.operator_actions import suiting_actions
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.accounts import NAME_MAX
from phpmq_lite.storage.read.messages import MessageRow, is_message_id
from phpmq_lite.storage.search.language import (
    QUALIFIERS,
    QUERY_CHARACTERS,
    STATES,
    SearchQuery,
    parse_search,
)

VIEWS_SHOWN: Final = 50
COMPLETIONS: Final = 20
_PATHS: Final = 500  # maximum number of JSON paths to choose completions from
endpoints: Final = Endpoints()


class SearchInput(SearchPageInput):
    """A search; an empty search matches all messages."""

    q: str = Field(
        "",
        max_length=QUERY_CHARACTERS,
        description="search, or empty for all messages; case-sensitive",
    )


class SearchPageQuery(SearchInput):
    """A search; an empty search shows the newest messages."""

    q: str = Field("", max_length=4 * QUERY_CHARACTERS)
    format: OutputFormat = "html"


@endpoints.api("GET /messages", "api-search", cli="message search")
async def search_messages(call: Call, query: SearchInput) -> FoundMessagesView:
    """Search live and settled messages, newest first; bodies are not returned."""
    search = parse_search(query.q.strip())
    return FoundMessagesView.of_page(
        await read_search_page(call, search, query.cursor, query.limit)
    )


@endpoints.page("/messages", "messages", data=search_messages)
async def show_search(call: Call, query: SearchPageQuery) -> web.Response:
    """Show the live and settled messages that match a search, newest first."""
    typed = query.q.strip()
    if is_message_id(typed.lower()):
        raise call.redirect("message", id=typed.lower())
    search, page, problem = SearchQuery(), None, None
    try:
        search = parse_search(typed)
        page = await read_search_page(call, search, query.cursor, query.limit)
        typed = str(search)
    except SearchError as error:
        problem = problem_of(error)
    rows = page.rows if page is not None else ()
    views = [
        (item.name, str(item.content.get("q", "")))
        for item in await saved_items.visible_items(call, "view")
        if isinstance(item.content, dict)
    ]
    return await call.render(
        "messages.html",
        status=200 if problem is None else problem.status,
        query=query,
        typed=typed,
        chips=[(str(term), str(search.without(term))) for term in search.terms],
        listed=page,
        failed=await read_failed_attempts(call, rows),
        retries=await read_retries(call, rows),
        progress=describe_searched(page) if page is not None else "",
        problem=problem,
        qualifiers=QUALIFIERS,
        actions=_actions_for(rows, dead_letter_queues_named(call.queues)),
        command=f"phpmq-lite message search {shlex.quote(typed)}",
        views=views[:VIEWS_SHOWN],
    )


def _actions_for(rows: Sequence[MessageRow], others: frozenset[str]) -> list[str]:
    """Return the actions that apply to at least one of the messages, least destructive first."""
    states = {STATE_NAMES[row.state] for row in rows}
    is_record = any(
        row.is_alive and (row.source_seq is not None or has_records(row.queue or "", others))
        for row in rows
    )
    return [str(action) for action in suiting_actions(states, may_redrive=is_record)]


class ViewForm(StrictInput):
    """A search to save under a name, or the name of a saved search to remove."""

    name: str = Field("", max_length=NAME_MAX)
    q: str = Field("", max_length=QUERY_CHARACTERS)
    remove: bool = False


@endpoints.action("/views", "view-save", Role.OPERATOR, "view.save")
async def submit_view(call: Call, form: ViewForm) -> Done[None]:
    """Save a search under a name, or remove a saved search."""
    name, search = form.name, str(parse_search(form.q))
    if not name:
        raise invalid("Enter a name for the view.", "name", f"1 to {NAME_MAX} characters")
    call.audit(name)
    content = None if form.remove else {"q": search}
    await saved_items.change_item(call, "view", name, content)
    text = f"The view {name} was removed." if form.remove else f"Saved as view {name}."
    return Done(None, text, call.url("messages", q=search))


class SearchFieldQuery(QueryModel):
    """The text entered in the search field."""

    q: str = Field("", max_length=1_000)


@endpoints.page("/search", "search")
async def submit_search(call: Call, query: SearchFieldQuery) -> web.Response:
    """Redirect to the message, queue or search results that match the text in the search field."""
    text = query.q.strip()
    if is_message_id(text.lower()):
        raise call.redirect("message", id=text.lower())
    if call.find_queue(text) is not None:
        raise call.redirect("queue", q=text)
    raise call.redirect("messages", q=text)


class CompletionsInput(QueryModel):
    """Text in the search field, up to the caret."""

    q: str = Field("", max_length=2_000, description="text in the search field, up to the caret")


class CompletionsView(BaseModel):
    """Completions for the last word, most likely first."""

    items: list[str] = Field(description="completions for the last word, most likely first")


@endpoints.api("GET /completions", "api-completions")
async def list_completions(call: Call, query: CompletionsInput) -> CompletionsView:
    """Complete the last word of a search: qualifiers, queues, states, URNs and paths in bodies."""
    word = query.q.rpartition(" ")[2]
    start = "-" if word.startswith("-") else ""
    name, colon, value = word.removeprefix("-").partition(":")
    if colon:
        value = value.strip('"')
        items = [f"{name}:{text}" for text in await _values(call, name) if value in text]
    else:
        names = (f"{qualifier.name}:" for qualifier in QUALIFIERS if qualifier.name != "data.")
        paths: list[str] = []
        if name.startswith("data") and call.allowed is None:  # the paths are those of all queues
            rows = await call.context.search.newest_contents()
            bodies = [content for _, content in rows if content]
            paths = await asyncio.to_thread(lambda: [*dict.fromkeys(_paths_of_bodies(bodies))])
        items = [text for text in [*names, *paths[:_PATHS]] if text.startswith(name)]
    return CompletionsView(items=[start + text for text in items[:COMPLETIONS]])


async def _values(call: Call, name: str) -> list[str]:
    """Return a qualifier's values, quoted where necessary."""
    match name:
        case "state":
            return list(STATES)
        case "verdict":
            return list(REASONS)
        case "queue" | "origin":
            return [_quoted(queue.name) for queue in call.queues]
        case "urn" if call.allowed is None:
            rows = await call.context.search.newest_contents()
            return list(dict.fromkeys(_quoted(urn) for urn, _ in rows if urn))
    return []


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _paths_of_bodies(bodies: Iterable[bytes]) -> Iterator[str]:
    for content in bodies:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and isinstance(document.get("data"), dict):
            yield from _member_paths(document["data"], "data", 3)


def _member_paths(value: dict[str, Any], path: str, levels: int) -> Iterator[str]:
    for key, member in value.items():
        if not key.replace("_", "").isalnum() or not key.isascii() or key[0].isdigit():
            continue
        if isinstance(member, dict) and levels:
            yield from _member_paths(member, f"{path}.{key}", levels - 1)
        else:
            yield f"{path}.{key}:"
