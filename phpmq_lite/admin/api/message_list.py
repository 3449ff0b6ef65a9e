"""Reading messages over HTTP: of a queue, by a search, one of them with its body and its life."""

import asyncio
import hashlib
from base64 import b64encode
from dataclasses import asdict
from typing import Final, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import envelopes, paging
from phpmq_lite.admin.access.headers import as_download
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import QUERY_CHARACTERS, parse
from phpmq_lite.admin.requests import message_of, query_of, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import (
    BodyOut,
    Cursor,
    EventOut,
    Limit,
    MessageOut,
    MessagesQuery,
    OutputFormat,
)
from phpmq_lite.admin.uploads import hold_of
from phpmq_lite.envelopes import verdict
from phpmq_lite.storage.read.messages import MessageRow


class FoundIn(BaseModel):
    """Which page of what was found, and how it is written."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cursor: Cursor = None
    limit: Limit = 50
    format: OutputFormat = "json"


class SearchIn(FoundIn):
    """What to look for; empty: all messages."""

    q: str = Field("", max_length=QUERY_CHARACTERS)


class BodyIn(BaseModel):
    """Without ``download``: at most the first 64 KiB, as JSON."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    download: str | None = Field(None, description="anything: the whole body, as bytes in a file")


class ListOut(BaseModel):
    """A page of messages."""

    items: list[MessageOut]
    next: str | None


class FoundOut(ListOut):
    """A page of a search, newest first.

    A search ends in time: ``next`` goes on, also where no items were found so far.
    """

    searched: int  # messages looked at since it began, about
    total: int  # that there are, about
    complete: bool  # everything was looked at


class ProblemOut(BaseModel):
    """One thing that is wrong with an envelope."""

    reason: str
    detail: str
    pointer: str  # RFC 6901; empty: the whole

    @classmethod
    def of(cls, problem: verdict.Problem) -> Self:
        """Take over what a verdict says; a text of a program is cut."""
        cut = envelopes.cut
        return cls(reason=problem.reason, detail=cut(problem.detail), pointer=cut(problem.pointer))


class BlockOut(BaseModel):
    """Why a dead-letter record was written, as it says itself."""

    reason: str
    detail: str | None
    error: str | None
    exception: str | None
    failed_at: int  # Unix ms
    original_queue: str
    attempts: int
    lang: str
    message_id: str | None


class EnvelopeOut(BaseModel):
    """What an envelope says, and its verdict; of a record, what a redrive would send."""

    urn: str | None
    trace_id: str | None
    meta_id: str | None
    attempts: int | None
    lang: str | int | float | None  # of meta, as the next three; numbers where they are such
    queue: str | int | float | None
    created_at: str | int | float | None
    schema_version: str | int | float | None
    reason: str | None  # of the verdict; null: a consumer may handle it
    tolerated: bool  # data: [] was read as {}
    warnings: list[str]
    problems: list[ProblemOut]  # that of the verdict first, then those of the producer schema
    more_problems: int  # left out
    dead_letter: BlockOut | None

    @classmethod
    def of(cls, card: envelopes.Card) -> Self:
        """Take over a card."""
        block = None
        if card.block is not None:
            block = BlockOut.model_validate(asdict(card.block))
            block.error, block.exception = map(_cut, (block.error, block.exception))
        return cls(
            urn=card.index.urn,
            trace_id=card.index.trace_id,
            meta_id=card.index.meta_id,
            attempts=card.index.attempts,
            **{name: card.said[name] for name in envelopes.MEMBERS},
            reason=card.reason,
            tolerated=card.verdict.is_tolerated,
            warnings=list(card.verdict.warnings),
            problems=[ProblemOut.of(problem) for problem in card.problems],
            more_problems=card.hidden,
            dead_letter=block,
        )


def _cut(text: str | None) -> str | None:
    return None if text is None else envelopes.cut(text)


class DetailOut(MessageOut):
    """A message with its envelope; null where it is none, or above 1 MiB, or its body is gone."""

    envelope: EnvelopeOut | None = None


class EventsOut(BaseModel):
    """The unusual turns of a message's life, oldest first."""

    items: list[EventOut]
    next: None = None


async def queue_messages(request: web.Request) -> web.StreamResponse:
    """List the messages of a queue in order, without their bodies."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    listed = await paging.messages_page(context, query, queue_of(request).queue_id)
    return as_data(query.format, MessageOut, [MessageOut.of(m) for m in listed.rows], listed.next)


async def search(request: web.Request) -> web.StreamResponse:
    """Search alive and settled messages, newest first, without their bodies."""
    asked = query_of(request, SearchIn)
    found = await paging.search_page(request, parse(asked.q), asked.cursor, asked.limit)
    return found_as(asked.format, found)


def found_as(format_: str, found: paging.FoundPage) -> web.Response:
    """Give a page of a search as data."""
    items = [MessageOut.of(row) for row in found.rows]
    if format_ in ("jsonl", "csv"):
        return as_data(format_, MessageOut, items, found.next)
    return as_json(
        FoundOut(
            items=items,
            next=found.next,
            searched=found.searched,
            total=found.total,
            complete=found.is_done,
        )
    )


async def message(request: web.Request) -> web.StreamResponse:
    """Give one message, alive or settled, without its body, with the verdict of its envelope."""
    context = context_of(request)
    row = await message_of(request, context)
    card = await envelopes.card_of(request, context, row, await context.reader.body(row))
    found = DetailOut.of(row)
    found.envelope = None if card is None else EnvelopeOut.of(card)
    return as_json(found)


async def events(request: web.Request) -> web.StreamResponse:
    """List the unusual turns of a message's life."""
    context = context_of(request)
    row = await message_of(request, context)
    rows = await context.reader.events(row.seq)
    return as_data("json", EventOut, [EventOut.of(event) for event in rows])


async def body(request: web.Request) -> web.StreamResponse:
    """Give the body of a message: ``content`` with its ``encoding``, or as a download."""
    context = context_of(request)
    row = await message_of(request, context)
    if "download" in request.query:
        return await download(request)
    found = await context.reader.body(row)
    if found is None:
        raise _no_body(row)
    return as_json(BodyOut.of(found))


async def download(request: web.Request) -> web.StreamResponse:
    """Give the whole body as a file that no browser shows; a damaged one says so in its name.

    The header ``Repr-Digest`` has its SHA-256.
    """
    context = context_of(request)
    row = await message_of(request, context)
    await hold_of(request).resize(row.size)
    found = await context.reader.whole_body(row)
    if found is None:
        raise _no_body(row)
    name = row.message_id + (".damaged" if found.is_damaged else "")
    digest = await asyncio.to_thread(lambda: hashlib.sha256(found.content).digest())
    return web.Response(
        body=found.content,
        content_type="application/octet-stream",
        headers=as_download(name) | {"Repr-Digest": f"sha-256=:{b64encode(digest).decode()}:"},
    )


def _no_body(row: MessageRow) -> Problem:
    return Problem(410, "gone_body", f"The body of {row.message_id} is not stored any more.")


ROUTES: Final = (
    Route(
        "GET", "/api/v1/queues/{q}/messages", Role.VIEWER, "api-queue-messages", queue_messages,
        query=MessagesQuery, gives=ListOut, cli="msg ls",
    ),
    Route(
        "GET", "/api/v1/messages", Role.VIEWER, "api-search", search,
        query=SearchIn, gives=FoundOut, cli="search",
    ),
    Route(
        "GET", "/api/v1/messages/{id}", Role.VIEWER, "api-message", message,
        gives=DetailOut, cli="msg get",
    ),
    Route(
        "GET", "/api/v1/messages/{id}/body", Role.VIEWER, "api-body", body,
        query=BodyIn, gives=BodyOut, cli="msg get",
    ),
    Route(
        "GET", "/api/v1/messages/{id}/events", Role.VIEWER, "api-message-events", events,
        gives=EventsOut,
    ),
)  # fmt: skip
