"""One trace over all queues, and what a search field may complete."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import paging
from phpmq_lite.admin.access.identity import allowed_queues, name_in
from phpmq_lite.admin.api.message_list import FoundIn, FoundOut, found_as
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import QUALIFIERS, STATES, of_traces
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.envelopes.verdict import REASONS

TRACE_CHARACTERS: Final = 512
COMPLETIONS: Final = 20
_PATHS: Final = 500  # looked at


class CompletionsIn(BaseModel):
    """What stands in the search field, up to the caret."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    q: str = Field("", max_length=2_000)


class CompletionsOut(BaseModel):
    """What its last word may become, the likely ones first."""

    items: list[str]


def trace_of(request: web.Request) -> str:
    """Give the trace id that the path names.

    Raises:
        Problem: 404 where it can be none.
    """
    trace_id = name_in(request, "trace")
    if len(trace_id) > TRACE_CHARACTERS or not trace_id.isprintable():
        raise Problem(404, "unknown_trace", "This is no trace id.")
    return trace_id


async def trace(request: web.Request) -> web.StreamResponse:
    """List the messages of a trace over all queues, newest first; it is searched for."""
    asked = query_of(request, FoundIn)
    query = of_traces(trace_of(request))
    found = await paging.search_page(request, query, asked.cursor, asked.limit)
    return found_as(asked.format, found)


async def completions(request: web.Request) -> web.StreamResponse:
    """Complete the last word of a search: qualifiers, queues, states, URNs, paths in bodies."""
    word = query_of(request, CompletionsIn).q.rpartition(" ")[2]
    start = "-" if word.startswith("-") else ""
    name, colon, value = word.removeprefix("-").partition(":")
    if not colon:
        names = (f"{known.name}:" for known in QUALIFIERS if known.name != "data.")
        paths = await _paths(request) if name.startswith("data") else []
        found = [text for text in [*names, *paths] if text.startswith(name)]
    else:
        value = value.strip('"')
        found = [f"{name}:{text}" for text in await _values(request, name) if value in text]
    return as_json(CompletionsOut(items=[start + text for text in found[:COMPLETIONS]]))


async def _values(request: web.Request, name: str) -> list[str]:
    """Give what may stand behind a qualifier, quoted where it must be."""
    if name == "state":
        return list(STATES)
    if name == "verdict":
        return list(REASONS)
    if name in ("queue", "origin"):
        return [_quoted(queue.name) for queue in status_of(request).queues]
    if name == "urn" and allowed_queues(request) is None:
        rows = await context_of(request).search.lately()
        return list(dict.fromkeys(_quoted(urn) for urn, _ in rows if urn))
    return []


async def _paths(request: web.Request) -> list[str]:
    """Give the paths of members seen lately; nothing to those who see some queues only."""
    if allowed_queues(request) is not None:
        return []
    rows = await context_of(request).search.lately()
    bodies = [content for _, content in rows if content]
    return await asyncio.to_thread(lambda: list(dict.fromkeys(_walk(bodies)))[:_PATHS])


def _walk(bodies: Iterable[bytes]) -> Iterator[str]:
    for content in bodies:
        try:
            read = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(read, dict) and isinstance(read.get("data"), dict):
            yield from _members(read["data"], "data", 3)


def _members(value: dict[str, Any], path: str, left: int) -> Iterator[str]:
    for key, member in value.items():
        if not key.replace("_", "").isalnum() or not key.isascii() or key[0].isdigit():
            continue
        if isinstance(member, dict) and left:
            yield from _members(member, f"{path}.{key}", left - 1)
        else:
            yield f"{path}.{key}:"


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


ROUTES: Final = (
    Route(
        "GET", "/api/v1/traces/{trace}", Role.VIEWER, "api-trace", trace,
        query=FoundIn, gives=FoundOut, cli="trace",
    ),
    Route(
        "GET", "/api/v1/completions", Role.VIEWER, "api-completions", completions,
        query=CompletionsIn, gives=CompletionsOut,
    ),
)  # fmt: skip
